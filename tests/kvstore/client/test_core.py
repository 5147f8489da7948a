"""The client's retry machine against scripted members: which member it asks, which requests it repeats, and how it
reports the end of a call."""

from __future__ import annotations

from random import Random

import pytest

from kvstore.client.address_book import AddressBook
from kvstore.client.client_limits import MILLISECOND_NS, ClientLimits
from kvstore.client.response_classifier import Retryable, classify
from kvstore.errors import Busy, ClientClosed, OutcomeUnknown, QuotaExceeded, RequestTooLarge, ResultCode, Unavailable
from kvstore.protocol.commands import CommandKind, Put
from kvstore.protocol.messages import Code, Consistency, Response
from raft import frame
from tests.kvstore.support.scripted_members import World

MINUTE_NS = 60_000 * MILLISECOND_NS


def a_world(leader: str | None = "s1", *, session: bool = True, **limits: int) -> World:
    config = ClientLimits(**limits) if limits else ClientLimits()
    return World("s1", "s2", "s3", leader=leader, ttl_ns=MINUTE_NS if session else 0, limits=config)


def test_a_put_goes_to_the_leader_whoever_is_asked_first() -> None:
    """The member that is asked first names the leader, so the client does not ask the third member."""
    for leader in ("s1", "s2", "s3"):
        world = a_world(leader)

        ticket = world.put()
        world[leader].answer()

        assert world.outcome(ticket) == "ok"
        assert all(not member.asked for member in world.members.values())


def test_calls_are_pipelined_and_answered_in_any_order() -> None:
    """Many calls are in flight on one connection; a late answer does not delay the other calls."""
    world = a_world()
    tickets = [world.put(b"k%d" % i) for i in range(10)]
    leader = world["s1"]
    assert len(leader.asked) == 10

    leader.asked.reverse()
    leader.answer()

    assert [world.outcome(ticket) for ticket in tickets] == ["open"] * 9 + ["ok"]


def test_in_flight_requests_are_bounded_and_the_rest_waits() -> None:
    """Requests that exceed `in_flight_max` wait in the client."""
    world = a_world(in_flight_max=4)
    for _ in range(10):
        world.put()
    assert len(world["s1"].asked) == 4

    world["s1"].answer()

    assert len(world["s1"].asked) == 4  # One request has ended, and the next one was sent.


def test_open_calls_are_bounded() -> None:
    """If `calls_max` calls are open, a further call fails with Busy and certainly has no effect."""
    world = a_world(calls_max=3)
    for _ in range(3):
        world.put()

    with pytest.raises(Busy):
        world.put()


def test_open_numbers_of_a_session_are_bounded() -> None:
    """A member keeps a bounded number of results. So the client holds back requests whose numbers are too far above the
    oldest open number."""
    world = a_world(open_numbers_max=3)
    for _ in range(5):
        world.put()
    leader = world["s1"]
    assert [asked.items[1] for _, asked in leader.asked] == [1, 2, 3]

    leader.asked.rotate(-1)
    leader.answer()  # Number 2 has ended, and number 1 is still open.
    assert max(asked.items[1] for _, asked in leader.asked) == 3

    leader.asked.rotate(1)
    leader.answer()  # Number 1 has ended too, so both are acknowledged.
    assert [asked.items[1:3] for _, asked in leader.asked][-2:] == [[4, 2], [5, 2]]


def test_a_lost_connection_means_the_same_number_again_elsewhere() -> None:
    """The request is repeated under the same session and number, so that it takes effect at most once.

    See docs/reference/specification.md#97-retries.
    """
    world = a_world()
    ticket = world.put()
    first = world["s1"].asked[0][1]

    world.all_follow("s2")
    world.crash("s1")
    second = world["s2"].answer()

    assert world.outcome(ticket) == "ok"
    assert first.raw_command == second.raw_command


