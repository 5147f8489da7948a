"""Concurrent clients that carry out the generated operations, and record every operation and its outcome.

A client has one session and `in_flight` lanes. A lane carries out one operation after the other, so a client with
several lanes pipelines its requests. Each lane has a different name in the field `client` of the history, because only
one operation at a time may be open under a name.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from random import Random

import trio

from harness.recording.history import Row, RunWriter
from harness.workload.bulk import Bulks
from harness.workload.level_writes import AcceptedWrites, ask_outcome, drawn_question, level_of, record_write
from harness.workload.levels import NO_LEVELS, LevelShares
from harness.workload.operation_generator import OperationSource, Planned, View, key_names
from harness.workload.read_modes import USUAL_READ_MODES, ReadModes
from harness.workload.row_fields import answered, asked
from harness.workload.service_load import GROUP_KEYS_END, SERVICE_KEYS, ServiceWorkers
from harness.workload.service_shares import NO_SERVICES, ServiceShares
from harness.workload.tally import Tally, Worker
from kvstore import (
    Accepted,
    Acknowledge,
    Answer,
    Client,
    CompareAndSet,
    Consistency,
    Get,
    GetResult,
    OperationFailed,
    OutcomeUnknown,
    Put,
    RangeResult,
    Result,
    Tls,
)

SETTLING_CLIENT = "settler"  # The client name for the questions after the end of all faults.
FINAL_CLIENT = "final"  # The client name of the final reads, after the end of all faults.
PATIENCE_SECONDS = 5.0  # Longer than an election, so that most operations succeed by retries in spite of a fault.
HASTE_SECONDS = 0.3  # Shorter than an election, so that some operations time out and the history has unknown outcomes.
HASTY_SHARE = 0.2
# The pause after a `fail`. Without a pause, a client would loop on refusals, which arrive at once.
_REFUSED_PAUSE_SECONDS = 0.02
# Every third client is often replaced by a new client, which must find the leader again. Otherwise all clients could
# wait for one leader that hangs, and no client would find a second leader.
_RESTLESS_EVERY = 3
_RESTLESS_SECONDS = (0.2, 1.0)
_ONE_MEMBER_SECONDS = 0.5  # The time limit of a read that is sent to a single member, which may be down.


@dataclass(slots=True, kw_only=True)
class _Lane:
    """A sequence of operations, which continues when a new client replaces the old one.

    `due`: the trio time of the next operation, if the load has a rate. `levels`: draws the levels of writes.
    """

    name: str
    source: OperationSource
    patience: Random
    levels: Random
    due: float
    lives: Iterator[int] = field(default_factory=count)


@dataclass(slots=True, kw_only=True)
class Workload:
    """The load of a run: `clients` clients over `keys` keys, each with `in_flight` lanes.

    `bulk`: the size of the bulks that clients use instead of lanes; 0: clients use lanes. `operations_per_second`: the
    rate of the load; 0: each operation follows the answer to the previous operation at once. `hasty_share`: the share
    of operations that wait only for HASTE_SECONDS, and so may end `unknown`. `read_modes`: the modes of reads, except
    in bulks. `services`: the workers for watches, leases, locks, ranges and consumers, in addition to this load.
    `levels`: the levels of writes, except those of `services`; all writes of a bulk have one level.
    """

    writer: RunWriter
    endpoints: Sequence[str]
    seed: int
    clients: int
    keys: int
    in_flight: int = 1
    bulk: int = 0
    operations_per_second: float = 0.0
    hasty_share: float = HASTY_SHARE
    read_modes: ReadModes = USUAL_READ_MODES
    services: ServiceShares = NO_SERVICES
    levels: LevelShares = NO_LEVELS
    tls: Tls | None = None
    tally: Tally = field(default_factory=Tally)
    _view: View = field(default_factory=View)
    _accepted: AcceptedWrites = field(default_factory=AcceptedWrites)
    _names: list[bytes] = field(init=False)

    def __post_init__(self) -> None:
        self._names = key_names(self.keys)

    async def run(self, seconds: float) -> None:
        """Work for `seconds`, and then let every worker finish its current operation."""
        until = trio.current_time() + seconds
        async with trio.open_nursery() as nursery:
            for number in range(self.clients):
                nursery.start_soon(self._work, number, until)
            if self.services:
                beside = ServiceWorkers(
                    writer=self.writer,
                    endpoints=self.endpoints,
                    seed=self.seed,
                    keys=self._names,
                    shares=self.services,
                    tally=self.tally,
                    tls=self.tls,
                )
                nursery.start_soon(beside.run, until)

    async def read_everything(self) -> int:
        """Read every key linearizably, as the client `final`. Returns how many reads were answered.

        These reads reveal a lost write even if no other client has read its key.
        """
        answered_count = 0
        async with Client(self.endpoints, tls=self.tls) as store:
            worker = Worker(store, FINAL_CLIENT, count())
            for key in self._names:
                row = await self._perform(worker, Planned(Get(key)), 2 * PATIENCE_SECONDS)
                answered_count += row["status"] == "ok"
        return answered_count

    async def settle_accepted(self) -> tuple[int, int]:
        """Ask for the outcomes of the newest open accepted writes, as the client `settler`.

        Returns how many questions were asked, and how many were answered.
        """
        entries, answered_count = list(dict.fromkeys(self._accepted.open)), 0
        async with Client(self.endpoints, tls=self.tls) as store:
            worker = Worker(store, SETTLING_CLIENT, count())
            for entry in entries:
                row = await ask_outcome(self.writer, worker, entry, self._accepted, PATIENCE_SECONDS)
                answered_count += row["status"] == "ok"
        return len(entries), answered_count

    async def _work(self, number: int, until: float) -> None:
        """Run client `number`. For every third number, a new client often takes over the lanes of the old client."""
        random = Random(f"stay {self.seed} {number}")
        lanes = [self._lane(number, place) for place in range(self.in_flight)]
        bulks = Bulks(
            self.writer,
            self.tally,
            seed=self.seed,
            client=number,
            keys=self._names,
            size=self.bulk,
            levels=self.levels,
            accepted=self._accepted,
        )
        while trio.current_time() < until:
            stays = random.uniform(*_RESTLESS_SECONDS) if number % _RESTLESS_EVERY == 0 else math.inf
            leaves = min(until, trio.current_time() + stays)
            async with Client(self.endpoints, tls=self.tls) as store, trio.open_nursery() as nursery:
                if self.bulk:
                    nursery.start_soon(bulks.run, store, leaves, self._patience_seconds)
                else:
                    for lane in lanes:
                        nursery.start_soon(self._operate, lane, store, leaves)

    def _lane(self, number: int, place: int) -> _Lane:
        """Make lane `place` of client `number`.

        If the load has a rate, the first operations of the lanes are evenly spaced.
        """
        turn = place * self.clients + number
        pace = 1 / self.operations_per_second if self.operations_per_second else 0.0
        return _Lane(
            name=f"c{number}" if self.in_flight == 1 else f"c{number}-{place}",
            source=OperationSource(
                seed=self.seed,
                worker=turn,
                keys=self._names,
                view=self._view,
                modes=self.read_modes,
                first=GROUP_KEYS_END if self.services.consumers else b"",
                end=SERVICE_KEYS if self.services else None,
            ),
            patience=Random(f"patience {self.seed} {turn}"),
            levels=Random(f"levels {self.seed} {turn}"),
            due=trio.current_time() + pace * turn,
        )

    def _patience_seconds(self, random: Random) -> float:
        return HASTE_SECONDS if random.random() < self.hasty_share else PATIENCE_SECONDS

    async def _operate(self, lane: _Lane, store: Client, leaves: float) -> None:
        """Carry out one operation of a lane after the other, at the lane's rate, until `leaves` (trio time)."""
        lanes = self.clients * self.in_flight
        pace = lanes / self.operations_per_second if self.operations_per_second else 0.0
        worker = Worker(store, lane.name, lane.lives)
        while trio.current_time() < leaves:
            if pace:
                await trio.sleep_until(lane.due)
                lane.due = max(lane.due + pace, trio.current_time())
            planned, patience_seconds = lane.source.next(), self._patience_seconds(lane.patience)
            level = level_of(planned.command, self.levels.next(lane.levels))
            if level is Acknowledge.MAJORITY:
                row = await self._perform(worker, planned, patience_seconds)
            else:
                row = await self._write_at(worker, planned, level, patience_seconds)
            if row["status"] == "unknown":
                # In the history, the unknown operation is never closed, so the next operation needs another client
                # name.
                worker.begin_another_life()
                await self._ask_at_once(worker, row, lane.levels)
            elif row["status"] == "fail":
                await trio.sleep(_REFUSED_PAUSE_SECONDS)

    async def _write_at(self, worker: Worker, planned: Planned, level: Acknowledge, patience_seconds: float) -> Row:
        """Carry out one write at a level other than MAJORITY, and record it with its outcome."""
        command = planned.command
        known = {"client": worker.client, **asked(command)}
        row = await record_write(self.writer, worker, command, level, known, patience_seconds, self._accepted)
        revision = row.get("revision")
        if isinstance(command, Put) and isinstance(revision, int):
            self._view.saw(command.key, command.value, revision)
        self.tally.by_status[str(row["status"])] += 1
        return row

    async def _ask_at_once(self, worker: Worker, row: Row, random: Random) -> None:
        """Ask for the outcomes of a share of the accepted writes. `row`: the row of a write that ended unknown."""
        index, term = row.get("accepted_index"), row.get("accepted_term")
        if not isinstance(index, int) or not isinstance(term, int):
            return
        wait_seconds = drawn_question(random)
        if wait_seconds is not None:
            asked_row = await ask_outcome(self.writer, worker, Accepted(index, term), self._accepted, wait_seconds)
            self.tally.by_status[str(asked_row["status"])] += 1

    async def _perform(self, worker: Worker, planned: Planned, patience_seconds: float) -> Row:
        """Carry out one operation and record it with its outcome."""
        clock = self.writer.clock
        called = clock.now_ns()
        op_id = self.writer.call({"client": worker.client, **asked(planned.command), "call_ns": called})
        try:
            answer = await self._execute(worker.store, planned, patience_seconds)
        except OutcomeUnknown as error:
            ended = self.writer.end(op_id, status="unknown", error=error.word, session=worker.session_id)
        except OperationFailed as error:
            returned = clock.now_ns()
            ended = self.writer.end(
                op_id, status="fail", error=error.word, session=worker.session_id, return_ns=returned
            )
        else:
            returned = clock.now_ns()
            worker.session_id = answer.session_id or worker.session_id
            self._learn(planned, answer.result)
            ended = self.writer.end(
                op_id,
                status="ok",
                return_ns=returned,
                session=worker.session_id,
                output=answered(answer.result, planned.command),
                revision=answer.revision,
                consistency=answer.consistency or None,
                node=answer.node_id,
                age_ms=answer.age_ms,
            )
            self.tally.recent_ms.append((returned - called) / 1e6)
        self.tally.by_status[str(ended["status"])] += 1
        return ended

    async def _execute(self, store: Client, planned: Planned, patience_seconds: float) -> Answer[Result]:
        mode = planned.mode
        if mode.consistency is Consistency.LINEARIZABLE:
            return await store.execute(planned.command, deadline_seconds=patience_seconds)
        return await store.execute(
            planned.command,
            consistency=mode.consistency,
            max_staleness_ms=mode.max_staleness_ms,
            member=None if mode.member is None else self.endpoints[mode.member % len(self.endpoints)],
            deadline_seconds=patience_seconds if mode.member is None else _ONE_MEMBER_SECONDS,
        )

    def _learn(self, planned: Planned, result: Result) -> None:
        """Remember the records in a result, so that the next compare-and-set of any worker expects them."""
        command = planned.command
        match command:
            case Put(key, value):
                self._view.saw(key, value, result.revision)
            case CompareAndSet(key, value) if getattr(result, "succeeded", False):
                self._view.saw(key, value, result.revision)
        if isinstance(result, GetResult) and isinstance(command, Get):
            if result.record is None:
                self._view.gone(command.key)
            else:
                self._view.saw(command.key, result.record.value, result.record.mod_revision)
        elif isinstance(result, RangeResult):
            for item in result.items:
                if item.value is not None:
                    self._view.saw(item.key, item.value, item.mod_revision)
