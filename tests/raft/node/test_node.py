"""One node: the order of durability, group commit, bounds, stopping.

See docs/reference/specification.md#3-order-of-durability.
"""

from __future__ import annotations

from itertools import pairwise

import pytest

from raft import (
    AppendAccepted,
    AppendEntries,
    Applied,
    Compacted,
    Entry,
    EntryKind,
    NodeStopped,
    NotCommitted,
    NotLeader,
    PreVoteRequest,
    PreVoteResponse,
    RaftConfig,
    RaftError,
    Role,
    Unknown,
    VoteRequest,
    batch_size,
    encode_batch,
    encode_item,
)
from raft.node.apply import ENTRY_AS_COMMANDS, RUN_MAX
from raft.snapshots.manager import LOG_PER_STATE
from tests.raft.support.node_cluster import MS, OneNode, World, a_single_leader


def test_a_node_of_one_voter_elects_itself_and_commits_with_its_own_sync() -> None:
    """The node's own copy counts when it is durable. In this cluster the own copy is the majority.

    See docs/reference/specification.md#32-copies-count-when-durable.
    """
    s1 = a_single_leader()

    s1.propose("one", 7)
    s1.flush()
    assert s1.applied == []  # The sync of the entry is under way.
    assert [name for name, _ in s1.disk.waiting] == ["sync"]

    s1.disk.complete_one()
    s1.flush()
    assert s1.applied == [Applied(7, 2, 0)]
    assert s1.machine.items == ["one"]


def test_a_sync_begins_when_it_is_told_to_after_the_effects_have_left() -> None:
    """The leader first sends its messages, so that the other disks work at the same time as its own disk."""
    s1 = a_single_leader()

    s1.propose("one", 7)
    s1.node.take_effects()
    assert s1.disk.waiting == []

    s1.node.begin_sync()
    s1.node.begin_sync()
    assert [name for name, _ in s1.disk.waiting] == ["sync"]


def test_a_follower_acknowledges_before_it_applies_what_was_committed_earlier() -> None:
    """The leader waits for this member's acknowledgement, but nobody waits until this member has applied the entry."""
    world = World(3)
    leader = world.elect()
    follower = world.followers()[0]
    leader.propose("one", 1)
    world.exchange()  # The next append contains the mark that commits "one".
    leader.propose("two", 2)
    leader.flush()
    for receiver, message in leader.sent:
        world.deliver(leader.node_id, receiver, message)

    follower.flush()
    follower.disk.complete_one()
    sent = follower.node.take_effects().send
    assert [message.match_index for _, message in sent if isinstance(message, AppendAccepted)] == [3]
    assert (follower.machine.items, follower.node.has_more) == ([], True)

    follower.node.begin_sync()
    assert (follower.machine.items, follower.node.has_more) == (["one"], False)


def test_the_last_answer_to_a_lone_put_asks_for_no_turn() -> None:
    """The put is committed, applied and answered, so no caller waits for the last follower's answer. The mark is sent
    later."""
    world = World(3)
    leader = world.elect()
    world.run_for(1_000)
    leader.propose("one", 1)
    leader.settle()
    for receiver, message in leader.sent:
        world.deliver(leader.node_id, receiver, message)
    leader.sent.clear()
    first, second = world.followers()
    for follower in (first, second):
        follower.settle()

    wanted = []
    for follower in (first, second):
        for _, message in follower.sent:
            leader.node.receive(follower.node_id, message)
        wanted.append(leader.node.wants_turn)
        if wanted == [True]:
            leader.settle()
            assert [completion.ticket for completion in leader.applied] == [1]

    assert wanted == [True, False]
    assert leader.node.core.low_watermark < leader.node.core.commit_index  # Followers apply the entry later.


def test_commands_gather_while_a_log_write_is_under_way_and_become_one_entry() -> None:
    """The leader replicates batches, not single requests (docs/internals/architecture.md#the-way-of-a-put)."""
    s1 = a_single_leader()
    s1.propose("first", 1)
    s1.flush()

    for ticket in range(2, 102):
        s1.propose(f"item {ticket}", ticket)
        s1.flush()
    assert s1.node.status().pending_commands == 100
    assert len(s1.disk.waiting) == 1
    s1.disk.complete_one()
    s1.flush()
    s1.disk.complete_one()
    s1.flush()

    assert [completion.ticket for completion in s1.applied] == list(range(1, 102))
    assert s1.node.core.last_index == 3
    assert batch_size(s1.node.read_log(3, 1)[0].payload) == 100


