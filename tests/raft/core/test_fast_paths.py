"""Each fast path must give the same result as a readable slow version of the same code. The tests contain these slow
versions."""

from __future__ import annotations

import dataclasses
import re
from random import Random
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raft.config import MILLISECOND_NS
from raft.core.elections import drawn
from raft.core.ready import Ready
from raft.encoding.cbor import ARRAY, BYTES, INT64_MAX, UNSIGNED, encode_head, encode_item
from raft.errors import ProtocolError
from raft.protocol.codec import _Fields, decode_message, encode_message
from raft.protocol.messages import AppendAccepted
from tests.raft.support.core_fixture import a_leader_with_commits, accepted

NUMBERS = st.one_of(
    st.integers(0, INT64_MAX),
    st.sampled_from([0, 23, 24, 255, 256, 65_535, 65_536, 2**32 - 1, 2**32, INT64_MAX]),
)


def test_a_core_with_anything_to_do_in_its_next_ready_has_work() -> None:
    """The test fails if a developer adds a field that `has_work` ignores. Four fields do not count as work. Events and
    peers are only reported, and the write and the entries to apply are filled in last."""
    core = a_leader_with_commits().core
    while core.has_ready():
        core.take_ready()
    assert not core.has_work

    for field in dataclasses.fields(Ready):
        ready = core._state.outbox.ready = Ready()
        setattr(ready, field.name, [object()])
        core._note_work()
        is_work = field.name not in ("events", "peers_changed", "write", "apply")
        assert core.has_work == is_work, field.name


@given(NUMBERS)
def test_a_head_is_what_the_library_writes(number: int) -> None:
    assert encode_head(UNSIGNED, number) == cbor2.dumps(number)


@given(st.integers(0, 70_000))
def test_the_head_of_bytes_is_what_the_library_writes(length: int) -> None:
    data = bytes(length)
    assert encode_head(BYTES, length) + data == cbor2.dumps(data)
    assert encode_head(ARRAY, length)[0] & 0xE0 == ARRAY
    assert encode_head(ARRAY, length)[1:] == encode_head(BYTES, length)[1:]


@given(NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS)
def test_an_acknowledgement_is_the_array_of_its_fields(
    group_id: int, term: int, match: int, low: int, read: int
) -> None:
    message = AppendAccepted(term=term, match_index=match, last_applied=low, read_counter=read)
    body = encode_message(group_id, message)

    assert body == encode_item([6, group_id, term, match, low, read])
    assert decode_message(body) == (group_id, message)


@given(
    st.lists(st.one_of(NUMBERS, st.integers(-2, -1), st.booleans(), st.text(max_size=2)), max_size=5), st.integers(1, 4)
)
def test_numbers_are_taken_together_as_one_by_one(items: list[Any], count: int) -> None:
    """The fast path and the slow one give the same items, or refuse with the same text. Both continue from the same
    offset."""
    together, one_by_one = _Fields([6, *items]), _Fields([6, *items])
    try:
        expected = [one_by_one.number() for _ in range(count)]
    except ProtocolError as error:
        with pytest.raises(ProtocolError, match=re.escape(str(error))):
            together.numbers(count)
    else:
        assert together.numbers(count) == expected
        assert together._at == one_by_one._at


@given(st.integers(0, 2**32), st.integers(1, 2**40))
def test_a_time_out_is_drawn_as_the_library_draws_it(seed: int, below: int) -> None:
    """The number is the same as the library's, and so are all later numbers. So a simulation with this seed stays the
    same."""
    ours, theirs = Random(seed), Random(seed)
    assert [drawn(ours, below) for _ in range(3)] == [theirs.randrange(below) for _ in range(3)]
    assert ours.getstate() == theirs.getstate()


WAITS_US = st.one_of(st.sampled_from([0, 400, 1_000, 2_500, 5_000]), st.integers(0, 900_000))


@given(st.lists(st.tuples(st.sampled_from(["wait", "propose", "accept", "persist", "read"]), WAITS_US), max_size=16))
def test_no_deadline_of_a_leader_is_over_before_it_is_due(steps: list[tuple[str, int]]) -> None:
    """When a deadline of a heartbeat, a mark, an unanswered read or the quorum is set, it lowers `due_at`."""
    bench = a_leader_with_commits(mark_delay_ns=5 * MILLISECOND_NS)
    leadership = bench.core._leader
    assert leadership is not None
    bench.core.request_read(-1)
    bench.flush()
    bench.step("s2", accepted(1, 1, read_counter=1))  # This answer makes s2 the first member that the leader asks.
    for ticket, (what, microseconds) in enumerate(steps):
        if what == "propose":
            bench.propose()
        elif what == "accept":
            bench.step("s2", accepted(1, bench.core.last_index, read_counter=leadership.reads.counter))
        elif what == "read":
            bench.core.request_read(ticket)
            bench.flush()
        elif what == "persist":
            bench.persist()
        bench.now += microseconds * MILLISECOND_NS // 1_000
        bench.core._state.now = bench.now
        if bench.now < leadership.due_at:
            assert bench.now < leadership._heartbeat_deadline
            assert bench.now < (leadership._commit_update_due_at or leadership.due_at)
            assert bench.now < leadership._preferred_quorum.over_at
            assert not leadership.has_lost_its_quorum
        bench.advance(0)
        if bench.core.leading_term is None:
            break
