"""Load as in production: clients with sessions and retries, over connections, to the service of each member.

Every operation becomes a history row. At the end of the run the history is checked for linearizability, by a checker
that shares no code with the store (`checks/history.py`).

See docs/reference/specification.md#103-row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.errors import ExtraMissing
from harness.recording.history import Row
from harness.sim.checks.context import CheckedWorld
from harness.sim.checks.history import HistoryChecker, read_commands
from harness.sim.checks.sessions import SessionChecker
from harness.sim.engine.errors import Violation, require
from harness.sim.engine.rng import stream
from harness.sim.load.access.load import AccessLoad
from harness.sim.load.access.users import OF_LOAD
from harness.sim.load.acknowledged_writes import AcknowledgedWrites
from harness.sim.load.bursts import EACH_EVERY_NS, Burst
from harness.sim.load.bursts import KEYS as BURST_KEYS
from harness.sim.load.client import SimClient
from harness.sim.load.coordination import CoordinationLoad, is_of_coordination, without_own_keys
from harness.sim.load.direct import AGES_NS, LivenessProbe
from harness.sim.load.extra_operations import ExtraOperations
from harness.sim.plan.plan import SECOND_NS
from harness.sim.world.client_connections import ClientConnections
from harness.sim.world.context import MachineView
from harness.sim.world.member import EXPIRY_NS
from harness.workload.operation_generator import OperationSource, Planned, View, key_names
from kvstore import (
    CallEnded,
    ClientLimits,
    Command,
    CommandKind,
    CompareAndSet,
    Consistency,
    Get,
    GetResult,
    KvMachine,
    OutcomeUnknown,
    Put,
    QuotaExceeded,
    Range,
    RangeResult,
    Request,
    Result,
    ResultCode,
    Service,
    command_request,
    read_request,
)
from raft import Acknowledge, Effects, Entry, EntryKind

if TYPE_CHECKING:
    from harness.sim.load.etcd.load import EtcdLoad

PROBE_VALUE = b"probe"
SEEN_TO_EXPIRE_NS_MAX = SECOND_NS
"""The end of a run waits for sessions to expire only if their time to live is at most this."""

EXPIRY_LOOKS, EXPIRY_ELECTION_TIMEOUTS = 3, 40
"""At the end of a run, the wait for sessions to expire takes at most this many intervals EXPIRY_NS, plus the time of an
election, in multiples of the longest election time-out.
"""

TOLD_SHARE = 0.7
"""Share of the ending client programs that close their sessions."""

CLOSED_WORDS, INVALID_WORDS = "is closed: all up to", "invalid request"
"""Parts of the error texts of `RequestClosed` and `InvalidRequest`."""


@dataclass(slots=True)
class SimWorker:
    """One caller with one operation open at a time.

    `life` is the number of the caller's unknown outcomes, and is part of the caller's name in the history.

    See docs/reference/specification.md#103-row.
    """

    client: SimClient
    number: int
    source: OperationSource
    extras: ExtraOperations
    life: int = 0

    @property
    def name(self) -> str:
        """The name of the caller in the history."""
        return f"c{self.number}.{self.life}"


class ServiceLoad:
    """All clients of a seed, and their history."""

    def __init__(self, world: CheckedWorld) -> None:
        self.world, self._plan = world, world.plan.load
        self.connections = ClientConnections(world, self._plan.connections)
        self._keys = key_names(self._plan.keys)
        self._all_keys = [*self._keys, *(BURST_KEYS if self._plan.burst else ())]
        self._view = View()
        self._random = stream(world.plan.seed, "workers")
        self._read_modes = stream(world.plan.seed, "ways")
        self._stays = stream(world.plan.seed, "stays")
        self._endpoints = [f"{machine}:1" for machine in world.plan.members]
        self._workers: list[SimWorker] = []
        self._bursts: list[Burst[SimWorker]] = []
        self._history = HistoryChecker(world.plan.seed, world.cover, trusts_clocks=world.plan.trusts_clocks)
        self._credentials = OF_LOAD if world.plan.access.is_on else None
        self.writes = AcknowledgedWrites(world, self.connections, self._history)
        self._sessions = SessionChecker(world.plan.store.results_per_session_max, world.cover)
        self._probe: LivenessProbe | None = None
        self._was_refused = False  # True if a command was refused since the last flush.
        self._stopped = False
        self._final_reads_open = 0
        self._is_settled = True  # False while questions about accepted writes at the end of the run are open.
        self.coordination: CoordinationLoad | None = None
        if world.plan.coordination.is_on:
            self.coordination = CoordinationLoad(world, self.connections)
        self.access = AccessLoad(world, self.connections) if world.plan.access.is_on else None
        self.etcd = _etcd_load(world, self.connections, self._history, self._keys) if world.plan.etcd.is_on else None
        clients = [self._add_client(number) for number in range(self._plan.clients)]
        for client in clients if self._plan.burst else ():
            self._add_crowd(client)

    def _add_client(self, number: int) -> SimClient:
        plan = self._plan
        client = SimClient(
            self.world,
            self.connections,
            f"c{number}",
            self._endpoints,
            plan.client_limits,
            plan.session_ttl_ns,
            self._credentials,
        )
        for slot in range(plan.workers):
            place = number * plan.workers + slot
            self._workers.append(self._worker(client, place))
        return client

    def _add_crowd(self, client: SimClient) -> None:
        first = len(self._workers) + len(self._bursts) * self._plan.burst
        callers = [self._worker(client, first + slot) for slot in range(self._plan.burst)]
        burst = Burst(callers, lambda writes: self._write_together(burst, writes))
        self._bursts.append(burst)

    def _worker(self, client: SimClient, place: int) -> SimWorker:
        seed = self.world.plan.seed
        source = OperationSource(seed=seed, worker=place, keys=self._keys, view=self._view)
        return SimWorker(client, place, source, ExtraOperations(seed, place, self._keys, self._plan.extras))

    @property
    def _has_own_keys(self) -> bool:
        """True if another load has keys of its own, which the ordinary load neither lists nor judges."""
        return any(load is not None for load in (self.coordination, self.access, self.etcd))

    def start(self) -> None:
        """Put the first step of every worker into the queue."""
        for worker in self._workers:
            self.world.queue.after(self._random.randrange(self._plan.think_ns), self._act, worker)
        for burst in self._bursts:
            self._gather(burst)
        self.writes.start()
        if self._plan.stay_ns:
            for client in self._clients():
                self._stay(client)
        if self.coordination is not None:
            self.coordination.start()
        if self.access is not None:
            self.access.start()
        if self.etcd is not None:
            self.etcd.start()

    def _clients(self) -> list[SimClient]:
        return list({worker.client.name: worker.client for worker in self._workers}.values())

    def _stay(self, client: SimClient) -> None:
        self.world.queue.after(int(self._stays.expovariate(1) * self._plan.stay_ns), self._leave, client)

    def _leave(self, client: SimClient) -> None:
        """End the program of a client, with or without closing its session, and start another program."""
        if not self._stopped:
            is_told = self._stays.random() < TOLD_SHARE
            self.world.cover("a client closed its session" if is_told else "a client left its session open")
            client.leave(is_told=is_told, ttl_ns=self._plan.session_ttl_ns)
            self._stay(client)

    def stop(self) -> None:
        """Let no client begin another operation, and let no further connection break."""
        self._stopped = True
        self.writes.stop()
        self.connections.is_calm = True
        if self.coordination is not None:
            self.coordination.stop()
        if self.access is not None:
            self.access.stop()
        if self.etcd is not None:
            self.etcd.stop()

    def more_client_names(self) -> list[str]:
        """The names of the clients of the coordination load, of the access load, and of etcd."""
        loads = (self.coordination, self.access, self.etcd)
        return [name for load in loads if load is not None for name in load.client_names()]

    def jump(self, whose: float, by_ns: int) -> None:
        """Let one client's clock jump forwards. `whose`: the client's position among all, as a fraction from 0 to 1."""
        clients = self._clients()
        if self.coordination is not None:
            clients += self.coordination.clients()
        if self.access is not None:
            clients += self.access.clients()
        clients[int(whose * len(clients))].jump(by_ns)

    @property
    def rows(self) -> list[Row]:
        """The rows of the history so far."""
        return self._history.rows

    def counts(self) -> dict[str, int]:
        """Return how many operations ended in each way."""
        return self._history.counts()

    # -- operations

    def _act(self, worker: SimWorker) -> None:
        if self._stopped:
            return
        if worker.client.is_full:
            self._again(worker)
            return
        patience = self._plan.patience_ns // (8 if self._random.random() < 0.2 else 1)
        deadline, extra = self.world.queue.now + patience, worker.extras.next()
        usual = worker.source.next() if extra is None else extra
        if self._has_own_keys:
            usual = without_own_keys(usual)
            extra = None if extra is None else usual
        if extra is None:
            self._perform(worker, usual, deadline, self._again)
        else:
            self._perform(worker, extra, deadline, self._again, in_usual_order(extra.command))

    def _again(self, worker: SimWorker) -> None:
        delay = 1 + int(self._random.expovariate(1) * self._plan.think_ns)
        self.world.queue.after(delay, self._act, worker)

    def _perform(
        self,
        worker: SimWorker,
        planned: Planned,
        deadline: int,
        then: Callable[[SimWorker], None],
        request: Request | None = None,
    ) -> None:
        self._take(worker, planned, deadline, then, request)
        worker.client.flush()

    def _take(
        self,
        worker: SimWorker,
        planned: Planned,
        deadline: int,
        then: Callable[[SimWorker], None],
        request: Request | None = None,
    ) -> None:
        row = self._history.called(worker.name, worker.client.session_id, planned.command, self.world.queue.now)
        asked = request or self._request(planned)

        def ended(end: CallEnded) -> None:
            self._ended(worker, row, planned, end, asked.acknowledge)
            then(worker)

        worker.client.take(asked, deadline, ended)

    def _gather(self, burst: Burst[SimWorker]) -> None:
        if self._stopped:
            return
        burst.act()
        every_ns = max(self._plan.think_ns, self._plan.burst * EACH_EVERY_NS)
        self.world.queue.after(1 + int(self._random.expovariate(1) * every_ns), self._gather, burst)

    def _write_together(self, burst: Burst[SimWorker], writes: Sequence[tuple[SimWorker, Planned]]) -> None:
        deadline = self.world.queue.now + self._plan.patience_ns
        for worker, planned in writes:
            if worker.client.is_full:
                burst.ended(worker)
            else:
                self._take(worker, planned, deadline, burst.ended)
        for worker, _ in writes[:1]:
            worker.client.flush()  # One flush is enough, because all workers of the burst share this client.

    def _request(self, planned: Planned) -> Request:
        command = planned.command
        if isinstance(command, Get | Range) and self._random.random() < 0.9:
            if self._plan.read_modes:
                return self._any_way(command, planned.local_of)
            if planned.local_of is None:
                return read_request(command, Consistency.LINEARIZABLE)
            address = self._endpoints[planned.local_of % len(self._endpoints)]
            return read_request(command, Consistency.LOCAL, address)
        return command_request(command, self.writes.level_of(command))

    def _any_way(self, command: Get | Range, member: int | None) -> Request:
        """Return a read of any consistency.

        If `member` is given and the consistency allows it, the read is sent to this member.
        """
        ways = [each for each in Consistency if each is not Consistency.LEASE or self.world.plan.raft.lease_reads]
        way, age_ms = self._read_modes.choice(ways), self._read_modes.choice(AGES_NS) // 1_000_000
        is_anywhere = way not in (Consistency.LINEARIZABLE, Consistency.LEASE)
        address = self._endpoints[(member or 0) % len(self._endpoints)] if member is not None and is_anywhere else None
        return read_request(command, way, address, max_staleness_ms=age_ms)

    def _ended(self, worker: SimWorker, row: Row, planned: Planned, end: CallEnded, level: Acknowledge) -> None:
        # This check uses the text of the error, not only its type. If an earlier attempt was lost, the client reports a
        # refusal as OutcomeUnknown, and only the text mentions the refusal.
        words = str(end.error)
        require(CLOSED_WORDS not in words, "no answer calls an open request closed", worker.name, words)
        require(INVALID_WORDS not in words, "a client sends no invalid request", worker.name, words)
        if isinstance(end.error, OutcomeUnknown):
            worker.life += 1
            row["error"] = end.error.word
            return
        now = self.world.queue.now
        if end.error is not None:
            self._history.failed(row, planned.command, end.error, now)
        else:
            assert end.response is not None
            response = self.writes.result_in(end.response, level)
            if response is not None:
                self._learn(planned, self._history.answered(row, response, now))
                return
            worker.life += 1  # The outcome is unknown to the caller.
            if level is Acknowledge.LEADER:
                self.writes.accepted(worker.client, planned.command, end.response)

    def _learn(self, planned: Planned, result: Result) -> None:
        command = planned.command
        if isinstance(command, Put) or (isinstance(command, CompareAndSet) and getattr(result, "succeeded", False)):
            assert isinstance(command, Put | CompareAndSet)
            self._view.saw(command.key, command.value, result.revision)
        if isinstance(command, Get) and isinstance(result, GetResult):
            if result.record is None:
                self._view.gone(command.key)
            else:
                self._view.saw(command.key, result.record.value, result.record.mod_revision)
        if isinstance(result, RangeResult):
            for item in result.items:
                if item.value is not None:
                    self._view.saw(item.key, item.value, item.mod_revision)

    # -- reports of the world

    def on_flush(self, member: MachineView, effects: Effects) -> None:
        """After a flush of a node, let its service answer the waiting requests."""
        service = member.service
        if service is not None:
            service.complete(effects.completions, effects.events)
            if service.has_work:
                service.work()
            check_requests(service)
            self.connections.flushed(member, service)
            if self.coordination is not None:
                self.coordination.on_flush(member)
            if self.access is not None:
                self.access.on_flush(member)
            if self.etcd is not None:
                self.etcd.on_flush(member)
            if self._was_refused and member.machine is not None:
                self._was_refused = False
                check_store(member.machine)

    def on_down(self, member: MachineView) -> None:
        """Handle the end of a member's process and of its connections."""
        self.connections.member_down(member)
        if self.etcd is not None:
            self.etcd.on_down(member)

    def on_first_applied(self, entry: Entry, results: Sequence[Any]) -> None:
        """Check the commands of a committed entry. Call this method once for each entry, in order."""
        if self.coordination is not None:
            self.coordination.on_first_applied(entry, results)
        if self.access is not None:
            self.access.on_first_applied(entry, results)
        if self.etcd is not None:
            self.etcd.on_first_applied(entry, results)
        if entry.kind is not EntryKind.COMMANDS:
            return
        leader_time, commands = read_commands(entry.index, entry.payload)
        self._sessions.applied(leader_time, commands, results)
        for command, result in zip(commands, results, strict=True):
            self._was_refused |= result[0] != ResultCode.OK
            if self._has_own_keys and is_of_coordination(command[3:]):
                continue
            self._history.carried_out(entry.index, command, result)
            if self._probe is not None and self._probe.index is None and command[3] == CommandKind.PUT:
                self._probe.index = entry.index if command[5].startswith(PROBE_VALUE) else None

    # -- the end

    def probe(self, deadline: int) -> LivenessProbe:
        """Let a new client write until a write is answered, and then read every key.

        The client has no session, because a full store could refuse to register a session. After a write with an
        unknown outcome, the client writes again.
        """
        self._probe = LivenessProbe(PROBE_VALUE)
        client = SimClient(self.world, self.connections, "probe", self._endpoints, ClientLimits(), 0, self._credentials)
        self._final_reads_open = len(self._all_keys)
        self._is_settled = False
        place = len(self._workers) + len(self._bursts) * self._plan.burst
        self._try_probe(self._worker(client, place), deadline)
        return self._probe

    def _try_probe(self, worker: SimWorker, deadline: int) -> None:
        place = len(self._history.rows)

        def then(_: SimWorker) -> None:
            row = self._history.rows[place]
            if row["status"] == "ok" or row.get("error") == QuotaExceeded(0, 0).word:
                self._read_all(worker, list(self._all_keys), deadline)
            elif self.world.queue.now < deadline:
                self._try_probe(worker, deadline)

        planned = Planned(Put(self._keys[0], b"%s-%d" % (PROBE_VALUE, place)))
        self._perform(worker, planned, deadline, then)

    def _read_all(self, worker: SimWorker, keys: list[bytes], deadline: int) -> None:
        if keys:
            rest = keys[1:]

            def then(_: SimWorker) -> None:
                self._final_reads_open -= 1
                self._read_all(worker, rest, deadline)

            read = Get(keys[0])
            self._perform(worker, Planned(read), deadline, then, read_request(read, Consistency.LINEARIZABLE))
        else:
            self.writes.settle(worker.client, deadline, self._settled)

    def _settled(self) -> None:
        self._is_settled = True

    @property
    def is_finished(self) -> bool:
        """True when the last reads have ended and the coordination load, if the run has one, is finished."""
        if self._final_reads_open or not self._is_settled:
            return False
        return all(load.is_finished for load in (self.coordination, self.etcd) if load is not None)

    def unfinished_words(self) -> str:
        """The operations and watches for which the end of the run still waits, as text."""
        loads = [load for load in (self.coordination, self.etcd) if load is not None]
        watches = "".join(f"; watches {load.words()}" for load in loads)
        settled = "" if self._is_settled else "; the outcomes of some accepted writes are not settled"
        return f"{self._final_reads_open} reads{settled}{watches}"

    def check_history(self) -> None:
        """Check the whole history at once."""
        for row in self._history.rows[-len(self._all_keys) :]:
            require(row["status"] == "ok", "a healed cluster answers reads", row)
        is_unclear = self._has_own_keys or self.world.plan.acknowledgements.is_on
        self._history.check(is_unclear=is_unclear)
        if self.access is not None:
            self.access.check()
            self.access.vanish()
        if self.coordination is not None:
            for client in self._clients():  # Without clients, the leader is idle and must end leases without requests.
                client.vanish()
            self.coordination.see_leases_end()
        if self.etcd is not None:
            for client in self._clients():
                client.vanish()
            self.etcd.see_leases_end()
        if 0 < self._plan.session_ttl_ns <= SEEN_TO_EXPIRE_NS_MAX:
            self._see_sessions_expire()

    def _see_sessions_expire(self) -> None:
        """End all clients, and check that the leader, which is then idle, ends their sessions.

        See docs/reference/specification.md#91-sessions.
        """
        queue, plan = self.world.queue, self.world.plan
        for client in self._clients():
            client.vanish()
        patience_ns = self._plan.session_ttl_ns + EXPIRY_LOOKS * EXPIRY_NS
        patience_ns += EXPIRY_ELECTION_TIMEOUTS * plan.election_timeout_max_ns
        end = queue.now + int(patience_ns * plan.clocks.spread)
        while self._are_sessions_open() and (due := queue.next_time()) is not None and due <= end:
            queue.step()
        require(not self._are_sessions_open(), "sessions that are over are closed", f"after {patience_ns / 1e9:.1f} s")

    def _are_sessions_open(self) -> bool:
        machines = [member.machine for member in self.world.living()]
        return any(machine is None or machine.next_deadline is not None for machine in machines)


