"""Two rules that reduce the number of configurations that the search visits.

States that no response can distinguish are merged. A value that must still be read is not overwritten, unless a
remaining operation can write it again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from spark_audit.history.operation import FOREVER, Operation, Step
from spark_audit.model.key import State

UNREAD = "\0unread"  # Replaces every value that is never read.


@dataclass(frozen=True, slots=True)
class Observability:
    """The parts of a state that the responses of a history depend on.

    All other parts may be dropped, so that many states become one. `mod`, `create`, `version`: whether responses depend
    on this number. `values`: the values that responses name; None if every value matters, because there are appends, or
    comparisons that depend on the text of values. `begun`: in a history with appends, the sorted values that responses
    name. A value that is not a prefix of any value in `begun` can never become one of these values, so all values of
    this kind are equivalent.
    """

    mod: bool
    create: bool
    version: bool
    values: frozenset[str] | None
    begun: tuple[str, ...] | None = None

    @classmethod
    def of(cls, operations: Sequence[Operation]) -> Observability:
        """Collect the parts that the responses of these operations depend on."""
        steps = [step for op in operations for step in op.steps]
        targets = {guard.target for op in operations for guard in op.guards}
        seen = [step.seen for step in steps if step.seen is not None and step.seen.found]
        appends = any(step.kind == "append" for step in steps)
        whole = "value" in targets or appends
        names = {name for name in (*(s.value for s in seen), *(step.expected for step in steps)) if name is not None}
        return cls(
            mod="mod_revision" in targets
            or any(s.mod_revision is not None for s in seen)
            or any(step.expected_mod_revision is not None for step in steps),
            create="create_revision" in targets or any(s.create_revision is not None for s in seen),
            version="version" in targets or any(s.version is not None for s in seen),
            values=None if whole else frozenset(names),
            begun=tuple(sorted(names)) if appends and "value" not in targets else None,
        )

    def of_state(self, state: State) -> State:
        """Return the state without the parts that no response depends on."""
        value, mod, create, version = state
        if self.begun is not None and value is not None and not self._begins_one(value):
            value = UNREAD
        if not self.version:
            version = min(version, self._version_max)
        return (value, mod if self.mod else None, create if self.create else None, version)

    @property
    def _version_max(self) -> int:
        """The version that replaces all higher versions if no response depends on versions.

        If responses depend on both revisions, version 1 stays distinct, because it shows that the record was not
        written again after its creation.
        """
        return 2 if self.mod and self.create else 0

    def _begins_one(self, value: str) -> bool:
        assert self.begun is not None
        place = bisect_left(self.begun, value)
        return place < len(self.begun) and self.begun[place].startswith(value)

    def simplified(self, op: Operation) -> Operation:
        """Return the operation with UNREAD in place of each value that is never read."""
        if self.values is None or not any(
            step.value is not None and step.value not in self.values for step in op.steps
        ):
            return op
        steps = (s if s.value is None or s.value in self.values else replace(s, value=UNREAD) for s in op.steps)
        return replace(op, steps=tuple(steps))


class PendingReads:
    """The values that future calls must find, and the operations that may still write these values.

    None stands for absence. If a future call must find a value, and no remaining operation can write this value again,
    a configuration that overwrites the value is a dead end.
    """

    def __init__(self, operations: Sequence[Operation]) -> None:
        # The value that an append writes depends on the value before it, so `_may_write` cannot know the written value.
        blind = any(step.kind == "append" for op in operations for step in op.steps)
        self._needs = [[] if blind else _needs(op) for op in operations]
        self._may_write = [_may_write(op) for op in operations]
        self._reads = Counter(token for tokens in self._needs for token in tokens)
        self._writes = Counter(token for tokens in self._may_write for token in tokens)

    def called(self, position: int) -> None:
        """Record that the operation at `position` has been called, so that it is no longer a future call."""
        self._reads.subtract(self._needs[position])
        self._writes.subtract(self._may_write[position])

    def is_awaited(self, token: str | None) -> bool:
        """Return whether a future call must find the value, and no future call may write it."""
        return self._reads[token] > 0 and self._writes[token] <= 0

    def may_write(self, position: int, token: str | None) -> bool:
        """Return whether this operation may write the value."""
        return token in self._may_write[position]


def _needs(op: Operation) -> list[str | None]:
    if op.unknown or op.return_ns == FOREVER or op.guards or len(op.steps) != 1:
        return []
    step = op.steps[0]
    if step.kind == "get" or (step.kind == "cas" and step.flag is False):
        return _seen_token(step)
    if step.kind == "cas" and step.expected_mod_revision is None:
        return [step.expected]
    return [None] if step.kind == "delete" and step.flag is False else []


def _seen_token(step: Step) -> list[str | None]:
    if step.seen is None or (step.seen.found and step.seen.value is None):
        return []
    return [step.seen.value if step.seen.found else None]


def _may_write(op: Operation) -> list[str | None]:
    return [
        None if step.kind == "delete" else step.value
        for step in op.steps
        if step.kind in ("put", "append", "delete") or (step.kind == "cas" and step.flag is not False)
    ]