def test_no_vote_leaves_before_it_is_durable() -> None:
    """If a crash lost the grant, the member could vote a second time.

    See docs/reference/specification.md#31-messages-wait-for-the-disk.
    """
    s1 = OneNode("s1", ("s1", "s2", "s3"), RaftConfig())

    s1.node.receive("s2", VoteRequest(term=5, last_index=0, last_term=0, transfer=False))
    s1.flush()
    assert s1.sent == []

    s1.disk.complete_one()
    s1.flush()
    assert s1.log.durable_hard_state.voted_for == "s2"
    assert [peer_id for peer_id, _ in s1.sent] == ["s2"]


def test_an_idle_node_proves_its_last_batch_once() -> None:
    """The node writes an empty frame as the proof (docs/reference/specification.md#49-proof-of-the-last-frame)."""
    s1 = a_single_leader()
    s1.propose("one", 1)
    s1.settle()
    syncs = len(s1.disk.names)

    while s1.log.has_unproven_batch:
        s1.tick_to(s1.node.next_deadline)
        s1.settle()
    assert len(s1.disk.names) == syncs + 1

    for _ in range(20):
        s1.tick_to(s1.now + 50 * MS)
        s1.settle()
    assert len(s1.disk.names) == syncs + 1
    assert s1.log.commit_hints[-1] == s1.node.core.commit_index


def test_a_closing_node_proves_its_last_batch_at_once_and_takes_no_more_requests() -> None:
    """The proof is an empty frame after the batch (docs/reference/specification.md#49-proof-of-the-last-frame)."""
    s1 = a_single_leader()
    s1.propose("one", 1)
    s1.flush()

    s1.node.begin_stop()
    with pytest.raises(NodeStopped):
        s1.propose("two", 2)
    s1.settle()

    assert s1.node.is_stopped
    assert s1.applied == [Applied(1, 2, 0)]
    assert not s1.log.has_unproven_batch


def test_a_closing_node_whose_proposals_cannot_commit_ends_them_as_unknown() -> None:
    """Every open proposal of a closing node ends. `outcome_wait_ns` bounds the time of a stop.

    See docs/reference/specification.md#96-end-of-a-proposal.
    """
    world = World()
    leader = world.elect()
    world.cut_off = {leader.node_id}
    leader.propose("proposed", 1)
    leader.settle()
    leader.node.read(2)

    leader.node.begin_stop()
    leader.settle()
    while not leader.node.is_stopped:
        leader.tick_to(leader.node.next_deadline)
        leader.settle()

    assert 0 < leader.now - world.now <= world.config.outcome_wait_ns
    assert [unknown.ticket for unknown in leader.unknown] == [1]
    assert [refused.ticket for refused in leader.refused] == [2]


def test_a_closing_follower_that_its_leader_never_leaves_in_peace_stops_all_the_same() -> None:
    """During every sync a new write comes, so the follower is never idle. After `outcome_wait_ns` it ignores
    messages."""
    s1 = OneNode("s1", ("s1", "s2", "s3"), RaftConfig())
    s1.node.begin_stop()
    index = 0
    while not s1.node.is_stopped:
        entry = Entry(index + 1, 1, EntryKind.NO_OP, encode_batch(0, ()))
        s1.tick_to(s1.now + 50 * MS)
        s1.node.receive("s2", append(index, entry))
        if s1.disk.waiting:
            s1.disk.complete_one()
        s1.flush()
        assert s1.node.is_stopped or s1.node.next_deadline > s1.now  # The node waits for its disk and does not poll.
        index = s1.node.core.last_index
        assert s1.now < 2 * s1.config.outcome_wait_ns

    assert index > 0
    assert not s1.log.has_unproven_batch


def append(prev_index: int, *entries: Entry) -> AppendEntries:
    return AppendEntries(
        term=1,
        prev_index=prev_index,
        prev_term=1 if prev_index else 0,
        entries=entries,
        commit_index=0,
        low_watermark=0,
        read_counter=0,
    )