def test_a_silent_leader_is_left_after_the_attempt_timeout() -> None:
    """A paused process keeps its connections, so only a time-out can detect it. Answers to other requests on the
    connection extend this time-out."""
    world = a_world()
    ticket = world.put()
    world["s1"].is_silent = True
    world.all_follow("s2")

    world.wait(0.9)
    assert not world["s2"].asked

    world.wait(0.3)
    world["s2"].answer()
    assert world.outcome(ticket) == "ok"


def test_a_silent_leader_is_left_even_if_every_call_has_a_shorter_deadline() -> None:
    """The client remembers open requests beyond their calls' deadlines. If it forgot them, it would never leave a
    silent member."""
    world = a_world()
    world["s1"].is_silent = True
    for _ in range(4):
        world.put(seconds=0.4)
        world.wait(0.3)
    world.all_follow("s3")
    world["s3"].registers = False  # s3 registers no session, so the first request stays open.
    world.put()

    world.wait(0.3)

    assert len(world["s3"].asked) == 1


def test_a_silent_leader_is_not_asked_again_at_once_though_others_name_it() -> None:
    """The other members name the paused leader until they have elected a new one. So the client does not ask the paused
    leader for a while."""
    world = a_world()
    ticket = world.put()
    world["s1"].is_silent = True
    world.wait(1.05)
    world.all_follow("s2")

    world.wait(0.5)
    world["s2"].answer()

    assert world.outcome(ticket) == "ok"


def test_a_write_without_any_answer_is_unknown_at_its_deadline() -> None:
    """The write was sent, so it may have taken effect."""
    world = a_world()
    ticket = world.put(seconds=0.5)

    world.wait(0.6)

    assert isinstance(world.ended[ticket].error, OutcomeUnknown)


def test_a_write_that_was_never_sent_is_a_failure_at_its_deadline() -> None:
    """Without a leader there was no attempt, so the write certainly had no effect."""
    world = a_world(leader=None)
    ticket = world.put(seconds=2)

    world.wait(2.1)

    assert isinstance(world.ended[ticket].error, Unavailable)
    assert "nobody leads" in str(world.ended[ticket].error)


def test_without_any_member_the_failure_says_why() -> None:
    """The error's text contains the last problem, so that a user easily sees a wrong address."""
    world = a_world()
    for member in world.members.values():
        member.is_up = False

    ticket = world.put(seconds=1)
    world.wait(1.1)

    assert world.outcome(ticket) == "fail"
    assert "connection refused" in str(world.ended[ticket].error)


def test_a_failure_shows_what_each_address_said_last() -> None:
    world = a_world(leader=None)
    world["s2"].is_up = False

    ticket = world.put(seconds=3)
    world.wait(3.1)

    text = str(world.ended[ticket].error)
    addresses = [member.address for member in world.members.values()]
    assert text.startswith("unavailable: no answer within its deadline; 3 addresses were tried: ")
    assert f"{addresses[0]}: s1 says that nobody leads; {addresses[1]}: connection refused; {addresses[2]}: s3 " in text


def test_a_failure_tells_that_the_leader_was_asked() -> None:
    world = a_world("s1")
    ticket = world.get(seconds=0.5)
    world.wait(0.6)

    text = str(world.ended[ticket].error)
    assert f"{world['s1'].address}: s1 says that it leads" in text


