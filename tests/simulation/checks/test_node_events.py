"""The events that a member reports must agree with its log and its disk. Each of these rules can fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from harness.sim.world.probes import LOG_FOLDER
from raft import AppendEntries, Entry, EntryKind, TraceEvent
from tests.simulation.support.stage import APPEND, Stage, broken_rule

REJECTED = "an append is rejected only where the logs differ"
NAMED = "a rejection names a position of the log"
IGNORED = "a member ignores only entries that it holds"
LACKS = "a node reports missing room only after its disk has refused room"
HANGS = "a disk hangs while it has something to do"
HAS_ROOM = "a member that has room again has its ballast and has written the waiting entries"


class Noticed:
    """The follower of a quiet cluster. It gets a message and reports an event."""

    def __init__(self) -> None:
        self.stage = Stage()
        self.follower = self.stage.follower
        self.index, self.term = self.stage.index, self.stage.term

    def append(self, *, prev: int = 0, prev_term: int = 0, entries: tuple[Entry, ...] = ()) -> AppendEntries:
        """An append whose previous entry is `prev` entries after the end of the follower's log, and `prev_term` terms
        later."""
        return replace(
            APPEND,
            term=self.term,
            prev_index=self.index + prev,
            prev_term=self.term + prev_term,
            entries=entries,
        )

    def entry(self, *, behind: int = 0, term: int = 0) -> Entry:
        """The entry that is `behind` entries after the end of the log. The term of this entry is the last term plus
        `term`."""
        return Entry(self.index + behind, self.term + term, EntryKind.NO_OP, b"")

    def says(self, name: str, message: AppendEntries | None = None, **fields: int) -> None:
        """Let the follower report the event in the step in which it gets `message`."""
        checker = self.stage.checker(self.follower)._notices
        if message is not None:
            checker.received(message)
        checker.told(TraceEvent(name, fields))
        checker.step_is_over()

    def rejects(self, message: AppendEntries | None, *, hint: int = 0, hint_term: int = 0) -> None:
        """Let the follower reject the message. The hint is at this distance from the end of the follower's log."""
        prev_index = self.index if message is None else message.prev_index
        fields = {"hint_index": self.index + hint, "hint_term": self.term + hint_term}
        self.says("append_rejected", message, prev_index=prev_index, **fields)

    def ignores(self, *entries: Entry) -> None:
        self.says("duplicate_append_ignored", self.append(entries=entries))

    def lacks_room(self) -> None:
        assert self.follower.files is not None
        self.follower.files.has_lacked_room = True


WRONG: dict[str, list[Callable[[Noticed], object]]] = {
    REJECTED: [
        lambda it: it.rejects(it.append()),
        lambda it: it.rejects(None),
    ],
    NAMED: [
        lambda it: it.rejects(it.append(prev=1), hint=1),
        lambda it: it.rejects(it.append(prev=1), hint_term=1),
        lambda it: it.rejects(it.append(prev=1), hint=2),
    ],
    IGNORED: [
        lambda it: it.ignores(it.entry(), it.entry(behind=1)),
        lambda it: it.ignores(it.entry(term=1)),
        lambda it: it.ignores(),
    ],
    LACKS: [lambda it: it.says("disk_full")],
    HANGS: [lambda it: it.says("disk_hangs", for_ms=100)],
}


@pytest.mark.parametrize(("rule", "place"), [(rule, place) for rule in WRONG for place in range(len(WRONG[rule]))])
def test_a_member_that_notices_what_is_not_so_is_found(rule: str, place: int) -> None:
    noticed = Noticed()

    with broken_rule(rule):
        WRONG[rule][place](noticed)


@pytest.mark.parametrize("what", ["the ballast", "the log"])
def test_who_says_that_it_has_room_while_something_waits_for_it_is_found(what: str) -> None:
    noticed = Noticed()
    world, files = noticed.stage.world, noticed.follower.files
    assert files is not None
    if what == "the log":
        files._owed.add(LOG_FOLDER)
    else:
        storage = world.plan.storage
        world.plan = replace(world.plan, storage=replace(storage, ballast_bytes=storage.ballast_bytes + 1))

    with broken_rule(HAS_ROOM):
        noticed.says("disk_has_room")


def test_a_member_may_notice_what_is_so() -> None:
    """True events pass. A member may report new room once for each time that it lacked room."""
    noticed = Noticed()

    noticed.rejects(noticed.append(prev_term=1))
    noticed.rejects(noticed.append(prev=1))
    noticed.ignores(noticed.entry(behind=-1), noticed.entry())
    noticed.lacks_room()
    noticed.says("disk_full")
    noticed.says("disk_has_room")
    with broken_rule(LACKS):
        noticed.says("disk_full")
