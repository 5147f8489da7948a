"""Snapshots that are sent between members: their cost, the faults that a transfer survives, and the time of the
install."""

from __future__ import annotations

from collections.abc import Callable

from raft import AppendAccepted, InstallSnapshot, InstallSnapshotProgress, Message, Role
from raft.snapshots.sender import SILENCES_MAX
from tests.raft.node.test_cluster import SMALL_CHUNKS, a_member_behind_the_log, caught_up, count_chunks, fill
from tests.raft.support.node_cluster import MS, OneNode, World

CHUNK_BYTES = 10
TINY_CHUNKS = SMALL_CHUNKS | {"snapshot_chunk_bytes": CHUNK_BYTES}
LONG_LOG = TINY_CHUNKS | {"retention_bytes_max": 1_000_000}


def cut_after(world: World, chunks: int) -> list[InstallSnapshot]:
    """Let this number of chunks through and then drop all others. Returns all chunks that were sent, including the
    dropped ones."""
    seen = count_chunks(world)
    recording = world.carries
    world.carries = lambda *letter: recording(*letter) and len(seen) <= chunks
    world.run(lambda: len(seen) > chunks)
    world.run_for(20)
    sent = [message for _, _, message in seen]
    world.carries = lambda *_: True
    return sent


def names(member: OneNode) -> list[str]:
    return sorted(info.name for info, _ in member.snapshots._files)


def a_member_in_want(world: World) -> tuple[OneNode, OneNode]:
    """Like `a_member_behind_the_log`, but for a world that keeps a long log. The test cuts the leader's log by hand."""
    leader = world.elect()
    lagging = world.followers()[0]
    world.cut_off = {lagging.node_id}
    fill(world, leader, 30)
    world.run_for(200)
    leader.node.core.compact(leader.node.core.snapshot_index)
    leader.log.drop_before(leader.node.core.snapshot_index + 1)
    world.cut_off = set()
    return leader, lagging


def chunks_after(world: World) -> list[InstallSnapshot]:
    """Let all members catch up. Returns the chunks that were sent in this time."""
    seen = count_chunks(world)
    world.run(lambda: caught_up(world))
    return [message for _, _, message in seen]


def break_connection(leader: OneNode, peer: OneNode) -> None:
    """Inform both nodes that their connection was cut, as the transport would."""
    leader.node.peer_unreachable(peer.node_id)
    peer.node.peer_unreachable(leader.node_id)


def test_a_transfer_whose_connection_broke_resumes_at_its_offset() -> None:
    """One chunk asks how many bytes have arrived. No other chunk that was received is sent again."""
    world = World(**TINY_CHUNKS)
    leader, lagging = a_member_behind_the_log(world)
    before = cut_after(world, 8)
    break_connection(leader, lagging)

    after = chunks_after(world)

    assert {message.transfer_id for message in after} == {before[0].transfer_id}
    assert [message.offset for message in after][:2] == [0, 8 * CHUNK_BYTES]
    assert after[-1].offset + len(after[-1].data) == after[-1].total_bytes


def test_an_answer_that_was_overtaken_causes_no_chunk_to_be_sent_again() -> None:
    """If repeated answers counted, each answer would cause four chunks, and each chunk another answer."""
    world = World(**TINY_CHUNKS)
    leader, lagging = a_member_behind_the_log(world)
    before = cut_after(world, 8)
    overtaken = InstallSnapshotProgress(
        term=leader.node.core.term, transfer_id=before[0].transfer_id, next_offset=CHUNK_BYTES, last_applied=0
    )

    leader.node.receive(lagging.node_id, overtaken)
    after = chunks_after(world)

    assert min(message.offset for message in after) > overtaken.next_offset


def test_a_receiver_that_has_lost_a_part_gets_it_again_after_a_time_out() -> None:
    world = World(**TINY_CHUNKS)
    _, lagging = a_member_behind_the_log(world)
    cut_after(world, 8)
    lagging.crash()  # The leader does not notice that the connection is lost.

    after = chunks_after(world)

    assert min(message.offset for message in after) == 0


