"""Sessions, retries and outcomes, rule by rule, through the log.

See docs/reference/specification.md#9-sessions-and-outcomes.
"""

from __future__ import annotations

import pytest

from kvstore.errors import InvalidRequest, QuotaExceeded, RequestClosed, SessionExpired, StoreBusy
from kvstore.limits import MIB
from kvstore.protocol.commands import (
    ChangeLimits,
    CloseSession,
    CompareAndSet,
    Delete,
    Get,
    KeepAlive,
    Put,
    Range,
    RegisterSession,
    Txn,
    encode_command,
)
from kvstore.protocol.results import PutResult, RangeResult, SessionRegistered
from kvstore.store.sessions import kept_bytes, result_bytes
from raft import EntryKind, encode_batch
from tests.kvstore.support.machine_fixture import Fed


def test_sessions_are_numbered_by_a_replicated_counter() -> None:
    """An entry's index is no session id, because one entry may register many sessions
    (docs/reference/specification.md#91-sessions)."""
    fed = Fed()
    raw = encode_command(RegisterSession(5))
    assert fed.feed([raw, raw, raw]) == [(0, 1, (16, 1, 5)), (0, 1, (16, 2, 5)), (0, 1, (16, 3, 5))]
    fed.do(CloseSession(), 3)
    assert fed.do(RegisterSession(7)) == SessionRegistered(1, 4, 7)  # No id is given twice.


def test_a_retry_gets_the_kept_result_with_its_original_revision() -> None:
    """A kept result is returned unchanged. Nothing is executed, the revision stays.

    See docs/reference/specification.md#92-judging-a-request.
    """
    fed = Fed()
    session = fed.register()
    first = [
        fed.item(Put(b"a", b"1"), session, 1),
        fed.item(CompareAndSet(b"a", b"2", b"1"), session, 2),
        fed.item(Delete(b"a"), session, 3),
        fed.item(Txn((), (Put(b"b", b"1"), Get(b"a"))), session, 4),
        fed.item(Range(), session, 5),
    ]
    fed.do(Put(b"z", b"9"))
    before = fed.machine.revision

    again = [fed.item(Put(b"other", b"!"), session, number) for number in (1, 2, 3, 4, 5)]

    assert again == first
    assert [item[1] for item in again] == [2, 3, 4, 5, 5]
    assert fed.machine.revision == before
    assert fed.machine.get(b"other").record is None


def test_a_retry_in_the_same_entry_gets_the_kept_result_too() -> None:
    """A batch consists of many commands, and each command has its own outcome
    (docs/reference/specification.md#22-batches)."""
    fed = Fed()
    session = fed.register()
    raw = encode_command(Put(b"a", b"1"), session_id=session, request_no=1)
    assert fed.feed([raw, raw]) == [(0, 2, (1,)), (0, 2, (1,))]


def test_an_error_of_a_request_that_ran_is_kept_like_any_result() -> None:
    """An operation that was refused is recorded as `fail`: it certainly had no effect. If the refusal were not kept, a
    second copy in the log could still have an effect.

    See docs/reference/specification.md#92-judging-a-request.
    """
    fed = Fed(quota_bytes=100)
    session = fed.register()
    with pytest.raises(QuotaExceeded):
        fed.do(Put(b"a", b"1" * 100), session, 1)
    fed.do(ChangeLimits(quota_bytes=1000))
    with pytest.raises(QuotaExceeded):
        fed.do(Put(b"a", b"1" * 100), session, 1)
    assert fed.do(Put(b"a", b"1" * 100), session, 2) == PutResult(2)


def test_requests_above_the_floor_run_in_any_order() -> None:
    """Request numbers may come in any order (docs/reference/specification.md#92-judging-a-request)."""
    fed = Fed()
    session = fed.register()
    for number in (9, 2, 5, 3):
        fed.do(Put(b"a", b"%d" % number), session, number)
    assert fed.machine.revision == 5
    assert fed.item(Put(b"a", b""), session, 2) == (0, 3, (1,))


def test_a_request_at_or_below_the_floor_is_closed_and_never_runs() -> None:
    """The floor is the greatest acknowledged number that was applied; it never goes back.

    See docs/reference/specification.md#92-judging-a-request.
    """
    fed = Fed()
    session = fed.register()
    fed.do(Put(b"a", b"1"), session, 6, ack=4)
    fed.do(Put(b"a", b"1"), session, 7, ack=2)
    for number in (0, 1, 4):
        with pytest.raises(RequestClosed) as caught:
            fed.do(Put(b"a", b"2"), session, number)
        assert (caught.value.request_no, caught.value.floor) == (number, 4)
    assert fed.do(Put(b"a", b"2"), session, 5) == PutResult(4)


