"""The two implementations of HTTP/2 take the same requests, find the same faults, and send the same responses."""

from __future__ import annotations

import hpack
import pytest

from kvstore.etcd.http2.connection import (
    PREFACE,
    ConnectionEnded,
    Headers,
    HttpBounds,
    HttpEvent,
    RequestBegan,
    StreamReset,
    WindowOpened,
)
from kvstore.etcd.http2.engine import CONTINUATIONS_MAX, EngineConnection
from kvstore.etcd.http2.headers import encode_headers
from tests.kvstore.etcd.http2.sequences import USUAL, are_alike, frame, play, play_pieces

BLOCK = encode_headers(tuple(USUAL))
CALLS = ((b":status", b"200"),)


def opened(*frames: bytes, bounds: HttpBounds | None = None) -> EngineConnection:
    """A connection that has received its settings and these frames."""
    connection = EngineConnection(bounds)
    connection.receive(PREFACE + frame(4, 0, 0, b"") + b"".join(frames), 1)
    connection.take_output()
    return connection


@pytest.mark.parametrize("first", range(0, 2_000, 250))
def test_random_conversations_end_alike(first: int) -> None:
    differing = [seed for seed in range(first, first + 250) if not are_alike(*play(seed))]
    assert not differing


def test_the_pieces_in_which_bytes_arrive_make_no_difference() -> None:
    for seed in range(200):
        at_once, by_bytes = play_pieces(seed)
        if at_once.end is None:
            assert at_once == by_bytes, seed
        else:
            assert (at_once.end, at_once.reason) == (by_bytes.end, by_bytes.reason), seed


def test_the_conversations_reach_both_ends() -> None:
    """Otherwise the comparison would say little."""
    ends = {str(play(seed)[0].end) for seed in range(200)}
    assert {"None", "('GOAWAY', 1)", "('GOAWAY', 11)"} <= ends


def test_a_stream_beyond_the_bound_is_refused_and_the_connection_goes_on() -> None:
    connection = opened(frame(1, 4, 1, BLOCK), frame(1, 4, 3, BLOCK), bounds=HttpBounds(streams_max=2))

    assert connection.receive(frame(1, 4, 5, BLOCK), 1) == []
    assert connection.take_output() == frame(3, 0, 5, (7).to_bytes(4))

    connection.receive(frame(0, 1, 1, b""), 1)
    connection.send_headers(1, CALLS, is_last=True)
    assert [type(event) for event in connection.receive(frame(1, 4, 7, BLOCK), 1)] == [RequestBegan]


def test_streams_that_are_refused_count_as_resets() -> None:
    connection = opened(bounds=HttpBounds(streams_max=0, resets_max=20))
    for number in range(20):
        assert not connection.receive(frame(1, 4, 2 * number + 1, BLOCK), 1)
    assert isinstance(connection.receive(frame(1, 4, 101, BLOCK), 1)[0], ConnectionEnded)


def test_a_header_list_has_a_greatest_number_of_frames() -> None:
    connection = opened(frame(1, 0, 1, BLOCK))
    for _ in range(CONTINUATIONS_MAX):
        assert connection.receive(frame(9, 0, 1, b""), 1) == []
    [ended] = connection.receive(frame(9, 4, 1, b""), 1)
    assert isinstance(ended, ConnectionEnded)
    assert "header list" in ended.reason


def test_a_window_that_grows_beyond_its_greatest_size_ends_the_stream_only() -> None:
    connection = opened(frame(1, 4, 1, BLOCK))
    assert connection.receive(frame(8, 0, 1, b"\x7f\xff\xff\xff"), 1) == [StreamReset(1)]
    assert connection.take_output() == frame(3, 0, 1, (3).to_bytes(4))


def test_a_smaller_first_window_may_make_windows_negative() -> None:
    connection = opened(frame(1, 4, 1, BLOCK))
    connection.send_headers(1, CALLS)
    connection.send_data(1, bytes(10_000))
    connection.receive(frame(4, 0, 0, b"\0\4\0\0\0\0"), 1)
    connection.send_data(1, b"waits")
    connection.take_output()

    assert connection.receive(frame(8, 0, 1, (10_000).to_bytes(4)), 1) == []
    assert connection.receive(frame(8, 0, 1, (5).to_bytes(4)), 1) == [WindowOpened(1)]
    assert connection.take_output() == frame(0, 0, 1, b"waits")


def test_the_window_of_a_large_request_is_opened_again() -> None:
    connection = opened(frame(1, 4, 1, BLOCK), bounds=HttpBounds(window_bytes=20_000))
    connection.receive(frame(0, 0, 1, bytes(10_000)), 1)
    assert connection.take_output() == frame(8, 0, 1, (10_000).to_bytes(4))


def test_a_client_that_sends_more_than_a_window_loses_the_connection() -> None:
    connection = opened(frame(1, 4, 1, BLOCK), bounds=HttpBounds(window_bytes=20_000))
    sent = frame(0, 0, 1, bytes(9_000))
    connection.receive(sent, 1)  # No window update before half of the window.
    connection._bounds = HttpBounds(window_bytes=8_000)
    [ended] = connection.receive(sent, 1)
    assert isinstance(ended, ConnectionEnded)


