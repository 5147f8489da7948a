"""Small defects, put into the production code one at a time, that the simulator must find.

Each function takes a `pytest.MonkeyPatch` and breaks one thing in this process. Submodules are named on purpose: a
defect is where the code is. When the code moves, the defect has to move with it: `setattr` of an unknown name fails.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

import kvstore.service
import raft.core_state
import raft.elections
import raft.following
import raft.group_commit
import raft.leadership
import raft.log
import raft.outbox
import raft.quorum
import raft.snapshotting
import raft.writes
import storage.frame
import storage.wal
from harness.sim.disk import DiskPlan
from harness.sim.fault import Fault
from harness.sim.plan import Plan
from kvstore import StoreLimits
from kvstore.sessions import Sessions
from kvstore.snapshots import take_picture
from kvstore.store import Store
from raft import (
    AppendEntries,
    HardState,
    LogWrite,
    Message,
    PreVoteRequest,
    SnapshotHeader,
    StateSnapshot,
    VoteRequest,
)
from storage import Operation, StorageLimits, SyncFile
from storage.frame import CHECKSUM, FRAME_BYTES_MIN, HEAD, Frame, parse_frame


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliberateBug:
    """One defect, the rules that may find it, and how many seeds that may take. `shape` bends each seed's plan."""

    name: str
    put_in: Callable[[pytest.MonkeyPatch], None]
    rules: frozenset[str]
    seeds_max: int = 20
    shape: Callable[[Plan], Plan] = lambda plan: plan


DURABLE = "committed means durable on a majority"
COMPLETENESS = "leader completeness"
READS = "a read sees what was acknowledged before it"
ESCAPED = "no exception leaves a node"
AGREEMENT = "state machine agreement"