def test_acknowledging_forgets_results_and_closes_numbers_never_seen() -> None:
    """Both effects follow from the session floor, so the store keeps only the floor
    (docs/reference/specification.md#92-judging-a-request)."""
    fed = Fed()
    session = fed.register()
    for number in (1, 2, 3, 10):
        fed.do(Put(b"a", b"1"), session, number)
    fed.do(Put(b"a", b"1"), session, 11, ack=2)
    assert fed.machine.status().results == 3  # 3, 10, 11.
    fed.do(KeepAlive(), session, ack=2**62)  # The cost depends on the kept results, not on this number.
    assert (fed.machine.status().results, fed.machine.status().results_bytes) == (0, 0)
    with pytest.raises(RequestClosed):
        fed.do(Put(b"a", b"1"), session, 2**62)


def test_a_request_that_acknowledges_itself_is_closed() -> None:
    """The acknowledgement in a request is applied before the request is judged.

    See docs/reference/specification.md#92-judging-a-request.
    """
    fed = Fed()
    session = fed.register()
    with pytest.raises(RequestClosed):
        fed.do(Put(b"a", b"1"), session, 3, ack=3)
    assert fed.machine.revision == 1


def test_at_the_bound_of_results_the_answer_is_busy_and_nothing_happens() -> None:
    """At results_per_session_max a request is not executed, and no result is recorded.

    See docs/reference/specification.md#92-judging-a-request.
    """
    fed = Fed(results_per_session_max=2)
    session = fed.register()
    fed.do(Put(b"a", b"1"), session, 1)
    fed.do(Get(b"a"), session, 2)
    before = fed.machine.state_hash()
    with pytest.raises(StoreBusy) as caught:
        fed.do(Put(b"a", b"3"), session, 3)
    assert (caught.value.bound, caught.value.limit) == ("results_per_session_max", 2)
    assert fed.machine.state_hash() == before
    assert fed.item(Put(b"a", b"!"), session, 1) == (0, 2, (1,))  # A request with a kept result is still answered.
    assert fed.do(Put(b"a", b"3"), session, 3, ack=1) == PutResult(3)  # Acknowledging makes room immediately.


def test_at_the_bound_of_result_bytes_of_a_session_the_answer_is_busy() -> None:
    """At most one result exceeds results_bytes_per_session_max. Then the session's requests are refused, and other
    sessions go on."""
    fed = Fed(results_bytes_per_session_max=MIB)
    fed.do(Put(b"a", b"v" * MIB))
    one, two = fed.register(), fed.register()
    fed.do(Get(b"a"), one, 1)
    with pytest.raises(StoreBusy, match="results_bytes_per_session_max"):
        fed.do(Get(b"a"), one, 2)
    fed.do(Get(b"a"), two, 1)
    fed.do(Get(b"a"), one, 2, ack=1)


def test_at_the_bound_of_result_bytes_of_all_sessions_the_answer_is_busy() -> None:
    """When results_bytes_max is reached, closing a session frees the results that were kept for it."""
    fed = Fed(results_bytes_max=2 * MIB)
    fed.do(Put(b"a", b"v" * MIB))
    sessions = [fed.register() for _ in range(3)]
    fed.do(Get(b"a"), sessions[0], 1)
    fed.do(Get(b"a"), sessions[1], 1)
    with pytest.raises(StoreBusy, match="results_bytes_max"):
        fed.do(Get(b"a"), sessions[2], 1)
    fed.do(CloseSession(), sessions[0])
    fed.do(Get(b"a"), sessions[2], 1)
    fed.do(Get(b"a"))  # Session 0 keeps nothing.


def test_at_the_bound_of_sessions_registering_is_busy() -> None:
    """The limit sessions_max is replicated, and a command can raise it."""
    fed = Fed(sessions_max=1)
    fed.register()
    with pytest.raises(StoreBusy, match="sessions_max"):
        fed.register()
    fed.do(ChangeLimits(sessions_max=2))
    assert fed.register() == 2


def test_session_zero_is_never_deduplicated() -> None:
    """Session 0 means no session, so its requests are never retried (docs/reference/specification.md#91-sessions)."""
    fed = Fed()
    for revision in (2, 3):
        assert fed.do(Put(b"a", b"1"), 0, 1, ack=5) == PutResult(revision)


def test_an_unknown_session_has_expired() -> None:
    """The store cannot tell a session that never existed from one that has ended.

    See docs/reference/specification.md#92-judging-a-request.
    """
    fed = Fed()
    with pytest.raises(SessionExpired) as caught:
        fed.do(Put(b"a", b"1"), 77, 1)
    assert caught.value.session_id == 77
    assert fed.machine.revision == 1


