"""The hub is compared with a naive model, under random writes, watches, full connections, compactions and snapshots.

The model is a list of all changes. It knows nothing of groups, cohorts and cursors.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from kvstore.protocol.commands import Compact, Delete, DeleteRange, Put, Txn
from kvstore.protocol.results import Record
from kvstore.protocol.watches import NO_FLAGS, Change, Created, Events, Progress, WatchFlag
from kvstore.store.machine import KvMachine
from kvstore.watch.ranges import KeyRange
from kvstore.watch.watcher import WatcherState
from tests.kvstore.support.machine_fixture import restored
from tests.kvstore.support.watching import Seen, Watching, is_refused

KEYS = [b"a", b"a/1", b"a/2", b"b", b"b\xff", b"c", b"\xff", b"\xff\xff"]
RANGES: list[tuple[bytes, bytes | None]] = [
    *[(key, key + b"\0") for key in KEYS],
    (b"", None),
    (b"a", b"b"),
    (b"a/", b"a0"),
    (b"b", b"c"),
    (b"\xff", None),
    (b"a", b"b\xff"),
    (b"a/1", b"c"),
    (b"", b"b"),
    (b"b", None),
]
FLAGS = [NO_FLAGS, WatchFlag.PREVIOUS, WatchFlag.NO_PUTS, WatchFlag.NO_DELETIONS, WatchFlag.PROGRESS]
keys = st.sampled_from(KEYS)
RecordModel = tuple[bytes, int, int, int, int]


@dataclass
class Watched:
    """A watch, and what the model knows about it."""

    seen: Seen
    connection_id: int
    watch_id: int
    range: KeyRange
    flags: WatchFlag
    window: int
    is_given_window: bool = False
    checked: int = 0  # Messages.
    next_revision: int = 0  # The next revision that the client expects.

    def wants(self, change: Change) -> bool:
        unwanted = WatchFlag.NO_DELETIONS if change.kind == "delete" else WatchFlag.NO_PUTS
        return change.key in self.range and not self.flags & unwanted


class HubModel(RuleBasedStateMachine):
    """Every message of every watch is compared with the list of changes."""

    @initialize(events_max=st.sampled_from([12, 60, 1_000]), size=st.sampled_from([1, 1, 1, 300_000]))
    def begin(self, events_max: int, size: int) -> None:
        self.world = Watching(history_events_max=events_max)
        self.size = size
        self.records: dict[bytes, RecordModel] = {}
        self.changes: list[Change] = []
        self.watched: list[Watched] = []
        self.serial = 0
        self.count = 0

    # Writes.

    def _note(self, machine: KvMachine, written: list[bytes]) -> None:
        """Add the changes of one command in the command's order; the records show what changed."""
        for key in written:
            before = self.records.get(key)
            record = machine.get(key).record
            if record is not None:
                after = (record.value, record.create_revision, record.mod_revision, record.version, record.lease_id)
                self.records[key] = after
                self.changes.append(Change("put", key, record, _record(before), machine.revision))
            elif self.records.pop(key, None) is not None:
                self.changes.append(Change("delete", key, None, _record(before), machine.revision))

    def _value(self) -> bytes:
        self.count += 1
        return b"%d" % self.count * (self.size if self.count % 5 == 0 else 1)

    @rule(key=keys)
    def put(self, key: bytes) -> None:
        self.world.do(Put(key, self._value()))
        self._note(self.world.machine, [key])

    @rule(key=keys)
    def delete(self, key: bytes) -> None:
        self.world.do(Delete(key))
        self._note(self.world.machine, [key])

    @rule(written=st.lists(keys, min_size=2, max_size=6, unique=True), deletes=st.booleans())
    def txn(self, written: list[bytes], deletes: bool) -> None:
        operations = [
            Delete(key) if deletes and place % 2 else Put(key, self._value()) for place, key in enumerate(written)
        ]
        self.world.do(Txn(success=tuple(operations)))
        self._note(self.world.machine, written)

    @rule()
    def delete_all(self) -> None:
        self.world.do(DeleteRange(b"", None))
        self._note(self.world.machine, sorted(self.records))

    @rule(count=st.integers(1, 30))
    def put_often(self, count: int) -> None:
        for place in range(count):
            self.put(KEYS[place % 3])

    @precondition(lambda self: self.world.machine.revision > self.world.machine.compact_revision)
    @rule(data=st.data())
    def compact(self, data: st.DataObject) -> None:
        machine = self.world.machine
        self.world.do(Compact(data.draw(st.integers(machine.compact_revision + 1, machine.revision))))

    @rule(count=st.integers(0, 20))
    def install(self, count: int) -> None:
        """Another member is ahead by some puts, and this member gets a snapshot of it."""
        other = Watching()
        other.fed.machine = restored(self.world.machine)
        for place in range(count):
            key = KEYS[place % len(KEYS)]
            other.do(Put(key, self._value()))
            self._note(other.machine, [key])
        self.world.install(other.machine)

    # Watches.

    @rule(
        which=st.sampled_from(RANGES),
        flags=st.sampled_from(FLAGS),
        window=st.sampled_from([1, 300, 1 << 20, 1 << 40]),
        connection_id=st.integers(1, 2),
        back=st.none() | st.integers(-4, 40),
    )
    def watch(
        self, which: tuple[bytes, bytes | None], flags: WatchFlag, window: int, connection_id: int, back: int | None
    ) -> None:
        machine = self.world.machine
        from_revision = 0 if back is None else max(1, machine.revision + 1 - back)
        if 0 < from_revision < machine.history.first_revision:
            refusal = is_refused(self.world, from_revision)
            assert refusal is not None
            assert refusal.compact_revision == machine.history.first_revision
            return
        self.serial += 1
        seen = self.world.watch(
            *which,
            connection_id=connection_id,
            watch_id=self.serial,
            from_revision=from_revision,
            flags=flags,
            window=window,
        )
        assert seen.messages == [Created(from_revision or machine.revision + 1)]
        assert seen.revisions == [machine.revision]
        watched = Watched(seen, connection_id, self.serial, KeyRange(*which), flags, window)
        watched.next_revision, watched.checked = seen.created, 1
        self.watched.append(watched)

    @precondition(lambda self: self.watched)
    @rule(data=st.data())
    def unwatch(self, data: st.DataObject) -> None:
        watched = data.draw(st.sampled_from(self.watched))
        self.world.hub.unwatch(watched.connection_id, watched.watch_id)
        self._check(watched)
        assert watched.seen.cancelled is not None
        self.watched.remove(watched)

    @precondition(lambda self: self.watched)
    @rule(data=st.data(), byte_count=st.sampled_from([1, 200, 1 << 20]))
    def add_window(self, data: st.DataObject, byte_count: int) -> None:
        watched = data.draw(st.sampled_from(self.watched))
        self.world.hub.add_window(watched.connection_id, watched.watch_id, byte_count)
        watched.window += byte_count

    @precondition(lambda self: self.watched)
    @rule(data=st.data())
    def ask_progress(self, data: st.DataObject) -> None:
        watched = data.draw(st.sampled_from(self.watched))
        self.world.hub.ask_progress(watched.connection_id, watched.watch_id)

    @rule(connection_id=st.integers(1, 2))
    def fill(self, connection_id: int) -> None:
        self.world.full.add(connection_id)

    @rule(connection_id=st.integers(1, 2))
    def make_room(self, connection_id: int) -> None:
        self.world.make_room(connection_id)

    @rule(connection_id=st.integers(1, 2))
    def hang_up(self, connection_id: int) -> None:
        self.world.hub.gone(connection_id)
        self.watched = [each for each in self.watched if each.connection_id != connection_id]

    @rule(units=st.integers(1, 20))
    def step(self, units: int) -> None:
        self.world.hub.step(units)

    @rule()
    def tick(self) -> None:
        for _ in range(10):
            self.world.hub.tick()

    @rule()
    def come_to_rest(self) -> None:
        """If a watch has room on its connection and in its window, the hub has sent it all due changes. Each other
        watch has received a prefix of its changes."""
        self.world.run()
        self.check_messages()
        for watched in self.watched:
            due = [change for change in self._due(watched) if change.revision >= watched.next_revision]
            if watched.connection_id not in self.world.full and watched.window > watched.seen.cost:
                assert not due, (watched, due)

    def _due(self, watched: Watched) -> list[Change]:
        first = watched.seen.created
        found = [change for change in self.changes if change.revision >= first and watched.wants(change)]
        if watched.flags & WatchFlag.PREVIOUS:
            return found
        return [Change(each.kind, each.key, each.record, None, each.revision) for each in found]

    def _check(self, watched: Watched) -> None:
        """Assert that a prefix of the due changes was sent, in whole revisions, and that progress messages are true."""
        seen = watched.seen
        due = self._due(watched)
        assert seen.changes == due[: len(seen.changes)]
        told = 0
        is_whole = True
        for message, revision in zip(seen.messages, seen.revisions, strict=True):
            if isinstance(message, Events):
                told += len(message.changes)
                is_whole = message.is_whole
                assert message.changes[-1].revision == revision
                if is_whole:
                    assert told == len(due) or due[told].revision > revision
                    watched.next_revision = max(watched.next_revision, revision + 1)
            elif isinstance(message, Progress):
                assert is_whole
                assert told == len([change for change in due if change.revision <= message.revision])
                assert message.revision + 1 >= seen.created
                assert message.revision + 1 >= watched.next_revision or watched.checked
                watched.next_revision = max(watched.next_revision, message.revision + 1)
        watched.checked = len(seen.messages)

    @invariant()
    def check_messages(self) -> None:
        if not hasattr(self, "world"):
            return
        for watched in list(self.watched):
            if len(watched.seen.messages) > watched.checked:
                self._check(watched)
            end = watched.seen.cancelled
            if end is not None:  # The history lacks a change that this watch perhaps did not get.
                assert end.reason == "compacted"
                assert watched.next_revision < end.oldest_revision == self.world.machine.history.first_revision
                self.watched.remove(watched)
        assert self.world.hub.count == len(self.watched)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.full.clear()
            for connection_id in (1, 2):
                self.world.make_room(connection_id)
            for watched in self.watched:
                self.world.hub.add_window(watched.connection_id, watched.watch_id, 1 << 40)
                watched.window += 1 << 40
            self.come_to_rest()
            for watched in self.watched:
                state = self.world.hub._connections[watched.connection_id].watchers[watched.watch_id].state
                assert state in (WatcherState.IDLE, WatcherState.AHEAD)


def _record(fields: RecordModel | None) -> Record | None:
    return None if fields is None else Record(*fields)


@pytest.mark.parametrize("examples", [20, pytest.param(400, marks=pytest.mark.slow)])
def test_the_hub_tells_what_the_model_tells(examples: int) -> None:
    """This holds for any order of changes, reads, windows and lost connections."""
    run_state_machine_as_test(HubModel, settings=settings(max_examples=examples, stateful_step_count=40, deadline=None))
