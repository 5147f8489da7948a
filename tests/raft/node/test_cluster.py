"""Several nodes in memory, through the real codec: replication, outcomes, snapshots.

See docs/reference/specification.md#5-snapshots.
"""

from __future__ import annotations

import pytest

from raft import (
    AppendAccepted,
    AppendEntries,
    Applied,
    Done,
    InstallSnapshot,
    InstallSnapshotProgress,
    LogPosition,
    Message,
    NotLeader,
    RaftError,
    Refused,
    Role,
    SnapshotInfo,
    SnapshotWriter,
    Unknown,
    encode_item,
)
from raft.node.node import MARK_DELAYS_PER_HEARTBEAT
from raft.snapshots.sender import SILENCES_MAX
from tests.raft.support.node_cluster import MS, OneNode, World


def fill(world: World, leader: OneNode, count: int, *, first_ticket: int = 0) -> None:
    """Commit `count` commands, one entry each."""
    for ticket in range(first_ticket, first_ticket + count):
        leader.propose(f"item {ticket}", ticket)
        world.exchange()


def caught_up(world: World) -> bool:
    leader = world.leader()
    return leader is not None and all(member.machine.items == leader.machine.items for member in world.members.values())


def test_three_nodes_elect_a_leader_and_apply_the_same_commands() -> None:
    """Raft §5.2, §5.3."""
    world = World()
    leader = world.elect()

    fill(world, leader, 20)
    world.run(lambda: caught_up(world))

    assert [completion.result for completion in leader.applied] == list(range(20))
    assert len({bytes(member.machine.state_hash()) for member in world.members.values()}) == 1


def test_no_reply_leaves_before_a_majority_is_durable() -> None:
    """Neither the leader's own copy nor a follower's copy counts before it is synced.

    See docs/reference/specification.md#32-copies-count-when-durable.
    """
    world = World()
    leader = world.elect()
    first, second = world.followers()
    leader.propose("one", 1)
    leader.flush()
    requests = [(to, message) for to, message in leader.sent if isinstance(message, AppendEntries) and message.entries]
    leader.sent.clear()
    assert len(requests) == 2  # The leader sent the requests before its own sync.

    first.node.receive(leader.node_id, next(message for to, message in requests if to == first.node_id))
    first.flush()
    assert not any(isinstance(message, AppendAccepted) for _, message in first.sent)

    first.disk.complete_one()
    first.flush()
    accepted = [message for _, message in first.sent if isinstance(message, AppendAccepted)]
    leader.node.receive(first.node_id, accepted[-1])
    leader.flush()
    assert leader.applied == []  # Only one of three copies is durable.

    leader.disk.complete_one()
    leader.flush()
    assert leader.applied == [Applied(1, leader.node.core.last_index, 0)]
    assert second.machine.items == []


def test_a_linearizable_read_needs_an_answer_of_a_majority() -> None:
    """Thesis §6.4: a leader that was cut off must not answer."""
    world = World()
    leader = world.elect()
    world.cut_off = {leader.node_id}
    leader.node.read(1)

    world.exchange()
    assert leader.reads_ready == []
    world.run(lambda: leader.node.core.role is not Role.LEADER)

    assert leader.reads_ready == []
    assert [(type(refused.error), refused.ticket) for refused in leader.refused] == [(NotLeader, 1)]

    world.cut_off = set()
    new_leader = world.elect()
    new_leader.node.read(2)
    world.exchange()
    assert new_leader.reads_ready == [2]


def test_what_was_gathered_but_not_proposed_is_certainly_refused_at_a_step_down() -> None:
    """Commands that were not proposed are in no log. Commands that were proposed wait until their outcome is certain.

    See docs/reference/specification.md#96-end-of-a-proposal.
    """
    world = World()
    leader = world.elect()
    world.cut_off = {leader.node_id}
    leader.propose("proposed", 1)
    leader.flush()
    leader.propose("gathered", 2)

    for _ in range(200):  # The leader's disk does not answer, so the second command stays unproposed.
        leader.tick_to(leader.now + 10 * MS)
        leader.flush()
        if leader.node.core.role is not Role.LEADER:
            break

    assert "stepped_down" in leader.event_names()
    assert [(refused.ticket, type(refused.error)) for refused in leader.refused] == [(2, NotLeader)]
    assert leader.unknown == []