def test_it_resumes_with_the_same_file_though_a_newer_one_was_built_meanwhile() -> None:
    """The leader keeps the file for the member that was receiving it, and the log still has the entries after this
    file."""
    world = World(**LONG_LOG)
    leader, lagging = a_member_in_want(world)
    before = cut_after(world, 8)
    break_connection(leader, lagging)
    world.cut_off = {lagging.node_id}
    fill(world, leader, 20, first_ticket=300)
    world.run_for(50)
    assert leader.snapshots.latest().header.index > before[0].snapshot_index
    assert len(names(leader)) == 2
    world.cut_off = set()

    after = chunks_after(world)

    assert {message.snapshot_index for message in after} == {before[0].snapshot_index}
    assert after[1].offset == 8 * CHUNK_BYTES
    world.run_for(10_000)
    assert len(names(leader)) == 1


def test_what_was_kept_for_a_lost_peer_is_dropped_when_it_stays_away() -> None:
    """The leader drops the file after twenty election time-outs, even if connections are tried. So its disk use is
    bounded."""
    world = World(**LONG_LOG)
    leader, lagging = a_member_in_want(world)
    cut_after(world, 8)
    break_connection(leader, lagging)
    world.cut_off = {lagging.node_id}
    fill(world, leader, 20, first_ticket=300)
    for _ in range(5):
        world.run_for(1_000)
        break_connection(leader, lagging)
    assert len(names(leader)) == 2

    for _ in range(3):
        world.run_for(1_000)
        break_connection(leader, lagging)
    world.run_for(100)

    assert names(leader) == [leader.snapshots.latest().name]


def test_of_older_files_only_the_one_that_is_being_sent_is_kept() -> None:
    """Disk use is bounded, even if many files are built during a slow transfer."""
    world = World(**SMALL_CHUNKS)
    leader, _ = a_member_behind_the_log(world)
    world.carries = lambda *letter: not isinstance(letter[2], InstallSnapshotProgress)
    world.run_for(100)
    sending = leader.snapshots.latest().name

    fill(world, leader, 60, first_ticket=200)

    assert leader.event_names().count("snapshot_built") >= 4
    assert names(leader) == sorted([sending, leader.snapshots.latest().name])
    world.carries = lambda *_: True
    world.run(lambda: caught_up(world), milliseconds=60_000)
    world.run_for(10_000)
    assert names(leader) == [leader.snapshots.latest().name]


def test_chunks_keep_to_their_rate() -> None:
    """With a `snapshot_bytes_per_second` of 1,000, a second is needed for 1,000 bytes, even if the windows allow
    more."""
    world = World(**TINY_CHUNKS | {"snapshot_bytes_per_second": 1_000, "snapshot_log_bytes": 2_000})
    leader = world.elect()
    lagging = world.followers()[0]
    world.cut_off = {lagging.node_id}
    fill(world, leader, 60)
    world.run(lambda: leader.node.core.first_index > lagging.node.core.last_index + 1)
    world.cut_off = set()
    seen = count_chunks(world)
    world.run(lambda: len(seen) > 0)
    began, first = world.now, len(seen)

    world.run_for(500)

    sent = sum(len(message.data) for _, _, message in seen[first:])
    assert 0.8 <= sent * 1_000_000 * MS / (1_000 * (world.now - began)) / 1_000 <= 1.2, sent


def test_a_transfer_that_its_rate_holds_back_is_not_taken_for_a_silent_one() -> None:
    """A chunk takes 2 s. Nevertheless the leader neither sends a chunk again nor gives up."""
    world = World(**SMALL_CHUNKS)
    leader, lagging = a_member_behind_the_log(world)
    leader.node._snapshots._sender._rate._bytes_per_second = 20

    after = chunks_after_long(world)

    assert len({message.offset for message in after}) == len(after)
    assert lagging.event_names().count("snapshot_installed") == 1


def chunks_after_long(world: World) -> list[InstallSnapshot]:
    seen = count_chunks(world)
    world.run(lambda: caught_up(world), milliseconds=200_000)
    return [message for _, _, message in seen]


# Installing


def a_member_that_is_installing(world: World) -> tuple[OneNode, OneNode]:
    """A lagging member that has the whole snapshot on its disk, and has read the first slices of this file."""
    leader, lagging = a_member_behind_the_log(world)
    world.run(lambda: lagging.node._snapshots._installer.snapshot_index is not None)
    world.run_for(30)
    assert lagging.node._snapshots._installer.snapshot_index is not None
    assert "snapshot_installed" not in lagging.event_names()
    return leader, lagging


