"""Checks the revisions that responses report for unknown writes: each change must have a revision of its own.

A revision that is reported for an unknown write must not be the revision of an acknowledged write, and must not have
been reported for another write. `advance` cannot check this rule, because it sees only one state. A replay remembers
the reported revisions (`UsedRevisions`). The search need not remember them: once a record is replaced or deleted, no
later operation may report its revision. So a configuration is a dead end if an operation must still report the revision
of such a record (`NamedRevisions`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from spark_audit.history.operation import Operation
from spark_audit.model.key import State

NO_REVISIONS: frozenset[int] = frozenset()


class UsedRevisions:
    """The revisions used so far along an order: the revisions of acknowledged writes, and the revisions reported for
    unknown writes."""

    def __init__(self, carried: Iterable[int]) -> None:
        self._used = set(carried)

    def take(self, state: State, op: Operation) -> bool:
        """Take `op` as the next operation in this state; return whether its reported revisions are possible.

        A revision that `op` reports for the record is possible if it is not used yet, or if the state already has it.
        """
        claimed = revisions_claimed(state, op)
        if not self._used.isdisjoint(claimed):
            return False
        self._used.update(claimed)
        return True


class NamedRevisions:
    """The revisions that each operation of one key reports, indexed by the position of the operation."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        self._carried = carried_by(operations)
        self._mods = [_mods(op) for op in operations]
        self._creates = [_creates(op) for op in operations]
        self._must = [not op.unknown for op in operations]
        self._mods_to_come = Counter(
            r for op, names in zip(operations, self._mods, strict=True) if not op.unknown for r in names
        )
        self._creates_to_come = Counter(r for names in self._creates for r in names)

    def called(self, position: int) -> None:
        """Record that the operation at `position` has been called, so that it is no longer a future call."""
        if self._must[position]:
            self._mods_to_come.subtract(self._mods[position])
            self._creates_to_come.subtract(self._creates[position])

    def fits(self, state: State, position: int) -> bool:
        """Return whether the revisions that the operation reports are possible for the record of `state`.

        If the state does not have the revision yet, the reported revision must not belong to an acknowledged write.
        """
        _, mod, create, _ = state
        return (mod is not None or self._carried.isdisjoint(self._mods[position])) and (
            create is not None or self._carried.isdisjoint(self._creates[position])
        )

    def parts(self, state: State, after: State, position: int, waiting: Iterable[int]) -> bool:
        """Return whether the operation at `position` makes the response of another operation impossible.

        The operation changes `state` to `after`, so it replaces or deletes the record of `state`. The other operation
        is one of `waiting`, or has not been called yet. Its response becomes impossible if it reports a revision of
        this record.
        """
        _, mod, create, _ = state
        had = self._mods[position] if mod is None else (mod,)
        gone = [r for r in had if r and r != after[1] and r not in self._carried]
        ended = create if create and create != after[2] and create not in self._carried else 0
        if not gone and not ended:
            return False
        still = tuple(waiting)
        return any(
            self._is_named(r, self._mods, self._mods_to_come, still)
            or (r != after[2] and self._is_named(r, self._creates, self._creates_to_come, still))
            for r in (*gone, ended)
            if r
        )

    @staticmethod
    def _is_named(revision: int, names: list[frozenset[int]], to_come: Counter[int], still: Iterable[int]) -> bool:
        return to_come[revision] > 0 or any(revision in names[position] for position in still)


def carried_by(operations: Iterable[Operation]) -> set[int]:
    """Return the revisions of the acknowledged writes among these operations."""
    return {op.revision for op in operations if op.writes and op.revision is not None}


def revisions_claimed(state: State, op: Operation) -> frozenset[int]:
    """Return the revisions that `op` reports for the record of `state` and that `state` does not have yet."""
    _, mod, create, _ = state
    if mod is not None and create is not None:
        return NO_REVISIONS
    return (_mods(op) if mod is None else NO_REVISIONS) | (_creates(op) if create is None else NO_REVISIONS)


def _mods(op: Operation) -> frozenset[int]:
    """Return the mod_revisions that the operation reports or requires for the record that it finds."""
    seen = {step.seen.mod_revision for step in op.steps if step.seen is not None and step.seen.found}
    expected = {step.expected_mod_revision for step in op.steps if step.kind == "cas" and step.flag is not False}
    return frozenset(r for r in seen | expected if r and not (op.writes and r == op.revision))


def _creates(op: Operation) -> frozenset[int]:
    """Return the create_revisions that the operation reports for the record that it finds."""
    seen = {step.seen.create_revision for step in op.steps if step.seen is not None and step.seen.found}
    return frozenset(r for r in seen if r and not (op.writes and r == op.revision))