def test_a_disk_slower_than_the_election_time_out_does_not_keep_a_candidate_from_asking() -> None:
    """The time-out of the candidate begins when its vote requests may leave. If the candidate campaigned earlier, it
    would only wait for the disk again."""
    alone, of_three = OneNode("s1", ("s1",), RaftConfig()), OneNode("s1", ("s1", "s2", "s3"), RaftConfig())
    for member in (alone, of_three):
        busy_until = 0
        for now in range(0, 10_000 * MS, 100 * MS):
            member.tick_to(now)
            if member.disk.waiting and now >= busy_until:
                member.disk.complete_one()
            member.flush()
            for peer_id, message in list(member.sent):
                if isinstance(message, PreVoteRequest):
                    granted = PreVoteResponse(term=message.term, next_term=message.next_term, granted=True)
                    member.node.receive(peer_id, granted)
            asked = any(isinstance(message, VoteRequest) for _, message in member.sent)
            if asked or member.node.core.role is Role.LEADER:
                break
            if member.disk.waiting and now >= busy_until:
                busy_until = now + 1_000 * MS  # Each sync takes this time.

    assert (alone.node.core.role, alone.node.core.term) == (Role.LEADER, 1)
    assert (of_three.node.core.role, of_three.node.core.term) == (Role.CANDIDATE, 1)
    assert of_three.node.core.next_deadline >= of_three.now + of_three.config.election_timeout_min_ns


def test_after_a_failed_sync_nothing_is_promised_any_more() -> None:
    """Open proposals end as unknown. Commands that were not proposed certainly have no effect.

    See docs/reference/specification.md#37-failed-sync.
    """
    s1 = a_single_leader()
    s1.propose("written", 1)
    s1.flush()
    s1.propose("gathered", 2)
    s1.node.read(3)

    s1.disk.complete_one(OSError(5, "Input/output error"))
    effects = s1.flush()

    assert isinstance(effects.failure, NodeStopped)
    assert "Input/output error" in str(effects.failure)
    assert effects.send == []
    assert [(refused.ticket, type(refused.error)) for refused in s1.refused] == [(2, NodeStopped), (3, NodeStopped)]
    assert [unknown.ticket for unknown in s1.unknown] == [1]
    with pytest.raises(NodeStopped):
        s1.propose("later", 4)
    with pytest.raises(NodeStopped):
        s1.node.read(5)
    assert s1.flush().failure is not None
    assert s1.disk.waiting == []


def test_a_vote_whose_sync_failed_never_leaves() -> None:
    """The vote was never durable, so it is not a promise (docs/reference/specification.md#37-failed-sync)."""
    s1 = OneNode("s1", ("s1", "s2", "s3"), RaftConfig())
    s1.node.receive("s2", VoteRequest(term=5, last_index=0, last_term=0, transfer=False))
    s1.flush()

    s1.disk.complete_one(OSError(28, "No space left on device"))
    s1.flush()
    s1.node.receive("s3", VoteRequest(term=6, last_index=0, last_term=0, transfer=False))
    s1.tick_to(10_000 * MS)
    s1.flush()

    assert s1.sent == []


def test_a_follower_takes_no_requests() -> None:
    """A follower's error names the leader, if it is known."""
    s1 = OneNode("s1", ("s1", "s2", "s3"), RaftConfig())

    with pytest.raises(NotLeader):
        s1.propose("one", 1)
    with pytest.raises(NotLeader):
        s1.node.read(2)


def test_applying_is_cut_into_slices_so_that_other_events_get_their_turn() -> None:
    """A slice ends at `apply_bytes_max`. The node asks for another turn to apply the rest."""
    s1 = a_single_leader(apply_bytes_max=200, batch_bytes_max=100)
    for ticket in range(20):
        s1.propose(b"x" * 90, ticket)
    s1.flush()
    s1.disk.complete_one()

    s1.flush()
    assert 1 <= len(s1.applied) <= 3
    assert s1.node.next_deadline <= s1.now
    s1.settle()

    assert [completion.ticket for completion in s1.applied] == list(range(20))


def test_a_slice_is_bounded_in_commands_for_bytes_say_little_of_the_time_they_take() -> None:
    """A slice has at most `apply_commands_max` commands of any size. Each entry adds `ENTRY_AS_COMMANDS` to this
    count."""
    count = 5 * RUN_MAX
    s1 = a_single_leader(apply_commands_max=RUN_MAX * (ENTRY_AS_COMMANDS + 1), batch_bytes_max=1)
    for ticket in range(count):
        s1.propose("x", ticket)
    s1.flush()
    s1.disk.complete_one()

    slices = []
    while len(s1.applied) < count:
        before = len(s1.applied)
        s1.flush()
        slices.append(len(s1.applied) - before)
    assert slices == [RUN_MAX] * 5
    assert [completion.ticket for completion in s1.applied] == list(range(count))


