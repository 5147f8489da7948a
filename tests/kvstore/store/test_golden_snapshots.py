"""Golden snapshots: the first build that knew a level made the level's file below `golden`, and this file never
changes.

`python -m tests.kvstore.store.test_golden_snapshots LEVEL` makes the file of a new level, only once.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import cbor2
import pytest

from kvstore.protocol.access_commands import (
    AuthDisable,
    AuthEnable,
    ChangeUserLimits,
    RoleAdd,
    RoleGrant,
    RoleRemove,
    RoleRevoke,
    UserAdd,
    UserGrant,
    UserPassword,
    UserRemove,
    UserRevoke,
)
from kvstore.protocol.commands import (
    Add,
    Append,
    ChangeLimits,
    CloseSession,
    Compact,
    Compare,
    CompareAndSet,
    Comparison,
    Delete,
    DeleteRange,
    Get,
    LeaseGrant,
    LeaseRenew,
    Put,
    Range,
    RegisterSession,
    Target,
    Txn,
)
from kvstore.store.machine import KvMachine
from raft import EntryKind, encode_batch
from tests.kvstore.support.machine_fixture import SECOND, Fed

FOLDER = Path(__file__).parent / "golden"

Snapshot = tuple[dict[str, Any], list[bytes], bytes]
"""(header, chunks, state hash)"""


def level_1_states() -> dict[str, Fed]:
    """States that use every feature of level 1."""
    empty, full, bounded = Fed(), Fed(deletions_max=3, quota_bytes=100_000), Fed(results_per_session_max=2)
    session, other, closed = full.register(time=5), full.register(20 * SECOND, time=6), full.register()
    for number in range(20):
        full.do(Put(b"key/%02d" % number, b"value %d" % number))
    for number in range(5):
        full.do(Delete(b"key/%02d" % number), session, 10 + number, ack=3)
    full.do(Txn((), (Put(b"a", b"1"), Get(b"key/01"), Get(b"key/09"), Range(limit=2))), session, 20)
    full.do(Txn((Compare(b"a", Target.VERSION, Comparison.LESS, 1),), (), (Delete(b"no"),)), session, 21)
    full.do(CompareAndSet(b"a", b"2", b"no"), session, 22)
    full.do(CompareAndSet(b"a", b"2", b"1"), session, 23)
    full.item(Put(b"big", b"v" * 70_000), other, 1)
    full.item(Put(b"bigger", b"v" * 70_000), other, 2)  # Beyond the quota.
    full.item(Range(revision=4), other, 3)
    full.feed_items([other, 4, 0, 1, b"", b""])  # Not valid.
    full.do(CloseSession(), closed)
    bounded.do(ChangeLimits(sessions_max=9, deletions_max=1))
    for number in range(1, 6):
        bounded.item(Put(b"\xff" * number, bytes(number)), bounded.register(), number, time=number * SECOND)
    bounded.do(Delete(b"\xff"))
    bounded.do(Delete(b"\xff\xff"))
    bounded.entry(EntryKind.NO_OP, encode_batch(7 * SECOND, []))
    return {"empty": empty, "full": full, "bounded": bounded}


def snapshots_of(states: dict[str, Fed]) -> dict[str, Snapshot]:
    made = {}
    for name, fed in states.items():
        picture = fed.machine.snapshot()
        made[name] = (dict(picture.header), list(picture.chunks), fed.machine.state_hash())
    return made


def level_2_states() -> dict[str, Fed]:
    """States that use every feature that level 2 adds."""
    raised, full, bounded = Fed(level=2), Fed(level=2), Fed(level=2, history_events_max=4, deletions_max=2)
    raised.entry(EntryKind.NO_OP, encode_batch(5, []))
    session = full.register(20 * SECOND, time=3)
    full.do(LeaseGrant(0, 10 * SECOND), session, 1)
    full.do(LeaseGrant(2**40, 30 * SECOND), time=4)
    full.do(Put(b"a", b"1", lease_id=1))
    full.do(Put(b"b", b"2", lease_id=2**40, previous=True), session, 2)
    full.do(Put(b"a", b"", keep_value=True, keep_lease=True, previous=True), session, 3)
    full.do(Append(b"q/", b"first", 1), session, 4)
    full.do(Add(b"n", -7), session, 5)
    full.do(Txn((), (Put(b"c", b"3"), Txn((), (Add(b"n", 9), Get(b"a", 3))), Range(revision=4))), session, 6)
    full.do(DeleteRange(b"b", b"d", previous=True), session, 7)
    full.item(Put(b"x", b"", keep_value=True), session, 8)
    full.item(Add(b"a", 2**63 - 1), session, 9)
    full.item(Put(b"x", b"", lease_id=99), session, 10)
    full.do(LeaseRenew((1, 99)), session, 11)
    full.do(Compact(3), session, 12)
    full.item(Get(b"a", 2), session, 13)
    full.entry(EntryKind.NO_OP, encode_batch(7 * SECOND, []))
    for number in range(9):
        bounded.do(Put(b"%d" % (number % 3), b"v" * number))
    bounded.do(LeaseGrant(0, 5))
    bounded.do(Put(b"1", b"leased", lease_id=1))
    bounded.feed([], time=5)
    bounded.do(DeleteRange(b"", None))
    return {"raised": raised, "full": full, "bounded": bounded}


def level_3_states() -> dict[str, Fed]:
    """States that use every feature that level 3 adds."""
    raised, full, bounded = Fed(level=3), Fed(level=3), Fed(level=3)
    raised.entry(EntryKind.NO_OP, encode_batch(5, []))
    early = full.register(20 * SECOND, time=3)
    for command in (
        *(UserAdd("root", b"verifier of root"), UserGrant("root", "root"), UserAdd("ada", b""), UserAdd("bob", b"b")),
        *(RoleAdd("apps"), RoleAdd("audit"), RoleGrant("apps", 3, b"app/", b"app0"), RoleGrant("apps", 1, b"a", None)),
        *(RoleGrant("audit", 1, b"", None), RoleGrant("audit", 2, b"audit/", b"audit0"), UserGrant("ada", "apps")),
        *(UserGrant("ada", "audit"), UserGrant("bob", "audit"), ChangeUserLimits("ada", 100, None, 7, None)),
        *(RoleRevoke("apps", b"a", None), UserRevoke("bob", "audit"), UserPassword("bob", b"another")),
    ):
        full.do(command, early, len(full.entries), time=4)
    full.item(UserAdd("ada", b"again"), early, 90)
    full.do(AuthEnable(bytes(range(32))), early, 91, time=5)
    full.item(Put(b"app/1", b"not judged"), early, 92, time=6)
    full.as_user("ada", RegisterSession(30 * SECOND), time=7)
    full.as_user("ada", Put(b"app/1", b"1"), early + 1, 1, time=8)
    full.as_user("bob", Get(b"app/1"), early + 1, 1, time=8)  # Bob is not the owner of the session.
    full.as_user("root", RoleRemove("audit"), early, 93, time=9)
    full.as_user("ada", Put(b"app/2", b"2"), early + 1, 2, revision=18, time=10)
    for number in range(9):
        bounded.do(UserAdd(f"user{number}", b"v" * number))
    bounded.do(UserRemove("user4"))
    bounded.do(UserAdd("root", b""))
    bounded.do(UserGrant("root", "root"))
    bounded.do(AuthEnable(bytes(32)))
    bounded.as_user("root", AuthDisable())
    return {"raised": raised, "full": full, "bounded": bounded}


MAKERS = {1: level_1_states, 2: level_2_states, 3: level_3_states}


def golden(level: int) -> dict[str, Snapshot]:
    found = cbor2.loads((FOLDER / f"level-{level}.cbor").read_bytes())
    return {name: tuple(snapshot) for name, snapshot in found.items()}


@pytest.mark.parametrize("level", MAKERS)
def test_a_snapshot_of_each_level_restores_to_the_state_that_it_was_made_from(level: int) -> None:
    """docs/reference/versions.md promises that every later build can read these files."""
    for header, chunks, digest in golden(level).values():
        machine = KvMachine()

        machine.restore(header, chunks)

        machine.check()
        assert machine.feature_level == level == header["feature_level"]
        assert machine.state_hash() == digest


@pytest.mark.parametrize("level", MAKERS)
def test_the_same_commands_make_the_same_bytes_and_hashes_as_the_first_build_of_a_level_did(level: int) -> None:
    """In a cluster of two builds, all members have the same state, and the older build can read the files of the newer
    build."""
    assert snapshots_of(MAKERS[level]()) == golden(level)


if __name__ == "__main__":
    (wanted,) = map(int, sys.argv[1:])
    FOLDER.mkdir(exist_ok=True)
    with (FOLDER / f"level-{wanted}.cbor").open("xb") as file:
        file.write(cbor2.dumps(snapshots_of(MAKERS[wanted]())))
