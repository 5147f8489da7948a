"""The unplaced writes (`store/revision_claims.py`) of one key, and their alternative ranges.

An unplaced write is an unknown write in the key's order whose revision no response named. A *hidden* put is an unknown
put that was never read. A hidden put may be moved to another place under three conditions: no response between the two
places reports a version, the record exists throughout, and the operation after the new place does not depend on the
record. Such a move changes no response. No response distinguishes hidden puts from each other, or unknown deletions
from each other. So the order uses the writes called first, in the order of their calls. docs/internals/audit-proofs.md,
section 9, proves both rules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice

from spark_audit.history.operation import FOREVER, Operation
from spark_audit.model.key import ABSENT, State, advance
from spark_audit.store.revision_claims import RevisionRange, UnplacedWrite

PLACES_AWAY_MAX = 512  # The maximum number of places by which a hidden put is moved.

STOP, LOOKS, BLIND, UNNAMED, UNNAMED_PUT, HIDDEN = range(6)
"""Kinds of operations. The kind determines whether a hidden put may be moved past the operation, or to the place right
before it.

- STOP: the hidden put cannot pass the operation.
- LOOKS: the hidden put can pass the operation, but not stay right before it.
- BLIND: a put that has a revision. The hidden put can pass it, or be placed right before it.
- UNNAMED: an unknown write that has no revision, and that is not a put. The hidden put can pass it, but not stay right
  before it.
- UNNAMED_PUT: an unknown put that has no revision, and whose value was read. The hidden put can pass it, and can be
  placed right before it if the hidden put was not called later than it.
