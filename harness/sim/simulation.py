"""The run of one seed: members, network, disks, clients and faults on one event queue, checked after each event."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.sim.checks.cluster import SafetyChecker
from harness.sim.checks.commitment import CommitmentChecker
from harness.sim.checks.coverage import CoverageTracker
from harness.sim.checks.machine import MachineChecker
from harness.sim.checks.reads import CommitTimeline
from harness.sim.engine.errors import Violation, escaped, require
from harness.sim.engine.event_queue import EventQueue
from harness.sim.engine.trace import Trace
from harness.sim.faults.disk_loss import DiskLoss
from harness.sim.faults.disks import DiskFaults
from harness.sim.faults.expiry import ExpiryFaults
from harness.sim.faults.former_folders import FormerFolders
from harness.sim.faults.healing import CALM_ELECTION_TIMEOUTS, Healing
from harness.sim.faults.injector import Injector
from harness.sim.faults.membership import MembershipChanges
from harness.sim.faults.processes import ProcessFaults
from harness.sim.faults.refusals import Refusals
from harness.sim.faults.upgrades import Upgrades
from harness.sim.load.direct import DirectLoad
from harness.sim.load.service import ServiceLoad
from harness.sim.plan.draw import PROBE_ELECTION_TIMEOUTS_MAX, draw_plan
from harness.sim.plan.draw_etcd import draw_etcd_plan
from harness.sim.plan.plan import GOOD_CLOCKS, Fault, Plan
from harness.sim.world.context import MachineView
from harness.sim.world.member import SimMember
from harness.sim.world.network import SimNetwork
from harness.sim.world.probes import NodeProbe
from kvstore import ClientLimits, UnsupportedFeatureLevel
from raft import Configuration, Effects, Entry, LevelRange, Node
from raft import Member as Voter

SYNC_LAGS_MAX = 4
"""A working voter must be in sync by the time limit of the other liveness checks plus this many times the greatest lag.
"""

BACKLOG_LIMITS_MAX = 20
"""While a backlog shrinks, the time limit of a liveness check may start again, up to this many times in total. A
backlog can shrink slowly, because a bound of the plan may allow only one entry per sync.
"""

EVENTS_MAX = 500_000
"""A run that needs more events than this fails, because it seems to make no progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedResult:
    """The result of the run of one seed. The run took `seconds` of processor time. `violation` is None if every rule
    held.
    """

    seed: int
    events: int
    simulated_ns: int
    seconds: float
    trace_hash: str
    covered: frozenset[str]
    counts: dict[str, int] = field(default_factory=dict)
    violation: Violation | None = None


def run_seed(seed: int) -> SeedResult:
    """Draw the plan of one seed, and run it. The worker processes of a campaign call this function."""
    return Simulation(draw_plan(seed)).run()


def run_etcd_seed(seed: int) -> SeedResult:
    """Draw the plan of one seed with clients of etcd, and run it. Raises ExtraMissing if their libraries are not
    installed."""
    return Simulation(draw_etcd_plan(seed)).run()


