"""Frames: lengths before bodies (docs/reference/specification.md#71-frames)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raft import FRAME_BYTES_MAX_PEER, FrameSplitter, ProtocolError, frame


@given(bodies=st.lists(st.binary(min_size=1, max_size=50), max_size=20), cuts=st.lists(st.integers(1, 60), max_size=60))
def test_frames_come_out_whole_and_in_order_however_the_stream_is_cut(bodies: list[bytes], cuts: list[int]) -> None:
    """A socket gives bytes without message boundaries (docs/reference/specification.md#71-frames)."""
    stream = b"".join(map(frame, bodies))
    splitter = FrameSplitter(bytes_max=50)
    seen: list[bytes] = []
    for cut in cuts:
        seen += splitter.feed(stream[:cut])
        stream = stream[cut:]
    seen += splitter.feed(stream)

    assert seen == bodies
    assert len(splitter.rest) == 0


def test_a_body_at_the_bound_passes_and_one_byte_more_is_refused() -> None:
    """The bound is on the length of a frame (docs/reference/specification.md#71-frames)."""
    splitter = FrameSplitter(bytes_max=10)

    assert splitter.feed(frame(b"x" * 10)) == [b"x" * 10]
    with pytest.raises(ProtocolError, match="frame of 11 bytes"):
        splitter.feed(frame(b"x" * 11))


def test_an_oversized_length_is_refused_before_anything_is_gathered() -> None:
    """A hostile length must not use memory: four bytes are enough to refuse the frame."""
    splitter = FrameSplitter(bytes_max=FRAME_BYTES_MAX_PEER)

    with pytest.raises(ProtocolError, match="4294967295"):
        splitter.feed(b"\xff\xff\xff\xff")
    assert len(splitter.rest) <= 4


def test_an_empty_frame_is_refused() -> None:
    """An item has at least one byte, so a length of zero is an error."""
    with pytest.raises(ProtocolError, match="frame of 0 bytes"):
        FrameSplitter(bytes_max=10).feed(bytes(4))


def test_only_the_incomplete_frame_is_kept() -> None:
    """The memory is bounded, because the splitter keeps at most one frame in addition to the bytes of the last call."""
    splitter = FrameSplitter(bytes_max=100)

    assert len(splitter.feed(frame(b"x" * 100) * 1_000 + frame(b"y" * 50)[:20])) == 1_000
    assert len(splitter.rest) == 20
    assert splitter.feed(frame(b"y" * 50)[20:]) == [b"y" * 50]


def test_the_words_of_another_protocol_are_shown_as_such() -> None:
    """If a client connects to a web server, the error says so. The error does not only say that a frame has 1213486160
    bytes."""
    with pytest.raises(ProtocolError, match="'HTTP': the sender is not a member"):
        FrameSplitter(bytes_max=10).feed(b"HTTP/1.1 400 Bad Request\r\n")
    with pytest.raises(ProtocolError, match="it began with a TLS handshake, and this port has no TLS"):
        FrameSplitter(bytes_max=10).feed(b"\x16\x03\x01\x02")
    with pytest.raises(ProtocolError, match=r"the bound is 1 to 10$"):
        FrameSplitter(bytes_max=10).feed(b"\x16\x01\x01\x02")