@pytest.mark.parametrize(
    ("said", "dialed", "words"),
    [
        ({}, [], "0 of 9 addresses were tried"),
        ({"a3": "refused"}, ["a2"], "2 of 9 addresses were tried: a2: no answer yet; a3: refused"),
        ({"a1": "a1 closed the connection", "gone": "refused"}, [], "1 of 9 addresses were tried: a1 closed the conn"),
        (
            {f"a{at}": "refused" for at in range(9)},
            [],
            "9 addresses were tried: a0: refused; a1: refused; a2: refused; ",
        ),
        ({f"a{at}": "refused" for at in range(9)}, [], "a4: refused; and 4 more"),
        ({f"a{at}": "refused" for at in range(6)}, [], "a4: refused; and 1 more"),
        ({"a0": "x" * 5_000}, [], "1 of 9 addresses were tried: a0: " + "x" * 196 + "…"),
    ],
)
def test_a_report_of_addresses_is_bounded(said: dict[str, str], dialed: list[str], words: str) -> None:
    book = AddressBook([f"a{at}" for at in range(9)], random=Random(1), pause_min_ns=1, pause_max_ns=1)
    for address, each in said.items():
        book.said(address, each)

    assert words in book.report(dialed)
    assert len(book.report(dialed)) < 1_200


def test_a_report_forgets_addresses_that_no_member_has_any_more() -> None:
    book = AddressBook(["a0"], random=Random(1), pause_min_ns=1, pause_max_ns=1)
    book.learn(["a1", "a2"])
    book.said("a1", "refused")
    book.learn(["a2"])
    assert book.report([]) == "0 of 2 addresses were tried"
    book.learn([])
    assert book.report([]) == ""


def test_a_read_without_an_answer_has_failed() -> None:
    """A read has no effect, so its outcome is never unknown (docs/reference/specification.md#97-retries)."""
    world = a_world()
    ticket = world.get(seconds=0.5)
    assert len(world["s1"].asked) == 1

    world.wait(0.6)

    assert isinstance(world.ended[ticket].error, Unavailable)


def test_a_read_is_repeated_after_a_lost_connection() -> None:
    """A read has no effect, so it may be made twice."""
    world = a_world()
    ticket = world.get()

    world.all_follow("s3")
    world.crash("s1")
    world["s3"].answer(Code.OK, (CommandKind.GET, None, 0, True))

    assert world.outcome(ticket) == "ok"


def test_not_leader_is_followed_and_stays_certain() -> None:
    """Each attempt certainly had no effect. So at the deadline the call ends as a failure, and not as unknown."""
    world = a_world()
    ticket = world.put(seconds=1)
    world.all_follow(None)

    world["s1"].answer(Code.NOT_LEADER, None, None)
    world.wait(1.1)

    assert world.outcome(ticket) == "fail"


def test_not_leader_with_a_hint_leads_straight_there() -> None:
    """The hint contains the leader's client address, so the client asks the leader without a pause."""
    world = a_world()
    ticket = world.put()
    world.all_follow("s2")

    world["s1"].answer(Code.NOT_LEADER, "s2", "s2:1")
    world["s2"].answer()

    assert world.outcome(ticket) == "ok"


def test_two_members_that_name_each_other_are_not_asked_without_end() -> None:
    """After a few wrong answers in a row the client pauses."""
    world = a_world()
    for member in world.members.values():
        member.leader_id = "s2" if member.node_id == "s1" else "s1"
    ticket = world.put(seconds=3)

    world.wait(3.1)

    assert world.outcome(ticket) == "fail"
    assert world.core._last_request_id < 150  # The client sends two or three requests between pauses of 50 to 100 ms.


def test_busy_is_tried_again_after_a_pause_and_is_certain_in_the_end() -> None:
    """A busy member refuses a request before it proposes anything."""
    world = a_world()
    ticket = world.put(seconds=1)
    for _ in range(3):
        world["s1"].answer(Code.BUSY, "pending_bytes_max")
        assert not world["s1"].asked
        world.wait(0.2)

    world["s1"].answer(Code.BUSY, "pending_bytes_max")
    world["s1"].is_silent = True
    world.wait(0.05)
    assert world.outcome(ticket) == "open"
    world.wait(1)

    assert world.outcome(ticket) in ("fail", "unknown")  # Unknown, if the client has already repeated the write.