def test_a_proposal_that_another_term_replaced_is_certainly_not_applied() -> None:
    """The outcome is certain when an entry of another term is *committed* at the index. A cut alone proves nothing.

    See docs/reference/specification.md#96-end-of-a-proposal.
    """
    world = World(outcome_wait_ns=60_000 * MS)
    old = world.elect()
    world.cut_off = {old.node_id}
    old.propose("lost", 1)
    world.exchange()
    new = world.elect()
    fill(world, new, 3, first_ticket=10)

    world.cut_off = set()
    world.run(lambda: caught_up(world) and bool(old.completions))

    assert [type(completion) for completion in old.completions] == [Refused]
    assert old.refused[0].ticket == 1
    assert "lost" not in new.machine.items


def test_a_proposal_that_survived_its_leader_ends_as_applied() -> None:
    """The old leader becomes a follower, applies its own entry, and reports the result to its caller."""
    world = World(outcome_wait_ns=60_000 * MS)
    old = world.elect()
    others = [member.node_id for member in world.followers()]
    routes = {(old.node_id, others[0]), *((sender, receiver) for sender in others for receiver in others)}
    world.carries = lambda *letter: letter[:2] in routes
    old.propose("survivor", 1)
    world.exchange()
    world.cut_off = {old.node_id}
    world.carries = lambda *_: True
    new = world.elect()
    assert new.node_id == others[0]  # Of the two, only this member has the longer log.

    world.cut_off = set()
    world.run(lambda: bool(old.completions))

    assert [type(completion) for completion in old.completions] == [Applied]
    assert new.machine.items == ["survivor"]


def test_a_proposal_that_stays_uncertain_is_unknown_after_the_wait() -> None:
    """When `outcome_wait_ns` has passed since the step-down, the caller learns that the outcome is unknown."""
    world = World()
    old = world.elect()
    world.cut_off = {old.node_id}
    old.propose("open", 1)
    world.exchange()

    world.run(lambda: old.node.core.role is not Role.LEADER)
    stepped_down_at = world.now
    assert old.completions == []
    world.run(lambda: bool(old.completions))

    assert [(type(completion), completion.ticket) for completion in old.completions] == [(Unknown, 1)]
    assert world.now - stepped_down_at <= world.config.outcome_wait_ns + 10 * MS
    assert old.node.status().open_proposals == 0


def test_a_leader_that_crashes_comes_back_with_everything_it_had_acknowledged() -> None:
    """If a caller got an answer for an entry, this entry is on a majority of disks.

    See docs/reference/specification.md#32-copies-count-when-durable.
    """
    world = World()
    leader = world.elect()
    fill(world, leader, 10)
    told = [completion.result for completion in leader.applied]

    for member in world.members.values():
        member.crash()
    world.elect()
    world.run(lambda: caught_up(world))

    assert [f"item {result}" for result in told] == world["s1"].machine.items


SMALL_CHUNKS = {"snapshot_chunk_bytes": 40, "snapshot_log_bytes": 600, "retention_bytes_max": 800}


def a_member_behind_the_log(world: World) -> tuple[OneNode, OneNode]:
    """Returns the pair (leader, lagging). The lagging member is cut off and needs a snapshot."""
    leader = world.elect()
    lagging = world.followers()[0]
    world.cut_off = {lagging.node_id}
    fill(world, leader, 30)
    world.run_for(200)
    assert leader.node.core.first_index > lagging.node.core.last_index + 1
    world.cut_off = set()
    return leader, lagging


def test_a_member_behind_the_log_gets_the_snapshot_in_chunks() -> None:
    """Raft §7: because of retention_bytes_max a member may cut its log above the low-water mark. It never cuts above
    its own snapshot."""
    world = World(**SMALL_CHUNKS)
    leader, lagging = a_member_behind_the_log(world)
    assert leader.node.core.low_watermark < leader.node.core.first_index - 1

    world.run(lambda: caught_up(world))

    assert "snapshot_installed" in lagging.event_names()
    assert lagging.node.core.snapshot_index > 0
    fill(world, leader, 3, first_ticket=100)
    world.run(lambda: caught_up(world))


def count_chunks(world: World) -> list[tuple[str, str, InstallSnapshot]]:
    """Record all chunks that are sent after this call."""
    seen: list[tuple[str, str, InstallSnapshot]] = []
    carries = world.carries

    def recording(sender: str, receiver: str, message: Message) -> bool:
        if isinstance(message, InstallSnapshot):
            seen.append((sender, receiver, message))
        return carries(sender, receiver, message)

    world.carries = recording
    return seen


