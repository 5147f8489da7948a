"""The sequential specification of one key: a register with versions.

A state is a plain tuple `(value, mod_revision, create_revision, version)`; a value of None means that the key is
absent. A revision in a state is None if it is not known yet, because the write has an unknown outcome or the history
has no revisions. The first response that reports this revision determines it, and every later response must agree.
`advance` decides whether a response is possible in a state.

See docs/reference/specification.md#81-records-and-revisions.
"""

from __future__ import annotations

from typing import TypeAlias

from spark_audit.history.operation import Guard, Operation, Seen, Step, as_bytes

State: TypeAlias = tuple[str | None, int | None, int | None, int]

ABSENT: State = (None, 0, 0, 0)


def advance(state: State, operation: Operation, revision: int | None) -> State | None:
    """Return the state after `operation`, or None if its response is not possible in this state.

    `revision`: the revision of the operation's writes, or None if it is not known. The result is also None for a
    deletion of unknown outcome that would find no record, and for a compare-and-set of unknown outcome that would fail.
    Such an operation would change nothing. So an order without it is equivalent, and is cheaper to find.
    """
    if operation.guards and not _guards_agree(state, operation):
        return None
    now: State | None = state
    for step in operation.steps:
        assert now is not None
        now = _take(now, step, revision, operation.unknown)
        if now is None:
            return None
    return now


def _take(state: State, step: Step, revision: int | None, unknown: bool) -> State | None:
    kind = step.kind
    if kind == "get":
        return state if step.seen is None else observed(state, step.seen)
    if kind == "put":
        assert step.value is not None
        return _written(state, step.value, revision)
    if kind == "cas":
        return _compare_and_set(state, step, revision)
    if kind == "append":
        return _written(state, (state[0] or "") + (step.value or ""), revision)
    assert kind == "delete", kind
    there = state[0] is not None
    if step.flag is None:
        return None if unknown and not there else ABSENT
    return ABSENT if step.flag == there else None


def _compare_and_set(state: State, step: Step, revision: int | None) -> State | None:
    assert step.value is not None
    holds = _expectation_holds(state, step)
    if step.flag is False:
        if holds:
            return None
        return state if step.seen is None else observed(state, step.seen)
    if holds is False:
        return None
    found = _with_revisions(state, step.expected_mod_revision, None) if holds is None else state
    return None if found is None else _written(found, step.value, revision)


def _expectation_holds(state: State, step: Step) -> bool | None:
    """Return whether the compare-and-set finds the record that it expects; None if this depends on a revision that is
    not known yet."""
    if step.expected_mod_revision is None:
        return state[0] == step.expected
    if state[0] is not None and state[1] is None and step.expected_mod_revision != 0:
        return None
    return state[1] == step.expected_mod_revision


def _written(state: State, value: str, revision: int | None) -> State:
    if state[0] is None:
        return (value, revision, revision, 1)
    return (value, revision, state[2], state[3] + 1)


def observed(state: State, seen: Seen) -> State | None:
    """Return the state with the revisions that `seen` reports; None if `seen` contradicts the state."""
    value, _, _, version = state
    if not seen.found:
        return state if value is None else None
    if value is None or (seen.value is not None and seen.value != value):
        return None
    if seen.version is not None and seen.version != version:
        return None
    return _with_revisions(state, seen.mod_revision, seen.create_revision)


def _with_revisions(state: State, seen_mod: int | None, seen_create: int | None) -> State | None:
    """Return the state with these revisions for its record; None if the record has other revisions."""
    value, mod, create, version = state
    if seen_mod is not None and seen_mod != mod:
        if mod is not None:
            return None
        mod = seen_mod
    if seen_create is not None and seen_create != create:
        if create is not None:
            return None
        create = seen_create
    if version == 1:
        mod, create = (create if mod is None else mod), (mod if create is None else create)
    if mod is not None and create is not None and (mod == create) != (version == 1):
        return None  # The revisions are equal if and only if the version is 1.
    return state if (mod, create) == state[1:3] else (value, mod, create, version)


def _guards_agree(state: State, operation: Operation) -> bool:
    answers = [_guard_holds(state, guard) for guard in operation.guards]
    if operation.guards_hold:
        return False not in answers
    return operation.guards_hold is None or not all(answers)  # A comparison of an unknown revision (None) may fail.


def _guard_holds(state: State, guard: Guard) -> bool | None:
    value, mod, create, version = state
    have: int | str | None
    if guard.target == "value":
        if value is None:
            # If the key is absent, a comparison of its value fails (docs/reference/specification.md#85-comparisons).
            return False
        have = value
    else:
        have = {"mod_revision": mod, "create_revision": create, "version": version}[guard.target]
        if have is None:
            return None
    return compared(have, guard.sign, guard.value)


def compared(have: int | str, sign: str, want: int | str) -> bool:
    """Return the result of the comparison `have sign want`. Numbers are compared as numbers, text in the order of its
    bytes."""
    if isinstance(have, str):
        left, right = as_bytes(have), as_bytes(str(want))
        return {"=": left == right, "!=": left != right, "<": left < right, ">": left > right}[sign]
    assert isinstance(want, int), (have, want)
    return {"=": have == want, "!=": have != want, "<": have < want, ">": have > want}[sign]
