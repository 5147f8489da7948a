"""The lean generator writes the bytes that the product reads, and parses the product's answers correctly."""

from __future__ import annotations

import pytest

from benchmarks.load.highwatermark_wire import FIRST, HighwatermarkDialect
from benchmarks.load.workload import key_of
from kvstore import Acknowledge, Code, Consistency, Get, Put, command_request, read_request
from kvstore.protocol.messages import encode_request, encode_response
from raft import FrameSplitter, encode_item, frame

VALUES = [bytes([n]) * 128 for n in range(3)]


def a_dialect(session_id: int, work: str = "put") -> HighwatermarkDialect:
    dialect = HighwatermarkDialect(VALUES, work)
    dialect._session = encode_item(session_id)
    return dialect


@pytest.mark.parametrize("session_id", [1, 23, 24, 300, 70_000])
def test_a_put_is_what_the_production_client_would_have_sent(session_id: int) -> None:
    dialect = a_dialect(session_id)
    dialect.write([(key_of(5), True), (key_of(6), True)], 0)

    expected = [
        encode_request(
            FIRST + number,
            command_request(Put(key_of(4 + number), VALUES[number - 1])),
            session_id=session_id,
            request_no=FIRST + number,
            acknowledged_up_to=FIRST,
        )
        for number in (1, 2)
    ]
    assert FrameSplitter(1 << 20).feed(dialect.take_output()) == expected


@pytest.mark.parametrize("level", [Acknowledge.LEADER, Acknowledge.IN_SYNC])
def test_a_put_with_a_level_is_what_the_production_client_would_have_sent(level: Acknowledge) -> None:
    dialect = HighwatermarkDialect(VALUES, "put", level)
    dialect._session = encode_item(300)
    dialect.write([(key_of(5), True)], 0)

    [body] = FrameSplitter(1 << 20).feed(dialect.take_output())
    request = command_request(Put(key_of(5), VALUES[0]), level)
    assert body == encode_request(FIRST + 1, request, session_id=300, request_no=FIRST + 1, acknowledged_up_to=FIRST)


def test_the_answer_that_ends_a_put_depends_on_its_level() -> None:
    """An accepted put has no result yet. If the level of the put waits for a result, the same answer is an error."""
    accepted = frame(encode_response(FIRST + 1, Code.ACCEPTED, 5, 0, "n1", (7, 1)))
    for level, errors in ((Acknowledge.LEADER, {}), (Acknowledge.MAJORITY, {"code 32": 1})):
        dialect = HighwatermarkDialect(VALUES, "put", level)
        assert dialect.read(accepted) == [0]
        assert dialect.errors == errors


@pytest.mark.parametrize("value_bytes", [1, 16, 23, 24, 255, 256, 65_535, 65_536])
def test_values_of_every_length_are_framed_right(value_bytes: int) -> None:
    dialect = HighwatermarkDialect([bytes(value_bytes)], "put")
    dialect._session = encode_item(1)
    dialect.write([(key_of(1), True)], 0)

    [body] = FrameSplitter(1 << 20).feed(dialect.take_output())
    request = command_request(Put(key_of(1), bytes(value_bytes)))
    assert body == encode_request(FIRST + 1, request, session_id=1, request_no=FIRST + 1, acknowledged_up_to=FIRST)


def test_a_get_is_a_linearizable_read() -> None:
    dialect = a_dialect(1, "get")
    dialect.write([(key_of(9), False)], 0)

    expected = encode_request(FIRST + 1, read_request(Get(key_of(9)), Consistency.LINEARIZABLE))
    assert FrameSplitter(1 << 20).feed(dialect.take_output()) == [expected]


def test_answers_are_acknowledged_up_to_the_first_open_one() -> None:
    dialect = a_dialect(1)
    dialect.write([(key_of(1), True)], 0)
    dialect.take_output()
    dialect.write([(key_of(2), True)], 1)

    request = command_request(Put(key_of(2), VALUES[1]))
    body = encode_request(FIRST + 2, request, session_id=1, request_no=FIRST + 2, acknowledged_up_to=FIRST + 1)
    assert dialect.take_output() == frame(body)


def test_answers_are_read_whatever_the_cuts_between_them() -> None:
    data = b"".join(frame(encode_response(FIRST + 1 + token, 0, 1_000, 0, "n1", ((1,),))) for token in (2, 0, 1))
    for cut in range(len(data)):
        dialect = a_dialect(1)
        assert dialect.read(data[:cut]) + dialect.read(data[cut:]) == [2, 0, 1]
        assert not dialect.errors


def test_a_refusal_is_an_answer_and_an_error() -> None:
    dialect = a_dialect(1)

    assert dialect.read(frame(encode_response(FIRST + 1, Code.BUSY, 5, 0, "n1", ("full",)))) == [0]
    assert dialect.errors == {"busy": 1}


def test_a_read_that_found_nothing_is_an_error() -> None:
    """Every key exists before the measurement begins, so an answer without a value is wrong. Such an answer is quick,
    and must not count as a fast read."""
    dialect = a_dialect(1, "get")
    found = (2, (VALUES[0], 1, 2, 3, 0))

    dialect.read(frame(encode_response(FIRST + 1, 0, 5, 1, "n1", (found,))))
    assert not dialect.errors
    dialect.read(frame(encode_response(FIRST + 2, 0, 5, 1, "n1", ((2, None, 0, True),))))
    assert dialect.errors == {"absent": 1}
