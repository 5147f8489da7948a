"""Many puts with the same shape are read together. The result is the same as the decoder's. Puts that cannot be read in
this way are left to the decoder."""

from __future__ import annotations

from typing import Any

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore.limits import AdmissionLimits
from kvstore.protocol.cbor_heads import SEPARATOR
from kvstore.protocol.commands import Put, decode_payload, encode_command
from kvstore.protocol.fast_puts import (
    NOT_A_PLAIN_PUT,
    RUN_MAX,
    parse_uniform_batch,
    parse_uniform_single_puts,
    to_put_rows,
    to_single_puts,
)
from kvstore.protocol.messages import command_request, encode_request
from kvstore.server.fast_requests import parse_batch, parse_uniform_puts
from raft import INT64_MAX, decode_joined, encode_batch, encode_item, frame
from raft.encoding.frames import FrameSplitter

LIMITS = AdmissionLimits(key_bytes_max=5, value_bytes_max=300)
EDGES = (0, 1, 22, 23, 24, 255, 256, 65_535, 65_536, (1 << 32) - 1, 1 << 32, INT64_MAX)

numbers = st.sampled_from(EDGES)
runs = st.tuples(
    st.integers(1, 90),  # The number of puts.
    numbers,  # The session.
    st.integers(1, 70_000),  # The number of the first request, and the acknowledged number in all requests.
    numbers,
    st.integers(0, 5),  # The sizes of keys and of values.
    st.sampled_from([0, 3, 23, 24, 255, 256, 300]),
)
odd_items: st.SearchStrategy[Any] = st.sampled_from(
    [0, -1, None, (), (1, 2, 0, 2, b"k"), (1, 2, 0, 1, b"k"), (1, 2, 0, 1, "k", b"v"), {}]
)
sound_puts = st.tuples(numbers, numbers, numbers, st.just(1), st.sampled_from([b"k", b"l"]), st.just(b"v"))
plain_or_odd: st.SearchStrategy[Any] = st.one_of(
    *[sound_puts] * 6,
    odd_items,
    st.tuples(sound_puts, st.integers(0, 5), st.sampled_from([-1, 1 << 63, True, b"", "k", None, 2, ()])).map(
        lambda odd: (*odd[0][: odd[1]], odd[2], *odd[0][odd[1] + 1 :])
    ),
)
flips = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=2)


def commands_of(run: tuple[int, ...]) -> list[bytes]:
    """Puts of consecutive requests under one session."""
    count, session_id, first, floor, key_bytes, value_bytes = run
    return [
        encode_command(
            Put(bytes([number % 256]) * key_bytes, bytes([number % 251]) * value_bytes),
            session_id=session_id,
            request_no=first + number,
            acknowledged_up_to=floor,
        )
        for number in range(count)
    ]


def flipped(data: bytes, at: list[tuple[int, int]]) -> bytes:
    """The data with some bytes replaced."""
    changed = bytearray(data)
    for place, byte in at:
        changed[place % len(changed)] = byte
    return bytes(changed)


@settings(deadline=None, max_examples=300)
@given(time=numbers, parts=st.lists(runs, max_size=4), odd=st.lists(odd_items, max_size=1), at=flips, cut=st.booleans())
def test_a_payload_that_is_read_by_shapes_says_what_the_decoder_says(
    time: int, parts: list[tuple[int, ...]], odd: list[Any], at: list[tuple[int, int]], cut: bool
) -> None:
    commands = [command for part in parts for command in commands_of(part)]
    payload = flipped(encode_batch(time, [*commands, *map(cbor2.dumps, odd)]), at)[: -1 if cut else None]

    batch = parse_uniform_batch(payload)

    if batch is not None:
        decoded_time, items = decode_payload(payload)
        assert repr(batch) == repr((decoded_time, to_put_rows(items[1:])))
        assert all(row[0] != NOT_A_PLAIN_PUT for row in batch[1])


@pytest.mark.parametrize("count", [1, 17, 64, 65, RUN_MAX + 100])
@pytest.mark.parametrize("session_id", [3, 200])
def test_runs_of_clients_are_read_by_shapes(count: int, session_id: int) -> None:
    parts = [(count, session_id, 66_000, 65_990, 16, 128), (count, 7, 300, 290, 1, 0)]
    commands = [command for part in parts for command in commands_of(part)]
    payload = encode_batch(5, commands)

    batch = parse_uniform_batch(payload)

    if count < 16:
        assert batch is None  # If there are so few commands, the decoder reads them.
    else:
        assert batch == (5, to_put_rows(decode_payload(payload)[1][1:]))


@settings(deadline=None, max_examples=300)
@given(time=st.sampled_from([0, 22, 300, 1 << 33, 2**62 - 3, 2**62]), run=runs, at=flips, place=st.integers(0, 89))
def test_payloads_of_one_put_each_that_are_read_by_their_shape_say_what_the_decoder_says(
    time: int, run: tuple[int, ...], at: list[tuple[int, int]], place: int
) -> None:
    payloads = [encode_batch(time + number, [each]) for number, each in enumerate(commands_of(run))]
    place %= len(payloads)
    payloads[place] = flipped(payloads[place], at)

    rows = parse_uniform_single_puts(payloads)

    if rows is not None:
        decoded = [decode_payload(payload) for payload in payloads]
        expected = [(found, to_put_rows(items[1:])) for found, items in decoded]
        assert repr(rows) == repr([(found, *row) for found, (row,) in expected])
        assert all(row[1] != NOT_A_PLAIN_PUT for row in rows)


