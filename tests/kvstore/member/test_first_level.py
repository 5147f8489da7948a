"""The feature level at which a new cluster begins: either the highest level that its founders' builds know, or a lower
one."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
import trio
from click.testing import CliRunner

from kvstore import open_node
from kvstore.cli.common import ExitCode
from kvstore.cli.main import cli
from kvstore.limits import FEATURE_LEVEL_MAX, FEATURE_LEVELS, StoreLimits
from kvstore.member.config import MemberConfig
from kvstore.member.folder import initialize_folder, open_or_bootstrap
from kvstore.protocol.commands import RaiseFeatureLevel, encode_command
from kvstore.store.machine import KvMachine
from kvstore.store.map import KeyValueMap
from kvstore.store.sessions import Sessions
from kvstore.store.snapshot_codec import UnsupportedFeatureLevel, header_of
from raft import (
    Configuration,
    Entry,
    EntryKind,
    InvalidConfiguration,
    LevelRange,
    Member,
    derive_cluster_id,
    encode_batch,
)
from storage import WrongCluster

pytestmark = [pytest.mark.timeout(60)]

MEMBERS = tuple(Member(f"s{i}", f"10.0.0.{i}:7001", f"10.0.0.{i}:7101") for i in (1, 2, 3))


def config(folder: Path, node_id: str = "s1", token: str = "t", level: int = FEATURE_LEVEL_MAX) -> MemberConfig:
    """The configuration of a founder of a cluster of three."""
    return MemberConfig(folder=folder, node_id=node_id, members=MEMBERS, cluster_token=token, feature_level=level)


async def test_a_new_store_has_history_watches_and_leases_at_once(tmp_path: Path) -> None:
    """In a new cluster, nobody has to raise the feature level by hand."""
    async with open_node(tmp_path / "data", bootstrap=True) as store, store.watch("a") as changes:
        lease = await store.lease_grant(60)
        await store.put("a", "1", lease=lease.lease_id)
        await store.lease_revoke(lease.lease_id)
        assert [(await anext(changes)).kind, (await anext(changes)).kind] == ["put", "delete"]
        assert (await store.get("a", at_revision=2)).record is not None
        status = await store.status()
        assert status.feature_level == FEATURE_LEVEL_MAX


async def test_a_new_store_may_begin_at_a_lower_level_and_be_raised_later(tmp_path: Path) -> None:
    async with open_node(tmp_path / "data", bootstrap=True, feature_level=1) as store:
        assert (await store.status()).feature_level == 1
    async with open_node(tmp_path / "data", bootstrap=True) as store:  # The option only has an effect on a new folder.
        assert (await store.status()).feature_level == 1
        await store.execute(RaiseFeatureLevel(2))
        assert (await store.status()).feature_level == 2


def test_a_first_state_of_a_level_is_the_empty_store_after_it_was_raised_to_this_level() -> None:
    """A store may begin at its level or be raised to it. Later entries must have the same effect in both cases."""
    raised = KvMachine()
    raised.apply(Entry(1, 1, EntryKind.COMMANDS, encode_batch(0, [encode_command(RaiseFeatureLevel(2))])))
    begun = KvMachine()
    begun.restore(header_of(KeyValueMap(), Sessions(), StoreLimits(), 0, 2), [])

    begun.check()
    assert begun.history.is_on
    assert begun.state_hash() == raised.state_hash()
    assert dict(begun.snapshot().header) == dict(raised.snapshot().header)


def test_founders_that_begin_at_different_levels_are_not_of_one_cluster(tmp_path: Path) -> None:
    """At different levels the first states differ, so the logs of such founders must never be mixed. The founders
    belong to different clusters, and such members refuse each other."""
    ids = {level: initialize_folder(config(tmp_path / str(level), level=level)).cluster_id for level in (1, 2)}

    assert ids[1] != ids[2]
    assert ids[1] == derive_cluster_id("t", Configuration.of(MEMBERS))  # Builds of level 1 derive the same id.


def test_all_founders_that_begin_at_one_level_are_of_one_cluster(tmp_path: Path) -> None:
    ids = {initialize_folder(config(tmp_path / each.node_id, each.node_id)).cluster_id for each in MEMBERS}

    assert len(ids) == 1


@pytest.mark.parametrize("level", [1, 2])
def test_a_folder_is_opened_with_the_list_of_its_founders_whatever_its_first_level(tmp_path: Path, level: int) -> None:
    """A newer build may begin its new clusters at a higher level. The newer build still opens a folder of an older
    cluster with the same options."""
    made = initialize_folder(config(tmp_path / "s1", level=level))

    with closing(open_or_bootstrap(config(tmp_path / "s1"))) as folder:
        assert folder.identity == made
    with pytest.raises(WrongCluster):
        open_or_bootstrap(config(tmp_path / "s1", token="another"))


def test_a_build_that_does_not_know_the_first_level_of_a_cluster_says_so() -> None:
    """A member that joins with an older build begins with a snapshot of the cluster's state."""
    header = header_of(KeyValueMap(), Sessions(), StoreLimits(), 0, FEATURE_LEVEL_MAX)

    with pytest.raises(UnsupportedFeatureLevel, match="is at feature level 3, which is final; this build knows 1"):
        KvMachine(levels=LevelRange(1, 1)).restore(header, [])


def test_a_level_that_this_build_does_not_know_is_no_first_level() -> None:
    with pytest.raises(InvalidConfiguration, match=f"at feature level 4; this build knows {FEATURE_LEVELS}"):
        MemberConfig(folder=Path("data"), feature_level=4)


def test_the_command_line_names_a_lower_level_for_founders_only(tmp_path: Path) -> None:
    run = CliRunner().invoke
    made = run(cli, ["init", str(tmp_path / "data"), "--feature-level", "1"])
    assert made.exit_code == 0, made.output
    unknown = run(cli, ["init", str(tmp_path / "other"), "--feature-level", "4"])
    assert unknown.exit_code == ExitCode.USAGE
    joining = ["--join", "127.0.0.1:1", "--member", "s4=127.0.0.1:2/127.0.0.1:3", "--feature-level", "1"]
    refused = run(cli, ["init", str(tmp_path / "s4"), *joining])
    assert refused.exit_code == ExitCode.USAGE
    assert "--feature-level is for founders" in refused.stderr

    async def level_of_the_store() -> None:
        async with open_node(tmp_path / "data") as store:
            assert (await store.status()).feature_level == 1

    trio.run(level_of_the_store)