def test_busy_until_the_deadline_is_busy() -> None:
    """The error contains the words of the members."""
    world = a_world()
    ticket = world.put(seconds=0.3)
    while world.outcome(ticket) == "open":
        if world["s1"].asked:
            world["s1"].answer(Code.BUSY, "pending_bytes_max")
        world.wait(0.01)

    assert isinstance(world.ended[ticket].error, Busy)
    assert "pending_bytes_max" in str(world.ended[ticket].error)


@pytest.mark.parametrize("text", ["reads is at its bound of 1", "busy: reads is at its bound of 1"])
def test_busy_says_that_word_once(text: str) -> None:
    """Members of older builds also send the word `busy` as a reason."""
    error = classify(Response(1, Code.BUSY, 0, 0, "s1", (text,)))
    refused = classify(Response(1, ResultCode.BUSY, 0, 0, "s1", ("sessions_max", 10)))

    assert isinstance(error, Retryable)
    assert str(Busy(error.reason)) == "busy: s1: reads is at its bound of 1"
    assert isinstance(refused, Retryable)
    assert str(Busy(refused.reason)).count("busy") == 1


def test_busy_after_a_lost_attempt_is_still_unknown() -> None:
    """The first attempt may have taken effect (docs/reference/specification.md#97-retries)."""
    world = a_world()
    ticket = world.put(seconds=1)
    world.all_follow("s2")
    world.crash("s1")

    while world.outcome(ticket) == "open":
        if world["s2"].asked:
            world["s2"].answer(Code.BUSY, "pending_bytes_max")
        world.wait(0.01)

    assert isinstance(world.ended[ticket].error, OutcomeUnknown)


def test_a_refusal_after_a_lost_attempt_is_still_unknown() -> None:
    """The second attempt certainly had no effect, but the outcome of the first is unknown."""
    world = a_world()
    ticket = world.put()
    world.all_follow("s2")
    world.crash("s1")

    world["s2"].answer(ResultCode.QUOTA_EXCEEDED, 10, 5)

    assert isinstance(world.ended[ticket].error, OutcomeUnknown)


def test_an_accepted_answer_after_a_lost_attempt_is_still_unknown() -> None:
    """The first attempt may also be in the log, as another entry. The outcome of the accepted entry says nothing about
    this other entry."""
    world = a_world()
    ticket = world.put()
    world.all_follow("s2")
    world.crash("s1")

    world["s2"].answer(Code.ACCEPTED, 7, 2)

    assert isinstance(world.ended[ticket].error, OutcomeUnknown)


def test_a_refusal_of_the_only_attempt_is_certain() -> None:
    """If the store refuses the command when it applies the entry, the call ends as a failure."""
    world = a_world()
    ticket = world.put()

    world["s1"].answer(ResultCode.QUOTA_EXCEEDED, 10, 5)

    assert isinstance(world.ended[ticket].error, QuotaExceeded)


def test_an_unknown_answer_is_tried_again_under_the_same_number() -> None:
    """A leader that steps down answers immediately that the outcome is unknown. The retry gets the kept result, or is
    executed for the first time."""
    world = a_world()
    ticket = world.put()
    world.all_follow("s3")

    first = world["s1"].answer(Code.UNKNOWN, "this member has lost the leadership")
    world.wait(0.2)
    second = world["s3"].answer()

    assert world.outcome(ticket) == "ok"
    assert first.raw_command == second.raw_command


def test_without_a_session_nothing_is_sent_twice() -> None:
    """A write under session 0 is never retried (docs/reference/specification.md#97-retries). If the answer is lost, the
    outcome is unknown immediately."""
    world = a_world(session=False)
    ticket = world.put()
    world.all_follow("s2")

    world.crash("s1")

    assert world.outcome(ticket) == "unknown"
    assert not world["s2"].asked


def test_without_a_session_a_refused_attempt_may_be_repeated() -> None:
    """An attempt that ends with NotLeader certainly had no effect, so the next attempt counts as the first one."""
    world = a_world(session=False)
    ticket = world.put()
    world.all_follow("s2")

    world["s1"].answer(Code.NOT_LEADER, "s2", "s2:1")
    world["s2"].answer()

    assert world.outcome(ticket) == "ok"