def test_the_log_of_a_lone_client_is_read_by_its_shape() -> None:
    payloads = [encode_batch(1 << 40, [each]) for each in commands_of((64, 9, 300, 299, 16, 128))]
    rows = parse_uniform_single_puts(payloads)
    assert rows == [(1 << 40, *to_put_rows(decode_payload(each)[1][1:])[0]) for each in payloads]
    assert parse_uniform_single_puts([*payloads, payloads[0] + b"\x00"]) is None
    assert parse_uniform_single_puts([*payloads, encode_batch(7, [])]) is None
    assert parse_uniform_single_puts([b"", b""]) is None


@given(st.lists(st.tuples(numbers, st.lists(plain_or_odd, min_size=1, max_size=2)), min_size=1, max_size=4))
def test_decoded_payloads_of_one_put_each_are_taken_for_what_their_rows_are(batches: list[tuple[int, Any]]) -> None:
    rows = to_single_puts([(time, *items) for time, items in batches])

    expected = [(time, *row) for time, items in batches for row in to_put_rows(items)]
    is_lone = len(expected) == len(batches) and all(row[1] != NOT_A_PLAIN_PUT for row in expected)
    assert repr(rows) == repr(expected if is_lone else None)


def test_what_is_no_batch_of_puts_is_left_to_the_decoder() -> None:
    whole = encode_batch(5, commands_of((40, 1, 100, 90, 3, 9)))
    no_time, no_array = whole[:2] + b"\x20" + whole[3:], b"\xa1" + whole[1:]
    for payload in (b"", b"\x80", b"\x81\x01", whole[:-1], whole + b"\x00", no_time, no_array, whole[:1] * 40):
        assert parse_uniform_batch(payload) is None


def test_what_says_that_its_value_is_larger_than_all_there_is_is_left_to_the_decoder() -> None:
    """`struct` does not support such a size, and would raise a different error."""
    put = b"\x86\x01\x01\x00\x01\x41k\x5b" + INT64_MAX.to_bytes(8, "big")
    assert parse_uniform_single_puts([b"\x82\x05" + put] * 2) is None
    assert parse_uniform_batch(b"\x91\x05" + put * 16) is None


def test_commands_that_are_no_sound_puts_are_kept_as_they_are() -> None:
    items = [
        (1, 2, 0, 1, b"k", b"v"),
        (1, 2, 0, 1, b"", b"v"),
        (1, True, 0, 1, b"k", b"v"),
        (1, INT64_MAX + 1, 0, 1),
        7,
    ]
    assert to_put_rows(items) == [(1, 2, 0, b"k", b"v"), *[(NOT_A_PLAIN_PUT, 0, 0, b"", item) for item in items[1:]]]


@settings(deadline=None, max_examples=300)
@given(parts=st.lists(runs, min_size=1, max_size=3), first_id=st.integers(0, 70_000), at=flips, cut=st.integers(0, 9))
def test_requests_that_are_read_by_their_shape_are_those_that_the_general_way_takes(
    parts: list[tuple[int, ...]], first_id: int, at: list[tuple[int, int]], cut: int
) -> None:
    commands = [command for part in parts for command in commands_of(part)]
    frames = [frame(b"\x83" + encode_item(number) + b"\x02" + each) for number, each in enumerate(commands, first_id)]
    data = flipped(b"".join(frames), at)
    data = data[: len(data) - cut]

    run = parse_uniform_puts(data, 1_000, LIMITS)

    if run is not None:
        bodies = FrameSplitter(1 << 20).feed(data[: run.end])
        general = parse_batch(bodies, decode_joined(bodies, SEPARATOR), 0, LIMITS)  # type: ignore[arg-type]
        assert general.end == len(bodies) == len(run.commands)
        assert run.commands == general.commands
        assert [*run.command_ids] == general.command_ids
        assert [*run.session_ids] == general.session_ids
        assert not run.reads


def test_the_puts_of_a_client_are_read_by_their_shape_up_to_what_is_of_another_one() -> None:
    frames = [
        frame(encode_request(no, command_request(Put(b"k", b"v" * 9)), session_id=1, request_no=no))
        for no in range(300, 340)
    ]
    run = parse_uniform_puts(b"".join(frames) + frame(b"\x01") + frames[0], 1_000, LIMITS)

    assert run is not None
    assert (len(run.commands), run.end) == (40, sum(map(len, frames)))
    assert parse_uniform_puts(b"".join(frames), 39, LIMITS) is None  # The frames contain one put more than the bound.
    assert parse_uniform_puts(b"".join(frames[:3]), 1_000, LIMITS) is None
    assert parse_uniform_puts(b"".join(frames), 1_000, AdmissionLimits(value_bytes_max=8)) is None
    assert parse_uniform_puts(b"".join(frames), 1_000, AdmissionLimits(key_bytes_max=1)) is not None


@pytest.mark.parametrize("data", [b"", b"\x00", bytes(4), bytes(200), b"\xff" * 200, b"\x00\x00\x00\x01\x83" * 40])
def test_bytes_that_are_no_requests_are_left_to_the_general_way(data: bytes) -> None:
    assert parse_uniform_puts(data, 1_000, LIMITS) is None
