"""The fastest load that can still be audited: puts and gets in bulks (`Client.put_many`, `get_many`).

The history has a row for each operation. The call time in the row is the time when the client takes the operation from
the bulk. The return time is the time when the whole bulk returns, which is later than the true return. A recorded
interval that is too long can hide a violation, but can never cause a false one. The revisions are exact, and the audit
compares them too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from random import Random
from typing import cast

import trio

from harness.recording.history import Row, RunWriter
from harness.workload.level_writes import AcceptedWrites, EndedWrite, end_write
from harness.workload.levels import LevelShares
from harness.workload.row_fields import answered, asked
from harness.workload.tally import Tally, Worker
from kvstore import Acknowledge, Client, Get, GetResult, OperationFailed, OutcomeUnknown, Put, PutResult

_PUT_SHARE = 0.5  # The share of bulks that are puts.
_REFUSED_PAUSE_SECONDS = 0.02  # The pause after a bulk in which no operation succeeded.

Ended = PutResult | GetResult | OperationFailed | OutcomeUnknown


class Bulks:
    """One client's bulks of `size` operations. In the history, each place in a bulk has its own client name."""

    def __init__(
        self,
        writer: RunWriter,
        tally: Tally,
        *,
        seed: int,
        client: int,
        keys: Sequence[bytes],
        size: int,
        levels: LevelShares,
        accepted: AcceptedWrites,
    ) -> None:
        """`levels` draws one level for all puts of a bulk. `accepted` gets the entries of accepted puts."""
        self._writer, self._tally, self._keys, self._size = writer, tally, keys, size
        self._levels, self._accepted = levels, accepted
        self._random = Random(f"bulks {seed} {client}")
        self._random_levels = Random(f"levels of bulks {seed} {client}")
        self._client = client
        self._lives = [count() for _ in range(size)]
        self._written = 0

    async def run(self, store: Client, leaves: float, patience_seconds: Callable[[Random], float]) -> None:
        """Carry out one bulk after the other until `leaves` (trio time)."""
        workers = [Worker(store, f"c{self._client}-{place}", lives) for place, lives in enumerate(self._lives)]
        while trio.current_time() < leaves:
            if not await self._perform(store, workers, patience_seconds(self._random)):
                await trio.sleep(_REFUSED_PAUSE_SECONDS)

    async def _perform(self, store: Client, workers: Sequence[Worker], patience_seconds: float) -> bool:
        """Carry out and record one bulk. Return False if each of its operations has failed or is unknown."""
        op_ids: list[int] = []
        results: Sequence[Ended | EndedWrite]
        level = Acknowledge.MAJORITY
        begun = trio.current_time()
        if self._random.random() < _PUT_SHARE:
            level = self._levels.next(self._random_levels)
            commands: Sequence[Put | Get] = [Put(key, self._value()) for key in self._chosen()]
            puts = self._called(commands, workers, op_ids, level)
            results = await store.put_many(
                ((put.key, put.value) for put in puts if isinstance(put, Put)),
                acknowledge=level,
                deadline_seconds=patience_seconds,
            )
        else:
            commands = [Get(key) for key in self._chosen()]
            gets = self._called(commands, workers, op_ids, level)
            results = await store.get_many((get.key for get in gets), deadline_seconds=patience_seconds)
        returned = self._writer.clock.now_ns()
        for op_id, worker, command, result in zip(op_ids, workers, commands, results, strict=True):
            if level is Acknowledge.MAJORITY:
                row = self._end(op_id, cast(Ended, result), returned)
            else:
                row = end_write(self._writer, op_id, cast(EndedWrite, result), command, self._accepted, returned)
            if row["status"] == "unknown":
                worker.begin_another_life()
            self._tally.by_status[str(row["status"])] += 1
        self._tally.recent_ms.append((trio.current_time() - begun) * 1e3)
        return not all(isinstance(result, OperationFailed | OutcomeUnknown) for result in results)

    def _called(
        self, commands: Iterable[Put | Get], workers: Iterable[Worker], op_ids: list[int], level: Acknowledge
    ) -> Iterator[Put | Get]:
        """Yield each command, and record its call when the client takes it."""
        now_ns = self._writer.clock.now_ns
        at_level = {} if level is Acknowledge.MAJORITY else {"acknowledge": level.name.lower()}
        for command, worker in zip(commands, workers, strict=True):
            row: Row = {"client": worker.client, **asked(command), **at_level}
            op_ids.append(self._writer.call({**row, "call_ns": now_ns()}))
            yield command

    def _end(self, op_id: int, result: Ended, returned: int) -> Row:
        """Record the end of a get, or of a put at the level MAJORITY."""
        match result:
            case PutResult() | GetResult():
                return self._writer.end(
                    op_id, status="ok", return_ns=returned, output=answered(result), revision=result.revision
                )
            case OutcomeUnknown():
                return self._writer.end(op_id, status="unknown", error=result.word)
            case OperationFailed():
                return self._writer.end(op_id, status="fail", error=result.word, return_ns=returned)

    def _chosen(self) -> list[bytes]:
        """Choose the keys of one bulk. If the run has enough keys, no key is chosen twice."""
        if len(self._keys) >= self._size:
            return self._random.sample(self._keys, self._size)
        return self._random.choices(self._keys, k=self._size)

    def _value(self) -> bytes:
        self._written += 1
        return b"b%d-%d" % (self._client, self._written)