def test_an_expired_session_leaves_lost_attempts_unknown_and_is_replaced() -> None:
    """An unknown request is never retried under another session. New requests get a new session."""
    world = a_world()
    lost = world.put(b"lost")
    world.all_follow("s2")
    world.crash("s1")
    fresh = world.put(b"fresh")

    world["s2"].answer(ResultCode.SESSION_EXPIRED, 1)  # This answers the repeated request `lost`.
    world["s2"].answer(ResultCode.SESSION_EXPIRED, 1)  # The request `fresh` has had no other attempt.
    assert world.outcome(lost) == "unknown"

    repeated = world["s2"].answer()
    assert world.outcome(fresh) == "ok"
    assert repeated.items[:2] == [2, 1]  # Session 2, number 1.


def test_late_word_of_the_end_of_a_session_does_not_end_the_one_after_it() -> None:
    """Both requests were sent under session 1. The second answer comes when session 2 is already in use."""
    world = a_world()
    first, second = world.put(b"first"), world.put(b"second")
    world["s1"].answer(ResultCode.SESSION_EXPIRED, 1)
    assert world.core.session_id == 2

    late = world["s1"].answer(ResultCode.SESSION_EXPIRED, 1)

    assert late.items[:2] == [1, 2]
    assert (world.core.session_id, world.sessions) == (2, 2)
    assert [world["s1"].answer().items[:2] for _ in range(2)] == [[2, 1], [2, 2]]
    assert (world.outcome(first), world.outcome(second)) == ("ok", "ok")


def test_a_silent_session_is_kept_alive() -> None:
    """If nothing was sent for `keep_alive_ns`, the client sends a keep-alive with the acknowledged number."""
    world = a_world(keep_alive_ns=10_000 * MILLISECOND_NS)
    world.put()
    world["s1"].answer()

    world.wait(10.5)
    kept = world["s1"].answer(Code.OK, (CommandKind.KEEP_ALIVE,))

    assert kept.items == [1, 0, 1, CommandKind.KEEP_ALIVE]


def test_a_cancelled_call_closes_its_number() -> None:
    """The outcome of a cancelled call is unknown. After its number is acknowledged, its write can no longer happen."""
    world = a_world()
    first, second = world.put(b"a"), world.put(b"b")
    world.core.cancel(first)
    world["s1"].asked.rotate(-1)
    world["s1"].answer()  # The second.

    world.put(b"c")

    assert first not in world.ended
    assert world.outcome(second) == "ok"
    assert world["s1"].asked[-1][1].items[:3] == [1, 3, 2]  # Numbers 1 and 2 are closed, so number 2 is acknowledged.


def test_a_late_answer_to_a_cancelled_call_is_ignored() -> None:
    """The member still works on the call, but nobody waits for the answer."""
    world = a_world()
    ticket = world.put()
    world.core.cancel(ticket)

    world["s1"].answer()

    assert ticket not in world.ended


def test_local_reads_need_no_leader() -> None:
    """Any member answers from its applied state (docs/reference/specification.md#811-consistency-of-reads)."""
    world = a_world(leader=None)

    ticket = world.get(consistency=Consistency.LOCAL)
    (asked_member,) = [member for member in world.members.values() if member.asked]
    asked_member.answer(Code.OK, (CommandKind.GET, None, 0, True))

    assert world.outcome(ticket) == "ok"


def test_a_read_at_a_member_that_is_down_fails_at_once() -> None:
    """Only this member can answer the read, so the client has no reason to wait."""
    world = a_world()
    world["s2"].is_up = False

    ticket = world.get(consistency=Consistency.LOCAL, at="s2:1")

    assert world.outcome(ticket) == "fail"