def test_a_read_waits_for_what_was_committed_before_it() -> None:
    """Thesis §6.4: the state machine must have applied the read index before the answer."""
    s1 = a_single_leader(apply_bytes_max=200, batch_bytes_max=100)
    for ticket in range(10):
        s1.propose(b"x" * 90, ticket)
    s1.flush()
    s1.disk.complete_one()
    s1.node.read(99)
    s1.settle()

    assert s1.reads_ready == [99]
    assert len(s1.machine.items) == 10


def test_the_committed_log_can_be_read_and_nothing_above_the_mark() -> None:
    """Above the high-water mark the answer is `NotCommitted` (docs/reference/specification.md#66-reading-the-log)."""
    s1 = a_single_leader()
    s1.propose("one", 1)
    s1.settle()
    s1.propose("two", 2)
    s1.flush()

    assert [entry.index for entry in s1.node.read_log(1, 10_000)] == [1, 2]
    assert [entry.index for entry in s1.node.read_log(1, 1)] == [1]
    with pytest.raises(NotCommitted) as caught:
        s1.node.read_log(3, 1)
    assert (caught.value.index, caught.value.commit_index) == (3, 2)


def test_a_snapshot_is_built_when_the_log_has_grown_and_the_log_is_cut_behind_it() -> None:
    """The log is cut at the lower of the node's own durable snapshot and the low-water mark. A read below the cut gets
    the answer `Compacted`.

    See docs/reference/specification.md#65-compaction.
    """
    s1 = a_single_leader(snapshot_log_bytes=500)
    for ticket in range(12):
        s1.propose(b"x" * 40, ticket)
        s1.settle()

    assert "snapshot_built" in s1.event_names()
    core = s1.node.core
    assert core.snapshot_index > 0
    assert core.first_index == core.snapshot_index + 1
    assert s1.log.dropped_before == core.first_index
    assert s1.snapshots.latest().header.index == core.snapshot_index
    with pytest.raises(Compacted):
        s1.node.read_log(1, 1)


def test_a_small_state_is_snapshotted_in_proportion_to_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """When a member starts, it applies the log after its snapshot. For a small state this log should be short."""
    monkeypatch.setattr("raft.snapshots.manager.LOG_BYTES_MIN", 300)
    s1 = a_single_leader()
    s1.propose(b"x" * 40, 0)
    s1.settle()
    entry_bytes = s1.node.read_log(s1.node.core.last_applied, 1)[0].size_bytes
    built = [s1.snapshots.latest()]
    for ticket in range(1, 400):
        s1.propose(b"x" * 40, ticket)
        s1.settle()
        if s1.snapshots.latest().header.index > built[-1].header.index:
            built.append(s1.snapshots.latest())

    grown = [(after.header.index - before.header.index) * entry_bytes for before, after in pairwise(built)]
    allowed = [max(300, LOG_PER_STATE * before.size_bytes) for before in built[:-1]]
    assert len(grown) >= 4
    assert all(0 <= log - most < 2 * entry_bytes for log, most in zip(grown[1:], allowed[1:], strict=True))
    assert grown[-1] > 4 * grown[0]


def test_a_state_of_any_size_is_snapshotted_at_the_latest_after_as_much_log_as_configured() -> None:
    """`snapshot_log_bytes` bounds the log between two snapshots for a state of any size."""
    s1 = a_single_leader(snapshot_log_bytes=500)
    indexes = set()
    for ticket in range(100):
        s1.propose(b"x" * 40, ticket)
        s1.settle()
        indexes.add(s1.snapshots.latest().header.index)

    assert s1.snapshots.latest().size_bytes > 4 * 500
    assert len(indexes) > 100 * 40 // 500


