"""Compares the history, reads at old revisions, leases and records of each member with the replay."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from harness.sim.checks.store.replay import HISTORY_LEVEL, IS_REPLAY, StoreReplay, page
from harness.sim.engine.errors import broken, require
from harness.sim.world.context import MachineView
from kvstore import CommandKind, KvMachine, Range, ResultCode, command_body

HISTORY_IS_REPLAY = "a history is the replay of the log, on every member"

OLD_READ_IS_REPLAY = "a read at an old revision shows the state as of that revision, on every member"

READ_SHARE = 0.2
"""Share of the flushes after which a member is read at an old revision."""


class _Seen:
    """The progress of the comparison of one member. `history`: the history of the member. Its events with numbers below
    `number` were compared.
    """

    def __init__(self) -> None:
        self.history: Any = None
        self.number = 0
        self.index = -1


class StoreChecker:
    """Compares each member with `replay` after it has applied entries. `cover` is called with coverage points."""

    def __init__(self, replay: StoreReplay, random: Random, cover: Callable[[str], None]) -> None:
        self._replay, self._random, self._cover = replay, random, cover
        self._seen: dict[str, _Seen] = {}

    def flushed(self, member: MachineView) -> None:
        """Compare the store of a member, after a flush."""
        machine, node = member.machine, member.node
        if machine is None or node is None or machine.feature_level < HISTORY_LEVEL:
            return
        seen = self._seen.setdefault(member.node_id, _Seen())
        index = node.core.last_applied
        if seen.history is machine.history and seen.index == index:
            return
        seen.index = index
        self._compare_history(member.node_id, machine, seen)
        if index == self._replay.index:
            self._compare_state(member.node_id, machine)
        if self._random.random() < READ_SHARE:
            self._read_old(member.node_id, machine)

    def _compare_history(self, node_id: str, machine: KvMachine, seen: _Seen) -> None:
        """Compare the new events of a member: each revision must have exactly the events of the replay, in order."""
        history, replay = machine.history, self._replay
        if seen.history is not history:
            seen.history, seen.number = history, history.first_number
        number = max(seen.number, history.first_number)
        seen.number = end = history.end_number
        if number == end:
            return
        expected = history.revision_of(number)
        found: list[tuple[bytes, Any, Any]] = []
        for event in (*history.events(number, end - number), None):
            if event is None or event.revision != expected:
                wanted = [tuple(each) for each in replay.events(expected)]
                if found != wanted:
                    broken(HISTORY_IS_REPLAY, f"{node_id} has at {expected} {found}, the replay has {wanted}")
                expected += 1
                found = []
            if event is not None:
                require(
                    event.revision == expected, HISTORY_IS_REPLAY, f"{node_id} has no {expected}, but {event.revision}"
                )
                found.append((event.key, event.before, event.after))
        require(expected == machine.revision + 1, HISTORY_IS_REPLAY, f"{node_id} ends at {expected - 1}")

    def _compare_state(self, node_id: str, machine: KvMachine) -> None:
        """Compare the whole state of a member that has applied the same entries as the replay."""
        replay, history, leases = self._replay, machine.history, machine.leases
        told = machine.revision, history.is_on, machine.compact_revision, history.first_revision, leases.hold_until
        wanted = (
            replay.revision,
            replay.is_kept,
            replay.compact_revision,
            replay.first_revision if replay.is_kept else replay.revision + 1,
            replay.hold_until,
        )
        if not history.is_on:
            told = (*told[:3], machine.revision + 1, told[4])
        require(told == wanted, IS_REPLAY, f"{node_id} at {replay.index}: {told}, the replay: {wanted}")
        living = {each.lease_id: (each.ttl_ns, each.deadline, each.keys) for each in leases.by_id.values()}
        expected = {each.lease_id: (each.ttl_ns, each.deadline, each.keys) for each in replay.leases.values()}
        if living != expected:
            broken(IS_REPLAY, f"{node_id} at {replay.index} has the leases {living}, the replay has {expected}")
        keys = replay.known_keys()
        for key, record in zip(keys, machine.records_of(keys), strict=True):
            if record != replay.records.get(key):
                words = f"{node_id} at {replay.index}: {key!r} is {record}, in the replay {replay.records.get(key)}"
                broken(IS_REPLAY, words)

    def _read_old(self, node_id: str, machine: KvMachine) -> None:
        """Read a key and a range at a random revision, which may be compacted or not yet reached."""
        random, replay = self._random, self._replay
        if not replay.known_keys():
            return
        revision = random.randint(max(1, machine.compact_revision - 1), machine.revision + 1)
        key = random.choice(replay.known_keys())
        request = Range(
            start=key if random.random() < 0.5 else b"",
            limit=random.choice((0, 0, 2)),
            reverse=random.random() < 0.5,
            keys_only=random.random() < 0.5,
            count_only=random.random() < 0.2,
            revision=revision,
        )
        got, listed = machine.read((CommandKind.GET, key, revision)), machine.read(command_body(request))
        is_readable = machine.compact_revision <= revision <= machine.revision
        code = ResultCode.REVISION_AHEAD if revision > machine.revision else ResultCode.REVISION_COMPACTED
        if not is_readable:
            require(got[0] == listed[0] == code, OLD_READ_IS_REPLAY, f"{node_id} answers {got} and {listed} {revision}")
            return
        if (got[0], listed[0]) != (ResultCode.OK, ResultCode.OK):
            broken(OLD_READ_IS_REPLAY, f"{node_id} refuses {revision}: {got} {listed}")
        if revision < machine.revision:
            self._cover("a member was read at an old revision")
        rows = replay.state_at(request.start, None, revision)
        wanted = page(
            rows,
            request.limit,
            reverse=request.reverse,
            keys_only=request.keys_only,
            count_only=request.count_only,
        )
        record = replay.record_at(key, revision)
        is_right = got[2][1] == record and [[list(each) for each in listed[2][1]], *listed[2][2:]] == wanted
        if not is_right:
            broken(OLD_READ_IS_REPLAY, f"{node_id} at {revision}: {got} {listed}; the replay: {record} {wanted}")
