"""The fastest load that can still be audited: puts and gets in bulks (`Client.put_many`, `get_many`).

The history has a row for each operation. The call time in the row is the time when the client takes the operation from
the bulk. The return time is the time when the whole bulk returns, which is later than the true return. An interval that
is too long can hide a violation, but never cause a false violation. The revisions are exact, and the audit compares
them too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from random import Random

import trio

from harness.recording.history import RunWriter
from harness.workload.row_fields import answered, asked
from harness.workload.tally import Tally, Worker
from kvstore import Client, Get, GetResult, OperationFailed, OutcomeUnknown, Put, PutResult

_PUT_SHARE = 0.5  # The share of bulks that are puts.
_REFUSED_PAUSE_SECONDS = 0.02  # The pause after a bulk in which no operation ended `ok`.

Ended = PutResult | GetResult | OperationFailed | OutcomeUnknown


class Bulks:
    """One client's bulks of `size` operations. In the history, each place in a bulk has its own client name."""

    def __init__(
        self, writer: RunWriter, tally: Tally, *, seed: int, client: int, keys: Sequence[bytes], size: int
    ) -> None:
        self._writer, self._tally, self._keys, self._size = writer, tally, keys, size
        self._random = Random(f"bulks {seed} {client}")
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
        """Carry out and record one bulk. Returns True if any of its operations ended `ok`."""
        op_ids: list[int] = []
        results: Sequence[Ended]
        begun = trio.current_time()
        if self._random.random() < _PUT_SHARE:
            commands = [Put(key, self._value()) for key in self._chosen()]
            puts = self._called(commands, workers, op_ids)
            results = await store.put_many(
                ((put.key, put.value) for put in puts if isinstance(put, Put)), deadline_seconds=patience_seconds
            )
        else:
            gets = self._called([Get(key) for key in self._chosen()], workers, op_ids)
            results = await store.get_many((get.key for get in gets), deadline_seconds=patience_seconds)
        returned = self._writer.clock.now_ns()
        for op_id, worker, result in zip(op_ids, workers, results, strict=True):
            self._ended(op_id, worker, result, returned)
        self._tally.recent_ms.append((trio.current_time() - begun) * 1e3)
        return any(isinstance(result, PutResult | GetResult) for result in results)

    def _called(
        self, commands: Iterable[Put | Get], workers: Iterable[Worker], op_ids: list[int]
    ) -> Iterator[Put | Get]:
        """Yield each command, and record its call when the client takes it."""
        now_ns = self._writer.clock.now_ns
        for command, worker in zip(commands, workers, strict=True):
            op_ids.append(self._writer.call({"client": worker.client, **asked(command), "call_ns": now_ns()}))
            yield command

    def _ended(self, op_id: int, worker: Worker, result: Ended, returned: int) -> None:
        match result:
            case PutResult() | GetResult():
                row = self._writer.end(
                    op_id, status="ok", return_ns=returned, output=answered(result), revision=result.revision
                )
            case OutcomeUnknown():
                row = self._writer.end(op_id, status="unknown", error=result.word)
                worker.begin_another_life()
            case OperationFailed():
                row = self._writer.end(op_id, status="fail", error=result.word, return_ns=returned)
        self._tally.by_status[str(row["status"])] += 1

    def _chosen(self) -> list[bytes]:
        """Choose the keys of one bulk. If the run has enough keys, no key is chosen twice."""
        if len(self._keys) >= self._size:
            return self._random.sample(self._keys, self._size)
        return self._random.choices(self._keys, k=self._size)

    def _value(self) -> bytes:
        self._written += 1
        return b"b%d-%d" % (self._client, self._written)
