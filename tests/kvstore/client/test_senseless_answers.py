"""A nonsensical answer of a member proves nothing: neither that a command was carried out, nor that it was not carried
out."""

from __future__ import annotations

import pytest

from kvstore.client.client_limits import MILLISECOND_NS
from kvstore.errors import OutcomeUnknown, Unavailable
from kvstore.protocol.commands import CommandKind
from kvstore.protocol.messages import Code, Response
from kvstore.protocol.results import read_answer, read_result
from kvstore.protocol.status import status_from_map
from raft import ProtocolError
from tests.kvstore.support.scripted_members import World

MINUTE_NS = 60_000 * MILLISECOND_NS
UNKNOWN_CODE = 99


def test_a_write_that_was_answered_with_nonsense_is_unknown_and_never_a_certain_failure() -> None:
    """Without a session the write cannot be repeated, so nobody knows whether it was carried out."""
    world = World("s1", leader="s1", ttl_ns=0)
    ticket = world.put()

    world["s1"].answer(UNKNOWN_CODE)
    world.wait(6)

    assert isinstance(world.ended[ticket].error, OutcomeUnknown)


def test_a_write_of_a_session_that_was_answered_with_nonsense_is_repeated_under_its_number() -> None:
    world = World("s1", leader="s1", ttl_ns=MINUTE_NS)
    ticket = world.put()

    first = world["s1"].answer(UNKNOWN_CODE)
    world.wait(1)
    again = world["s1"].answer()

    assert again.items[:2] == first.items[:2]
    assert world.outcome(ticket) == "ok"


@pytest.mark.parametrize("session", [None, 0, -1, "5", [], True], ids=repr)
def test_a_session_that_makes_no_sense_is_asked_for_again(session: object) -> None:
    """The registration counts as lost. The client must neither fail an assertion nor wait for its session forever."""
    world = World("s1", leader="s1", ttl_ns=MINUTE_NS)
    world["s1"].registers = False
    ticket = world.put()
    world["s1"].answer(Code.OK, (CommandKind.REGISTER_SESSION, session, MINUTE_NS))
    world["s1"].registers = True

    world.wait(1)
    world["s1"].answer()

    assert world.outcome(ticket) == "ok"


@pytest.mark.parametrize("address", [5, [], {}, b"s2:1"], ids=repr)
def test_a_leader_at_something_that_is_no_address_is_not_looked_for_there(address: object) -> None:
    world = World("s1", "s2", leader="s1", ttl_ns=0)
    world.put()

    world["s1"].answer(Code.NOT_LEADER, "s2", address)

    assert all(isinstance(each, str) for each in world.core.addresses)


@pytest.mark.parametrize(
    "body",
    [
        (2, [7, 1, 1, 1, 0]),
        (2, [b"v", "1", 1, 1, 0]),
        (2, None, "3", True),
        (3, 1),
        (4, [[b"k", b"v", 1, 1, None, 0]], False, 1),
        (4, [], 0, 1),
        (5, "yes"),
        (6, True, [(1,), (2, [0])]),
        (16, "5", 1),
        ({}, 1),
    ],
    ids=str,
)
def test_a_result_whose_fields_have_other_types_is_refused_when_it_is_read(body: tuple[object, ...]) -> None:
    with pytest.raises(ValueError):
        read_result((0, 7, body))


@pytest.mark.parametrize("term", ["1", None, 1.5, []], ids=repr)
def test_a_status_whose_fields_have_other_types_is_refused(term: object) -> None:
    with pytest.raises(ProtocolError, match=r"MemberStatus\.term"):
        status_from_map({"node_id": "s1", "term": term})


@pytest.mark.parametrize(("has_effect", "error"), [(True, OutcomeUnknown), (False, Unavailable)])
@pytest.mark.parametrize("trouble", [ProtocolError("x"), ValueError(), TypeError(), IndexError(), AttributeError()])
def test_whatever_goes_wrong_in_reading_an_answer_is_one_of_the_two_outcomes(
    has_effect: bool, error: type[Exception], trouble: Exception
) -> None:
    def read(_: Response) -> None:
        raise trouble

    with pytest.raises(error, match="s1 gave an invalid answer"):
        read_answer(Response(1, 0, 7, 0, "s1"), read, has_effect=has_effect)
