"""A bench that runs one core, collects its effects, and simulates its disk. The module also contains functions that
build messages."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, TypeVar

import cbor2

from raft.config import MILLISECOND_NS, RaftConfig
from raft.core.raft import RaftCore
from raft.core.ready import ProposalEnded, Ready
from raft.encoding.command_batch import encode_batch
from raft.membership.configuration import Configuration, Member
from raft.protocol.messages import (
    AppendAccepted,
    AppendEntries,
    AppendRejected,
    InstallSnapshot,
    InstallSnapshotProgress,
    Message,
    PreVoteRequest,
    PreVoteResponse,
    ReadIndexRequest,
    VoteRequest,
    VoteResponse,
)
from raft.types import Entry, EntryKind, HardState, LogPosition, ReadMode, Role, TraceEvent
from tests.raft.support.memory_log import MemoryLog

CONFIG = RaftConfig()
BEGINNING = LogPosition(0, 0)
M = TypeVar("M", bound=Message)


def payload(word: str, leader_time: int = 0) -> bytes:
    """The bytes of a batch with one command."""
    return encode_batch(leader_time, (cbor2.dumps(word),))


def entries_of(terms: Sequence[int], *, after: int = 0, leader_time: int = 0) -> tuple[Entry, ...]:
    """The entries after index `after`, one for each term. Equal indexes and terms give equal entries."""
    return tuple(
        Entry(after + n, term, EntryKind.COMMANDS, payload(f"{after + n} of {term}", leader_time))
        for n, term in enumerate(terms, start=1)
    )


def configuration_of(*node_ids: str) -> Configuration:
    return Configuration.of([Member(node_id) for node_id in node_ids])


class Bench:
    """A core, with a bench that simulates its disk (`persist()`) and its state machine (`apply_at_once`)."""

    def __init__(
        self,
        node_id: str = "s1",
        peers: Sequence[str] = ("s2", "s3"),
        *,
        term: int = 0,
        voted_for: str | None = None,
        log_terms: Sequence[int] = (),
        commit_index: int = 0,
        snapshot: LogPosition = BEGINNING,
        log: MemoryLog | None = None,
        configuration: Configuration | None = None,
        config: RaftConfig = CONFIG,
        leader_time: int = 0,
        now: int = 0,
        seed: int = 1,
        mark_delay_ns: int = 0,
    ) -> None:
        entries = entries_of(log_terms, after=snapshot.index)
        self.log = log or MemoryLog(snapshot, entries, HardState(term, voted_for, commit_index))
        self.now, self.apply_at_once = now, True
        self.sent: list[tuple[str, Message]] = []
        self.applied: list[Entry] = []
        self.waiting_to_apply: list[Entry] = []
        self.events: list[TraceEvent] = []
        self.reads_ready: list[int] = []
        self.reads_failed: list[int] = []
        self.reads_otherwise: list[tuple[int, ReadMode]] = []
        self.ended: list[ProposalEnded] = []
        self.snapshot_wanted: list[str] = []
        self.snapshot_chunks: list[tuple[str, InstallSnapshot]] = []
        self.snapshot_progress: list[tuple[str, InstallSnapshotProgress]] = []
        self.issued_sequence = 0
        self.core = RaftCore(
            node_id=node_id,
            config=config,
            hard_state=self.log.hard_state,
            snapshot=snapshot,
            configuration=configuration or configuration_of(node_id, *peers),
            log_store=self.log,
            leader_time=leader_time,
            random=Random(seed),
            now=now,
            mark_delay_ns=mark_delay_ns,
        )
        self.flush()

    # Events

    def step(self, peer_id: str, message: Message) -> None:
        self.core.step(peer_id, message)
        self.flush()

    def advance(self, duration_ns: int) -> None:
        """Let time pass in a single tick."""
        self.now += duration_ns
        self.core.tick(self.now)
        self.flush()

    def time_out(self) -> None:
        """Let time pass up to the next deadline."""
        self.advance(self.core.next_deadline - self.now)

    def heartbeat(self) -> None:
        self.advance(CONFIG.heartbeat_interval_ns)

    def propose(self, word: str = "x") -> LogPosition:
        position = self.core.propose(EntryKind.COMMANDS, payload(word, self.core.leader_time_now()))
        self.flush()
        return position

    def ask_read_index(self, peer_id: str, number: int) -> None:
        self.step(peer_id, ReadIndexRequest(term=self.core.term, number=number))

    def persist(self, sequence: int | None = None) -> None:
        """Let the disk sync everything up to `sequence`, or everything that was written."""
        sequence = self.issued_sequence if sequence is None else sequence
        self.log.synced(sequence)
        self.core.persisted(sequence)
        self.flush()

    def apply(self) -> None:
        """Let the state machine apply the entries that wait to be applied."""
        while self.waiting_to_apply:
            self.applied += self.waiting_to_apply
            last_index, self.waiting_to_apply = self.waiting_to_apply[-1].index, []
            self.core.applied(last_index)
            self.flush()

    def flush(self) -> None:
        while self.core.has_ready():
            self._handle(self.core.take_ready())

    def _handle(self, ready: Ready) -> None:
        if ready.write is not None:
            assert ready.write.sequence == self.issued_sequence + 1
            self.issued_sequence = ready.write.sequence
            self.log.append(ready.write)
        self.sent += ready.send
        self.reads_ready += ready.reads_ready
        self.reads_otherwise += ready.reads_ready_by_mode
        self.reads_failed += [ticket for ticket, _ in ready.reads_failed]
        self.ended += ready.ended
        self.snapshot_wanted += ready.snapshot_wanted
        self.snapshot_chunks += ready.snapshot_chunks
        self.snapshot_progress += ready.snapshot_progress
        self.events += ready.events
        self.waiting_to_apply += ready.apply
        if self.apply_at_once:
            self.apply()

    # Looking at it

    def take_sent(self) -> list[tuple[str, Message]]:
        sent, self.sent = self.sent, []
        return sent

    def sent_to(self, peer_id: str, kind: type[M]) -> list[M]:
        """The messages of a kind that were sent to one peer since the last `take_sent`."""
        return [message for to, message in self.sent if to == peer_id and isinstance(message, kind)]

    def event_names(self) -> list[str]:
        return [event.name for event in self.events]

    def last_event(self, name: str) -> dict[str, Any]:
        return next(event.fields for event in reversed(self.events) if event.name == name)

    @property
    def log_terms(self) -> list[int]:
        return [entry.term for entry in self.log.entries]

    @property
    def log_sequence_durable(self) -> int:
        """The number of the last write that the disk has confirmed."""
        return self.log.synced_sequence

    @property
    def applied_indexes(self) -> list[int]:
        return [entry.index for entry in self.applied]


def a_follower(node_id: str = "s1", *, term: int = 1, **settings: Any) -> Bench:
    """A member that has just started, with the given data on its disk."""
    return Bench(node_id, term=term, **settings)


def a_candidate(*, term: int, peers: Sequence[str] = ("s2", "s3"), **settings: Any) -> Bench:
    """A member that asks for votes in `term`. Its vote for itself is not durable yet."""
    bench = Bench(peers=peers, term=term - 1, **settings)
    bench.time_out()
    for peer_id in peers:
        bench.step(peer_id, PreVoteResponse(term=term - 1, next_term=term, granted=True))
    assert bench.core.role is Role.CANDIDATE, bench.core
    return bench


def a_leader(
    *, term: int = 1, peers: Sequence[str] = ("s2", "s3"), own_copy_durable: bool = True, **settings: Any
) -> Bench:
    """A leader of `term` that was elected by all members. Its no_op is the last entry, and the list of its sent
    messages is empty."""
    bench = a_candidate(term=term, peers=peers, **settings)
    bench.persist()
    for peer_id in peers:
        bench.step(peer_id, VoteResponse(term=term, granted=True))
    assert bench.core.role is Role.LEADER, bench.core
    if own_copy_durable:
        bench.persist()
    bench.take_sent()
    return bench


def a_leader_with_commits(*, term: int = 1, commands: int = 0, **settings: Any) -> Bench:
    """A leader that has committed and applied its no_op and `commands` commands. All members know this."""
    bench = a_leader(term=term, **settings)
    for n in range(commands):
        bench.propose(f"command {n}")
    bench.persist()
    everyone_accepts(bench)
    bench.take_sent()
    return bench


def everyone_accepts(bench: Bench) -> None:
    """Let every peer confirm that it has made durable and applied all entries of the leader."""
    last_index = bench.core.last_index
    for _ in range(2):
        for peer in bench.core.peers_status():
            bench.step(peer.peer_id, accepted(bench.core.term, last_index, last_applied=bench.core.commit_index))


def accepted(term: int, match_index: int, *, last_applied: int = 0, read_counter: int = 0) -> AppendAccepted:
    return AppendAccepted(term=term, match_index=match_index, last_applied=last_applied, read_counter=read_counter)


def rejected(
    term: int, rejected_index: int, hint: tuple[int, int] = (0, 0), *, read_counter: int = 0
) -> AppendRejected:
    """A rejection; `hint` is (index, term)."""
    return AppendRejected(
        term=term,
        rejected_index=rejected_index,
        hint_index=hint[0],
        hint_term=hint[1],
        last_applied=0,
        read_counter=read_counter,
    )


def append(
    term: int,
    prev: tuple[int, int],
    terms: Sequence[int] = (),
    *,
    commit_index: int = 0,
    low_watermark: int = 0,
    read_counter: int = 0,
) -> AppendEntries:
    """An append after `prev`, which is (index, term), with one entry for each of `terms`."""
    return AppendEntries(
        term=term,
        prev_index=prev[0],
        prev_term=prev[1],
        entries=entries_of(terms, after=prev[0]),
        commit_index=commit_index,
        low_watermark=low_watermark,
        read_counter=read_counter,
    )


def heartbeat(
    term: int, prev: tuple[int, int] = (0, 0), *, commit_index: int = 0, read_counter: int = 0
) -> AppendEntries:
    return append(term, prev, commit_index=commit_index, read_counter=read_counter)


def vote_request(term: int, last: tuple[int, int] = (0, 0), *, transfer: bool = False) -> VoteRequest:
    """A request for a vote; `last` is (index, term)."""
    return VoteRequest(term=term, last_index=last[0], last_term=last[1], transfer=transfer)


def pre_vote_request(term: int, last: tuple[int, int] = (0, 0), *, transfer: bool = False) -> PreVoteRequest:
    """A request of a member in `term` that wants to campaign in the next term."""
    return PreVoteRequest(term=term, next_term=term + 1, last_index=last[0], last_term=last[1], transfer=transfer)


def milliseconds(count: int) -> int:
    return count * MILLISECOND_NS