class Simulation:
    """A whole run.

    The object creates all parts, gives each part the other parts that it needs, and passes on the reports of the
    machines.
    """

    def __init__(
        self, plan: Plan, write_line: Callable[[str], None] | None = None, *, queue: EventQueue | None = None
    ) -> None:
        self.plan = plan
        self.queue = EventQueue() if queue is None else queue
        self.trace = Trace(write_line)
        self.covered: set[str] = set()
        self.configuration = Configuration.of([Voter(n, client_address=f"{n}:1") for n in plan.voters])
        self.safety = SafetyChecker(self.configuration)
        self.network = SimNetwork(plan.seed, plan.network, self.queue, self._deliver)
        self.commitment = CommitmentChecker(self, CommitTimeline(self.queue))
        self._coverage = CoverageTracker(self)
        self.members = {node_id: self.make_machine(node_id) for node_id in plan.members}
        self.load: DirectLoad | ServiceLoad = ServiceLoad(self) if plan.load.with_service else DirectLoad(self)
        self.processes = ProcessFaults(self)
        self.membership = MembershipChanges(self)
        self.upgrades = Upgrades(self, self.processes)
        self.disk_loss = DiskLoss(self, self.processes, self.upgrades, self.membership)
        self.disks = DiskFaults(self, self.processes, self.disk_loss)
        self.injector = Injector(self, self.processes, self.disks)
        if isinstance(self.load, ServiceLoad) and self.load.coordination is not None:
            self.load.coordination.expiry_is_near = ExpiryFaults(self).expiry_is_near
        self.refusals = Refusals(self, self.processes, self.disk_loss)
        self.former_folders = FormerFolders(self, self.upgrades)
        self.healing = Healing(self, self.injector, self.processes, self.former_folders)

    def make_machine(self, node_id: str) -> SimMember:
        """Return a new machine with an empty disk and new checks."""
        return SimMember(self, node_id, MachineChecker(self, node_id, self.commitment))

    # -- the run

    def run(self) -> SeedResult:
        """Carry out the plan, heal a quorum, and check that the cluster works.

        Returns a violation in the result, and does not raise it.
        """
        began = time.process_time()
        violation: Violation | None = None
        try:
            self._carry_out()
        except Violation as found:
            violation = found
        except Exception as error:  # Any exception that the production code raises is a violation too.
            violation = escaped(error)
        if violation is not None:
            self.trace.line(self.queue.now, "", "", f"VIOLATION {violation}")
        return SeedResult(
            seed=self.plan.seed,
            events=self.queue.done_count,
            simulated_ns=self.queue.now,
            seconds=time.process_time() - began,
            trace_hash=self.trace.digest(),
            covered=frozenset(self.covered | self.network.covered),
            counts={"commits": self.safety.commit_index, **self.load.counts()},
            violation=violation,
        )

    def _carry_out(self) -> None:
        for member in self.members.values():
            member.initialize()
            self.queue.at(0, member.boot)
        self.injector.start()
        self.membership.start()
        self.upgrades.start()
        self.load.start()
        self._run_until(self.plan.until_ns, lambda: False)
        self.load.stop()
        self.membership.stop()
        self.upgrades.stop()
        self.disk_loss.stop()
        self.healing.heal()
        self.note_world("healed")
        self._probe()
        self._level()
        if self.healing.has_dead_to_bring_back():
            self._bring_back()
        self._check_changes()
        self._end_stops()
        self._finish()

    def _run_until(self, time_ns: int, is_enough: Callable[[], bool]) -> bool:
        queue = self.queue
        while (due := queue.next_time()) is not None and due <= time_ns:
            queue.step()
            if is_enough():
                return True
            require(queue.done_count < EVENTS_MAX, "a run comes to an end", queue.done_count)
        return False

    def _probe(self) -> None:
        """Check liveness: a probe write must be applied on all living members within the time limits."""
        probe = self.load.probe(self.queue.now + BACKLOG_LIMITS_MAX * self._limit_ns())
        done = self._run_while_it_shrinks(lambda: probe.index is not None and self._all_applied(probe.index))
        require(done, "a healed cluster takes a write", self._states())

    def _level(self) -> None:
        """Check that all living members reach the same entry, and then have the same state."""

        def is_level() -> bool:
            marks = {m.node.core.last_applied if m.node else -1 for m in self.healing.living()}
            return len(marks) == 1 and -1 not in marks and not self.safety.members.committed.is_joint

        require(self._run_while_it_shrinks(is_level), "all members reach the same entry", self._states())
        hashes = {m.node_id: m.machine.state_hash() for m in self.healing.living() if m.machine}
        require(len(set(hashes.values())) == 1, "state machine agreement", hashes)

    def _bring_back(self) -> None:
        """Bring back the members that stayed dead. Check that they do not disturb a working quorum, and that they reach
        the quorum's state.
        """
        quiet_ns = CALM_ELECTION_TIMEOUTS * self.plan.election_timeout_max_ns
        before = self.healing.leadership()
        self._run_until(self.queue.now + quiet_ns, lambda: False)
        was_calm = before is not None and before == self.healing.leadership() and self._is_quick()
        quorum = self.healing.living()
        knows_more = before is not None and self.healing.latest_term_of_the_dead() > before[0]
        self.healing.bring_back()
        self._run_until(self.queue.now + quiet_ns, lambda: False)
        # With priorities, a returning member may take over, so plans with priorities are left out.
        if was_calm and not knows_more and not self.plan.priorities:
            self.cover("members came back to a calm quorum")
            followed = {(m.node.core.term, m.node.core.leader_id) for m in quorum if m.node is not None}
            require(
                followed == {before}, "a member that comes back disturbs no quorum", f"{before} led: {self._states()}"
            )
        self._level()

    def _is_quick(self) -> bool:
        """True if no member can lose its leader because of disks or clocks."""
        is_in_time = self.plan.clocks.spread <= GOOD_CLOCKS.spread
        return is_in_time and all(disk.stall_rate == 0 for disk in self.plan.disks.values())

    def _check_changes(self) -> None:
        """Check liveness: learners are promoted, and the leader allows the newest feature level.

        The second check requires that every member has the newest build.
        """
        if self.membership.living_learners():
            self.membership.promote_the_living()
            done = self._run_while_it_shrinks(lambda: not self.membership.living_learners())
            require(done, "a healed cluster promotes its learners", self._states())
            self.cover("learners were promoted after the faults")
        living = {member.node_id for member in self.healing.living()}
        if self.plan.upgrades and living.issuperset(m.node_id for m in self.safety.members.committed.members):
            done = self._run_until(self.queue.now + self._limit_ns(), self.upgrades.nothing_prevents_a_level)
            require(done, "a healed cluster may raise its level", self._states())
            self.cover("nothing prevented a level after the faults")

    def _end_stops(self) -> None:
        """Check that every member that was asked to stop has stopped by the end of the time limit."""

        def stopping() -> list[str]:
            return [member.node_id for member in self.healing.living() if self.processes.is_stopping(member)]

        done = not stopping() or self._run_until(self.queue.now + self._limit_ns(), lambda: not stopping())
        require(done, "a member that is asked to stop stops", stopping())

    def _finish(self) -> None:
        """Wait for the last reads, and check the history of the clients."""
        done = self.load.is_finished or self._run_until(
            self.queue.now + self._limit_ns(), lambda: self.load.is_finished
        )
        require(done, "a healed cluster answers reads", self.load.unfinished_words())
        if self.plan.acknowledgements.is_on:
            self._check_acknowledgements()
        self.load.check_history()

    def _check_acknowledgements(self) -> None:
        """Check liveness: no request may stay open, and every living voter must be in sync."""
        done = self._run_while_it_shrinks(lambda: not self._with_open_requests())
        require(done, "no request stays open in a healed cluster", self._with_open_requests())
        lags_ns = SYNC_LAGS_MAX * self.plan.raft.in_sync_lag_ns_max * self.plan.clocks.spread
        done = self._run_until(self.queue.now + self._limit_ns() + int(lags_ns), lambda: not self._out_of_sync())
        require(done, "every voter that works is in sync in the end", self._out_of_sync())

    def _with_open_requests(self) -> list[str]:
        """Return the members whose node or service has an open request."""
        return [
            member.node_id
            for member in self.healing.living()
            if isinstance(node := member.node, NodeProbe)
            and (
                node.open_requests
                or node.has_open_acknowledgements
                or (member.service is not None and member.service.open_requests)
            )
        ]

    def _out_of_sync(self) -> list[str]:
        """Return the living voters that no leader counts as in sync; all living voters if there is no leader."""
        living = self.healing.living()
        voters = {member.node_id for member in living if self.safety.members.committed.is_voter(member.node_id)}
        leaders = [member.node for member in living if member.node and member.node.core.leading_term is not None]
        known = [copies for node in leaders if (copies := node.copies()) is not None]
        lacking = voters.difference(*(copies.in_sync_ids for copies in known)) if known else voters
        return sorted(lacking)

    def _limit_ns(self) -> int:
        """Return the time limit of a liveness check in ns.

        The limit is PROBE_ELECTION_TIMEOUTS_MAX times the longest election time-out, plus time for late frames in
        flight, plus the time for which clients try dead members.
        """
        limit_ns = PROBE_ELECTION_TIMEOUTS_MAX * self.plan.election_timeout_max_ns + 4 * self.plan.network.late_ns
        limit_ns += self.healing.dead_count * ClientLimits().attempt_timeout_ns
        # The limit is long enough for the slowest clock.
        return int(limit_ns * max(self.plan.clocks.spread, self.plan.clocks.client_spread))

    def _run_while_it_shrinks(self, is_done: Callable[[], bool]) -> bool:
        """Run until `is_done` or the end of the time limit. The limit starts again while a backlog shrinks.

        The limit starts at most BACKLOG_LIMITS_MAX times. Returns False if `is_done` does not hold at the end.
        """
        done, before = is_done(), (-1, -1)
        for _ in range(BACKLOG_LIMITS_MAX):
            # Durable indexes count as progress too, because nothing is applied until a new leader's own entry is
            # committed.
            living = self.healing.living()
            shortest = min((member.node.core.durable_index if member.node else 0 for member in living), default=0)
            progress = sum(member.applied_max for member in living), shortest
            if done or progress == before:
                break
            before = progress
            done = self._run_until(self.queue.now + self._limit_ns(), is_done)
        return done

    def _states(self) -> str:
        return "; ".join(f"{m.node_id} {m.state_words()}" for m in self.members.values())

    def _all_applied(self, index: int) -> bool:
        return all(m.node is not None and m.node.core.last_applied >= index for m in self.healing.living())

    # -- what parts ask

    def cover(self, name: str) -> None:
        """Record that the run has reached a coverage point."""
        self.covered.add(name)

    def living(self) -> list[MachineView]:
        """Return the members that are expected to work."""
        return self.healing.living()

    def inject(self, fault: Fault) -> None:
        """Carry out one fault now."""
        self.injector.inject(fault)

    # -- what machines report

    def process_starts(self, member: MachineView) -> LevelRange:
        """Handle the start of a process. `upgrades` chooses its build. Returns the feature levels that this build
        knows.
        """
        return self.upgrades.starts(member)

    def on_up(self, member: MachineView) -> None:
        """Handle the start of a member's node.

        Its old connections are gone, and its new connections begin with hellos.
        """
        for other in self.members.values():
            other.connections.hung_up(member.node_id)
        self.former_folders.introduce(member)

    def on_flush(self, member: MachineView, effects: Effects) -> None:
        """Handle the effects of a node.

        Upgrades, membership changes and the load take the results of their requests.
        """
        if self.plan.upgrades:
            self.upgrades.take_own(effects)
        self.membership.on_flush(member, effects)
        self.load.on_flush(member, effects)

    def on_applied(self, member: MachineView, entry: Entry, results: Sequence[Any], *, is_first: bool) -> None:
        """Handle an entry that a machine has applied.

        The load is informed of each entry once, when the first machine has applied the entry (`is_first`). The upgrades
        check the feature level of each member.
        """
        if is_first:
            self.load.on_first_applied(entry, results)
        if self.plan.upgrades:
            self.upgrades.applied(member)

    def disk_failed(self, member: MachineView) -> None:
        """Handle a process that ends because a sync or a read has failed."""
        self.disks.has_failed(member)

    def install_began(self, member: MachineView) -> None:
        """Handle the moment of an install at which the received snapshot is durable, but the new log is not yet
        durable.
        """
        self.injector.amid_an_install(member)

    def process_stopped(self, member: MachineView) -> None:
        """Handle the end of a process that was asked to stop."""
        self.processes.has_stopped(member)

    def level_unknown(self, member: MachineView, error: UnsupportedFeatureLevel) -> None:
        """Handle a process that ends because its build does not know the feature level in force."""
        self.upgrades.has_stopped(member, error)

    def folder_forgotten(self, member: MachineView) -> None:
        """Handle a process that ends because other members know another data folder under its member id."""
        self.refusals.has_forgotten(member)

    # -- connections between machines

    def connect(self, caller: MachineView, called: MachineView) -> None:
        """Let `caller` dial `called`.

        Each machine receives the hello of the other machine. Raises PeerRefused if one refuses a hello.
        """
        assert called.node is not None
        self.upgrades.greet(called.node, called.machine, caller.says_it_is)
        self.disk_loss.greeted(called, caller.node_id)
        # If the caller has no node, its process ended after it had sent the frame that now arrives.
        if caller.node is not None:
            self.upgrades.greet(caller.node, caller.machine, called.says_it_is)

    def may_refuse(self, code: str, sender: str, *, by: str) -> bool:
        """Return True if `by` has a reason to refuse the hello of `sender` with this code.

        A membership change, an upgrade, or another data folder of the sender is a reason.
        """
        peer = self.members[sender]
        return bool(
            (self.plan.founders and code in ("not_a_member", "removed"))
            or (self.plan.upgrades and code == "feature_level")
            or (peer.says_it_is != peer.identity and code == "wrong_incarnation")
            or (code == "wrong_incarnation" and self.former_folders.may_be_refused(sender, by))
        )

    def connection_lost(self, member: MachineView, peer_id: str) -> None:
        """Handle the end of a connection, of which the node of `member` has been informed."""
        self.upgrades.connection_lost(member, peer_id)

    def send_refusal(self, caller: MachineView, peer_id: str, code: str) -> None:
        """Handle a refusal by `peer_id` of the hello of `caller`. The caller learns of the refusal a little later."""
        self.refusals.tell(caller, peer_id, code)

    def refusal_read(self, member: MachineView, node: Node, peer_id: str, code: str) -> None:
        """Handle a refusal by `peer_id` that the node of `member` has received."""
        self.refusals.told(member, node, peer_id, code)

    def deliver_to_stand_in(self, stand_in: MachineView, sender: str, frame: bytes) -> None:
        """Deliver a frame to the process that runs in place of a machine that has lost its disk."""
        self.disk_loss.deliver(stand_in, sender, frame)

    def _deliver(self, sender: str, receiver: str, frame: bytes) -> None:
        self.members[receiver].deliver(sender, frame)

    # -- the trace

    def note(
        self, member: MachineView, node: Node, what: str, content: bytes, message: object, effects: Effects
    ) -> None:
        """Record one event on one member: in the trace hash, in the coverage and, if the trace has lines, as a line."""
        core = node.core
        now = self.queue.now
        stamp = f"{now} {member.node_id} {what} {core.term} {core.commit_index} {core.last_applied} {core.last_index}"
        # The stamp contains the receivers in the order of sending. No other part of the hash depends on this order,
        # because each link draws its own delays.
        if effects.send:
            stamp = f"{stamp} to {','.join([peer_id for peer_id, _ in effects.send])}"
        self.trace.event(stamp, content)
        self._coverage.look(member, node, message, effects)
        if self.trace.is_on:
            words = what if message is None else f"{what} {message}"
            told = " ".join(f"<{event.name} {event.fields}>" for event in effects.events)
            out = " ".join(f"→{peer_id} {sent}" for peer_id, sent in effects.send)
            self.trace.line(now, member.node_id, member.state_words(), " ".join(filter(None, (words, told, out))))

    def note_client(self, name: str, content: bytes) -> None:
        """Record that a client was answered."""
        self.trace.event(f"{self.queue.now} {name}", content)

    def note_world(self, what: str) -> None:
        """Record a fault, or another change of the simulated world."""
        self.trace.event(f"{self.queue.now} {what}")
        self.trace.line(self.queue.now, "", "", f"== {what}")
