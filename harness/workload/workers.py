"""Concurrent clients that do what the mix says, and write down every operation and how it ended."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from random import Random

import trio

from harness.history import Row, RunWriter
from harness.workload.mix import OperationSource, Planned, View, key_names
from harness.workload.rows import answered, asked
from kvstore import (
    Answer,
    Client,
    CompareAndSet,
    Get,
    GetResult,
    OperationFailed,
    OutcomeUnknown,
    Put,
    RangeResult,
    Result,
)

FINAL_CLIENT = "final"  # Of the reads after everything is healed.
PATIENCE_SECONDS = 5.0  # Longer than an election: most operations outlive a fault by retrying.
HASTE_SECONDS = 0.3  # Shorter than an election: some must give up, or no history would hold an unknown outcome.
HASTY_SHARE = 0.2
_REFUSED_PAUSE_SECONDS = 0.02  # After a certain failure: a refusal costs nothing, so it must not become a busy loop.
_RESTLESS_EVERY = 3  # Every third worker is a new client again and again. Clients that stay with a leader which hangs
_RESTLESS_SECONDS = (0.2, 1.0)  # all wait together, and nobody would see two leaders at a time.
_LOCAL_SECONDS = 0.5  # A local read is asked of one member, which may be down: nobody else will answer it.
_RECENT_MAX = 64


class Worker:
    """One client under one name after the other: after an unknown outcome it must take another."""

    def __init__(self, store: Client, name: str, lives: Iterator[int]) -> None:
        self.store = store
        self.session_id: int | None = None
        self._name, self._lives = name, lives
        self._life = next(lives)

    @property
    def client(self) -> str:
        """The `client` of its next row."""
        return f"{self._name}.{self._life}"

    def begin_another_life(self) -> None:
        self._life = next(self._lives)


@dataclass(slots=True)
class Tally:
    """What the workers have done so far, for a display. The history has the truth."""

    by_status: Counter[str] = field(default_factory=Counter)
    recent_ms: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT_MAX))

    @property
    def total(self) -> int:
        return self.by_status.total()


@dataclass(slots=True, kw_only=True)
class Workload:
    """`clients` workers over `keys` keys. `operations_per_second` 0: as fast as the answers come.

    `hasty_share`: of the operations, those that wait for HASTE_SECONDS only, and so may end unknown.
    """

    writer: RunWriter
    endpoints: Sequence[str]
    seed: int
    clients: int
    keys: int
    operations_per_second: float = 0.0
    hasty_share: float = HASTY_SHARE
    tally: Tally = field(default_factory=Tally)
    _view: View = field(default_factory=View)

    async def run(self, seconds: float) -> None:
        """Work for `seconds`; then every worker finishes the operation it is in."""
        until = trio.current_time() + seconds
        async with trio.open_nursery() as nursery:
            for number in range(self.clients):
                nursery.start_soon(self._work, number, until)

    async def read_everything(self) -> int:
        """A linearizable read of every key, recorded under the client `final`; returns how many were answered.

        A lost write that no client happened to read shows here.
        """
        answered_count = 0
        async with Client(self.endpoints) as store:
            worker = Worker(store, FINAL_CLIENT, count())
            for key in key_names(self.keys):
                row = await self._perform(worker, Planned(Get(key)), 2 * PATIENCE_SECONDS)
                answered_count += row["status"] == "ok"
        return answered_count

    async def _work(self, number: int, until: float) -> None:
        source = OperationSource(seed=self.seed, worker=number, keys=key_names(self.keys), view=self._view)
        random = Random(f"patience {self.seed} {number}")
        pace = self.clients / self.operations_per_second if self.operations_per_second else 0.0
        due, life = trio.current_time() + pace * number / self.clients, count()
        while trio.current_time() < until:
            stays = random.uniform(*_RESTLESS_SECONDS) if number % _RESTLESS_EVERY == 0 else math.inf
            leaves = min(until, trio.current_time() + stays)
            async with Client(self.endpoints) as store:
                worker = Worker(store, f"c{number}", life)
                while trio.current_time() < leaves:
                    if pace:
                        await trio.sleep_until(due)
                        due = max(due + pace, trio.current_time())
                    patience = HASTE_SECONDS if random.random() < self.hasty_share else PATIENCE_SECONDS
                    row = await self._perform(worker, source.next(), patience)
                    if row["status"] == "unknown":
                        worker.begin_another_life()  # That operation stays open for ever: what follows is another.
                    elif row["status"] == "fail":
                        await trio.sleep(_REFUSED_PAUSE_SECONDS)

    async def _perform(self, worker: Worker, planned: Planned, patience_seconds: float) -> Row:
        """Do one operation and record it, whatever becomes of it."""
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
            )
            self.tally.recent_ms.append((returned - called) / 1e6)
        self.tally.by_status[str(ended["status"])] += 1
        return ended

    async def _execute(self, store: Client, planned: Planned, patience_seconds: float) -> Answer[Result]:
        if planned.local_of is None:
            return await store.execute(planned.command, deadline_seconds=patience_seconds)
        member = self.endpoints[planned.local_of % len(self.endpoints)]
        return await store.execute(planned.command, consistency="local", member=member, deadline_seconds=_LOCAL_SECONDS)

    def _learn(self, planned: Planned, result: Result) -> None:
        """What the next compare-and-set of any worker goes on."""
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
