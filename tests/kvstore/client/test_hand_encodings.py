"""Hand-written encodings and queues of the client, compared with the general ones."""

from __future__ import annotations

import heapq

import cbor2
from hypothesis import given
from hypothesis import strategies as st

from kvstore import Consistency, Get, Put, command_request, read_request
from kvstore.client.calls import Call, DeadlineQueue
from kvstore.client.client import _gets
from kvstore.protocol.cbor_heads import bytes_head, uint_head
from kvstore.protocol.commands import encode_command
from kvstore.protocol.messages import encode_request

EDGES = [0, 1, 23, 24, 255, 256, 65_535, 65_536, 2**32 - 1, 2**32, 2**63 - 1]
numbers = st.one_of(st.sampled_from(EDGES), st.integers(0, 2**63 - 1))


@given(
    numbers, numbers, numbers, st.binary(min_size=1, max_size=300), st.sampled_from([0, 1, 23, 24, 255, 256, 70_000])
)
def test_a_put_is_encoded_as_the_library_would(
    session_id: int, request_no: int, acknowledged_up_to: int, key: bytes, size: int
) -> None:
    """These bytes are proposed, logged and replicated unchanged."""
    command = command_request(Put(key, b"v" * size)).command
    assert command is not None
    encoded = encode_command(
        command, session_id=session_id, request_no=request_no, acknowledged_up_to=acknowledged_up_to
    )
    assert encoded == cbor2.dumps((session_id, request_no, acknowledged_up_to, 1, key, b"v" * size))


@given(st.integers(1, 2**63 - 1), st.binary(min_size=1, max_size=300), st.sampled_from(Consistency))
def test_a_get_is_encoded_as_the_library_would(request_id: int, key: bytes, consistency: Consistency) -> None:
    """A get is `[id, 3, consistency, [2, key]]`. A bounded read has the greatest age in ms as a further item at the
    end."""
    body = encode_request(request_id, read_request(Get(key), consistency, max_staleness_ms=700))
    bound = (700,) if consistency is Consistency.BOUNDED else ()
    assert body == cbor2.dumps((request_id, 3, int(consistency), (2, key), *bound))


@given(st.binary(min_size=1, max_size=300))
def test_the_usual_read_is_the_request_that_the_general_way_makes(key: bytes) -> None:
    """`Client.get` and `get_many` build the request by hand."""
    assert list(_gets(b"", [key])) == [(None, read_request(Get(key), Consistency.LINEARIZABLE))]


@given(numbers)
def test_a_head_is_in_its_shortest_form(number: int) -> None:
    """RFC 8949 §3 defines the heads of items."""
    assert uint_head(number) == cbor2.dumps(number)
    size = min(number, 70_000)
    assert bytes_head(size) == cbor2.dumps(bytes(size))[: -size or None]


@given(st.lists(st.tuples(st.sampled_from(["push", "end", "due", "shrink"]), st.integers(0, 50)), max_size=120))
def test_a_timeline_is_a_heap_of_what_is_open(steps: list[tuple[str, int]]) -> None:
    """For any sequence of steps, the queue returns the same calls in the same order as a plain heap."""
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
