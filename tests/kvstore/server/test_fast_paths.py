"""The fast paths and their slow twins give the same answers, the same bytes and the same refusals."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvstore.errors import InvalidRequest
from kvstore.limits import AdmissionLimits
from kvstore.protocol.cbor_heads import SEPARATOR
from kvstore.protocol.messages import RequestKind, decode_request, encode_response
from kvstore.protocol.validation import admit_body, admit_command
from kvstore.server.connections import Connection, OpenRequests
from kvstore.server.fast_requests import parse_batch
from kvstore.server.fast_responses import FastEncoder
from raft import INT64_MAX, ProtocolError, decode_item, decode_joined, encode_item, frame

LIMITS = AdmissionLimits(key_bytes_max=5, value_bytes_max=9)
EDGES = (0, 1, 23, 24, 255, 256, 65_535, 65_536, (1 << 32) - 1, 1 << 32, INT64_MAX)

numbers = st.one_of(st.sampled_from([*EDGES, -1, INT64_MAX + 1]), st.integers(0, 300))
odd_ones = st.one_of(numbers, st.booleans(), st.floats(allow_nan=False), st.none(), st.text(max_size=2))
words = st.one_of(st.binary(max_size=11), odd_ones)
few = st.sampled_from([1, 2, 3, True, 2.0])
puts = st.tuples(numbers, few, st.lists(st.one_of(numbers, words), min_size=5, max_size=7))
heads = st.one_of(st.tuples(st.integers(1, 9), st.integers(5, 9), st.integers(0, 4)), st.just((0, 0, 0)))
sound_puts = st.tuples(
    st.integers(1, 70_000),
    st.just(2),
    st.tuples(heads, st.binary(min_size=1, max_size=5), st.binary(max_size=9)).map(lambda put: [*put[0], 1, *put[1:]]),
)
gets = st.tuples(numbers, few, few, st.lists(words, min_size=1, max_size=3))
sound_gets = st.tuples(
    st.integers(1, 70_000), st.just(3), st.just(1), st.tuples(st.just(2), st.binary(min_size=1, max_size=5)).map(list)
)
requests = st.one_of(sound_puts, sound_gets, puts, gets).map(list)
bodies_of_clients = st.lists(
    st.one_of(
        requests.map(encode_item),
        st.tuples(requests.map(encode_item), st.binary(max_size=3)).map(b"".join),  # Too long.
        st.tuples(requests.map(encode_item), st.integers(1, 20)).map(lambda pair: pair[0][: -pair[1]] or b"\x01"),
        st.binary(min_size=1, max_size=6),
    ),
    min_size=1,
    max_size=6,
)


def items_one_by_one(bodies: list[bytes]) -> list[Any] | None:
    """The slow twin of `decode_joined`, except that it also checks the types."""
    try:
        return [decode_item(body) for body in bodies]
    except ProtocolError:
        return None


@settings(deadline=None)
@given(bodies_of_clients)
@example([b"\x82\x01", b"\x02"])  # The first body is incomplete and continues in the second.
@example([b"\x01\x02", b"\x82\x01"])
@example([b"\x01\x01", b"\x01"])
@example([b"\x58\x14\x01", b"\x01"])  # This string would swallow a separator.
@example([b"\xc2\x41\x01"])  # A tag.
def test_bodies_decoded_together_are_those_decoded_one_by_one(bodies: list[bytes]) -> None:
    alone, together = items_one_by_one(bodies), decode_joined(bodies, SEPARATOR)

    if alone is not None:
        assert repr(together) == repr(alone)  # `==` takes True for 1.
    if together is not None:
        assert [encode_item(item) for item in together] == [encode_item(decode_any(body)) for body in bodies]


def decode_any(body: bytes) -> Any:
    """Decode one item that takes up the whole body. The item may contain items of any type."""
    import io

    import cbor2

    source = io.BytesIO(body)
    item = cbor2.load(source)
    assert source.tell() == len(body)
    return item


def judged_alone(body: bytes) -> tuple[int, bytes, Any] | None:
    """The slow twin of `parse_batch`: (id, command or nothing, body of a read or the session); None if invalid."""
    try:
        asked = decode_request(body)
        if asked.kind == RequestKind.COMMAND:
            admit_command(asked.items, LIMITS)
            return asked.request_id, asked.raw_command, asked.items[0]
        admit_body(asked.items[1], LIMITS)
        return asked.request_id, b"", asked.items[1]
    except (ProtocolError, InvalidRequest):
        return None


@settings(deadline=None)
@given(st.lists(requests, min_size=1, max_size=5))
def test_what_the_hot_path_takes_the_general_path_takes_for_the_same(items: list[Any]) -> None:
    bodies = [encode_item(item) for item in items]
    decoded = decode_joined(bodies, SEPARATOR)
    if decoded is None:
        return
    run = parse_batch(bodies, decoded, 0, LIMITS)

    commands = zip(run.command_ids, run.commands, run.session_ids, strict=True)
    reads = [(request_id, b"", body) for request_id, body in zip(run.read_ids, run.reads, strict=True)]
    taken = [judged_alone(body) for body in bodies[: run.end]]
    assert sorted(filter(None, taken), key=repr) == sorted([*commands, *reads], key=repr)
    assert len(run.commands) + len(run.reads) == run.end
    assert all(items[place][1] in (2, 3) for place in range(run.end))


@settings(deadline=None)
@given(st.lists(st.one_of(sound_puts, sound_gets).map(list), min_size=1, max_size=9))
def test_the_hot_path_takes_every_sound_put_and_every_linearizable_get(items: list[Any]) -> None:
    bodies = [encode_item(item) for item in items]
    decoded = decode_joined(bodies, SEPARATOR)
    assert decoded is not None
    run = parse_batch(bodies, decoded, 0, LIMITS)

    assert run.end == len(items)
    assert run.command_ids == [item[0] for item in items if item[1] == 2]
    assert run.commands == [encode_item(item[2]) for item in items if item[1] == 2]
    assert run.reads == [item[3] for item in items if item[1] == 3]


ids = st.one_of(st.sampled_from(EDGES[1:]), st.integers(1, 70_000))


@settings(deadline=None)
@given(st.lists(st.tuples(ids, st.sampled_from(EDGES)), min_size=1, max_size=9))
def test_answers_to_puts_are_the_bytes_of_the_general_encoder(rows: list[tuple[int, int]]) -> None:
    request_ids, revisions = [row[0] for row in rows], [row[1] for row in rows]

    slow = [frame(encode_response(*row, 0, "s1", ((1,),))) for row in ((i, 0, r) for i, r in rows)]

    assert FastEncoder("s1").puts(request_ids, revisions) == b"".join(slow)
    assert [FastEncoder("s1").put(*row) for row in rows] == slow


@settings(deadline=None)
@given(
    st.lists(st.tuples(ids, st.binary(max_size=300), st.sampled_from(EDGES)), min_size=1, max_size=5),
    st.sampled_from(EDGES),
)
def test_answers_to_gets_are_the_bytes_of_the_general_encoder(rows: list[tuple[int, bytes, int]], now: int) -> None:
    records = [(value, number, number, 1, 0) for _, value, number in rows]
    request_ids = [row[0] for row in rows]
    both = zip(request_ids, records, strict=True)

    slow = [frame(encode_response(request_id, 0, now, 1, "s1", ((2, record),))) for request_id, record in both]

    assert FastEncoder("s1").gets(request_ids, now, records) == b"".join(slow)
    both = zip(request_ids, records, strict=True)
    assert [FastEncoder("s1").get(request_id, now, record) for request_id, record in both] == slow


def test_tickets_are_used_once_and_rows_say_whose_they_are() -> None:
    requests_open, connection = OpenRequests(), Connection(4)
    requests_open.commands(connection, requests_open.tickets(2), [7, 8], [1, 1])
    requests_open.reads(connection, requests_open.tickets(1), [9], [[2, b"k"]])

    assert requests_open.by_ticket == {1: (4, 7, 1, 0, None), 2: (4, 8, 1, 0, None), 3: (4, 9, 0, 0, [2, b"k"])}
    assert connection.in_flight == 3


@pytest.mark.parametrize("tail", [b"", b"\x00"])
def test_a_separator_inside_a_body_ends_nothing(tail: bytes) -> None:
    """No client can know the separator. Even if a body contained the separator, the body would be decoded as one item,
    or be refused."""
    inside = encode_item([1, SEPARATOR]) + tail
    assert (decode_joined([inside, b"\x01"], SEPARATOR) is None) == bool(tail)
