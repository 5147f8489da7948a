"""One seed, one run: members, network, disks, clients and faults on one event heap, checked after every event."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from harness.sim.commitment import Commitment
from harness.sim.direct_load import DirectLoad
from harness.sim.errors import Violation, escaped, require
from harness.sim.heap import EventHeap
from harness.sim.ledger import Ledger
from harness.sim.member import Member
from harness.sim.network import Network
from harness.sim.plan import PROBE_ELECTION_TIMEOUTS_MAX, Plan, draw_plan
from harness.sim.service_load import ServiceLoad
from harness.sim.streams import stream
from harness.sim.striker import Striker
from harness.sim.trace import Trace
from raft import Configuration, Effects, Node
from raft import Member as Voter

BACKLOG_LIMITS_MAX = 20
"""How many times the limit of the probe a backlog may take: one entry per sync, when a bound allows no more."""

EVENTS_MAX = 500_000
"""A run with more events than this does not get anywhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedResult:
    """How a seed ended, after how many `seconds` of processor time. `violation` is None if every rule held."""

    seed: int
    events: int
    simulated_ns: int
    seconds: float
    trace_hash: str
    marks: frozenset[str]
    counts: dict[str, int] = field(default_factory=dict)
    violation: Violation | None = None


def run_seed(seed: int) -> SeedResult:
    """Run one seed with everything that it draws. Can be called in another process."""
    return Simulation(draw_plan(seed)).run()