def restless(plan: Plan) -> Plan:
    """Three members whose leader is struck several times a second, and programs that read and write all the time."""
    kinds = ("cut off", "kill", "pause", "lose power")
    faults = tuple(
        Fault(at_ns=at_ms * 1_000_000, kind=kinds[at_ms // 300 % 4], duration_ns=400_000_000, target=None, shape=0.5)
        for at_ms in range(300, 6_000, 300)
    )
    load = replace(plan.load, with_service=False, clients=8, think_ns=3_000_000, read_share=0.6)
    network = replace(plan.network, delay_ns=4_000_000, jitter_ns=8_000_000, loss_rate=0.02)
    timers = replace(
        plan.raft,
        heartbeat_interval_ns=20_000_000,
        election_timeout_min_ns=60_000_000,
        election_timeout_max_ns=120_000_000,
        append_bytes_max=100,
        window_messages_max=2,
    )
    return replace(
        plan,
        members=("n1", "n2", "n3"),
        until_ns=6_000_000_000,
        disks={member: DiskPlan(sync_ns=1_000_000) for member in ("n1", "n2", "n3")},
        raft=timers,
        network=network,
        load=load,
        faults=faults,
    )


def restless_clients(plan: Plan) -> Plan:
    """The same with clients of the service: some still talk to the old leader while others have found the new one."""
    bent = restless(plan)
    load = replace(bent.load, with_service=True, clients=4, workers=2, keys=2, session_ttl_ns=60_000_000_000)
    return replace(bent, load=load, store=StoreLimits())


def restless_and_forgetful(plan: Plan) -> Plan:
    """The same with a snapshot every few entries and a log that keeps nothing for slow members."""
    bent = restless(plan)
    bounds = replace(bent.raft, snapshot_log_bytes=200, retention_bytes_max=100, snapshot_chunk_bytes=4_096)
    return replace(bent, raft=bounds, storage=StorageLimits(segment_bytes_max=300, ballast_bytes=0))


def without_power(plan: Plan) -> Plan:
    """The same with large values, slow syncs, and power that fails again and again: frames of many sectors are torn."""
    bent = restless(plan)
    faults = tuple(replace(fault, kind="lose power", duration_ns=100_000_000) for fault in bent.faults)
    disks = {member: DiskPlan(sync_ns=10_000_000) for member in bent.members}
    load = replace(bent.load, value_bytes_max=8_000, read_share=0.0)
    return replace(bent, faults=faults, disks=disks, load=load, storage=StorageLimits(ballast_bytes=0))


def vote_is_not_persisted(patch: pytest.MonkeyPatch) -> None:
    take = raft.writes.WriteStream.take

    def without_vote(self: raft.writes.WriteStream, hard_state: HardState) -> LogWrite | None:
        return take(self, replace(hard_state, voted_for=None))

    patch.setattr(raft.writes.WriteStream, "take", without_vote)


def vote_is_lost_on_disk(patch: pytest.MonkeyPatch) -> None:
    append = storage.wal.Wal.append

    def without_vote(self: storage.wal.Wal, write: LogWrite) -> None:
        state = write.hard_state
        append(self, replace(write, hard_state=replace(state, voted_for=None)) if state else write)

    patch.setattr(storage.wal.Wal, "append", without_vote)


def messages_do_not_wait_for_the_sync(patch: pytest.MonkeyPatch) -> None:
    send = raft.outbox.Outbox.send

    def at_once(self: raft.outbox.Outbox, peer_id: str, message: Message, *, after: int = 0) -> None:
        send(self, peer_id, message, after=min(after, 0))

    patch.setattr(raft.outbox.Outbox, "send", at_once)


def own_copy_counts_before_it_is_durable(patch: pytest.MonkeyPatch) -> None:
    sync = raft.group_commit.GroupCommit._sync

    def told_early(self: raft.group_commit.GroupCommit, commit_hint: int) -> None:
        sync(self, commit_hint)
        self._durable(self.appended_sequence)

    patch.setattr(raft.group_commit.GroupCommit, "_sync", told_early)


def the_log_is_not_synced(patch: pytest.MonkeyPatch) -> None:
    plan = storage.wal.Wal._plan

    def unsynced(self: storage.wal.Wal, *arguments: Any, **named: Any) -> Any:
        planned = plan(self, *arguments, **named)
        kept: list[Operation] = [operation for operation in planned.operations if not isinstance(operation, SyncFile)]
        return replace(planned, operations=kept)

    patch.setattr(storage.wal.Wal, "_plan", unsynced)


def entries_of_old_terms_commit_by_counting(patch: pytest.MonkeyPatch) -> None:
    def counting(self: raft.leadership.Leadership) -> None:
        state = self._state
        own = {state.node_id: state.log.durable_index}
        agreed = state.quorum.agreed({peer_id: peer.match_index for peer_id, peer in self._peers.items()} | own)
        if agreed > state.commit_index:
            state.commit_to(agreed)
        marks_moved(self)

    marks_moved = raft.leadership.Leadership.marks_moved
    patch.setattr(raft.leadership.Leadership, "marks_moved", counting)


def every_append_cuts_what_follows(patch: pytest.MonkeyPatch) -> None:
    take = raft.following.Following._take

    def cutting(self: raft.following.Following, message: AppendEntries) -> int:
        if message.entries and message.entries[-1].index < self._state.log.last_index:
            index = message.entries[-1].index + 1
            if index > self._state.commit_index:
                self._state.truncate_from(index)
        return take(self, message)

    patch.setattr(raft.following.Following, "_take", cutting)


def votes_go_to_logs_that_are_behind(patch: pytest.MonkeyPatch) -> None:
    def always(self: raft.elections.Elections, request: PreVoteRequest | VoteRequest) -> bool:
        return True

    patch.setattr(raft.elections.Elections, "_is_up_to_date", always)


def half_is_a_majority(patch: pytest.MonkeyPatch) -> None:
    def low_median(positions: Sequence[int]) -> int:
        return sorted(positions, reverse=True)[(len(positions) - 1) // 2]

    patch.setattr(raft.quorum, "majority_index", low_median)


def reads_before_a_commit_of_the_own_term(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(raft.leadership.Leadership, "_has_committed_in_its_term", property(lambda _: True))


def reads_without_a_round(patch: pytest.MonkeyPatch) -> None:
    def from_the_machine(self: kvstore.service.Service, connection: Any, asked: Any) -> None:
        self._respond_result(connection, asked.request_id, self._machine.read(asked.items[1]), asked.items[0])

    patch.setattr(kvstore.service.Service, "_on_read", from_the_machine)


def a_snapshot_is_labelled_one_too_high(patch: pytest.MonkeyPatch) -> None:
    def labelled(**fields: Any) -> SnapshotHeader:
        return SnapshotHeader(**(fields | {"index": fields["index"] + 1}))

    patch.setattr("raft.snapshotting.SnapshotHeader", labelled)


def an_installed_snapshot_keeps_a_conflicting_log(patch: pytest.MonkeyPatch) -> None:
    term_at = raft.log.RaftLog.term_at
    install = raft.following.Following.install

    def keeping(self: raft.following.Following, position: Any, *rest: Any) -> None:
        def lenient(log: raft.log.RaftLog, index: int) -> int | None:
            found = term_at(log, index)
            return position.term if found is not None and index == position.index else found

        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(raft.log.RaftLog, "term_at", lenient)
            install(self, position, *rest)

    patch.setattr(raft.following.Following, "install", keeping)


def a_snapshot_forgets_the_sessions(patch: pytest.MonkeyPatch) -> None:
    def without_sessions(store: Store, sessions: Sessions, header: Mapping[str, Any]) -> StateSnapshot:
        return take_picture(store, Sessions(), {**header, "sessions": 0, "results": 0})

    patch.setattr("kvstore.machine.take_picture", without_sessions)


def recovery_accepts_a_torn_frame(patch: pytest.MonkeyPatch) -> None:
    def unchecked(data: bytes, offset: int, salt: int) -> Frame | None:
        frame = parse_frame(data, offset, salt)
        if frame is not None or len(data) - offset < FRAME_BYTES_MIN:
            return frame
        found_salt, length, previous, batch, durable_batch, flags, count = HEAD.unpack_from(data, offset)
        if found_salt != salt or not FRAME_BYTES_MIN <= length <= len(data) - offset:
            return None
        end = offset + length - CHECKSUM.size
        return storage.frame._parse_body(data, offset, end, flags, count, (length, 0, previous, batch, durable_batch))

    patch.setattr("storage.segment.parse_frame", unchecked)


def recovery_does_not_sync_what_it_copies(patch: pytest.MonkeyPatch) -> None:
    sync_to_new_segment = storage.wal.Wal.sync_to_new_segment

    def unsynced(self: storage.wal.Wal, *arguments: Any) -> None:
        with pytest.MonkeyPatch.context() as inner:
            the_log_is_not_synced(inner)
            sync_to_new_segment(self, *arguments)

    patch.setattr(storage.wal.Wal, "sync_to_new_segment", unsynced)


def the_low_watermark_ignores_a_member(patch: pytest.MonkeyPatch) -> None:
    raise_low_watermark = raft.core_state.CoreState.raise_low_watermark

    def own_only(self: raft.core_state.CoreState, index: int) -> None:
        raise_low_watermark(self, min(self.last_applied, self.log.durable_index))

    patch.setattr(raft.core_state.CoreState, "raise_low_watermark", own_only)


def rejections_are_not_heeded(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(raft.leadership.Leadership, "on_rejected", lambda *_: None)


def a_retry_is_carried_out_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Sessions, "answered", lambda *_: None)


def bug(
    put_in: Callable[[pytest.MonkeyPatch], None],
    *rules: str,
    seeds_max: int = 20,
    shape: Callable[[Plan], Plan] = lambda plan: plan,
) -> DeliberateBug:
    """A defect named as the function that puts it in."""
    name = put_in.__name__.replace("_", " ")
    return DeliberateBug(name=name, put_in=put_in, rules=frozenset(rules), seeds_max=seeds_max, shape=shape)


BUGS = [
    bug(vote_is_not_persisted, "a vote is durable before it is told"),
    bug(vote_is_lost_on_disk, "recovery finds what was promised"),
    bug(messages_do_not_wait_for_the_sync, "a term is durable before it is told"),
    bug(own_copy_counts_before_it_is_durable, "a term is durable before it is told", DURABLE),
    bug(the_log_is_not_synced, "what recovery keeps is durable"),
    bug(
        entries_of_old_terms_commit_by_counting,
        "a leader commits only behind an entry of its own term",
        shape=restless,
    ),
    bug(every_append_cuts_what_follows, "a committed entry is never cut"),
    bug(votes_go_to_logs_that_are_behind, COMPLETENESS, shape=restless),
    bug(half_is_a_majority, DURABLE),
    bug(reads_before_a_commit_of_the_own_term, READS, shape=restless),
    bug(reads_without_a_round, "what clients saw is linearizable", shape=restless_clients),
    bug(a_snapshot_is_labelled_one_too_high, ESCAPED),
    bug(an_installed_snapshot_keeps_a_conflicting_log, ESCAPED, shape=restless_and_forgetful),
    bug(a_snapshot_forgets_the_sessions, AGREEMENT),
    bug(
        recovery_accepts_a_torn_frame,
        "a member can always restart",
        "recovery finds what was promised",
        "log matching",
        ESCAPED,
        shape=without_power,
    ),
    bug(recovery_does_not_sync_what_it_copies, "what recovery keeps is durable"),
    bug(the_low_watermark_ignores_a_member, "the low-water mark is applied and durable everywhere"),
    bug(rejections_are_not_heeded, "a healed cluster takes a write"),
    bug(
        a_retry_is_carried_out_again, "a session's request is carried out at most once", "nothing is carried out twice"
    ),
]