def _etcd_load(
    world: CheckedWorld, connections: ClientConnections, history: HistoryChecker, keys: Sequence[bytes]
) -> EtcdLoad:
    """Make the load of etcd's clients. Raises ExtraMissing if its libraries are not installed."""
    try:
        from harness.sim.load.etcd.load import EtcdLoad  # Loaded only if a plan asks for it.
    except ImportError as error:
        raise ExtraMissing(str(error.name), "a plan with clients of etcd", "etcd") from error
    return EtcdLoad(world, connections, history, keys)


def in_usual_order(command: Command) -> Request:
    """Return the request for a command. Reads are linearizable and do not use the log; writes go through the log."""
    if isinstance(command, Get | Range):
        return read_request(command, Consistency.LINEARIZABLE)
    return command_request(command)


def check_store(machine: KvMachine) -> None:
    """Check the invariants of the store after a refused command, which must have no effect.

    For example, no record may be newer than the revision of the store.
    """
    try:
        machine.check()
    except AssertionError as error:
        raise Violation("a refused request leaves no trace", repr(error)) from error


def check_requests(service: Service) -> None:
    """Check that no request caused an unexpected error, and that all requests counted as in flight are open.

    After an unexpected error the service closes one connection and continues, but the error is still a bug. A request
    whose answer is lost counts as in flight for the rest of the run.
    """
    errors = service.request_errors
    require(errors.total == 0, "no request meets an unexpected error", errors.places)
    try:
        service.check()
    except AssertionError as error:
        raise Violation("a request in flight is open", repr(error)) from error
