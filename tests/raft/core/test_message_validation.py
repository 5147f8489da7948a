"""A message that no honest peer can send is refused before it changes anything. Only the connection of its sender
ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from raft.config import PRIORITY_MAX
from raft.core.message_validation import LEADER_TIME_AHEAD_NS_MAX, TERM_AHEAD_MAX
from raft.core.raft import RaftCore
from raft.encoding.command_batch import encode_batch
from raft.errors import ProtocolError, ValidationFault
from raft.protocol.messages import (
    AppendAccepted,
    AppendEntries,
    InstallSnapshot,
    InstallSnapshotProgress,
    Message,
    PreVoteRequest,
    PreVoteResponse,
    ReadIndexResponse,
    TimeoutNow,
    VoteResponse,
)
from raft.types import LEADER_TIME_NS_MAX, Entry, EntryKind
from tests.raft.support.core_fixture import (
    Bench,
    a_candidate,
    a_follower,
    a_leader_with_commits,
    accepted,
    append,
    heartbeat,
    pre_vote_request,
    rejected,
    vote_request,
)

GREATEST = 2**63 - 1


def state_of(core: RaftCore) -> list[Any]:
    """All visible state that a message could change."""
    return [
        core.term, core.voted_for, core.role, core.leader_id, core.commit_index, core.leader_commit_index,
        core.low_watermark, core.last_index, core.term_at(core.last_index), core.next_deadline, core.peers_status(),
        core.status().messages_waiting, core.has_ready(), core.configuration,
    ]  # fmt: skip


def refused(bench: Bench, message: Message, words: str, peer_id: str = "s2") -> None:
    before = state_of(bench.core)
    with pytest.raises(ProtocolError, match=words):
        bench.core.step(peer_id, message)
    assert state_of(bench.core) == before


def chunk(term: int, index: int, snapshot_term: int) -> InstallSnapshot:
    return InstallSnapshot(
        term=term,
        transfer_id=1,
        snapshot_index=index,
        snapshot_term=snapshot_term,
        total_bytes=9,
        offset=0,
        data=b"x",
    )


def entry_at(index: int, leader_time: int, *, prev_term: int = 1, commit_index: int = 0) -> AppendEntries:
    entry = Entry(index, 1, EntryKind.COMMANDS, encode_batch(leader_time, (b"\x01",)))
    return AppendEntries(
        term=1,
        prev_index=index - 1,
        prev_term=prev_term,
        entries=(entry,),
        commit_index=commit_index,
        low_watermark=0,
        read_counter=0,
    )


MESSAGES_OF_TERM: dict[str, Callable[[int], Message]] = {
    "pre-vote request": pre_vote_request,
    "pre-vote response": lambda term: PreVoteResponse(term=term, next_term=2, granted=False),
    "vote request": vote_request,
    "vote response": lambda term: VoteResponse(term=term, granted=False),
    "append": heartbeat,
    "acceptance": lambda term: accepted(term, 1),
    "rejection": lambda term: rejected(term, 1),
    "chunk": lambda term: chunk(term, 5, 1),
    "progress": lambda term: InstallSnapshotProgress(term=term, transfer_id=1, next_offset=0, last_applied=0),
    "timeout now": lambda term: TimeoutNow(term=term),
    "read index": lambda term: ReadIndexResponse(term=term, number=1, read_index=1),
}


@pytest.mark.parametrize("kind", MESSAGES_OF_TERM)
@pytest.mark.parametrize("term", [1 + TERM_AHEAD_MAX + 1, GREATEST])
@pytest.mark.parametrize("make", [a_follower, a_leader_with_commits, lambda term: a_candidate(term=term)])
def test_a_term_that_no_honest_member_holds_is_refused(make: Callable[..., Bench], term: int, kind: str) -> None:
    refused(make(term=1), MESSAGES_OF_TERM[kind](term), "no honest member")


def test_a_member_that_was_away_for_the_longest_takes_the_term_of_the_others() -> None:
    member = a_follower(term=1)

    member.step("s2", heartbeat(1 + TERM_AHEAD_MAX))

    assert (member.core.term, member.core.leader_id) == (1 + TERM_AHEAD_MAX, "s2")


def test_a_pre_vote_for_a_term_that_nobody_can_hold_is_refused() -> None:
    request = PreVoteRequest(term=1, next_term=GREATEST, last_index=0, last_term=0)

    refused(a_follower(term=1), request, "no honest member")


@pytest.mark.parametrize("message", [chunk(2, 9, 1), ReadIndexResponse(term=2, number=1, read_index=1)])
def test_only_the_leader_of_a_term_says_what_leaders_say(message: Message) -> None:
    follower = a_follower(term=2)
    follower.step("s3", heartbeat(2))

    refused(follower, message, "leads in term 2")
    refused(a_leader_with_commits(term=2), message, "leads in term 2")


def test_a_log_that_contradicts_what_is_committed_is_refused() -> None:
    """Leader completeness (Raft §5.4) is checked for the position before the entries, and for each entry."""
    follower = a_follower(term=3, log_terms=[1, 2, 2], commit_index=2)

    refused(follower, heartbeat(3, (2, 1)), "is committed here")
    refused(follower, heartbeat(4, (0, 3)), "is committed here")
    refused(follower, append(3, (1, 1), [3]), "is committed here")
    refused(follower, heartbeat(3, (9, 4)), "from a leader of term 3")


@pytest.mark.parametrize("is_durable", [False, True])
def test_a_leader_that_contradicts_its_own_earlier_append_is_refused(is_durable: bool) -> None:
    """A leader never changes its log (Raft §5.3). So entries that a leader has sent cannot change later in its term."""
    follower = a_follower(term=3, log_terms=[1, 1])
    follower.step("s2", append(3, (1, 1), [2, 3]))  # This append replaces entry 2 by an entry of another leader.
    if is_durable:
        follower.persist()

    refused(follower, append(3, (1, 1), [3]), "its own earlier append had term 2")
    refused(follower, append(3, (1, 1), [2, 2]), "terms|earlier append had term 3")
    refused(follower, heartbeat(3, (2, 1)), "its own earlier append had term 2")
    refused(follower, chunk(3, 3, 2), "its own earlier append had term 3")

    follower.step("s2", append(3, (3, 3), [3]))
    follower.step("s3", append(4, (1, 1), [4]))  # The leader of a later term may have another log.
    assert follower.core.last_index == 2
    follower.step("s3", append(4, (2, 4), [4]))
    assert follower.core.last_index == 3


def test_entries_that_this_term_s_leader_has_not_shown_may_be_cut() -> None:
    """The follower knows only that an earlier leader had these entries."""
    follower = a_follower(term=3, log_terms=[1, 1, 2])
    follower.step("s2", heartbeat(3, (1, 1)))

    follower.step("s2", append(3, (1, 1), [3]))

    assert (follower.core.last_index, follower.core.term_at(2)) == (2, 3)


def test_answers_about_what_the_leader_does_not_have_are_refused() -> None:
    leader = a_leader_with_commits(commands=3)
    beyond = leader.core.last_index + 1

    refused(leader, accepted(1, beyond), "which ends at 4")
    refused(leader, accepted(1, 1, last_applied=beyond), "its leader's log ends at 4")
    refused(leader, accepted(1, 1, read_counter=GREATEST), "its leader has begun 0")
    refused(leader, rejected(1, 1, read_counter=1), "its leader has begun 0")
    progress = InstallSnapshotProgress(term=1, transfer_id=1, next_offset=0, last_applied=GREATEST)
    refused(leader, progress, "its leader's log ends at 4")


def test_an_election_priority_beyond_the_greatest_is_refused() -> None:
    answer = AppendAccepted(term=1, match_index=1, last_applied=0, read_counter=0, priority=PRIORITY_MAX + 1)

    refused(a_leader_with_commits(), answer, "election priority")


def test_a_snapshot_whose_term_fits_no_log_is_refused() -> None:
    follower = a_follower(term=3, log_terms=[1, 2], commit_index=2)

    refused(follower, chunk(3, 9, 4), "from a leader of term 3")
    refused(follower, chunk(3, 9, 1), "term 2 is committed")
    refused(follower, chunk(3, 9, 0), "a snapshot at 9 of term 0")


@pytest.mark.parametrize("payload", [b"", b"\xa0", b"\x80", b"\x81\x1b\x7f", b"\x82\x01"[:1], b"\x9f\x00"])
def test_an_entry_whose_leader_time_cannot_be_read_is_refused(payload: bytes) -> None:
    """Later leaders read this time, and would fail if it was wrong."""
    message = AppendEntries(
        term=1,
        prev_index=0,
        prev_term=0,
        entries=(Entry(1, 1, EntryKind.COMMANDS, payload),),
        commit_index=0,
        low_watermark=0,
        read_counter=0,
    )

    refused(a_follower(term=1), message, "a batch")


def test_a_leader_time_that_leaps_is_refused() -> None:
    """The replicated clock never goes back, so all sessions and leases would expire after a leap."""
    follower = a_follower(term=1, log_terms=[1])
    fitting, leaping = LEADER_TIME_AHEAD_NS_MAX, 2 * LEADER_TIME_AHEAD_NS_MAX + 1

    refused(follower, entry_at(2, fitting + 1), "above those before it")
    follower.step("s2", entry_at(2, fitting))
    refused(follower, entry_at(3, leaping), "above those before it")
    follower.step("s2", entry_at(3, leaping - 1))
    assert follower.core.last_index == 3


def test_a_member_that_lacks_the_entries_before_does_not_judge_the_leap_of_a_clock() -> None:
    """The member rejects the append, and gets the entries that it lacks. Only a time above the largest possible one is
    refused immediately."""
    follower = a_follower(term=1)

    follower.step("s2", entry_at(9, LEADER_TIME_NS_MAX))
    assert follower.core.last_index == 0
    refused(follower, entry_at(9, LEADER_TIME_NS_MAX + 1), "the greatest is")


def test_the_clock_of_a_leader_stands_still_at_its_end() -> None:
    leader = a_leader_with_commits(leader_time=LEADER_TIME_NS_MAX - 5)

    leader.advance(1_000_000)
    assert leader.core.leader_time_now() == LEADER_TIME_NS_MAX


def test_a_mistake_in_validation_itself_is_told_apart_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    follower = a_follower(term=1)

    def mistaken(*_: object) -> None:
        raise IndexError("a slip")

    monkeypatch.setattr(follower.core._validation, "_check", mistaken)
    before = state_of(follower.core)
    with pytest.raises(ValidationFault, match=r"AppendEntries.*IndexError: a slip") as caught:
        follower.core.step("s2", heartbeat(1))
    assert isinstance(caught.value.__cause__, IndexError)
    assert state_of(follower.core) == before
