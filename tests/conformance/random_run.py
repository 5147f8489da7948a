"""A run of a few cores in which any fault may happen: loss, delay, repetition, crashes, slow disks, snapshots.

One seed is one run. Every invariant is checked after every step (Raft Figure 3).

See docs/reference/specification.md#3-order-of-durability.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from raft.config import RaftConfig
from raft.core.ready import Certainty
from raft.encoding.command_batch import batch_leader_time
from raft.errors import Busy, NotLeader
from raft.protocol.messages import InstallSnapshot, Message
from raft.types import LogPosition, Role
from tests.raft.support.core_fixture import BEGINNING, Bench, milliseconds
from tests.raft.support.memory_log import MemoryLog

SMALL_BOUNDS = RaftConfig(
    append_bytes_max=150,
    window_messages_max=3,
    window_bytes_max=600,
    log_cache_bytes_max=200,
    unapplied_bytes_max=500,
    uncommitted_bytes_max=1_500,
    apply_bytes_max=100,
    reads_pending_max=8,
)
STEP_NS_MAX = milliseconds(30)


class RandomRun:
    """The members, a wire without order, and everything that has been committed and promised so far by any member."""

    def __init__(self, seed: int, *, members: int = 3, config: RaftConfig = SMALL_BOUNDS) -> None:
        self.random, self._config = Random(seed), config
        self._ids = [f"s{n}" for n in range(1, members + 1)]
        self._wire: list[tuple[str, str, Message]] = []
        self._down: set[str] = set()
        self._cut: set[str] = set()
        self._files: dict[str, list[LogPosition]] = {node_id: [] for node_id in self._ids}  # Received, not installed.
        self._snapshots = dict.fromkeys(self._ids, BEGINNING)
        self._reads: dict[int, int] = {}  # Ticket → highest index committed anywhere at the time of the request.
        self._leaders: dict[int, str] = {}
        self._ticket = 0
        self._seen_events = dict.fromkeys(self._ids, 0)
        self.committed: dict[int, int] = {}  # Index → term of each entry that was committed anywhere.
        self._leader_times: dict[int, int] = {}
        self._low_watermark = 0
        self.reads_served = 0
        self.counts: dict[str, int] = {}
        self.members = {node_id: self._start(node_id, MemoryLog(BEGINNING), 0) for node_id in self._ids}

    def step(self) -> None:
        """Make one random event happen in the cluster."""
        chances: list[tuple[Callable[[Bench], None], float]] = [
            (self._time_passes, 40),
            (self._sync, 40),
            (self._apply, 15),
            (self._propose, 15),
            (self._ask_to_read, 4),
            (self._save_snapshot, 2),
            (self._install, 6),
            (self._crash, 0.4),
            (self._cut_off, 0.5),
            (self._connection_lost, 1),
        ]
        for _ in range(self.random.randrange(10)):
            self._deliver()
        what = self.random.choices([chance for chance, _ in chances], [weight for _, weight in chances])[0]
        node_id = self.random.choice(self._ids)
        if node_id in self._down:
            if self.random.random() < 0.2:
                self._restart(node_id)
            return
        what(self.members[node_id])
        self._collect()
        self._check()

    def heal(self) -> None:
        """Bring every member up, connect all members, make every disk work, and run until all members agree."""
        self._cut.clear()
        for node_id in sorted(self._down):
            self._restart(node_id)
        for _ in range(3_000):
            for node_id in self._ids:
                bench = self.members[node_id]
                bench.advance(milliseconds(10))
                bench.persist()
                bench.apply()
                self._install(bench)
            self._collect()
            arriving, self._wire = self._wire, []
            for item in arriving:
                self._hand_over(item)
            self._check()
            cores = [bench.core for bench in self.members.values()]
            leading = [core for core in cores if core.role is Role.LEADER]
            if len(leading) == 1 and all(core.last_applied == leading[0].last_index for core in cores):
                return
        raise AssertionError(f"no agreement: {[bench.core for bench in self.members.values()]}")

    # What may happen

    def _time_passes(self, bench: Bench) -> None:
        bench.advance(self.random.randrange(STEP_NS_MAX))

    def _sync(self, bench: Bench) -> None:
        done = bench.log_sequence_durable
        bench.persist(self.random.randint(done, bench.issued_sequence))

    def _apply(self, bench: Bench) -> None:
        bench.apply()

    def _propose(self, _: Bench) -> None:
        for bench in self._leading():
            try:
                bench.propose(f"c{self.random.randrange(1000)}")
            except Busy:
                self._count("busy")

    def _ask_to_read(self, _: Bench) -> None:
        for bench in self._leading():
            self._ticket += 1
            try:
                bench.core.request_read(self._ticket)
                self._reads[self._ticket] = max(self.committed, default=0)
                bench.flush()
            except (Busy, NotLeader):
                self._reads.pop(self._ticket, None)

    def _save_snapshot(self, bench: Bench) -> None:
        core, index = bench.core, bench.core.last_applied
        if index > core.snapshot_index:
            term = core.term_at(index)
            assert term is not None
            self._snapshots[core.node_id] = LogPosition(index, term)
            core.snapshot_saved(self._snapshots[core.node_id])
        # A member cuts its log above the low-water mark when its log reaches the retention bound.
        past_the_mark = self.random.random() < 0.5
        cut = core.snapshot_index if past_the_mark else min(core.snapshot_index, core.low_watermark)
        core.compact(cut)
        bench.log.drop_before(cut + 1)

    def _install(self, bench: Bench) -> None:
        node_id, files = bench.core.node_id, self._files[bench.core.node_id]
        while files:
            position = files.pop(0)
            if position.index > bench.core.commit_index:
                self._snapshots[node_id] = position
                bench.waiting_to_apply.clear()
                leader_time = self._leader_times[position.index]
                bench.core.snapshot_installed(position, bench.core.configuration, leader_time)
                bench.flush()
                self._count("installed")

    def _crash(self, bench: Bench) -> None:
        self._collect()
        self._down.add(bench.core.node_id)
        self._count("crashed")

    def _cut_off(self, bench: Bench) -> None:
        victims = self._leading() or [bench]  # Cutting off a leader is the most dangerous fault.
        self._cut = {victims[0].core.node_id} if not self._cut else set()

    def _connection_lost(self, bench: Bench) -> None:
        bench.core.peer_unreachable(self.random.choice(self._ids))
        bench.flush()

    def _deliver(self) -> None:
        if not self._wire:
            return
        place = 0 if self.random.random() < 0.6 else self.random.randrange(len(self._wire))
        fate = self.random.random()
        item = self._wire[place] if fate < 0.06 else self._wire.pop(place)  # Some messages arrive twice,
        if fate < 0.94:  # and some never arrive.
            self._hand_over(item)
            self._check()

    def _hand_over(self, item: tuple[str, str, Message]) -> None:
        sender, to, message = item
        if to not in self._down and to not in self._cut and sender not in self._cut:
            self.members[to].step(sender, message)
        self._collect()

    # The world around

    def _leading(self) -> list[Bench]:
        up = [bench for node_id, bench in self.members.items() if node_id not in self._down]
        return [bench for bench in up if bench.core.role is Role.LEADER]

    def _start(self, node_id: str, log: MemoryLog, now: int) -> Bench:
        snapshot = self._snapshots[node_id]
        if log.last_index < snapshot.index or not self._continues(log, snapshot):
            # Drop a log that does not contain the snapshot's last entry
            # (docs/reference/specification.md#55-choice-at-start).
            log = MemoryLog(snapshot, (), log.hard_state)
        peers = [other for other in self._ids if other != node_id]
        bench = Bench(
            node_id,
            peers,
            log=log,
            snapshot=snapshot,
            config=self._config,
            leader_time=self._leader_times.get(snapshot.index, 0),
            now=now,
            seed=self.random.randrange(1 << 30),
        )
        bench.apply_at_once = False
        return bench

    @staticmethod
    def _continues(log: MemoryLog, snapshot: LogPosition) -> bool:
        if snapshot.index == log.base.index:
            return snapshot.term == log.base.term
        return log.entries[snapshot.index - log.first_index].term == snapshot.term

    def _restart(self, node_id: str) -> None:
        old = self.members[node_id]
        self._down.discard(node_id)
        self._files[node_id].clear()
        self.members[node_id] = self._start(node_id, old.log.after_crash(), old.now)
        self._seen_events[node_id] = 0

    def _collect(self) -> None:
        """Turn effects into messages; a snapshot that a peer needs is sent as one chunk."""
        for node_id, bench in self.members.items():
            if node_id in self._down:
                continue
            self._wire += [(node_id, to, message) for to, message in bench.take_sent()]
            for to in bench.snapshot_wanted:
                self._count("snapshot wanted")
                if bench.core.role is Role.LEADER and self.random.random() < 0.8:
                    position = self._snapshots[node_id]
                    self._wire.append((node_id, to, a_snapshot(bench.core.term, position)))
                else:
                    bench.core.snapshot_transfer_failed(to)
            for _, chunk in bench.snapshot_chunks:
                self._files[node_id].append(LogPosition(chunk.snapshot_index, chunk.snapshot_term))
            for peer in bench.core.peers_status():
                if peer.state == "snapshot" and self.random.random() < 0.02:
                    bench.core.snapshot_transfer_failed(peer.peer_id)  # It was lost.
            bench.snapshot_wanted.clear()
            bench.snapshot_chunks.clear()

    def _count(self, name: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1

    # What must hold

    def _check(self) -> None:
        for node_id, bench in self.members.items():
            if node_id in self._down:
                continue
            for event in bench.events[self._seen_events[node_id] :]:
                self._count(event.name)
                if event.name == "became_leader":  # Election safety: at most one leader in a term.
                    assert self._leaders.setdefault(event.fields["term"], node_id) == node_id, event
                    self._check_leader_completeness(bench)
                if event.name == "commit_advanced":
                    self._check_commit(bench, event.fields["commit_index"])
            self._seen_events[node_id] = len(bench.events)
            for entry in bench.applied:  # State machine safety: all members apply the same entries, in order.
                assert self.committed[entry.index] == entry.term, (node_id, entry)
                # Leader time never goes back (docs/reference/specification.md#812-leader-time).
                leader_time = batch_leader_time(entry.payload)
                assert leader_time >= self._leader_times.get(entry.index - 1, 0), (node_id, entry)
                self._leader_times[entry.index] = leader_time
            bench.applied.clear()
            # A proposal ends as NOT_APPLIED only after an entry of another term was committed at its index
            # (docs/reference/specification.md#96-end-of-a-proposal).
            for end in bench.ended:
                self._count(end.certainty.name)
                if end.certainty is Certainty.NOT_APPLIED:
                    assert self.committed[end.index] != end.term, (node_id, end)
            bench.ended.clear()
            # Every member has all entries at or below the low-water mark
            # (docs/reference/specification.md#64-low-water-mark).
            if bench.core.low_watermark > self._low_watermark:
                self._low_watermark = bench.core.low_watermark
                term = self.committed[self._low_watermark]
                for member_id in self._ids:
                    assert self._holds_durably(member_id, self._low_watermark, term), (member_id, self._low_watermark)
            for ticket in bench.reads_ready:
                assert bench.core.last_applied >= self._reads[ticket], (node_id, ticket)
                self.reads_served += 1
            bench.reads_ready.clear()

    def _check_commit(self, bench: Bench, commit_index: int) -> None:
        """A committed entry is durable on a majority before any member reports it as committed, and no other entry is
        ever committed at its index."""
        for index in range(max(bench.core.first_index, 1), commit_index + 1):
            term = bench.core.term_at(index)
            assert term is not None
            if index not in self.committed:
                holders = [node_id for node_id in self._ids if self._holds_durably(node_id, index, term)]
                assert 2 * len(holders) > len(self._ids), (bench.core, index, holders)
                self.committed[index] = term
            assert self.committed[index] == term, (bench.core, index, term, self.committed[index])

    def _check_leader_completeness(self, bench: Bench) -> None:
        for index, term in self.committed.items():
            held = bench.core.term_at(index)
            assert index < bench.core.first_index or held == term, (bench.core, index, term, held)

    def _holds_durably(self, node_id: str, index: int, term: int) -> bool:
        log = self.members[node_id].log.after_crash()
        if index <= max(log.base.index, self._snapshots[node_id].index):
            return True
        return index <= log.last_index and log.entries[index - log.first_index].term == term


def a_snapshot(term: int, position: LogPosition) -> InstallSnapshot:
    """The whole file in one chunk."""
    return InstallSnapshot(
        term=term,
        transfer_id=1,
        snapshot_index=position.index,
        snapshot_term=position.term,
        total_bytes=1,
        offset=0,
        data=b"x",
    )
