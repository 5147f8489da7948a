"""Findings about services, and the few fields of a row that a finding shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from spark_audit.verdict.verdict import PROPERTIES, SHOWN_MAX, ShownOperation, Violation
from spark_audit.verdict.words import short

SHOWN_ROWS_MAX = 6  # A finding shows at most this many rows.


class RowName(NamedTuple):
    """The fields of a row that a finding shows. `return_ns` is None if the outcome is unknown."""

    op_id: int
    client: str
    op: str
    call_ns: int
    return_ns: int | None
    clock: str
    revision: int | None

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> RowName:
        """Return the name of a row."""
        return cls(
            row["op_id"],
            row["client"],
            row["op"],
            row["call_ns"],
            row["return_ns"],
            row["clock_id"],
            row.get("revision"),
        )

    @property
    def words(self) -> str:
        """The name of the operation and its op_id, as in `put #7`."""
        return f"{self.op} #{self.op_id}"

    def shown(self, words: str) -> ShownOperation:
        """Return the row as an operation of a violation. `words`: a description of the operation."""
        told = f"{self.words} {words}"
        return ShownOperation(self.op_id, self.client, self.op, self.call_ns, self.return_ns, self.revision, told)


@dataclass(frozen=True, slots=True)
class Finding:
    """A violation of a property of services.

    `judged`: the property. `shown`: at most SHOWN_ROWS_MAX rows, each once, sorted by call.
    """

    judged: str
    key: str | None
    text: str
    shown: tuple[ShownOperation, ...]

    @property
    def place(self) -> tuple[int, str, tuple[int, ...], str]:
        """The sort key among all findings of a run; it is the same for all engines."""
        ids = tuple(operation.op_id for operation in self.shown)
        return list(PROPERTIES).index(self.judged), self.key or "", ids, self.text

    def violation(self, run_id: str) -> Violation:
        """Return the finding as a violation of this run."""
        return Violation(self.judged, run_id, self.key, self.text, self.shown)


def first_findings(findings: Iterable[Finding]) -> list[Finding]:
    """Return the first SHOWN_MAX findings of each property, sorted by `place`."""
    kept: Counter[str] = Counter()
    made: list[Finding] = []
    for one in sorted(findings, key=lambda one: one.place):
        kept[one.judged] += 1
        if kept[one.judged] <= SHOWN_MAX:
            made.append(one)
    return made


def finding(prop: str, key: str | None, text: str, *shown: ShownOperation) -> Finding:
    """Return a finding. A row that occurs more than once is shown once."""
    by_id = {operation.op_id: operation for operation in reversed(shown)}
    rows = sorted(by_id.values(), key=lambda operation: (operation.call_ns, operation.op_id))
    return Finding(prop, key, text, tuple(rows[:SHOWN_ROWS_MAX]))


def change_words(kind: str, value: str | None, revision: int) -> str:
    """Return the words for a change, as in `put v1 (revision 7)`."""
    return f"put {short(value)} (revision {revision})" if kind == "put" else f"deletion (revision {revision})"