class Simulation:
    """The world of one seed."""

    def __init__(self, plan: Plan, write_line: Callable[[str], None] | None = None) -> None:
        self.plan = plan
        self.heap = EventHeap()
        self.ledger = Ledger()
        self.trace = Trace(write_line)
        self.marks: set[str] = set()
        self.configuration = Configuration.of([Voter(n, client_address=f"{n}:1") for n in plan.members])
        self.network = Network(plan.seed, plan.network, self.heap, self._deliver)
        self.members = {node_id: Member(self, node_id) for node_id in plan.members}
        self.load: DirectLoad | ServiceLoad = ServiceLoad(self) if plan.load.with_service else DirectLoad(self)
        self.striker = Striker(self)
        self.commitment = Commitment(self)
        self._offsets = {n: stream(plan.seed, f"clock/{n}").randrange(10**12) for n in plan.members}

    # -- the run

    def run(self) -> SeedResult:
        """Carry out the plan, heal everything, and see that the cluster works. Never raises for what it finds."""
        began = time.process_time()
        violation: Violation | None = None
        try:
            self._carry_out()
        except Violation as found:
            violation = found
        except Exception as error:  # Whatever comes out of the production code is a finding.
            violation = escaped(error)
        if violation is not None:
            self.trace.line(self.heap.now, "", "", f"VIOLATION {violation}")
        return SeedResult(
            seed=self.plan.seed,
            events=self.heap.done_count,
            simulated_ns=self.heap.now,
            seconds=time.process_time() - began,
            trace_hash=self.trace.digest(),
            marks=frozenset(self.marks | self.network.marks),
            counts={"commits": self.ledger.commit_index, **self.load.counts()},
            violation=violation,
        )

    def _carry_out(self) -> None:
        for member in self.members.values():
            member.initialize()
            self.heap.at(0, member.boot)
        self.striker.start()
        self.load.start()
        self._run_until(self.plan.until_ns, lambda: False)
        self._heal()
        self._probe()
        self._compare()

    def _run_until(self, time_ns: int, is_enough: Callable[[], bool]) -> bool:
        heap = self.heap
        while (due := heap.next_time()) is not None and due <= time_ns:
            heap.step()
            if is_enough():
                return True
            require(heap.done_count < EVENTS_MAX, "a run comes to an end", heap.done_count)
        return False

    def _heal(self) -> None:
        self.load.stop()
        self.striker.heal()
        self.note_world("healed")

    def _probe(self) -> None:
        """Liveness: a probe write is applied on all within PROBE_ELECTION_TIMEOUTS_MAX of the longest time-outs.

        Behind a backlog it may take as many times longer as entries go on being committed.
        """
        limit_ns = PROBE_ELECTION_TIMEOUTS_MAX * self.plan.raft.election_timeout_max_ns
        limit_ns += 4 * self.plan.network.late_ns
        probe = self.load.probe(self.heap.now + BACKLOG_LIMITS_MAX * limit_ns)
        done, committed = False, -1
        for _ in range(BACKLOG_LIMITS_MAX):
            if done or self.ledger.commit_index == committed:
                break
            committed = self.ledger.commit_index
            deadline = self.heap.now + limit_ns
            done = self._run_until(deadline, lambda: probe.index is not None and self._all_applied(probe.index))
        states = [member.state_words() for member in self.members.values()]
        require(done, "a healed cluster takes a write", f"not within {limit_ns / 1e9:.1f} s: {states}")

    def _all_applied(self, index: int) -> bool:
        return all(m.node is not None and m.node.core.last_applied >= index for m in self._there())

    def _there(self) -> list[Member]:
        """All members but those that are lost for good."""
        return [member for member in self.members.values() if not member.is_lost]

    def _compare(self) -> None:
        """All machines are equal at equal `last_applied`, which they reach soon after the probe."""

        def is_level() -> bool:
            marks = {m.node.core.last_applied if m.node else -1 for m in self._there()}
            return len(marks) == 1 and -1 not in marks

        deadline = self.heap.now + PROBE_ELECTION_TIMEOUTS_MAX * self.plan.raft.election_timeout_max_ns
        require(is_level() or self._run_until(deadline, is_level), "all members reach the same entry")
        hashes = {node_id: m.machine.state_hash() for node_id, m in self.members.items() if m.machine}
        require(len(set(hashes.values())) == 1, "state machine agreement", hashes)
        deadline = self.heap.now + PROBE_ELECTION_TIMEOUTS_MAX * self.plan.raft.election_timeout_max_ns
        done = self.load.is_finished or self._run_until(deadline, lambda: self.load.is_finished)
        require(done, "a healed cluster answers reads")
        self.load.check_history()

    # -- what members ask

    def clock_offset(self, node_id: str) -> int:
        """What a member's monotonic clock shows at the beginning of the run, in ns."""
        return self._offsets[node_id]

    def mark(self, name: str) -> None:
        """Something worth telling happened at least once."""
        self.marks.add(name)

    def on_up(self, member: Member) -> None:
        """A member's node runs: it has no connections yet, so others greet it anew."""
        for other in self.members.values():
            other.forget_greeting(member.node_id)

    def on_flush(self, member: Member, effects: Effects) -> None:
        """A node was flushed: its application looks at what came of it."""
        self.load.on_flush(member, effects)

    def _deliver(self, sender: str, receiver: str, frame: bytes) -> None:
        self.members[receiver].deliver(sender, frame)

    # -- the trace

    def note(self, member: Member, node: Node, what: str, content: bytes, message: object, effects: Effects) -> None:
        """One event on one member, counted into the trace hash and, if wanted, written as a line."""
        core = node.core
        now = self.heap.now
        stamp = f"{now} {member.node_id} {what} {core.term} {core.commit_index} {core.last_applied} {core.last_index}"
        self.trace.event(stamp, content)
        if self.trace.is_on:
            words = what if message is None else f"{what} {message}"
            told = " ".join(f"<{event.name} {event.fields}>" for event in effects.events)
            out = " ".join(f"→{peer_id} {sent}" for peer_id, sent in effects.send)
            self.trace.line(now, member.node_id, member.state_words(), " ".join(filter(None, (words, told, out))))

    def note_client(self, name: str, content: bytes) -> None:
        """A client was told something."""
        self.trace.event(f"{self.heap.now} {name}", content)

    def note_world(self, what: str) -> None:
        """Something that happened to the world."""
        self.trace.event(f"{self.heap.now} {what}")
        self.trace.line(self.heap.now, "", "", f"== {what}")
