"""The bound on the age of the history: younger revisions can be read, older ones are compacted."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from kvstore.cli.main import cli
from kvstore.errors import RevisionCompacted
from kvstore.limits import HISTORY_LEVEL, SECOND_NS, ServiceLimits
from kvstore.member.config import MemberConfig
from kvstore.protocol.commands import CommandKind, Get, Put, RaiseFeatureLevel, decode_payload
from kvstore.protocol.results import GetResult, PutResult
from kvstore.resources.history_age import MARKS_PER_AGE
from raft import Acknowledge, Busy, EntryKind
from tests.kvstore.support.in_memory_cluster import Cluster, SimClient

AGE_SECONDS = 10
LATE_SECONDS = 2
"""The host checks once per second, and then a command must be applied."""


class Aging:
    """A cluster whose members check the age of the history every second, and a client that writes every second."""

    def __init__(self, folder: Path, size: int, *, age_seconds: int = AGE_SECONDS, level: int = HISTORY_LEVEL) -> None:
        self.cluster = Cluster(folder, size, ServiceLimits(history_age_ns_max=age_seconds * SECOND_NS))
        self.cluster.leader()
        self.client: SimClient = self.cluster.client()
        if level > 1:
            self.client.do(RaiseFeatureLevel(level))
        self.written: list[tuple[int, int]] = []  # (time in ns, revision).

    def write(self, seconds: int) -> None:
        """Every second, put the same key."""
        for _ in range(seconds):
            result = self.client.do(Put(b"a", b"%d" % len(self.written)))
            assert isinstance(result, PutResult)
            self.written.append((self.cluster.now, result.revision))
            self.pass_time(1)

    def pass_time(self, seconds: int) -> None:
        for _ in range(seconds):
            self.cluster.wait(1)
            for host in self.cluster.hosts.values():
                host.service.expire_sessions()
            self.cluster.settle()

    def ages(self) -> tuple[list[float], list[float]]:
        """The ages in seconds of the written revisions that can still be read, and of those that cannot."""
        kept, gone = list[float](), list[float]()
        for time, revision in self.written:
            age = (self.cluster.now - time) / SECOND_NS
            try:
                found = self.client.do(Get(b"a", revision))
                assert isinstance(found, GetResult)
                assert found.record is not None
                assert found.record.mod_revision == revision
                kept.append(age)
            except RevisionCompacted:
                gone.append(age)
        return kept, gone

    def compactions(self) -> int:
        """The number of commands `compact` in the log."""
        node = self.cluster.hosts[self.cluster.leader()].node
        entries = node.read_log(node.core.first_index, 1 << 30)
        batches = [decode_payload(each.payload)[1][1:] for each in entries if each.kind is EntryKind.COMMANDS]
        return sum(command[3] == CommandKind.COMPACT for batch in batches for command in batch)

    def check_members_agree(self) -> None:
        hosts = self.cluster.hosts.values()
        assert len({host.machine.state_hash() for host in hosts}) == 1
        for host in hosts:
            host.machine.check()


def test_what_is_younger_than_the_bound_is_read_and_what_is_older_is_gone(tmp_path: Path) -> None:
    aging = Aging(tmp_path, 3)
    aging.write(4 * AGE_SECONDS)

    kept, gone = aging.ages()
    assert min(gone) > AGE_SECONDS
    assert AGE_SECONDS - LATE_SECONDS <= max(kept) <= AGE_SECONDS + AGE_SECONDS / MARKS_PER_AGE + LATE_SECONDS
    assert len(gone) > 2 * AGE_SECONDS
    aging.check_members_agree()


def test_a_new_leader_knows_the_past_of_its_predecessor(tmp_path: Path) -> None:
    """The new leader knows the age of revisions from before its own term, because followers also note the times of
    revisions."""
    aging = Aging(tmp_path, 3)
    aging.write(3 * AGE_SECONDS)
    aging.cluster.kill(aging.cluster.leader())
    aging.cluster.leader()

    aging.write(AGE_SECONDS // 2)
    kept, gone = aging.ages()
    assert min(gone) > AGE_SECONDS
    assert max(kept) <= 1.5 * AGE_SECONDS
    aging.check_members_agree()


def test_an_idle_store_forgets_everything_once_and_writes_nothing_more(tmp_path: Path) -> None:
    aging = Aging(tmp_path, 1)
    aging.write(3)
    aging.pass_time(2 * AGE_SECONDS)
    (host,) = aging.cluster.hosts.values()
    assert host.machine.compact_revision == host.machine.revision
    compactions, last_index = aging.compactions(), host.node.core.last_index
    assert 0 < compactions <= 3

    aging.client.core.close()  # The client no longer keeps its session alive.
    aging.pass_time(3 * AGE_SECONDS)
    assert aging.compactions() == compactions
    assert host.node.core.last_index <= last_index + 2  # This is the entry that ends the session.


def test_without_a_bound_nothing_goes(tmp_path: Path) -> None:
    """By default there is no bound on the age."""
    assert ServiceLimits().history_age_ns_max == 0
    aging = Aging(tmp_path, 1, age_seconds=0)
    aging.write(2 * AGE_SECONDS)

    assert aging.ages()[1] == []
    assert aging.compactions() == 0


def test_at_feature_level_1_there_is_nothing_to_forget(tmp_path: Path) -> None:
    aging = Aging(tmp_path, 1, level=1)
    aging.write(2 * AGE_SECONDS)
    assert aging.compactions() == 0

    aging.client.do(RaiseFeatureLevel(HISTORY_LEVEL))
    aging.written.clear()
    aging.write(2 * AGE_SECONDS)
    kept, gone = aging.ages()
    assert kept
    assert gone


def test_a_refused_compaction_is_proposed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compaction is refused while the disk is full, for example."""
    aging = Aging(tmp_path, 1)
    aging.write(AGE_SECONDS // 2)
    (host,) = aging.cluster.hosts.values()

    def refuse(command: bytes, ticket: int, acknowledge: Acknowledge = Acknowledge.MAJORITY) -> None:
        raise Busy("pending_bytes_max", 1)

    with monkeypatch.context() as patched:
        patched.setattr(host.node, "propose", refuse)
        aging.pass_time(2 * AGE_SECONDS)
        before = host.machine.compact_revision
        assert before < host.machine.revision
    aging.pass_time(LATE_SECONDS)
    assert host.machine.compact_revision == host.machine.revision


def test_the_option_of_the_server_is_in_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    configs: list[MemberConfig] = []
    monkeypatch.setattr("kvstore.cli.daemon.serve.serve", lambda config, _: configs.append(config))
    for arguments in ([], ["--history-minutes", "5"]):
        assert CliRunner().invoke(cli, ["serve", "data", *arguments]).exit_code == 0
    assert [each.service.history_age_ns_max for each in configs] == [0, 5 * 60 * SECOND_NS]
