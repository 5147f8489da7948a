"""The frames that are sent to etcd (RFC 9113, RFC 7541, protobuf), and how its answers are read."""

from __future__ import annotations

import struct

from benchmarks.load import etcd_wire
from benchmarks.load.etcd_wire import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PING,
    RST_STREAM,
    SETTING_WINDOW,
    SETTINGS,
    SETUP_STREAMS,
    WINDOW_UPDATE,
    EtcdDialect,
    bytes_field,
    fields_of,
    grpc_message,
    http2_frame,
    revision_of,
    varint,
)
from benchmarks.load.workload import key_of

FIRST_STREAM = 2 * SETUP_STREAMS + 1


def a_dialect(value_bytes: int = 128, work: str = "put") -> EtcdDialect:
    dialect = EtcdDialect([bytes([n]) * value_bytes for n in range(3)], work)
    dialect._stream = FIRST_STREAM
    return dialect


def frames_of(data: bytes) -> list[tuple[int, int, int, bytes]]:
    """(kind, flags, stream, payload) of each frame."""
    found, position = [], 0
    while position < len(data):
        length = int.from_bytes(data[position : position + 3], "big")
        kind, flags, stream = struct.unpack_from(">BBI", data, position + 3)
        found.append((kind, flags, stream, data[position + 9 : position + 9 + length]))
        position += 9 + length
    assert position == len(data)
    return found


def an_answer(stream: int, message: bytes) -> bytes:
    return (
        http2_frame(HEADERS, END_HEADERS, stream, b"\x88")
        + http2_frame(DATA, 0, stream, grpc_message(message))
        + http2_frame(HEADERS, END_HEADERS | END_STREAM, stream, b"\xbf")
    )


def test_numbers_are_protobuf_varints() -> None:
    """The guide to protobuf's encoding has this example: 150 is 96 01."""
    assert varint(150) == b"\x96\x01"
    assert varint(0) == b"\0"
    assert fields_of(b"\x08\x96\x01" + bytes_field(2, b"testing")) == {1: 150, 2: b"testing"}


def test_the_revision_is_read_from_the_header_of_an_answer() -> None:
    header = b"\x08" + varint(1 << 60) + b"\x10" + varint(7) + b"\x18" + varint(4_711) + b"\x20\x02"
    assert revision_of(bytes_field(1, header)) == 4_711


def test_a_put_is_two_frames_with_key_and_value() -> None:
    dialect = a_dialect()
    dialect.write([(key_of(1), True), (key_of(2), True)], 0)

    frames = frames_of(dialect.take_output())
    assert [(kind, flags, stream) for kind, flags, stream, _ in frames] == [
        (HEADERS, END_HEADERS, FIRST_STREAM),
        (DATA, END_STREAM, FIRST_STREAM),
        (HEADERS, END_HEADERS, FIRST_STREAM + 2),
        (DATA, END_STREAM, FIRST_STREAM + 2),
    ]
    message = frames[3][3]
    assert message[:5] == b"\0" + (len(message) - 5).to_bytes(4, "big")
    assert fields_of(message[5:]) == {1: key_of(2), 2: bytes([1]) * 128}


def test_reads_and_puts_name_different_paths() -> None:
    dialect = a_dialect()
    dialect.write([(key_of(1), True), (key_of(1), False)], 0)

    put, _, read, question = frames_of(dialect.take_output())
    assert put[3] != read[3]
    assert fields_of(question[3][5:]) == {1: key_of(1)}


def test_data_waits_for_the_window_of_the_connection() -> None:
    """RFC 9113 §6.9: a sender must not send more than the receiver has room for."""
    dialect = a_dialect()
    dialect._window = 200  # One request of 157 bytes fits.
    dialect.write([(key_of(1), True), (key_of(2), True)], 0)

    sent = frames_of(dialect.take_output())
    assert sum(len(payload) for kind, _, _, payload in sent if kind == DATA) == 200

    assert dialect.read(http2_frame(WINDOW_UPDATE, 0, 0, (1_000).to_bytes(4, "big"))) == []
    later = frames_of(dialect.take_output())
    parts = [payload for kind, _, stream, payload in sent + later if kind == DATA and stream == FIRST_STREAM + 2]
    assert fields_of(b"".join(parts)[5:]) == {1: key_of(2), 2: bytes([1]) * 128}
    assert later[-1][1] == END_STREAM


def test_a_value_beyond_the_window_of_its_stream_goes_in_pieces() -> None:
    dialect = a_dialect(65_536)
    dialect._window = 1 << 20
    dialect.write([(key_of(1), True)], 0)

    first = [payload for kind, _, _, payload in frames_of(dialect.take_output()) if kind == DATA]
    assert sum(map(len, first)) == 65_535
    assert max(map(len, first)) <= 16_384

    dialect.read(http2_frame(WINDOW_UPDATE, 0, FIRST_STREAM, (1 << 16).to_bytes(4, "big")))
    [(kind, flags, _, rest)] = frames_of(dialect.take_output())
    assert (kind, flags) == (DATA, END_STREAM)
    assert fields_of(b"".join([*first, rest])[5:])[2] == bytes(65_536)


def test_settings_and_pings_are_answered_and_obeyed() -> None:
    dialect = a_dialect()
    settings = http2_frame(SETTINGS, 0, 0, struct.pack(">HI", SETTING_WINDOW, 100_000))

    dialect.read(settings + http2_frame(PING, 0, 0, b"12345678"))

    assert frames_of(dialect.take_output()) == [(SETTINGS, ACK, 0, b""), (PING, ACK, 0, b"12345678")]
    assert dialect._stream_window == 100_000


def test_answers_are_read_whatever_the_cuts_between_them() -> None:
    data = an_answer(FIRST_STREAM + 2, b"x" * 30) + an_answer(FIRST_STREAM, b"y" * 30)
    for cut in range(len(data)):
        dialect = a_dialect()
        assert dialect.read(data[:cut]) + dialect.read(data[cut:]) == [1, 0]
        assert not dialect.errors


def test_an_end_without_a_message_is_an_error() -> None:
    """In gRPC over HTTP/2, an error consists of trailers only."""
    dialect = a_dialect()

    assert dialect.read(http2_frame(HEADERS, END_HEADERS | END_STREAM, FIRST_STREAM, b"\x88")) == [0]
    assert dialect.read(http2_frame(RST_STREAM, 0, FIRST_STREAM + 2, b"\0\0\0\x07")) == [1]
    assert dialect.errors == {"refused": 1, "reset": 1}


def test_a_read_that_found_nothing_is_an_error() -> None:
    dialect = a_dialect(work="get")

    dialect.read(an_answer(FIRST_STREAM, b"z" * 200))
    assert not dialect.errors
    dialect.read(an_answer(FIRST_STREAM + 2, b"z" * 20))
    assert dialect.errors == {"absent": 1}


def test_the_window_for_answers_is_made_new_before_it_is_used_up() -> None:
    dialect = a_dialect()
    dialect._received_bytes = etcd_wire._REPLENISH_BYTES

    dialect.read(an_answer(FIRST_STREAM, b"x" * 30))

    [(kind, _, stream, grown)] = frames_of(dialect.take_output())
    assert (kind, stream) == (WINDOW_UPDATE, 0)
    assert int.from_bytes(grown, "big") > etcd_wire._REPLENISH_BYTES