def test_a_member_that_installs_a_snapshot_goes_on_hearing_its_leader() -> None:
    """The install needs slices for a second or two. In this time the member does not campaign, answers heartbeats, and
    keeps its old state."""
    world = World(**SMALL_CHUNKS)
    leader, lagging = a_member_that_is_installing(world)
    items, term = list(lagging.machine.items), leader.node.core.term
    answers: list[tuple[str, Message]] = []

    def recording(sender: str, _: str, message: Message) -> bool:
        answers.append((sender, message))
        return True

    world.carries = recording

    while "snapshot_installed" not in lagging.event_names():
        assert lagging.machine.items == items
        world.run_for(10)

    told = [message for sender, message in answers if sender == lagging.node_id]
    assert any(isinstance(message, AppendAccepted) and message.match_index == 0 for message in told)
    world.run(lambda: caught_up(world))
    assert (leader.node.core.role, leader.node.core.term) == (Role.LEADER, term)


def test_a_leader_that_asks_for_the_end_is_told_that_all_has_arrived() -> None:
    """Even if the install takes long, the leader must neither begin the transfer again nor give up."""
    world = World(**SMALL_CHUNKS)
    _, lagging = a_member_behind_the_log(world)
    lagging.node._snapshots._installer._rate._bytes_per_second = 30
    seen = count_chunks(world)
    world.run(lambda: caught_up(world), milliseconds=100_000)

    ends = [message for _, _, message in seen if message.offset + len(message.data) == message.total_bytes]
    assert len(ends) > SILENCES_MAX
    assert len({message.transfer_id for _, _, message in seen}) == 1
    assert sum(message.offset == 0 for _, _, message in seen) == 1
    assert lagging.event_names().count("snapshot_installed") == 1


def test_a_crash_amid_the_installing_loses_nothing() -> None:
    """The file is durable under its final name. So after the crash the member starts from this file."""
    world = World(**SMALL_CHUNKS)
    leader, lagging = a_member_that_is_installing(world)
    index = lagging.snapshots.latest().header.index

    lagging.crash()

    assert lagging.node.core.last_applied == index
    world.run(lambda: caught_up(world))
    assert lagging.machine.items == leader.machine.items


def test_a_member_whose_disk_fails_amid_a_transfer_ends_and_does_not_ask_for_it_again() -> None:
    """If the member requested the snapshot again, the transfer would fail each time, and no operator would learn why
    the member lags."""
    world = World(**TINY_CHUNKS)
    _, lagging = a_member_behind_the_log(world)
    submit = lagging.disk.submit

    def fails(name: str, done: Callable[[BaseException | None], None]) -> None:
        error = OSError(27, "File too large") if name == "snapshot write" else None
        submit(name, lambda failure: done(failure or error))

    lagging.disk.submit = fails  # type: ignore[method-assign]
    world.run(lambda: lagging.node.failure is not None)

    assert "receiving a snapshot failed: [Errno 27] File too large" in str(lagging.node.failure)
    assert not any(isinstance(m, InstallSnapshotProgress) and m.next_offset < 0 for _, m in lagging.sent)


def test_a_crash_amid_a_transfer_loses_nothing() -> None:
    """The member keeps its old state, and gets the snapshot from the beginning."""
    world = World(**TINY_CHUNKS)
    leader, lagging = a_member_behind_the_log(world)
    cut_after(world, 8)
    had = list(lagging.machine.items)

    lagging.crash()
    assert lagging.node.core.snapshot_index == 0
    assert lagging.log.last_index >= len(had)
    break_connection(leader, lagging)
    after = chunks_after(world)

    assert [message.offset for message in after][:2] == [0, CHUNK_BYTES]


def test_a_snapshot_that_the_log_overtakes_while_it_is_installed_is_given_up() -> None:
    """In the meantime the applied state has become newer. So the member drops the part of the snapshot that it has
    read."""
    world = World(**SMALL_CHUNKS)
    leader = world.elect()
    follower = world.followers()[0]
    fill(world, leader, 3)
    world.run_for(100)
    header = follower.snapshots.latest().header
    ahead = type(header)(index=8, term=1, configuration=header.configuration, machine={"leader_time": 0})
    installing = follower.node._snapshots._installer
    installing.begin(follower.snapshots.add(ahead, [b"\x80"] * 50))
    follower.node._snapshots._receiver._transfer = _Received()  # type: ignore[assignment]

    fill(world, leader, 10, first_ticket=100)
    world.run_for(200)

    assert installing.due_at is None
    assert "snapshot_installed" not in follower.event_names()
    assert follower.machine.items == leader.machine.items


class _Received:
    """An incoming transfer that has arrived completely."""

    snapshot_index = 8
    finishing = busy = True
    waiting: tuple[bytes, ...] = ()
