"""What is written out by hand for speed says what the general code says: every fast path beside its slow twin."""

from __future__ import annotations

import heapq

import cbor2
from hypothesis import example, given
from hypothesis import strategies as st

from kvstore import Consistency, Get, Put, command_request, read_request
from kvstore.client.calls import Call, DeadlineQueue
from kvstore.client.client import _gets
from kvstore.client.member_connection import ResponseReader
from kvstore.protocol.cbor_heads import bytes_head, uint_head
from kvstore.protocol.commands import encode_command
from kvstore.protocol.messages import decode_response, encode_request, encode_response
from raft import ProtocolError

EDGES = [0, 1, 23, 24, 255, 256, 65_535, 65_536, 2**32 - 1, 2**32, 2**63 - 1]
numbers = st.one_of(st.sampled_from(EDGES), st.integers(0, 2**63 - 1))
node_ids = st.sampled_from(["", "s1", "s2", "a-long-name-of-a-node-0123456789"])


def read_slowly(body: bytes) -> object:
    try:
        return decode_response(body)
    except ProtocolError:
        return ProtocolError


def read_fast(node_id: str, body: bytes) -> object:
    try:
        return ResponseReader(node_id).read(body)
    except ProtocolError:
        return ProtocolError


@given(numbers, st.sampled_from([0, 0, 0, 16, 31]), numbers, st.sampled_from([0, 0, 1]), node_ids, node_ids)
def test_an_answer_means_the_same_to_both_readers(
    request_id: int, code: int, revision: int, consistency: int, node_id: str, own_id: str
) -> None:
    """Also when it is no put, or another member's."""
    for fields in ([[1]], [[1], 2], [[2, None, 0, True]], [], [1]):
        body = encode_response(request_id, code, revision, consistency, node_id, fields)
        assert read_fast(own_id, body) == read_slowly(body)


@given(
    st.integers(65_536, 2**32 - 1), st.integers(256, 2**32 - 1), st.lists(st.tuples(st.integers(0, 30), st.binary()))
)
@example(65_536, 256, [(1, b"\x19")])
@example(65_536, 65_536, [(6, b"\x1a")])
def test_a_damaged_answer_means_the_same_to_both_readers(
    request_id: int, revision: int, damages: list[tuple[int, bytes]]
) -> None:
    """Bytes are put in, or one is replaced: anywhere, heads included."""
    body = encode_response(request_id, 0, revision, 0, "s1", [[1]])
    for place, data in damages:
        for damaged in (body[:place] + data + body[place:], body[:place] + data[:1] + body[place + 1 :]):
            assert read_fast("s1", damaged) == read_slowly(damaged)


@given(
    numbers, numbers, numbers, st.binary(min_size=1, max_size=300), st.sampled_from([0, 1, 23, 24, 255, 256, 70_000])
)
def test_a_put_is_encoded_as_the_library_would(
    session_id: int, request_no: int, acknowledged_up_to: int, key: bytes, size: int
) -> None:
    """These bytes are proposed, logged and replicated as they are."""
    command = command_request(Put(key, b"v" * size)).command
    assert command is not None
    encoded = encode_command(
        command, session_id=session_id, request_no=request_no, acknowledged_up_to=acknowledged_up_to
    )
    assert encoded == cbor2.dumps((session_id, request_no, acknowledged_up_to, 1, key, b"v" * size))


@given(st.integers(1, 2**63 - 1), st.binary(min_size=1, max_size=300), st.sampled_from(Consistency))
def test_a_get_is_encoded_as_the_library_would(request_id: int, key: bytes, consistency: Consistency) -> None:
    """`[id, 3, consistency, [2, key]]`, and of a bounded read the greatest age in ms behind it."""
    body = encode_request(request_id, read_request(Get(key), consistency, max_staleness_ms=700))
    bound = (700,) if consistency is Consistency.BOUNDED else ()
    assert body == cbor2.dumps((request_id, 3, int(consistency), (2, key), *bound))


@given(st.binary(min_size=1, max_size=300))
def test_the_usual_read_is_the_request_that_the_general_way_makes(key: bytes) -> None:
    """`Client.get` and `get_many` write it out."""
    assert list(_gets([key])) == [(None, read_request(Get(key), Consistency.LINEARIZABLE))]


@given(numbers)
def test_a_head_is_in_its_shortest_form(number: int) -> None:
    """RFC 8949 §3."""
    assert uint_head(number) == cbor2.dumps(number)
    size = min(number, 70_000)
    assert bytes_head(size) == cbor2.dumps(bytes(size))[: -size or None]


@given(st.lists(st.tuples(st.sampled_from(["push", "end", "due", "shrink"]), st.integers(0, 50)), max_size=120))
def test_a_timeline_is_a_heap_of_what_is_open(steps: list[tuple[str, int]]) -> None:
    """Whatever the order of moments: the same calls come up, in the same order, as from a plain heap."""
    timeline, heap, calls = DeadlineQueue(), list[tuple[int, int]](), list[Call]()
    now = 0
    for what, number in steps:
        if what == "push":
            call = Call(len(calls), command_request(Put(b"k", b"v")), now + number)
            timeline.push(call.deadline, call)
            heapq.heappush(heap, (call.deadline, len(calls)))
            calls.append(call)
        elif what == "end" and calls:
            calls[number % len(calls)].done = True
        elif what == "shrink":
            timeline.shrink(sum(not call.done for call in calls))
        else:
            now += number
            expected = []
            while heap and heap[0][0] <= now:
                expected.append(heapq.heappop(heap)[1])
            expected = [ticket for ticket in expected if not calls[ticket].done]
            due = timeline.pop_expired(now)
            assert [call.ticket for call in due] == expected
            for call in due:
                call.done = True
        heap = sorted(item for item in heap if not calls[item[1]].done)
        assert timeline.first_moment() == (heap[0][0] if heap else None)
