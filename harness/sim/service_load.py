"""Load as production has it: clients with sessions and retries, over connections, to each member's service.

Every operation becomes a history row (FORMATS §10). At the end of the run the history is checked for linearizability,
by a checker that shares no code with the store. On the way: a session's request is carried out at most once, and
what ended as certainly failed is never carried out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import cbor2

from harness.history import Row
from harness.sim.client import SimClient
from harness.sim.direct_load import Probe
from harness.sim.errors import Violation, require
from harness.sim.lines import Lines
from harness.sim.streams import stream
from harness.workload.mix import OperationSource, Planned, View, key_names
from harness.workload.rows import answered, asked
from kvstore import (
    CallEnded,
    ClientLimits,
    Command,
    CommandKind,
    CompareAndSet,
    Consistency,
    Get,
    GetResult,
    OutcomeUnknown,
    Put,
    QuotaExceeded,
    Range,
    RangeResult,
    Request,
    Result,
    Txn,
    command_request,
    read_request,
    read_result,
)
from raft import Effects, Entry, EntryKind
from spark_audit import check_rows

if TYPE_CHECKING:
    from harness.sim.member import Member
    from harness.sim.simulation import Simulation

CONFIGURATIONS_MAX = 200_000
"""How far the checker searches where no witness decides. Simulated histories have one: this is never reached."""

PROBE_VALUE = b"probe"

NO_FIELDS: Row = dict.fromkeys(
    ("session", "key", "value", "expected", "expected_mod_revision", "request", "output", "error", "return_ns")
) | dict.fromkeys(("revision", "consistency", "node"))


@dataclass(slots=True)
class Worker:
    """One caller: it has one operation open at a time. `life` grows with every unknown outcome (FORMATS §10)."""

    client: SimClient
    number: int
    source: OperationSource
    life: int = 0

    @property
    def name(self) -> str:
        """As in the history."""
        return f"c{self.number}.{self.life}"


class ServiceLoad:
    """All clients of a seed, and their history."""

    def __init__(self, world: Simulation) -> None:
        self.world, self._plan = world, world.plan.load
        self._lines = Lines(world, self._plan.lines)
        self._keys = key_names(self._plan.keys)
        self._view = View()
        self._random = stream(world.plan.seed, "workers")
        self._endpoints = [voter.client_address for voter in world.configuration.voters]
        self._workers: list[Worker] = []
        self._rows: list[Row] = []
        self._probe: Probe | None = None
        self._results: dict[tuple[int, int], Any] = {}  # What a session's request gave when it was carried out.
        self._op_of: dict[bytes, str] = {}  # Who wrote, or tried to write, a value: op_id.
        self._results_of: dict[str, Any] = {}  # By op_id, of what was carried out and wrote.
        self._certain_not: dict[bytes, int] = {}  # Values whose write was reported as certainly failed → op_id.
        self._written: dict[bytes, int] = {}  # Values that were written → index.
        self._stopped = False
        self._final_reads_open = 0
        for number in range(self._plan.clients):
            self._add_client(number)

    def _add_client(self, number: int) -> None:
        plan, seed = self._plan, self.world.plan.seed
        client = SimClient(
            self.world, self._lines, f"c{number}", self._endpoints, plan.client_limits, plan.session_ttl_ns
        )
        for slot in range(plan.workers):
            place = number * plan.workers + slot
            source = OperationSource(seed=seed, worker=place, keys=self._keys, view=self._view)
            self._workers.append(Worker(client, place, source))

    def start(self) -> None:
        """Put the first step of every worker on the heap."""
        for worker in self._workers:
            self.world.heap.after(self._random.randrange(self._plan.think_ns), self._act, worker)

    def stop(self) -> None:
        """Nobody begins anything more, and connections stop breaking."""
        self._stopped = True
        self._lines.is_calm = True

    def counts(self) -> dict[str, int]:
        """How operations ended."""
        counts = {"operations ok": 0, "operations failed": 0, "operations unknown": 0}
        names = {"ok": "operations ok", "fail": "operations failed", "unknown": "operations unknown"}
        for row in self._rows:
            counts[names[str(row["status"])]] += 1
        return counts

    # -- operations

    def _act(self, worker: Worker) -> None:
        if self._stopped:
            return
        if worker.client.is_full:
            self._again(worker)
            return
        patience = self._plan.patience_ns // (8 if self._random.random() < 0.2 else 1)
        self._perform(worker, worker.source.next(), self.world.heap.now + patience, self._again)

    def _again(self, worker: Worker) -> None:
        delay = 1 + int(self._random.expovariate(1) * self._plan.think_ns)
        self.world.heap.after(delay, self._act, worker)

    def _perform(self, worker: Worker, planned: Planned, deadline: int, then: Callable[[Worker], None]) -> None:
        row: Row = {
            "run_id": f"simulation-{self.world.plan.seed}",
            "op_id": len(self._rows),
            "client": worker.name,
            "session": worker.client.session_id or None,
            **asked(planned.command),
            "call_ns": self.world.heap.now,
            "clock_id": "simulation",
            "status": "unknown",  # Until somebody says otherwise.
        }
        for value in values_of(planned.command):
            self._op_of[value] = str(row["op_id"])
        self._rows.append(row)

        def ended(end: CallEnded) -> None:
            self._ended(worker, row, planned, end)
            then(worker)

        worker.client.submit(self._request(planned), deadline, ended)

    def _request(self, planned: Planned) -> Request:
        command = planned.command
        if isinstance(command, Get | Range) and self._random.random() < 0.9:
            if planned.local_of is None:
                return read_request(command, Consistency.LINEARIZABLE)
            address = self._endpoints[planned.local_of % len(self._endpoints)]
            return read_request(command, Consistency.LOCAL, address)
        return command_request(command)

    def _ended(self, worker: Worker, row: Row, planned: Planned, end: CallEnded) -> None:
        if isinstance(end.error, OutcomeUnknown):
            worker.life += 1
            row["error"] = end.error.word
            return
        row["return_ns"] = self.world.heap.now
        if end.error is not None:
            row |= {"status": "fail", "error": end.error.word}
            self._failed_for_certain(planned, row)
            return
        response = end.response
        assert response is not None
        result = read_result((response.code, response.revision, *response.fields))
        consistency = Consistency(response.consistency).word if response.consistency else "linearizable"
        row |= {
            "status": "ok",
            "output": answered(result),
            "revision": response.revision,
            "consistency": consistency,
            "node": response.node_id,
        }
        self._learn(planned, result)

    def _failed_for_certain(self, planned: Planned, row: Row) -> None:
        for value in values_of(planned.command):
            require(
                value not in self._written,
                "what failed for certain is never carried out",
                f"{row} was written at {self._written.get(value)}",
            )
            self._certain_not[value] = len(self._rows)

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

    # -- what the world tells

    def on_flush(self, member: Member, effects: Effects) -> None:
        """A node was flushed: its service answers who waits."""
        service = member.service
        if service is not None:
            service.complete(effects.completions, effects.events)
            self._lines.flushed(member, service)

    def on_down(self, member: Member) -> None:
        """The process is gone, with its connections."""
        self._lines.member_down(member)

    def on_first_applied(self, entry: Entry, results: Sequence[Any]) -> None:
        """Every committed command comes by here once, in order."""
        if entry.kind is not EntryKind.COMMANDS:
            return
        for command, result in zip(cbor2.loads(entry.payload)[1:], results, strict=True):
            self._carried_out(entry.index, command, result)

    def _carried_out(self, index: int, command: Sequence[Any], result: Any) -> None:
        session_id, request_no, _, kind, *rest = command
        if self._probe is not None and self._probe.index is None and kind == CommandKind.PUT:
            self._probe.index = index if rest[1].startswith(PROBE_VALUE) else None
        if result[0] != 0:
            self.world.mark(f"answered with code {result[0]}")
            return
        if session_id and request_no:
            known = self._results.get((session_id, request_no))
            self._results[session_id, request_no] = result
            if known is not None:
                require(
                    known == result,
                    "a session's request is carried out at most once",
                    f"request {request_no} of session {session_id} gave {known}, and {result} at {index}",
                )
                self.world.mark("a retry found its result in the session")
                return
        for value in written_values(kind, rest, result):
            require(value not in self._written, "nothing is carried out twice", value, index, self._written.get(value))
            require(
                value not in self._certain_not,
                "what failed for certain is never carried out",
                f"{value!r} is written at {index}, operation {self._certain_not.get(value)} had failed",
            )
            self._written[value] = index
            self._results_of[self._op_of[value]] = result

    # -- the end

    def probe(self, deadline: int) -> Probe:
        """Writes of a new client, one after the other until one is answered, and behind it a read of every key.

        Without a session, which a full store could refuse: whose outcome is unknown is followed by another.
        """
        self._probe = Probe(PROBE_VALUE)
        seed, number = self.world.plan.seed, len(self._workers)
        source = OperationSource(seed=seed, worker=number, keys=self._keys, view=self._view)
        client = SimClient(self.world, self._lines, "probe", self._endpoints, ClientLimits(), 0)
        self._final_reads_open = len(self._keys)
        self._try_probe(Worker(client, number, source), deadline)
        return self._probe

    def _try_probe(self, worker: Worker, deadline: int) -> None:
        place = len(self._rows)

        def then(_: Worker) -> None:
            row = self._rows[place]
            if row["status"] == "ok" or row.get("error") == QuotaExceeded(0, 0).word:
                self._read_all(worker, list(self._keys), deadline)
            elif self.world.heap.now < deadline:
                self._try_probe(worker, deadline)

        planned = Planned(Put(self._keys[0], b"%s-%d" % (PROBE_VALUE, place)))
        self._perform(worker, planned, deadline, then)

    def _read_all(self, worker: Worker, keys: list[bytes], deadline: int) -> None:
        if keys:
            rest = keys[1:]

            def then(_: Worker) -> None:
                self._final_reads_open -= 1
                self._read_all(worker, rest, deadline)

            self._perform(worker, Planned(Get(keys[0])), deadline, then)

    @property
    def is_finished(self) -> bool:
        """True when the last reads have ended."""
        return self._final_reads_open == 0

    def check_history(self) -> None:
        """The whole history, judged at once: first as the clients saw it, then, if that is not enough to decide it,
        with what the world knows of the writes whose outcome nobody was told.
        """
        for row in self._rows[-len(self._keys) :]:
            require(row["status"] == "ok", "a healed cluster answers reads", row)
        rows = [NO_FIELDS | row for row in self._rows]
        if not self._is_decided(rows):
            self.world.mark("a history was decided with hindsight")
            if not self._is_decided([self._with_hindsight(row) for row in rows]):
                self.world.mark("a history stayed undecided")

    def _is_decided(self, rows: Sequence[Row]) -> bool:
        """False if the checker cannot tell. Raises Violation."""
        verdict = check_rows(rows, configurations_max=CONFIGURATIONS_MAX)
        if verdict.violations:
            words = "; ".join(violation.words() for violation in verdict.violations)
            raise Violation("what clients saw is linearizable", words)
        return verdict.exit_code == 0

    def _with_hindsight(self, row: Row) -> Row:
        """An unknown write which was carried out is answered at the end of the run; one which was not has failed."""
        if row["status"] != "unknown" or row["op"] == "delete":
            return row
        now = self.world.heap.now
        result = self._results_of.get(str(row["op_id"]))
        if result is None:
            return row | {"status": "fail", "return_ns": now}
        output = answered(read_result(result))
        return row | {"status": "ok", "return_ns": now, "output": output, "revision": result[1]}


def values_of(command: Command) -> list[bytes]:
    """What a command would write; every value is unique in a run."""
    match command:
        case Put(value=value) | CompareAndSet(value=value):
            return [value]
        case Txn(success=success):
            return [operation.value for operation in success if isinstance(operation, Put)]
    return []


def written_values(kind: int, body: Sequence[Any], result: Sequence[Any]) -> list[bytes]:
    """What a command, as it stands in the log, has written, by its result."""
    match kind:
        case CommandKind.PUT:
            return [body[1]]
        case CommandKind.COMPARE_AND_SET if result[2][1]:
            return [body[1]]
        case CommandKind.TXN if result[2][1]:
            return [operation[2] for operation in body[1] if operation[0] == CommandKind.PUT]
    return []
