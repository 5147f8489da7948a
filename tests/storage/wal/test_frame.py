"""A decoded frame has the encoded content, and no other bytes are taken for a frame.

See docs/reference/specification.md#43-frames.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raft import Entry, EntryKind, HardState, LogPosition
from storage import StorageLimits
from storage.wal.frame import (
    ALIGNMENT_BYTES,
    FRAME_BYTES_MIN,
    FRAME_EXTRA_BYTES_MAX,
    FrameBody,
    encode_frame,
    parse_frame,
)

NUMBER = st.integers(0, 2**64 - 1)
POSITION = st.builds(LogPosition, NUMBER, NUMBER)
NODE_ID = st.text("abcdefghijklmnopqrstuvwxyz0123456789-", min_size=1, max_size=64)
HARD_STATE = st.builds(HardState, NUMBER, st.none() | NODE_ID, NUMBER)
PAYLOADS = st.lists(st.tuples(NUMBER, st.sampled_from(EntryKind), st.binary(max_size=50)), max_size=5)


@st.composite
def bodies(draw: st.DrawFn) -> FrameBody:
    first_index = draw(st.integers(1, 2**63))
    reset = draw(st.none() | POSITION)
    return FrameBody(
        start=draw(st.none() | POSITION),
        hard_state=draw(st.none() | HARD_STATE),
        reset=reset,
        replace_from=None if reset else draw(st.none() | st.integers(1, 2**64 - 1)),
        entries=[Entry(first_index + n, *fields) for n, fields in enumerate(draw(PAYLOADS))],
    )


def encoded(body: FrameBody, salt: int = 77) -> bytes:
    frame = encode_frame(salt=salt, batch=9, durable_batch=8, previous_checksum=0xABCD, body=body)
    data = b"".join(frame.buffers)
    assert len(data) == frame.length
    assert frame.length % ALIGNMENT_BYTES == 0
    assert data[-4:] == frame.checksum.to_bytes(4, "big")
    return data


@given(body=bodies(), before=st.integers(0, 3))
def test_what_goes_in_comes_out(body: FrameBody, before: int) -> None:
    data = bytes(8 * before) + encoded(body) + b"whatever follows"

    frame = parse_frame(data, 8 * before, 77)

    assert frame is not None
    assert (frame.batch, frame.durable_batch, frame.previous_checksum) == (9, 8, 0xABCD)
    assert (frame.start, frame.hard_state, frame.reset, frame.replace_from) == (
        body.start,
        body.hard_state,
        body.reset,
        body.replace_from,
    )
    assert frame.entries(data) == body.entries
    assert frame.end_offset == len(data) - len(b"whatever follows")


@given(body=bodies())
def test_a_frame_is_aligned_and_its_parts_besides_entries_keep_to_their_bound(body: FrameBody) -> None:
    length = len(encoded(body))

    assert length % 8 == 0
    assert length >= FRAME_BYTES_MIN
    assert length <= FRAME_EXTRA_BYTES_MAX + sum(entry.size_bytes for entry in body.entries)


@given(body=bodies(), data=st.data())
def test_a_flipped_bit_a_missing_byte_or_another_salt_make_it_no_frame(body: FrameBody, data: st.DataObject) -> None:
    good = encoded(body)
    spoiled = bytearray(good)
    spoiled[data.draw(st.integers(0, len(good) - 1))] ^= 1 << data.draw(st.integers(0, 7))

    assert parse_frame(bytes(spoiled), 0, 77) is None
    assert parse_frame(good[: data.draw(st.integers(0, len(good) - 1))], 0, 77) is None
    assert parse_frame(good, 0, 78) is None


@pytest.mark.parametrize("byte", [0x00, 0xFF])
def test_a_run_of_equal_bytes_is_never_a_frame(byte: int) -> None:
    for salt in (1, int.from_bytes(bytes([byte]) * 8, "big") or 1):
        assert parse_frame(bytes([byte]) * 4096, 0, salt) is None


@given(body=bodies())
def test_a_small_frame_in_one_piece_says_the_same_as_in_many(body: FrameBody) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("storage.wal.frame.JOINED_BYTES_MAX", 0)
        in_pieces = encoded(body)

    assert encoded(body) == in_pieces


def test_a_large_payload_is_not_copied() -> None:
    payload = bytes(100_000)
    body = FrameBody(entries=[Entry(1, 1, EntryKind.COMMANDS, payload)])
    frame = encode_frame(salt=1, batch=1, durable_batch=0, previous_checksum=0, body=body)

    assert any(buffer is payload for buffer in frame.buffers)


@pytest.mark.parametrize(
    "wrong",
    [
        {"segment_bytes_max": 255},
        {"frame_bytes_max": 1023},
        {"frame_bytes_max": 2**31},
        {"ballast_bytes": -1},
        {"preallocate_bytes": -1},
    ],
)
def test_limits_that_cannot_work_are_refused_by_name(wrong: dict[str, int]) -> None:
    (name,) = wrong
    with pytest.raises(ValueError, match=name):
        StorageLimits(**wrong)
