"""Unit tests of the client protocol: golden bytes, round trips, hostile bodies; addresses, numbers and texts."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.client.address_book import MEMBERS_LEARNED_MAX, AddressBook
from kvstore.client.calls import RequestSequence
from kvstore.client.response_classifier import ASK_THE_LEADER, NO_LEADER, Redirected, Retryable, Succeeded, classify
from kvstore.errors import InvalidAddress, Unsupported
from kvstore.protocol.access_commands import AuthDisable, AuthEnable
from kvstore.protocol.addresses import parse_address
from kvstore.protocol.commands import Get, Put, Range, encode_command
from kvstore.protocol.messages import (
    Code,
    Consistency,
    MembersView,
    RequestKind,
    Response,
    check_client_hello,
    command_request,
    decode_greeting,
    decode_members,
    decode_request,
    decode_response,
    encode_client_hello,
    encode_request,
    encode_response,
    members_fields,
    members_request,
    read_log_request,
    read_request,
    status_request,
)
from kvstore.protocol.status import status_from_map
from kvstore.protocol.text import from_text, to_text
from raft import ProtocolError, Refusal


def test_requests_and_responses_are_these_bytes() -> None:
    """Clients of other versions and languages rely on these bytes, so they must never change."""
    assert encode_request(1, members_request()).hex() == "820101"
    assert encode_request(
        2, command_request(Put(b"k", b"v")), session_id=3, request_no=4, acknowledged_up_to=2
    ).hex() == ("83020286030402" + "01416b4176")
    assert encode_request(5, read_request(Get(b"k"), Consistency.LOCAL)).hex() == "8405030382" + "02416b"
    assert encode_request(6, status_request(with_hash=True)).hex() == "830604f5"
    assert encode_request(7, read_log_request(9, 0)).hex() == "8407050900"
    assert encode_response(1, 16, 7, 0, "s1", (None, None)).hex() == "87011007006273" + "31f6f6"


@given(
    st.integers(1, 2**63 - 1),
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**63 - 1),
    st.binary(min_size=1, max_size=40),
)
def test_a_command_request_carries_the_very_item_that_is_proposed(
    request_id: int, session_id: int, request_no: int, key: bytes
) -> None:
    """The command inside the request keeps its bytes for any encoded width of the numbers around it."""
    command = Put(key, b"v")
    body = encode_request(request_id, command_request(command), session_id=session_id, request_no=request_no)

    asked = decode_request(body)

    assert (asked.request_id, asked.kind) == (request_id, RequestKind.COMMAND)
    assert asked.raw_command == encode_command(command, session_id=session_id, request_no=request_no)
    assert list(asked.items) == [session_id, request_no, 0, 1, key, b"v"]


@given(st.binary(max_size=60))
def test_no_body_makes_a_reader_fail_otherwise_than_by_protocol_error(body: bytes) -> None:
    """If a stranger sends an invalid body, a client or a server closes the connection and does nothing else."""
    for read in (decode_request, decode_response, decode_greeting, check_client_hello):
        try:
            read(body)
        except ProtocolError:
            continue


def test_a_response_that_closes_the_connection_gives_its_reason() -> None:
    """Code 31 carries the member's own words."""
    with pytest.raises(ProtocolError, match="s1 closed the connection: no such frame"):
        decode_response(encode_response(0, Code.MALFORMED, 1, 0, "s1", ("no such frame",)))


@pytest.mark.parametrize("body", [b"\x80", b"\x85\x01\x02\x03\x04\x05", b"\x01"])
def test_a_response_of_another_shape_is_refused(body: bytes) -> None:
    """A response begins with four numbers and a node id."""
    with pytest.raises(ProtocolError):
        decode_response(body)


def test_a_members_view_survives_the_wire_and_nonsense_does_not() -> None:
    """Arrays grow at their end, and each known item must have its type."""
    view = MembersView("s1", "h:1", 3, (("s1", "h:1"), ("s2", "")))
    fields = decode_response(encode_response(1, 0, 1, 0, "s1", (*members_fields(view), "newer"))).fields

    assert decode_members(Response(1, 0, 1, 0, "s1", fields)) == view
    wrongs: list[tuple[object, ...]] = [
        (),
        (1, None, 3, []),
        (None, None, "3", []),
        (None, None, 3, [["s1"]]),
        (None, None, 3, [[1, 2]]),
    ]
    for wrong in wrongs:
        with pytest.raises(ProtocolError):
            decode_members(Response(1, 0, 1, 0, "s1", wrong))


def test_a_members_hello_must_speak_our_version_and_a_refusal_is_told() -> None:
    """A hello states the lowest and the highest version (docs/reference/specification.md#74-hello)."""
    with pytest.raises(ProtocolError, match="too many"):
        decode_greeting(Refusal("busy", "too many").encode())
    check_client_hello(encode_client_hello())


