"""Clients that write throughout a measurement, to show for how long no write succeeds and how many writes fail."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import trio

from harness.cluster.cluster import Cluster
from harness.recording.history import prepare_folder
from kvstore import Client, OperationFailed, OutcomeUnknown

WRITERS = 4
_WRITE_PAUSE_SECONDS = 0.005  # The pause between two writes of a client, which is the resolution of the measurement.
_WRITE_SECONDS = 10.0


class BackgroundWriters:
    """The observations of all background writers so far."""

    def __init__(self) -> None:
        self.acknowledged = 0
        self.failed = 0  # Writes that were refused, or had an unknown outcome, even after the retries of the client.
        # The longest time between two consecutive acknowledgements since the last reset of this field to 0.
        self.longest_pause_seconds = 0.0
        self._changed = trio.Condition()
        self._last_called = -1.0
        self._acknowledged_at = trio.current_time()

    async def work(self, store: Client, number: int) -> None:
        """Write until cancelled."""
        written = 0
        while True:
            called = trio.current_time()
            try:
                await store.put(f"writer-{number}", str(written), deadline_seconds=_WRITE_SECONDS)
            except (OperationFailed, OutcomeUnknown):
                self.failed += 1
            else:
                await self._note(called)
            written += 1
            await trio.sleep(_WRITE_PAUSE_SECONDS)

    async def _note(self, called: float) -> None:
        now = trio.current_time()
        self.acknowledged += 1
        self.longest_pause_seconds = max(self.longest_pause_seconds, now - self._acknowledged_at)
        self._acknowledged_at = now
        async with self._changed:
            self._last_called = max(self._last_called, called)
            self._changed.notify_all()

    async def first_after(self, moment: float) -> float:
        """Wait for the acknowledgement of a write that was called after `moment`.

        Returns the time of the acknowledgement.

        `moment` and the result are times of trio's clock.
        """
        async with self._changed:
            while self._last_called < moment:
                await self._changed.wait()
            return trio.current_time()


@asynccontextmanager
async def writing(cluster: Cluster) -> AsyncIterator[BackgroundWriters]:
    """Run WRITERS clients of this cluster for the duration of the block."""
    writers = BackgroundWriters()

    async def write(number: int) -> None:
        async with Client(cluster.endpoints) as store:
            await writers.work(store, number)

    async with trio.open_nursery() as nursery:
        for number in range(WRITERS):
            nursery.start_soon(write, number)
        yield writers
        nursery.cancel_scope.cancel()


@contextmanager
def scratch_folder(out: Path | None) -> Iterator[Path]:
    """Yield `out`, which must be new or empty. If `out` is None, yield a temporary folder and remove it afterwards."""
    if out is None:
        with tempfile.TemporaryDirectory(prefix="hwm-measure-") as folder:
            yield Path(folder)
    else:
        prepare_folder(out)
        yield out