@pytest.mark.parametrize("size", [0, 126, 127, 128, 300, 20_000])
def test_a_header_of_any_length_can_be_read(size: int) -> None:
    written = encode_headers(((b":status", b"200"), (b"grpc-message", b"v" * size)))
    assert [tuple(each) for each in hpack.Decoder(10**6).decode(written, raw=True)] == [
        (b":status", b"200"),
        (b"grpc-message", b"v" * size),
    ]


def test_a_first_byte_that_is_not_the_preface_ends_the_connection() -> None:
    [ended] = EngineConnection().receive(b"PRI * HTTP/1.1", 1)
    assert isinstance(ended, ConnectionEnded)


def test_a_list_in_the_table_means_what_the_table_says_now() -> None:
    """The same bytes name other fields after the table has changed."""
    encoder = hpack.Encoder()
    first = encoder.encode([*USUAL, (b"token", b"a")])
    in_table = bytes(encoder.encode([*USUAL, (b"token", b"a")]))
    connection = opened(frame(1, 5, 1, first))
    assert _headers(connection.receive(frame(1, 5, 3, in_table), 1))[-1] == (b"token", b"a")
    # The table gets another field, so each field of before has another number.
    other = encoder.encode([*USUAL, (b"token", b"b")])
    assert _headers(connection.receive(frame(1, 5, 5, other), 1))[-1] == (b"token", b"b")

    [ended] = connection.receive(frame(1, 5, 7, in_table), 1)

    assert isinstance(ended, ConnectionEnded)  # Now the list names a field twice and lacks another one.


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_client_with_a_smaller_table_is_told_that_the_table_is_not_used(*, is_whole: bool) -> None:
    """RFC 9113, section 4.3.1. Some clients, such as those on nghttp2, refuse a header list without it."""
    connection = opened(frame(1, 5, 1, BLOCK), frame(4, 0, 0, b"\0\1\0\0\0\x64"), frame(1, 5, 3, BLOCK))
    decoder = hpack.Decoder()
    decoder.max_allowed_table_size = 100

    for stream_id in (1, 3):
        if is_whole:
            connection.send_response(stream_id, CALLS, b"", CALLS)
        else:
            connection.send_headers(stream_id, CALLS, is_last=True)
    output = connection.take_output()

    while output:
        end = 9 + int.from_bytes(output[:3])
        if output[3] == 1:
            assert [tuple(each) for each in decoder.decode(output[9:end], raw=True)] == list(CALLS)
        output = output[end:]
    assert decoder.header_table_size == 0


def test_frames_of_a_refused_stream_may_still_be_on_their_way() -> None:
    bounds = HttpBounds(streams_max=0)
    connection = opened(frame(1, 4, 1, BLOCK), bounds=bounds)
    trailers = encode_headers(((b"a", b"1"),))
    assert connection.receive(frame(0, 0, 1, b"data") + frame(1, 5, 1, trailers), 1) == []


@pytest.mark.parametrize(
    "rest",
    [
        pytest.param(frame(1, 5, 1, encode_headers(((b"a", b"1"),))), id="trailers"),
        pytest.param(frame(0, 0, 1, b"12") + frame(1, 5, 1, encode_headers(((b"a", b"1"),))), id="data and trailers"),
        pytest.param(frame(0, 1, 1, b"12"), id="data"),
    ],
)
def test_a_request_that_is_shorter_than_its_content_length_is_malformed(rest: bytes) -> None:
    connection = opened(frame(1, 4, 1, encode_headers((*USUAL, (b"content-length", b"3")))))
    [ended] = connection.receive(rest, 1)
    assert isinstance(ended, ConnectionEnded)


def test_a_request_without_the_body_of_its_content_length_is_malformed() -> None:
    connection = opened()
    [ended] = connection.receive(frame(1, 5, 1, encode_headers((*USUAL, (b"content-length", b"3")))), 1)
    assert isinstance(ended, ConnectionEnded)


def test_a_header_list_changes_the_size_of_the_table_twice_at_most() -> None:
    """RFC 7541, section 4.2. A frame of 16 KiB has place for thousands of changes, and they cost 40 ms."""
    connection = opened()
    assert len(connection.receive(frame(1, 5, 1, b"\x20\x3f\xe1\x1f" + BLOCK), 1)) == 2
    [ended] = connection.receive(frame(1, 5, 3, b"\x20\x3f\xe1\x1f\x21" + BLOCK), 1)
    assert isinstance(ended, ConnectionEnded)


def test_a_header_list_that_cannot_be_decoded_is_an_error_of_compression() -> None:
    """RFC 9113, section 4.3."""
    connection = opened()
    [ended] = connection.receive(frame(1, 5, 1, b"\xff"), 1)
    assert isinstance(ended, ConnectionEnded)
    assert connection.take_output()[-4:] == (9).to_bytes(4)


def test_a_whole_response_uses_the_window_of_its_stream() -> None:
    """A client with the largest window opens it again by what it has read."""
    connection = opened(frame(4, 0, 0, b"\0\4\x7f\xff\xff\xff"), frame(1, 4, 1, BLOCK))
    connection.send_response(1, CALLS, b"12345", CALLS)
    connection.take_output()
    connection.receive(frame(8, 0, 1, (5).to_bytes(4)), 1)
    assert connection.take_output() == b""


def _headers(events: list[HttpEvent]) -> Headers:
    [began] = [event for event in events if isinstance(event, RequestBegan)]
    return began.headers