def test_a_member_of_another_cluster_is_refused() -> None:
    """If a list mixes addresses of two clusters, the first answer decides, and the client never uses the other
    cluster."""
    world = World("s1", "s2", leader="s1", endpoints=["s1:1"])
    world["s2"].cluster_id = b"x" * 16
    world.put()
    world["s1"].answer()
    world.all_follow("s2")
    world.crash("s1")

    ticket = world.put(seconds=1)
    while world.outcome(ticket) == "open":
        world.wait(0.01)
        if "another cluster" in world.core._trouble:
            break
    world.wait(1)

    assert world.outcome(ticket) == "fail"
    assert not world["s2"].asked


def test_garbage_from_a_member_ends_the_connection_only() -> None:
    """Another member gets the repeated call."""
    world = a_world()
    ticket = world.put()
    world.all_follow("s2")
    (connection_id,) = world["s1"].connections

    world.core.receive(connection_id, frame(b"\xff\xff"))
    world.settle()
    world["s2"].answer()

    assert not world["s1"].connections
    assert world.outcome(ticket) == "ok"


def test_a_request_that_no_frame_holds_is_refused_before_it_is_sent() -> None:
    """The bound of a client frame is 4 MiB."""
    world = a_world()

    ticket = world.command(Put(b"k", bytes(5 * 1024 * 1024)))

    assert isinstance(world.ended[ticket].error, RequestTooLarge)


def test_closing_tells_what_was_open_and_ends_the_session() -> None:
    """A call that was sent ends as unknown, and a call that was not sent ends as a certain failure. The client also
    closes its session, so that the members forget the results of the session."""
    world = a_world(in_flight_max=1)
    sent, unsent = world.put(), world.put()

    world.core.close()
    world.settle()

    assert isinstance(world.ended[sent].error, OutcomeUnknown)
    assert isinstance(world.ended[unsent].error, ClientClosed)
    world["s1"].asked.popleft()
    before = world.core.is_closed
    world["s1"].answer(Code.OK, (CommandKind.CLOSE_SESSION,))
    assert (before, world.core.is_closed) == (False, True)
    with pytest.raises(ClientClosed):
        world.put()


def test_a_command_that_waits_for_a_refused_session_ends_with_that_reason() -> None:
    """A member with a full disk also refuses sessions, and the hint "check the addresses" would mislead people."""
    world = a_world()
    world["s1"].registers = False
    ticket = world.put(seconds=0.5)
    while world.outcome(ticket) == "open":
        if world["s1"].asked:
            world["s1"].answer(Code.BUSY, "the disk is full")
        world.wait(0.01)

    assert isinstance(world.ended[ticket].error, Busy)
    assert "the disk is full" in str(world.ended[ticket].error)


def test_a_refused_registration_is_tried_again_later() -> None:
    """While `sessions_max` is reached, commands wait until their deadline, and reads still work."""
    world = a_world()
    world["s1"].registers = False
    ticket = world.put(seconds=3)
    world["s1"].answer(ResultCode.BUSY, "sessions_max", 10)
    assert not world["s1"].asked

    world["s1"].registers = True
    world.wait(1)
    world["s1"].answer()

    assert world.outcome(ticket) == "ok"


def test_a_connection_that_ends_while_nothing_is_open_is_no_failure_of_its_member() -> None:
    """A member with too many connections closes idle ones. The client asks the member again immediately, under the same
    session."""
    world = World("s1", leader="s1", ttl_ns=MINUTE_NS)
    first = world.put()
    world["s1"].answer()
    session_id = world.core.session_id
    for _ in range(3):
        world["s1"].hang_up()

        ticket = world.put()
        world.settle()

        assert len(world["s1"].asked) == 1  # No time has passed.
        world["s1"].answer()
        assert world.outcome(ticket) == "ok"
    assert world.outcome(first) == "ok"
    assert world.core.session_id == session_id
