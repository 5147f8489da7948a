"""etcdctl: members, endpoints, alarms and maintenance."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.process.etcd.etcdctl import Etcdctl
from tests.process.etcd.members import USES_REAL_ETCD

pytestmark = [pytest.mark.process, pytest.mark.timeout(100)]


@pytest.fixture
def etcdctl(etcd_endpoints: Sequence[str]) -> Etcdctl:
    return Etcdctl(etcd_endpoints)


def test_members_are_listed(etcdctl: Etcdctl, etcd_endpoints: Sequence[str]) -> None:
    lines = [line.split(", ") for line in etcdctl.lines("member", "list")]

    assert len({int(line[0], 16) for line in lines}) == len(etcd_endpoints)
    assert {line[1] for line in lines} == {"started"}
    assert {line[4] for line in lines} == {f"http://{endpoint}" for endpoint in etcd_endpoints}
    assert {line[5] for line in lines} == {"false"}, "no member is a learner"
    assert [line[0] for line in lines] == [f"{each['ID']:x}" for each in etcdctl.json("member", "list")["members"]]


def test_each_endpoint_tells_its_state(etcdctl: Etcdctl, etcd_endpoints: Sequence[str]) -> None:
    told = etcdctl.json("endpoint", "status")

    assert [each["Endpoint"] for each in told] == list(etcd_endpoints)
    states = [each["Status"] for each in told]
    ids = {each["ID"] for each in etcdctl.json("member", "list")["members"]}
    assert {state["header"]["member_id"] for state in states} == ids
    assert {state["leader"] for state in states} < ids
    assert len({state["leader"] for state in states}) == 1
    assert len({state["header"]["cluster_id"] for state in states}) == 1
    for state in states:
        assert state["version"].startswith("3.")
        assert state["raftTerm"] > 0
        assert 0 < state["raftAppliedIndex"] <= state["raftIndex"]
        assert state["dbSize"] > 0


def test_the_state_as_a_line(etcdctl: Etcdctl, etcd_endpoints: Sequence[str]) -> None:
    lines = [line.split(", ") for line in etcdctl.lines("endpoint", "status")]

    assert [line[0] for line in lines] == list(etcd_endpoints)
    assert sorted(line[4] for line in lines) == ["false", "false", "true"], "one member is the leader"


def test_all_endpoints_are_found_through_one(etcd_endpoints: Sequence[str]) -> None:
    """`--cluster` asks one member for the addresses of all."""
    one = Etcdctl(etcd_endpoints[:1])

    told = one.json("endpoint", "status", "--cluster")

    assert {each["Endpoint"] for each in told} == {f"http://{endpoint}" for endpoint in etcd_endpoints}


def test_endpoints_are_healthy(etcdctl: Etcdctl, etcd_endpoints: Sequence[str]) -> None:
    lines = etcdctl.lines("endpoint", "health")

    words = "is healthy: successfully committed proposal"
    assert {line.partition(": took")[0] for line in lines} == {f"{endpoint} {words}" for endpoint in etcd_endpoints}
    assert all(each["health"] for each in etcdctl.json("endpoint", "health"))


def test_members_have_the_same_hash_of_the_same_revision(
    etcdctl: Etcdctl, etcd_endpoints: Sequence[str], prefix: str
) -> None:
    revision = etcdctl.put(f"{prefix}k", "v")
    for endpoint in etcd_endpoints:  # A linearizable read waits until the member has the revision.
        assert Etcdctl([endpoint]).revision() >= revision

    def hashes() -> list[int]:
        return [each["HashKV"]["hash"] for each in etcdctl.json("endpoint", "hashkv", f"--rev={revision}")]

    first = hashes()
    assert len(set(first)) == 1
    etcdctl("put", f"{prefix}k", "later")
    assert hashes() == first
    assert len(etcdctl.lines("endpoint", "hashkv")) == 3


def test_there_are_no_alarms(etcdctl: Etcdctl) -> None:
    assert etcdctl("alarm", "list") == ""
    assert etcdctl("alarm", "disarm") == ""


def test_members_are_defragmented(etcdctl: Etcdctl, etcd_endpoints: Sequence[str]) -> None:
    assert etcdctl.lines("defrag") == [f"Finished defragmenting etcd member[{endpoint}]" for endpoint in etcd_endpoints]


def test_the_leadership_is_moved(etcdctl: Etcdctl) -> None:
    def leader() -> int:
        found: int = etcdctl.json("endpoint", "status")[0]["Status"]["leader"]
        return found

    before = leader()
    target = next(each["ID"] for each in etcdctl.json("member", "list")["members"] if each["ID"] != before)

    assert etcdctl("move-leader", f"{target:x}") == f"Leadership transferred from {before:x} to {target:x}\n"
    while leader() != target:  # Another member may hear of it later.
        pass


def test_the_leadership_is_not_moved_to_a_stranger(etcdctl: Etcdctl) -> None:
    """etcd's leader answers that the request is bad (the stranger cannot catch up)."""
    assert etcdctl.error("move-leader", "1234").startswith("Error: ")


def test_a_snapshot_is_saved(etcd_endpoints: Sequence[str], tmp_path: Path, prefix: str) -> None:
    """Its format is the server's own; etcd's begins as a bbolt database. etcdctl accepts only a file whose size is a
    multiple of 512 plus the 32 bytes of a SHA-256."""
    one = Etcdctl(etcd_endpoints[:1])
    one("put", f"{prefix}k", "v")
    file = tmp_path / "snapshot.db"

    assert one("snapshot", "save", str(file)) == f"Snapshot saved at {file}\n"

    assert file.stat().st_size > 32
    assert file.stat().st_size % 512 == 32
    if USES_REAL_ETCD:
        assert file.read_bytes()[16:20] == bytes.fromhex("edda0ced")


def test_the_api_has_a_version(etcdctl: Etcdctl) -> None:
    assert etcdctl.lines("version")[1].startswith("API version: 3.")
