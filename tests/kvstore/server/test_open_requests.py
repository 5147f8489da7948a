"""Commands that were proposed together are answered together, or one by one if their outcomes differ."""

from __future__ import annotations

from typing import Any

import pytest

from kvstore.protocol.results import PUT_DONE
from kvstore.server.connections import Connection, OpenRequests, OpenRow
from kvstore.server.fast_responses import FastEncoder, ResponseBatcher
from raft import AppliedBatch, Completion

COUNT = 6
BUSY = (16, 9, "results_bytes_max", 1)


class Answering:
    """`ResponseBatcher` for one connection with COUNT open puts, whose ids begin at 101 and whose tickets begin at
    1."""

    def __init__(self) -> None:
        self.connection = Connection(5)
        self.opened = OpenRequests()
        self.frames: list[bytes] = []
        self.apart: list[tuple[int, Any]] = []
        connections = {5: self.connection}
        self.hot = ResponseBatcher(
            "n1", self.opened, connections, lambda _, data: self.frames.append(data), self._answer
        )
        self.tickets = self.opened.tickets(COUNT)
        self.opened.commands(self.connection, self.tickets, range(101, 101 + COUNT), [1] * COUNT)

    def _answer(self, opened: OpenRow, completion: Completion) -> None:
        self.connection.in_flight -= 1
        self.apart.append((opened[1], completion.result))  # type: ignore[union-attr]


def done(first: int, count: int) -> list[tuple[Any, ...]]:
    return [(0, first + number, PUT_DONE) for number in range(count)]


def answers_of(first_id: int, first_revision: int, count: int) -> bytes:
    return FastEncoder("n1").puts(range(first_id, first_id + count), range(first_revision, first_revision + count))


def test_what_was_proposed_together_is_answered_in_one_go() -> None:
    answering = Answering()
    assert (len(answering.opened), answering.connection.in_flight) == (COUNT, COUNT)

    answering.hot.applied(AppliedBatch(list(answering.tickets), 7, done(50, COUNT)))

    assert answering.frames == [answers_of(101, 50, COUNT)]
    assert (len(answering.opened), answering.connection.in_flight) == (0, 0)


@pytest.mark.parametrize("place", range(COUNT))
def test_one_that_is_refused_among_them_is_answered_by_itself(place: int) -> None:
    answering = Answering()
    results = done(50, COUNT)
    results[place] = BUSY

    answering.hot.applied(AppliedBatch(list(answering.tickets), 7, results))

    assert answering.apart == [(101 + place, BUSY)]
    others = [(id_, revision) for id_, (_, revision, *_) in enumerate(results, 101) if id_ != 101 + place]
    assert b"".join(answering.frames) == FastEncoder("n1").puts(*zip(*others, strict=True))
    assert (len(answering.opened), answering.connection.in_flight) == (0, 0)


@pytest.mark.parametrize("cut", range(1, COUNT))
def test_those_of_two_entries_are_answered_when_theirs_is_applied(cut: int) -> None:
    answering = Answering()
    tickets = list(answering.tickets)
    (lone,) = answering.opened.tickets(1)
    answering.opened.commands(answering.connection, range(lone, lone + 1), [900], [1])

    answering.hot.applied(AppliedBatch(tickets[:cut], 7, done(50, cut)))
    assert b"".join(answering.frames) == answers_of(101, 50, cut)
    assert len(answering.opened) == COUNT - cut + 1

    answering.hot.applied(AppliedBatch([*tickets[cut:], lone], 8, done(60, COUNT - cut + 1)))
    assert b"".join(answering.frames[1:]) == FastEncoder("n1").puts(
        [*range(101 + cut, 101 + COUNT), 900], range(60, 61 + COUNT - cut)
    )
    assert (len(answering.opened), answering.connection.in_flight) == (0, 0)


def test_one_of_them_can_end_alone_and_nothing_is_answered_twice() -> None:
    answering = Answering()

    row = answering.opened.take(3)
    assert row is not None
    assert (row[:3], answering.opened.take(3), answering.opened.take(99)) == ((5, 103, 1), None, None)

    answering.hot.applied(AppliedBatch(list(answering.tickets), 7, done(50, COUNT)))
    ids, revisions = [101, 102, 104, 105, 106], [50, 51, 53, 54, 55]
    assert answering.frames == [FastEncoder("n1").puts(ids, revisions)]
    assert len(answering.opened) == 0
