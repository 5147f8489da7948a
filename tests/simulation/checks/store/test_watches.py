"""Each rule about watches fails at the smallest deviation, and correct messages pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from harness.sim.checks.store.replay import StoreReplay
from harness.sim.checks.store.watches import Flag, FollowedWatch, WatchChecker
from harness.sim.engine.errors import Violation

A2, A4 = (b"1", 2, 2, 1, 0), (b"3", 2, 4, 2, 0)
B3 = (b"2", 3, 3, 1, 0)
COST = 100
NO_FLAGS = Flag(0)


def a_replay() -> StoreReplay:
    """A replay with these revisions: 2: a=1; 3: b=2; 4: a=3; 5: a and b are deleted. The replay keeps the events from
    revision 3 on."""
    replay = StoreReplay()
    replay.applied(1, 1, [[0, 0, 0, 20, 2]], [(0, 1, (20,))])
    puts = [[0, 0, 0, 1, b"a", b"1"], [0, 0, 0, 1, b"b", b"2"], [0, 0, 0, 1, b"a", b"3"]]
    replay.applied(2, 2, puts, [(0, revision, (1,)) for revision in (2, 3, 4)])
    replay.applied(3, 3, [[0, 0, 0, 7, b"a", b"c", False]], [(0, 5, (7, 2))])
    replay.applied(4, 4, [[0, 0, 0, 24, 3]], [(0, 5, (24,))])
    return replay


class Bench:
    """A bench with a watch of all keys, from revision 2 on."""

    def __init__(self, *, flags: Flag = NO_FLAGS, end: bytes | None = None, next_revision: int = 2) -> None:
        self.covered: set[str] = set()
        self.checker = WatchChecker(a_replay(), self.covered.add)
        self.watch = FollowedWatch("w0", b"a", end, flags, next_revision)
        self.checker.moved(self.watch, 1_000)

    def events(self, revision: int, *items: Any, cost: int = COST, is_whole: bool = True) -> None:
        self.checker.events(self.watch, revision, cost * len(items), is_whole=is_whole, items=items)


def test_a_watch_of_whole_revisions_in_order_passes() -> None:
    bench = Bench()
    bench.checker.created(bench.watch, 5, 2)
    bench.events(3, [b"a", A2], [b"b", B3])
    bench.events(4, [b"a", A4])
    bench.checker.progress(bench.watch, 4)
    bench.events(5, [b"a", 5], [b"b", 5])
    bench.checker.progress(bench.watch, 5)

    assert bench.watch.next_revision == 6


def test_the_record_before_filters_and_ranges_are_as_asked_for() -> None:
    bench = Bench(flags=Flag.PREVIOUS | Flag.NO_PUTS, end=b"b")
    bench.events(5, [b"a", 5, A4])

    assert bench.watch.next_revision == 6


def test_a_large_revision_may_come_in_parts() -> None:
    bench = Bench(next_revision=5)
    bench.events(5, [b"a", 5], is_whole=False)
    bench.events(5, [b"b", 5])

    assert bench.watch.next_revision == 6
    assert bench.covered == {"a large revision came in parts"}


def test_another_member_repeats_the_begun_revision_and_nothing_else() -> None:
    bench = Bench(next_revision=5)
    bench.events(5, [b"a", 5], is_whole=False)
    bench.checker.moved(bench.watch, 1_000)
    bench.events(5, [b"a", 5], [b"b", 5])

    assert bench.watch.next_revision == 6


WRONG: dict[str, tuple[Callable[[Bench], None], str]] = {
    "an event is left out": (lambda bench: bench.events(4, [b"a", A2], [b"a", A4]), "a watch is the history"),
    "an event comes twice": (
        lambda bench: bench.events(3, [b"a", A2], [b"a", A2], [b"b", B3]),
        "a watch is the history",
    ),
    "an event is made up": (lambda bench: bench.events(3, [b"a", A2], [b"b", A2]), "a message of a watch ends"),
    "the order is wrong": (
        lambda bench: bench.events(5, [b"a", A2], [b"b", B3], [b"a", A4], [b"b", 5], [b"a", 5]),
        "a watch is the history",
    ),
    "a record is wrong": (lambda bench: bench.events(2, [b"a", (b"9", 2, 2, 1, 0)]), "a watch is the history"),
    "a revision is split without a word": (
        lambda bench: bench.events(5, [b"a", A2], [b"b", B3], [b"a", A4], [b"a", 5]),
        "a watch is the history",
    ),
    "the revision is not that of the last event": (lambda bench: bench.events(5, [b"a", A2]), "a message of a watch"),
    "the progress is ahead of the events": (
        lambda bench: bench.checker.progress(bench.watch, 3),
        "gets a progress message",
    ),
    "the progress goes back": (lambda bench: bench.checker.progress(bench.watch, 0), "gets a progress message"),
    "the progress is not committed": (lambda bench: bench.checker.progress(bench.watch, 6), "only committed"),
    "a revision is not committed": (lambda bench: bench.events(6, [b"a", 6]), "only committed"),
    "it begins elsewhere": (lambda bench: bench.checker.created(bench.watch, 5, 3), "counts from the revision"),
    "it ends though all is kept": (lambda bench: bench.checker.compacted(bench.watch, 2), "ends only if"),
    "it ends with a revision that is too high": (lambda bench: bench.checker.compacted(bench.watch, 4), "ends only if"),
    "a message costs nothing": (lambda bench: bench.events(2, [b"a", A2], cost=0), "costs its window"),
    "a message of several revisions costs more than the window": (
        lambda bench: bench.events(3, [b"a", A2], [b"b", B3], cost=600),
        "costs its window",
    ),
    "the part of a revision is all of it": (
        lambda bench: bench.events(2, [b"a", A2], is_whole=False),
        "ends with a whole revision",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_message_that_is_not_the_history_is_a_violation(what: str) -> None:
    send, rule = WRONG[what]

    with pytest.raises(Violation, match=rule):
        send(Bench())


def test_a_watch_without_window_is_sent_nothing_more() -> None:
    bench = Bench()
    bench.events(2, [b"a", A2], cost=1_000)

    with pytest.raises(Violation, match="costs its window"):
        bench.events(3, [b"b", B3])


def test_a_watch_may_end_when_the_next_revision_is_not_kept() -> None:
    bench = Bench()
    bench.checker.compacted(bench.watch, 3)

    assert bench.watch.next_revision == 2


def test_a_watch_of_the_next_change_counts_from_the_answer() -> None:
    bench = Bench(next_revision=0)
    bench.checker.created(bench.watch, 4, 5)
    bench.events(5, [b"a", 5], [b"b", 5])

    with pytest.raises(Violation, match="counts from the revision"):
        Bench(next_revision=0).checker.created(FollowedWatch("w1", b"a", None, Flag(0), 0), 4, 4)


def test_a_listing_is_the_state_as_of_its_revision() -> None:
    bench = Bench(next_revision=0)
    bench.checker.listed(bench.watch, 4, [[b"a", *A4], [b"b", *B3]])

    assert bench.watch.next_revision == 5
    with pytest.raises(Violation) as raised:
        bench.checker.listed(bench.watch, 4, [[b"a", *A4]])
    assert raised.value.rule == "a listing shows the state as of its revision"