def test_a_snapshot_that_loses_nothing_is_sent_once() -> None:
    """Every byte is sent once, in chunks of the configured size."""
    world = World(**SMALL_CHUNKS)
    _, _ = a_member_behind_the_log(world)
    seen = count_chunks(world)

    world.run(lambda: caught_up(world))

    offsets = [message.offset for _, _, message in seen]
    assert offsets == sorted(set(offsets))
    assert sum(len(message.data) for _, _, message in seen) == seen[0][2].total_bytes
    assert all(len(message.data) <= 40 for _, _, message in seen)


@pytest.mark.parametrize("lost", range(6))
def test_a_lost_chunk_is_sent_again(lost: int) -> None:
    """The receiver answers with the number of bytes that it has (docs/reference/specification.md#57-transfer)."""
    world = World(**SMALL_CHUNKS)
    _, lagging = a_member_behind_the_log(world)
    count = 0

    def loses_one(sender: str, receiver: str, message: Message) -> bool:
        nonlocal count
        count += isinstance(message, InstallSnapshot)
        return not (isinstance(message, InstallSnapshot) and count == lost + 1)

    world.carries = loses_one
    world.run(lambda: caught_up(world))

    assert "snapshot_installed" in lagging.event_names()


def test_a_lost_answer_is_asked_for_again() -> None:
    """Every third progress message is lost, and every chunk arrives twice. The repeated chunks do no harm."""
    world = World(**SMALL_CHUNKS)
    leader, lagging = a_member_behind_the_log(world)
    count = 0

    def unreliable(sender: str, receiver: str, message: Message) -> bool:
        nonlocal count
        if isinstance(message, InstallSnapshot):
            world.members[receiver].node.receive(sender, message)
        count += isinstance(message, InstallSnapshotProgress)
        return not (isinstance(message, InstallSnapshotProgress) and count % 3 == 0)

    world.carries = unreliable
    world.run(lambda: caught_up(world), milliseconds=60_000)

    assert lagging.machine.items == leader.machine.items


def a_chunk(leader: OneNode, *, transfer_id: int, offset: int, data: bytes, total_bytes: int = 100) -> InstallSnapshot:
    return InstallSnapshot(
        term=leader.node.core.term,
        transfer_id=transfer_id,
        snapshot_index=1_000,
        snapshot_term=1,
        total_bytes=total_bytes,
        offset=offset,
        data=data,
    )


def answers(member: OneNode) -> list[tuple[int, int]]:
    """The answers of the member since the last call, as (transfer_id, next_offset)."""
    found = [(m.transfer_id, m.next_offset) for _, m in member.sent if isinstance(m, InstallSnapshotProgress)]
    member.sent.clear()
    return found


def test_a_transfer_that_nobody_answers_is_given_up_and_begun_anew() -> None:
    """After SILENCES_MAX silences the leader probes again. It finds that the peer lags as much as before, and begins
    the transfer again."""
    world = World(**SMALL_CHUNKS)
    leader, _ = a_member_behind_the_log(world)
    world.carries = lambda *letter: not isinstance(letter[2], InstallSnapshot)
    world.run(lambda: "snapshot_wanted" in leader.event_names())
    began = world.now

    world.run(lambda: leader.event_names().count("snapshot_wanted") == 2, milliseconds=30_000)

    assert world.now - began >= SILENCES_MAX * world.config.election_timeout_min_ns
    world.carries = lambda *_: True
    world.run(lambda: caught_up(world))


def test_chunks_of_two_transfers_never_mix() -> None:
    """A transfer has an id. A new transfer replaces the old one.

    See docs/reference/specification.md#57-transfer.
    """
    world = World()
    leader = world.elect()
    follower = world.followers()[0]

    follower.node.receive(leader.node_id, a_chunk(leader, transfer_id=1, offset=0, data=b"a" * 30))
    follower.settle()
    assert answers(follower) == [(1, 30)]
    follower.node.receive(leader.node_id, a_chunk(leader, transfer_id=2, offset=30, data=b"b" * 30))
    follower.settle()
    assert answers(follower) == [(2, 0)]  # The chunk has the right offset, but belongs to another transfer.
    follower.node.receive(leader.node_id, a_chunk(leader, transfer_id=1, offset=60, data=b"a" * 10))
    follower.settle()
    assert answers(follower) == [(1, 30)]  # A gap.
    follower.node.receive(leader.node_id, a_chunk(leader, transfer_id=2, offset=0, data=b"b" * 30))
    follower.settle()
    assert answers(follower) == [(2, 30)]
    assert follower.snapshots.abandoned == 1
    follower.node.receive(leader.node_id, a_chunk(leader, transfer_id=1, offset=30, data=b"a" * 30))
    follower.settle()
    assert answers(follower) == [(1, 0)]