def test_a_response_is_judged_by_its_code() -> None:
    """The next step of the client's retry machine depends on the code alone."""
    assert isinstance(classify(Response(1, 0, 1, 0, "s1")), Succeeded)
    assert classify(Response(1, 16, 1, 0, "s1", ("s2", "h:2"))) == Redirected(
        "h:2", "s1 is not the leader, s2 is", ASK_THE_LEADER
    )
    assert classify(Response(1, 16, 1, 0, "s1", (None, None))) == Redirected(None, "s1 hears no leader", NO_LEADER)
    assert isinstance(classify(Response(1, 3, 1, 0, "s1", ("sessions_max", 5))), Retryable)
    for code, fields in ((99, ()), (16, ()), (20, ("x",)), (2, (1, 2, 3))):
        with pytest.raises(ProtocolError):
            classify(Response(1, code, 1, 0, "s1", fields))


def test_consistencies_are_read_by_their_word() -> None:
    """The options of commands and the histories use the same words."""
    assert [Consistency.of(each.word) for each in Consistency] == list(Consistency)
    with pytest.raises(Unsupported):
        Consistency.of("strong")


def test_a_range_read_is_a_body_of_nine() -> None:
    """`kvstore.protocol.commands` defines the shape of a range. A read contains such a body but adds no log entry."""
    assert len(read_request(Range(), Consistency.LINEARIZABLE).items[1]) == 9


def test_a_status_ignores_what_it_does_not_know_and_misses_nothing() -> None:
    """A newer member may report more fields. If a status lacks a field, it does not come from one of our members."""
    with pytest.raises(ProtocolError):
        status_from_map({"node_id": "s1"})
    with pytest.raises(ProtocolError):
        status_from_map(None)


@given(st.binary())
def test_any_bytes_survive_as_text(data: bytes) -> None:
    """Keys and values are bytes. The command line and histories show them as text."""
    assert from_text(to_text(data)) == data


@given(st.lists(st.integers(0, 9), max_size=60))
def test_numbers_are_acknowledged_only_without_a_gap(choices: list[int]) -> None:
    """The floor is the greatest number without an open number at or below it. No number is more than `open_max` above
    the floor."""
    numbers = RequestSequence(open_max=5)
    open_numbers: list[int] = []
    for choice in choices:
        if numbers.has_room:
            open_numbers.append(numbers.open())
        if open_numbers and choice < 6:
            numbers.close(open_numbers.pop(choice % len(open_numbers)))
        last = max([*open_numbers, numbers.acknowledged_up_to])
        assert numbers.acknowledged_up_to == (min(open_numbers) - 1 if open_numbers else last)
        assert last - numbers.acknowledged_up_to <= 5


def test_addresses_are_host_and_port() -> None:
    """An IPv6 address is written in brackets."""
    assert parse_address("localhost:7101") == ("localhost", 7101)
    assert parse_address("[::1]:7101") == ("::1", 7101)
    for wrong in ("localhost", ":1", "h:", "h:x", "h:65536", "h:-1", "h:１"):
        with pytest.raises(InvalidAddress):
            parse_address(wrong)


def a_book(*endpoints: str) -> AddressBook:
    return AddressBook(endpoints, random=Random(1), pause_min_ns=100, pause_max_ns=1_000)


def test_a_failed_address_rests_longer_each_time_up_to_a_bound() -> None:
    """After an address has answered, the earlier failures at this address no longer count."""
    book = a_book("a:1")
    pauses = []
    for _ in range(8):
        book.failed("a:1", now=0)
        pauses.append(book.earliest())

    assert all(50 << number <= pause for number, pause in enumerate(pauses[:4]))
    assert max(pauses) <= 1_000
    assert book.next_candidate(now=0) is None
    book.answered("a:1")
    assert book.next_candidate(now=0) == "a:1"


def test_a_suggested_address_is_next_unless_it_was_silent() -> None:
    """A member that refused a connection may be back already. But a new attempt at a paused member costs a time-out."""
    book = a_book("a:1", "b:1")
    book.learn(["a:1", "b:1", "c:1"])
    book.suggest("c:1")
    assert book.next_candidate(now=0) == "c:1"

    book.failed("c:1", now=0)
    book.suggest("c:1")
    assert book.next_candidate(now=0) == "c:1"

    book.silent("c:1", until=10)
    book.suggest("c:1")
    assert book.next_candidate(now=0) != "c:1"


def test_what_members_tell_is_bounded_and_replaced() -> None:
    """The client never forgets the endpoints from its caller, because the client may not be able to reach the
    advertised addresses."""
    book = a_book("a:1")
    book.learn([f"m{number}:1" for number in range(100)])
    assert len(book.addresses) == 1 + MEMBERS_LEARNED_MAX

    book.failed("m1:1", now=0)
    book.learn(["x:1"])
    assert book.addresses == ["a:1", "x:1"]
    book.learn(["m1:1"])
    assert {book.next_candidate(now=0) for _ in range(2)} == {"a:1", "m1:1"}


def test_the_words_of_a_request_have_its_first_key_if_it_has_one() -> None:
    """The words of a request become a note of the call's error, so they never contain the secret of a command."""
    assert command_request(Put(b"greeting", b"hello")).words == "put of b'greeting'"
    assert command_request(AuthDisable()).words == "auth disable"
    assert command_request(AuthEnable(bytes(32))).words == "auth enable"
    assert status_request().words == "status"