- HIDDEN: another hidden put.
"""


def alternative_ranges(
    kinds: Sequence[int], revisions: Sequence[int], calls: Sequence[int], own: int
) -> tuple[RevisionRange, ...]:
    """Return the revisions that the hidden put at the place `own` may have at this or another place, as ascending
    ranges.

    `kinds`, `revisions` (0 or less: not named) and `calls` (ns of one clock) describe `own` and the places around it,
    in order. The hidden put may be placed right before an UNNAMED_PUT that was not called earlier than the hidden put,
    because the two can then exchange their revisions.
    """
    at = own
    while at > 0 and kinds[at - 1] != STOP:
        at -= 1
    found: list[RevisionRange] = []
    before = at - 1  # The last place before `at` whose operation is not a hidden put.
    while at < len(kinds):
        lands = kinds[at] == BLIND or (kinds[at] == UNNAMED_PUT and calls[own] <= calls[at])
        if lands and before >= 0 and revisions[before] > 0:
            end = at
            while end < len(kinds) and revisions[end] <= 0:
                end += 1
            if end == len(kinds):
                break
            low, high = revisions[before] + 1, revisions[end] - 1
            if found and found[-1][1] + 2 == low:
                # The two ranges are joined. The revision between them belongs to another write, so it is never chosen.
                found[-1] = (found[-1][0], high)
            elif low <= high:
                found.append((low, high))
        if kinds[at] == STOP:
            break
        before = before if kinds[at] == HIDDEN else at
        at += 1
    return tuple(found)


def unplaced_writes(
    key: str, order: Sequence[tuple[Operation, int | None]], *, initial: State = ABSENT, after: int = 1
) -> tuple[UnplacedWrite, ...] | None:
    """Return the unplaced writes of an order that `witness.py` verified.

    The order begins in the state `initial`, whose revisions are at most `after`. The result is None if the order has a
    transaction, if its revisions do not ascend, or if a response depends on a revision that cannot be assigned.
    """
    revisions = _named(order, initial)
    if revisions is None:
        return None
    kinds = _kinds(order, revisions, initial)
    found: list[UnplacedWrite] = []
    waiting: list[tuple[Operation, tuple[RevisionRange, ...]]] = []
    for place, ((op, given), revision) in enumerate(zip(order, revisions, strict=True)):
        if revision is None:
            waiting.append((op, _elsewhere(order, kinds, revisions, place)))
            continue
        writes = op.unknown or op.writes
        if revision < after + writes:
            return None
        found.extend(_unplaced(key, one, after + 1, revision - writes, also) for one, also in waiting)
        waiting.clear()
        if given is None:
            found.append(_unplaced(key, op, revision, revision))
        after = revision
    found.extend(_unplaced(key, one, after + 1, FOREVER, also) for one, also in waiting)
    return tuple(found)


def _unplaced(key: str, op: Operation, low: int, high: int, also: tuple[RevisionRange, ...] = ()) -> UnplacedWrite:
    return UnplacedWrite(key, low, high, op.call_ns, op.clock, also, op.op_id)


def _elsewhere(
    order: Sequence[tuple[Operation, int | None]], kinds: list[int], revisions: Sequence[int | None], place: int
) -> tuple[RevisionRange, ...]:
    if kinds[place] != HIDDEN:
        return ()
    begin, end = max(0, place - PLACES_AWAY_MAX), place + PLACES_AWAY_MAX
    numbers = [revision or 0 for revision in revisions[begin:end]]
    clock = order[place][0].clock
    calls = [op.call_ns if op.clock == clock else -(2**63) for op, _ in order[begin:end]]
    return alternative_ranges(kinds[begin:end], numbers, calls, place - begin)


def _kinds(order: Sequence[tuple[Operation, int | None]], revisions: Sequence[int | None], initial: State) -> list[int]:
    """Return the kind of the operation at each place. `revisions`: the result of `_named`."""
    found = values_found([op for op, _ in order])
    kinds: list[int] = []
    state = initial
    for (op, given), revision in zip(order, revisions, strict=True):
        step, present = op.steps[0], state[0] is not None
        counts = step.seen is not None and step.seen.version is not None
        if not present or counts or (op.writes and step.kind == "delete"):
            kinds.append(STOP)
        elif revision is None:
            hidden = op.unknown and step.value not in found
            kinds.append((HIDDEN if hidden else UNNAMED_PUT) if step.kind == "put" else UNNAMED)
        else:
            kinds.append(BLIND if step.kind == "put" else LOOKS)
        now = advance(state, op, given)
        assert now is not None, "a verified order"
        state = now
    return kinds


def _named(order: Sequence[tuple[Operation, int | None]], initial: State) -> list[int | None] | None:
    """Return the revision of each operation, or None for an operation whose revision no response names.

    A later response can name the revision of an unknown write as a creation revision, or a compare-and-set can expect
    it. The whole result is None if the order has a transaction, or if a revision that a response depends on cannot be
    assigned to a write.
    """
    revisions = [revision for _, revision in order]
    state, writer, creator = initial, -1, -1

    def name(place: int, revision: int | None) -> bool:
        if place < 0 or revision is None or revisions[place] not in (None, revision):
            return False
        revisions[place] = revision
        return True

    for place, (op, revision) in enumerate(order):
        if op.guards or len(op.steps) != 1:
            return None
        step = op.steps[0]
        compares = step.kind == "cas" and bool(step.expected_mod_revision)
        unnamed = state[0] is not None and state[1] is None
        if compares and unnamed and (step.flag is False or not name(writer, step.expected_mod_revision)):
            return None
        now = advance(state, op, revision)
        assert now is not None, "a verified order"
        if not op.writes:
            if now[1] != state[1] and not name(writer, now[1]):
                return None
            if now[2] != state[2] and not name(creator, now[2]):
                return None
        else:
            writer, creator = place, place if state[0] is None else creator
        state = now
    return revisions


def values_found(operations: Sequence[Operation]) -> set[str | None]:
    """Return the values that these operations found, or must have found if they took effect."""
    found = {step.seen.value for op in operations for step in op.steps if step.seen is not None}
    found.update(step.expected for op in operations for step in op.steps if step.flag is not False)
    return found


def with_earliest_calls(
    order: Sequence[tuple[Operation, int | None]], operations: Sequence[Operation]
) -> tuple[tuple[Operation, int | None], ...]:
    """Some places have an unknown put that no operation can have seen. Choose the put for each of these places again.

    The candidates are all unknown puts of the key whose values no operation in the order found. The candidates that
    were called first are used, in the order of their calls. Deletions of unknown outcome are treated in the same way.
    `operations`: all operations of the key.
    """
    found = values_found([op for op, _ in order])
    made = list(order)
    for kind in ("put", "delete"):
        alike = {
            op.op_id: op
            for op in operations
            if op.unknown and op.name == kind and not op.guards and (kind == "delete" or op.steps[0].value not in found)
        }
        places = [place for place, (op, _) in enumerate(order) if op.op_id in alike]
        moving = [place for place in places if order[place][1] is None]
        if kind == "put":
            moving = [place for place in moving if _is_unobserved(order, place, alike)]
        for place in set(places).difference(moving):
            alike.pop(order[place][0].op_id)
        if len({op.clock for op in alike.values()}) == 1:
            called = sorted(alike.values(), key=lambda op: (op.call_ns, op.op_id))
            for place, op in zip(moving, called, strict=False):
                made[place] = (op, None)
    return tuple(made)


def _is_unobserved(order: Sequence[tuple[Operation, int | None]], place: int, alike: Mapping[int, Operation]) -> bool:
    """Return whether the next operation after this place is independent of the value that is written there. It is
    independent if neither its response nor its effect depends on this value.

    To find the next operation, the operations in `alike` are skipped. A deletion is independent, because it does not
    report which record it found.
    """
    following = (op for op, _ in islice(order, place + 1, None) if op.op_id not in alike)
    after = next(following, None)
    return after is None or (after.name in ("put", "delete") and not after.guards)
