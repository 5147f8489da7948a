"""The state machine of a member that may have a process of its own."""

from __future__ import annotations

from collections.abc import Sequence

from kvstore.protocol.results import ResultItem
from kvstore.store import gc_tuning as garbage
from kvstore.store.machine import KvMachine
from raft import Entry


class TidyMachine(KvMachine):
    """As a `KvMachine`; besides, the garbage collector hears what was made, and walks it while it is little."""

    def apply(self, entry: Entry) -> list[ResultItem]:
        """As a `KvMachine`."""
        results = KvMachine.apply(self, entry)  # `super()` is made anew for each call.
        garbage.made(len(results))
        return results

    def apply_run(self, entries: Sequence[Entry]) -> list[list[ResultItem]]:
        """As a `KvMachine`."""
        results = super().apply_run(entries)
        garbage.made(sum(map(len, results)))
        return results