def test_a_snapshot_is_written_chunk_by_chunk_while_other_work_goes_on() -> None:
    """Only one submission is open at a time. Entries that are applied while the snapshot is built are not in the
    snapshot."""
    s1 = a_single_leader()
    for ticket in range(6):
        s1.propose(ticket, ticket)
        s1.settle()

    s1.node.snapshot_now()
    s1.flush()
    written = 0
    ticket = 100
    while s1.disk.waiting:
        assert sum(name.startswith("snapshot") for name, _ in s1.disk.waiting) <= 1
        written += s1.disk.complete_one() == "snapshot write"
        if ticket < 103:
            s1.propose(ticket, ticket)
            ticket += 1
        s1.flush()

    assert written == 3
    latest = s1.snapshots.latest()
    assert latest.header.index == 7
    assert b"".join(s1.snapshots.chunks(latest)) == b"".join(encode_item([n, n + 1]) for n in (0, 2, 4))
    assert s1.machine.items == [0, 1, 2, 3, 4, 5, 100, 101, 102]


def test_a_node_starts_from_its_snapshot_and_the_log_behind_it() -> None:
    """The state machine is restored first. Then the node applies the committed entries after the snapshot."""
    s1 = a_single_leader()
    for ticket in range(4):
        s1.propose(ticket, ticket)
        s1.settle()
    s1.node.snapshot_now()
    s1.settle()
    s1.propose("after", 9)
    s1.settle()

    s1.crash()
    assert s1.machine.items == [0, 1, 2, 3]
    s1.tick_to(s1.now + 600 * MS)
    s1.settle()

    assert s1.machine.items == [0, 1, 2, 3, "after"]


def test_a_snapshot_that_could_not_be_written_is_given_up_without_harm() -> None:
    """A full disk does no harm to a snapshot, because nothing depends on the snapshot yet. A disk that *fails* stops
    the node.

    See docs/reference/specification.md#37-failed-sync.
    """
    s1 = a_single_leader()
    for ticket in range(4):
        s1.propose(ticket, ticket)
        s1.settle()

    s1.node.snapshot_now()
    s1.flush()
    s1.disk.complete_one(RaftError("no space is left for a snapshot"))
    s1.flush()
    assert s1.node.failure is None
    assert "snapshot_given_up" in s1.event_names()
    assert s1.snapshots.abandoned == 1

    s1.node.snapshot_now()
    s1.flush()
    while s1.disk.waiting[0][0] != "snapshot sync":
        s1.disk.complete_one()
        s1.flush()
    s1.disk.complete_one(OSError(5, "Input/output error"))
    assert s1.flush().failure is not None


def test_a_node_whose_log_cannot_be_read_at_whatever_event_stops_in_order() -> None:
    """A new leader reads the last `leader_time` when its own vote is durable. If this read fails, the node stops, but
    raises no error."""
    s1 = a_single_leader()
    s1.propose("one", 1)
    s1.settle()
    s1.crash()

    def unreadable(first_index: int, last_index: int, bytes_max: int) -> list[Entry]:
        raise OSError(5, "Input/output error")

    s1.log.read = unreadable  # type: ignore[method-assign]
    s1.tick_to(s1.now + 10 * RaftConfig().election_timeout_max_ns)
    s1.settle()
    effects = s1.flush()

    assert "Input/output error" in str(effects.failure)
    assert effects.send == []


def test_the_status_shows_marks_and_buffers() -> None:
    """Operators and monitors read the numbers of this status."""
    s1 = a_single_leader()
    s1.propose("one", 1)
    s1.flush()
    s1.propose("two", 2)
    status = s1.node.status()

    assert status.role is Role.LEADER
    assert (status.first_index, status.commit_index, status.durable_index, status.last_index) == (1, 1, 1, 2)
    assert (status.pending_commands, status.open_proposals) == (1, 2)
    assert status.failure is None


def test_every_open_proposal_has_exactly_one_end() -> None:
    """A proposal ends as committed, certainly not applied, or unknown
    (docs/reference/specification.md#96-end-of-a-proposal)."""
    s1 = a_single_leader()
    for ticket in range(50):
        s1.propose(ticket, ticket)
        if ticket % 7 == 0:
            s1.flush()
        if ticket % 11 == 0 and s1.disk.waiting:
            s1.disk.complete_one()
    s1.flush()
    s1.disk.complete_one(OSError(5, "Input/output error"))
    s1.flush()

    ends = [completion.ticket for completion in s1.completions]
    assert sorted(ends) == list(range(50))
    assert any(isinstance(completion, Unknown) for completion in s1.completions)
    assert s1.node.status().open_proposals == 0
