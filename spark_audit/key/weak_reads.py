"""Checks each record that a read found against the revision that the response of the read carries.

This is the only check of `local` and `bounded` reads, which may be old, and of listings pinned to an earlier revision.
Other reads are checked in this way, too, as part of the store-wide order. Every contradiction that the check finds is
real. But it may miss some, because it accepts a read that an unknown write could explain. The rules:

- The revision of the record must not be above the revision of the response.
- The key must not have an acknowledged write with a revision above that of the record and at most that of the response.
  If the read found no record, the last acknowledged write up to the revision of the response must be a deletion.
- The value must have been written at the reported revision, by a write that was called before the read returned. This
  rule is applied only to reads that promise less than linearizability.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from spark_audit.history.clocks import Clocks
from spark_audit.history.operation import Operation, Seen


@dataclass(frozen=True, slots=True)
class Misfit:
    """A read that contradicts the revision that it carries.

    `write`: a write that shows the contradiction; None if no single write shows it.
    """

    read: Operation
    reason: str
    write: Operation | None = None


def misfits(operations: Sequence[Operation], clocks: Clocks) -> Iterator[Misfit]:
    """Yield the reads of one key that break one of the rules in the docstring of this module."""
    key = _KeyWrites(operations, clocks)
    for op in operations:
        seen = op.steps[0].seen if len(op.steps) == 1 and not op.unknown else None
        if seen is None:
            continue
        found = key.against_revision(op, seen) if op.revision is not None else None
        if found is None and op.weak is not None and seen.found and seen.value is not None:
            found = key.never_written(op, seen)
        if found is not None:
            yield found


class _KeyWrites:
    def __init__(self, operations: Sequence[Operation], clocks: Clocks) -> None:
        self.clocks = clocks
        writes = [op for op in operations if op.writes]
        self.acknowledged = sorted((op for op in writes if op.revision is not None), key=lambda op: op.rank)
        self.revisions = [op.revision or 0 for op in self.acknowledged]
        self.unknown_deletes = [op for op in writes if op.unknown and any(step.kind == "delete" for step in op.steps)]
        self.by_value: dict[str, list[Operation]] = {}
        for op in writes:
            for step in op.steps:
                if step.value is not None and step.kind in ("put", "cas"):
                    self.by_value.setdefault(step.value, []).append(op)
        self.appends = any(step.kind == "append" for op in writes for step in op.steps)

    def against_revision(self, read: Operation, seen: Seen) -> Misfit | None:
        assert read.revision is not None
        if seen.found and seen.mod_revision is not None and seen.mod_revision > read.revision:
            return Misfit(
                read, f"it saw a record of revision {seen.mod_revision}, above its own revision {read.revision}"
            )
        position = bisect_right(self.revisions, read.revision)
        if not position:
            return None
        last = self.acknowledged[position - 1]
        if seen.found:
            if seen.mod_revision is None or self.revisions[position - 1] <= seen.mod_revision:
                return None
            return Misfit(read, f"it was answered at revision {read.revision}, which is not before that write", last)
        if last.steps[-1].kind == "delete" or any(self._possible(op, read) for op in self.unknown_deletes):
            return None
        return Misfit(read, f"it found nothing at revision {read.revision}, where that write was in force", last)

    def never_written(self, read: Operation, seen: Seen) -> Misfit | None:
        if self.appends:
            return None
        revision = seen.mod_revision
        writers = [op for op in self.by_value.get(seen.value or "", ()) if self._possible(op, read)]
        if any(revision is None or op.revision is None or op.revision == revision for op in writers):
            return None
        reason = "it returned a value at a revision where no operation had written it"
        return Misfit(read, reason, writers[0] if writers else None)

    def _possible(self, write: Operation, read: Operation) -> bool:
        return not self.clocks.precedes(read, write)