def test_a_transfer_whose_file_is_damaged_is_refused_and_begun_anew() -> None:
    """The store verifies a received file before the member uses it. If the file is damaged, the member asks its leader
    to begin the transfer again."""
    world = World()
    leader = world.elect()
    follower = world.followers()[0]

    follower.node.receive(leader.node_id, a_chunk(leader, transfer_id=1, offset=0, data=b"x" * 100))
    follower.settle()

    assert answers(follower) == [(1, 100), (1, -1)]
    assert follower.node.failure is None
    assert follower.snapshots.latest().header.index == 0


def test_a_leader_that_cannot_read_its_snapshot_stops_in_order() -> None:
    """If the leader cannot read its disk, the node reports this, and ends all open requests."""
    world = World(**SMALL_CHUNKS)
    leader, _ = a_member_behind_the_log(world)
    leader.propose("open", 99)

    def unreadable(info: SnapshotInfo, offset: int, length: int) -> bytes:
        raise OSError(5, "Input/output error")

    leader.snapshots.read = unreadable  # type: ignore[method-assign]
    world.run(lambda: leader.node.failure is not None)

    assert "Input/output error" in str(leader.node.failure)
    assert [end.ticket for end in leader.completions if end.ticket == 99] == [99]
    assert leader.flush().send == []


def test_a_peer_that_cannot_take_a_snapshot_is_not_flooded_with_it() -> None:
    """The peer's disk may be full, so that the peer cannot store the snapshot. The leader sends one window of chunks
    per election time-out. When there is room, it sends the whole snapshot."""
    world = World(**SMALL_CHUNKS)
    _, lagging = a_member_behind_the_log(world)
    seen = count_chunks(world)
    real_receive = lagging.snapshots.receive

    def full(total_bytes: int, position: LogPosition | None = None) -> SnapshotWriter:
        writer = real_receive(total_bytes, position)

        def write(chunk: bytes, done: Done) -> None:
            lagging.disk.submit("full", lambda _: done(RaftError("no space is left for a snapshot")))

        writer.write = write  # type: ignore[method-assign]
        return writer

    lagging.snapshots.receive = full  # type: ignore[method-assign]
    world.run_for(3_000)
    assert 4 <= len(seen) <= 4 * 11
    assert lagging.node.failure is None

    lagging.snapshots.receive = real_receive  # type: ignore[method-assign]
    world.run(lambda: caught_up(world))


def test_chunks_in_memory_are_bounded() -> None:
    """When more than CHUNKS_WAITING_MAX chunks wait, the member answers a chunk with the offset up to which it has
    written."""
    world = World()
    leader = world.elect()
    follower = world.followers()[0]

    for number in range(20):
        follower.node.receive(
            leader.node_id, a_chunk(leader, transfer_id=1, offset=number * 10, data=b"x" * 10, total_bytes=1_000)
        )
        follower.flush()

    assert follower.node.status().snapshot_bytes <= 80
    assert (1, 0) in answers(follower)


def test_a_snapshot_is_acknowledged_only_when_it_and_the_new_beginning_of_the_log_are_durable() -> None:
    """The member's acknowledgement waits for two writes: the snapshot and the reset.

    See docs/reference/specification.md#56-installing-a-snapshot.
    """
    world = World(**SMALL_CHUNKS)
    leader, lagging = a_member_behind_the_log(world)
    held: list[Message] = []

    def until_the_end(sender: str, receiver: str, message: Message) -> bool:
        if isinstance(message, InstallSnapshot) and message.offset + len(message.data) == message.total_bytes:
            held.append(message)
            return False
        return True

    world.carries = until_the_end
    world.run(lambda: bool(held))
    lagging.sent.clear()
    lagging.node.receive(leader.node_id, held[0])
    lagging.flush()

    while "snapshot_installed" not in lagging.event_names():
        assert not any(isinstance(message, AppendAccepted) for _, message in lagging.sent)
        if lagging.disk.waiting:
            lagging.disk.complete_one()
        else:
            lagging.tick_to(lagging.now + 1)
        lagging.flush()
    assert not any(isinstance(message, AppendAccepted) for _, message in lagging.sent)  # The reset is not durable yet.
    lagging.disk.complete_all()
    lagging.flush()

    accepted = [message for _, message in lagging.sent if isinstance(message, AppendAccepted)]
    assert accepted[-1].match_index == lagging.node.core.snapshot_index
    assert lagging.log.durable_base.index == lagging.node.core.snapshot_index
    assert lagging.machine.items == leader.machine.items[: len(lagging.machine.items)]