def test_a_closed_session_is_gone_with_its_results() -> None:
    """The requests of a closed session are not executed again."""
    fed = Fed()
    session = fed.register()
    fed.do(Put(b"a", b"1"), session, 1)
    fed.do(CloseSession(), session)
    for command in (Put(b"a", b"1"), KeepAlive(), CloseSession()):
        with pytest.raises(SessionExpired):
            fed.do(command, session, 1)
    assert fed.machine.status().sessions == 0


def test_keeping_alive_and_closing_need_a_session() -> None:
    """Apply demands a session, as admission does. A session cannot be registered under a session."""
    fed = Fed()
    for command in (KeepAlive(), CloseSession()):
        with pytest.raises(InvalidRequest, match="session"):
            fed.do(command)
    session = fed.register()
    with pytest.raises(InvalidRequest):
        fed.do(RegisterSession(5), session, 1)


# Expiry.


def test_a_session_expires_at_its_deadline_before_the_commands_of_that_entry() -> None:
    """Apply ends a session by leader_time, before the entry's commands
    (docs/reference/specification.md#812-leader-time)."""
    fed = Fed()
    session = fed.register(10, time=100)
    assert fed.machine.next_deadline == 110
    fed.do(Put(b"a", b"1"), session, 1, time=109)
    assert fed.machine.next_deadline == 119
    with pytest.raises(SessionExpired):
        fed.do(Put(b"a", b"2"), session, 2, time=119)
    assert fed.machine.revision == 2
    assert fed.machine.next_deadline is None


def test_an_empty_batch_or_a_no_op_is_enough_to_expire_a_session() -> None:
    """An idle leader proposes an empty transaction when a deadline is due; no_op carries leader_time too.

    See docs/reference/specification.md#812-leader-time.
    """
    for kind in (EntryKind.COMMANDS, EntryKind.NO_OP):
        fed = Fed()
        fed.register(10)
        fed.entry(kind, encode_batch(10, []))
        assert fed.machine.status().sessions == 0


def test_any_command_of_a_session_puts_its_expiry_off() -> None:
    """Refused and repeated commands also postpone the expiry, because the client is there. Keep-alive is for an idle
    client."""
    fed = Fed(results_per_session_max=1)
    session = fed.register(10)
    fed.do(Put(b"a", b"1"), session, 1, time=8)
    fed.do(Put(b"a", b"1"), session, 1, time=16)
    with pytest.raises(StoreBusy):
        fed.do(Put(b"a", b"1"), session, 2, time=24)
    with pytest.raises(RequestClosed):
        fed.do(Put(b"a", b"1"), session, 0, time=32)
    fed.do(KeepAlive(), session, time=40)
    assert fed.machine.next_deadline == 50


def test_leader_time_never_goes_back() -> None:
    """If an entry has an earlier leader time than the store, the store uses its own time for it
    (docs/reference/specification.md#812-leader-time)."""
    fed = Fed()
    fed.register(10, time=100)
    session = fed.register(10, time=50)
    assert fed.machine.leader_time == 100
    assert fed.machine.next_deadline == 110
    fed.do(KeepAlive(), session, time=1)
    assert fed.machine.leader_time == 100


def test_sessions_expire_in_the_order_of_deadline_then_id() -> None:
    """The order in which sessions were used does not matter.

    See docs/reference/specification.md#812-leader-time.
    """
    fed = Fed()
    for ttl in (30, 10, 20, 10):  # Ids 1 to 4.
        fed.register(ttl)
    fed.do(KeepAlive(), 2, time=5)  # Now the deadline of session 2 is 15.
    assert fed.machine._sessions.expire(30) == [4, 2, 3, 1]


def test_touching_and_closing_sessions_leaves_no_trace_that_grows() -> None:
    """The number of open sessions bounds the heap of deadlines; the fixture's `check` asserts this after every
    entry."""
    fed = Fed()
    for _ in range(300):
        session = fed.register(1_000_000)
        fed.do(KeepAlive(), session)
        fed.do(CloseSession(), session)
    assert len(fed.machine._sessions.deadlines._entries) <= 64


def test_what_a_kept_result_counts_for_is_over_its_fields() -> None:
    """The size of a result is 64 for each array, plus the lengths of its byte strings and texts. All members must
    compute the same size, because the bounds are replicated."""
    assert result_bytes((0, 5, (1,))) == 128 == kept_bytes((0, 5, (1,)))
    assert result_bytes((0, 5, (2, (b"value", 1, 2, 3, 0)))) == 3 * 64 + 5
    assert result_bytes((3, 5, "sessions_max", 8)) == 64 + 12
    assert kept_bytes((8, 1, 3145728)) == 64
    fed = Fed()
    fed.do(Put(b"key", b"value"))
    session = fed.register()
    assert isinstance(fed.do(Range(), session, 1), RangeResult)
    assert fed.machine.status().results_bytes == 4 * 64 + len(b"key") + len(b"value")