def test_a_transfer_ends_at_a_step_down_and_the_next_leader_begins_its_own() -> None:
    """When its leader's term of leadership ends, a transfer ends, too."""
    world = World(**SMALL_CHUNKS)
    old, lagging = a_member_behind_the_log(world)
    world.run_for(1_000)
    world.carries = lambda *letter: not isinstance(letter[2], InstallSnapshotProgress)
    world.run_for(100)

    world.cut_off = {old.node_id}
    world.carries = lambda *_: True
    world.run(lambda: (new := world.leader()) is not None and lagging.machine.items == new.machine.items)

    assert world.leader() is not old


def test_a_snapshot_that_the_log_has_left_behind_is_followed_by_a_newer_one_at_once() -> None:
    """`retention_bytes_max` may cut the log beyond the snapshot that is being sent. The peer then needs a newer
    snapshot."""
    world = World(**SMALL_CHUNKS)
    leader, lagging = a_member_behind_the_log(world)
    answers: list[Message] = []

    def one_answer(_sender: str, _receiver: str, message: Message) -> bool:
        answers.extend([message] if isinstance(message, InstallSnapshotProgress) else [])
        return len(answers) <= 1 or not isinstance(message, InstallSnapshotProgress)

    world.carries = one_answer
    world.run_for(100)
    fill(world, leader, 60, first_ticket=200)
    world.carries = lambda *_: True

    world.run(lambda: caught_up(world), milliseconds=1_000)

    assert lagging.event_names().count("snapshot_installed") == 2


def test_a_single_voter_of_a_cluster_of_one_needs_no_peer_to_compact() -> None:
    """The low-water mark of a cluster of one is that of its only member
    (docs/reference/specification.md#64-low-water-mark)."""
    world = World(count=1, snapshot_log_bytes=300)
    leader = world.elect()

    fill(world, leader, 20)

    assert leader.node.core.first_index > 1
    assert leader.node.core.low_watermark >= leader.node.core.first_index - 1


def test_a_follower_builds_its_own_snapshots() -> None:
    """Each member cuts its own log at min(its own durable snapshot, low-water mark)."""
    world = World(snapshot_log_bytes=500)
    leader = world.elect()

    fill(world, leader, 40)
    world.run_for(500)

    for member in world.members.values():
        assert member.node.core.snapshot_index > 0
        assert member.node.core.first_index > 1
        assert member.node.core.first_index - 1 <= member.node.core.low_watermark


def test_a_large_batch_travels_and_is_applied_everywhere() -> None:
    """One entry may exceed `append_bytes_max`, but it still fits into a frame."""
    world = World(append_bytes_max=1_000, batch_bytes_max=5_000)
    leader = world.elect()

    for ticket in range(40):
        leader.node.propose(encode_item("x" * 900), ticket)
    world.run(lambda: caught_up(world) and len(leader.applied) == 40)


def test_a_put_soon_after_another_carries_the_mark_of_that_one_to_the_followers() -> None:
    """Each put costs one append per follower, and this append also carries the mark. Only the last mark needs a
    separate message, which comes before the heartbeat."""
    world = World()
    leader = world.elect()
    world.run_for(100)
    appends: list[AppendEntries] = []

    def note(_sender: str, _receiver: str, message: Message) -> bool:
        if isinstance(message, AppendEntries):
            appends.append(message)
        return True

    world.carries = note
    for ticket in range(3):
        leader.propose(ticket, ticket)
        world.exchange()
    marks = [member.node.core.commit_index for member in world.followers()]

    assert [len(message.entries) for message in appends] == [1] * 6
    assert marks == [leader.node.core.commit_index - 1] * 2
    delay = leader.node.next_deadline - world.now
    assert 0 < delay <= world.config.heartbeat_interval_ns // MARK_DELAYS_PER_HEARTBEAT
    leader.tick_to(world.now + delay)
    world.exchange()
    assert [member.node.core.commit_index for member in world.followers()] == [leader.node.core.commit_index] * 2
