"""Decides one key.

The decision for one key has no side effects; the Spark job, the local engine and the simulator all run this code.
First, the witness tries to prove that the key is linearizable. If the witness fails, the code looks for a few
operations that have no valid order even by themselves, because they prove a violation. If it finds none, the search
decides. The search first tries orders with the writes in the order of their revisions, then all other orders. A key
that is not decided within `configurations_max` is undecided.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from spark_audit.history.clocks import Clocks
from spark_audit.history.operation import Operation
from spark_audit.key.appends import resolve_appends
from spark_audit.key.conflict_guesses import CORES_MAX, cores
from spark_audit.key.counterexample import ANYTHING, NOTHING, Excerpt, shrink, tokens_observed
from spark_audit.key.unplaced_writes import unplaced_writes
from spark_audit.key.wgl_search import SearchResult, search, widened
from spark_audit.key.witness import witness
from spark_audit.store.revision_claims import UnplacedWrite

CONFIGURATIONS_MAX = 300_000  # The default of `--configurations-max`, for each key: about 10 s of search.
CORE_CONFIGURATIONS_MAX = 5_000  # The maximum number of configurations for one guess (a small set of operations).
# The maximum number of operations in a guess, including the writes that its reads may have read from.
CORE_OPERATIONS_MAX = 16
# The maximum number of configurations that are spent to shrink a counterexample. A counterexample is valid even if it
# is not the smallest.
SHRINK_CONFIGURATIONS_MAX = 100_000


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision for one key.

    `status`: linearizable, violation or undecided. `method`: witness, search or excerpt. `needs_replay`: True if the
    order of revisions is not proven to explain the key; a replay of the whole store can prove this. `counterexample`:
    for a violation, a few operations that are impossible by themselves. `suspicion`: the reason why the witness failed.
    `unplaced`: the unplaced writes in the order of the witness (`store/revision_claims.py`).
    """

    status: str
    method: str
    configurations: int = 0
    counterexample: tuple[Operation, ...] = ()
    suspicion: str = ""
    needs_replay: bool = False
    unplaced: tuple[UnplacedWrite, ...] = ()


def decide(
    operations: Sequence[Operation],
    clocks: Clocks,
    *,
    configurations_max: int = CONFIGURATIONS_MAX,
    key: str = "",
) -> Decision:
    """Decide one key of one run. Its operations may be given in any order."""
    seen = witness(operations, clocks)
    if seen.verified:
        unplaced = unplaced_writes(key, seen.order) if seen.guessed else ()
        return Decision("linearizable", "witness", needs_replay=unplaced is None, unplaced=unplaced or ())
    strict = [op for op in operations if op.weak is None]
    if len({op.clock for op in strict}) > 1:
        return _decide_across_clocks(strict, clocks, configurations_max, seen.reason)
    resolved = resolve_appends(strict)
    if resolved.core:
        return Decision("violation", "excerpt", 0, tuple(_by_time(resolved.core)), seen.reason)
    excerpt = Excerpt(resolved.operations)
    proof = _impossible_core(excerpt, resolved.now(seen.at))
    if proof:
        return Decision("violation", "excerpt", 0, tuple(_by_time(resolved.with_evidence(proof))), seen.reason)
    found = _search_both_ways(resolved.operations if resolved.exact else strict, configurations_max)
    if found.linearizable is None:
        return Decision("undecided", "search", found.configurations, (), seen.reason, True)
    if found.linearizable:
        return Decision("linearizable", "search", found.configurations, (), seen.reason, True)
    assert found.at is not None
    refuted = excerpt if resolved.exact else Excerpt(strict)  # The proof may need dropped observations.
    shown = resolved.with_evidence(_smallest(refuted, found.at))
    return Decision("violation", "search", found.configurations, tuple(_by_time(shown)), seen.reason)


def decide_core(core: Sequence[Operation], writers: Sequence[Operation]) -> Decision | None:
    """Return the violation that the operations of `core` show by themselves; None if no violation is found within the
    bounds.

    All operations must be of one key and one clock, and none may be a weak read or an append. `writers`: every write
    outside the core, including unknown writes, on which an operation of the core depends. An operation depends on a
    write if it found or expected the value of the write, or compared with its revision. The caller leaves out all other
    operations of the key, so observations that depend on them are dropped (key/counterexample.py has the proof).
    """
    excerpt = Excerpt([*core, *writers])
    kept = [_alone(op, excerpt) for op in core]
    excerpt = Excerpt([*(op for op in kept if op is not None), *(w.without_reads() or w for w in writers)])
    candidate = excerpt.completed(excerpt.operations[: sum(op is not None for op in kept)], CORE_OPERATIONS_MAX)
    if len(candidate) > CORE_OPERATIONS_MAX or not _is_impossible(candidate):
        return None
    proof = _with_sources(excerpt, shrink(excerpt, candidate, _is_impossible))
    return Decision("violation", "excerpt", 0, tuple(_by_time(proof)))


def _alone(op: Operation, excerpt: Excerpt) -> Operation | None:
    """Return the operation without versions and creation revisions, because they depend on other writes.

    If an observation does not name the value that it found, all observations are dropped.
    """
    if ANYTHING in tokens_observed(op, excerpt.value_at):
        return op.without_reads()
    steps = (
        step if step.seen is None else replace(step, seen=replace(step.seen, version=None, create_revision=None))
        for step in op.steps
    )
    return replace(op, steps=tuple(steps))


def _decide_across_clocks(
    strict: Sequence[Operation], clocks: Clocks, configurations_max: int, suspicion: str
) -> Decision:
    """Decide operations of several clocks. Their stamps are moved to one common axis, which loses some precedences.

    If the operations are impossible even without the lost precedences, they are a violation. Otherwise the key is
    undecided.
    """
    axis = widened(strict, [clocks.widened(op) for op in strict])
    found = search(axis, configurations_max=configurations_max)
    if found.linearizable is not False:
        return Decision("undecided", "search", found.configurations, (), suspicion or "several clocks", True)
    assert found.at is not None
    shown = {op.op_id for op in _smallest(Excerpt(axis), found.at)}
    kept = (op for op in strict if op.op_id in shown)
    return Decision("violation", "search", found.configurations, tuple(_by_time(kept)), suspicion)


def _search_both_ways(strict: Sequence[Operation], configurations_max: int) -> SearchResult:
    spent = 0
    if any(op.revision is not None for op in strict):
        found = search(strict, configurations_max=max(1, configurations_max // 2), ordered=True)
        if found.linearizable:
            return found
        spent = found.configurations
    found = search(strict, configurations_max=max(1, configurations_max - spent))
    return SearchResult(found.linearizable, found.configurations + spent, found.at)


def _impossible_core(excerpt: Excerpt, hint: Operation | None) -> list[Operation]:
    for tried, core in enumerate(cores(excerpt, hint)):
        if tried >= CORES_MAX:
            break
        candidate = excerpt.completed(core, CORE_OPERATIONS_MAX)
        if len(candidate) <= CORE_OPERATIONS_MAX and _is_impossible(candidate):
            return _with_sources(excerpt, shrink(excerpt, candidate, _is_impossible))
    return []


def _with_sources(excerpt: Excerpt, proof: list[Operation]) -> list[Operation]:
    """Add the writes that the reads of the proof read from.

    The proof is complete without these writes, but it is easier to follow with them.
    """
    have = {op.op_id for op in proof}
    tokens = {token for op in proof for token in tokens_observed(op, excerpt.value_at)}
    sources = [w for token in sorted(tokens - {NOTHING}) for w in excerpt.writers.get(token, ())[:2]]
    more = [w.without_reads() or w for w in sources if w.op_id not in have]
    shown = excerpt.sound([*proof, *more])
    return shown if more and _is_impossible(shown) else proof


def _is_impossible(operations: Sequence[Operation]) -> bool:
    return search(operations, configurations_max=CORE_CONFIGURATIONS_MAX).linearizable is False


def _smallest(excerpt: Excerpt, at: Operation) -> list[Operation]:
    """Reduce a refuted history to a few operations that the search still refutes.

    The first step keeps only some operations that precede the return of `at`, the operation at which the search failed.
    The second step drops as many of these operations as possible (`shrink`).
    """
    left = SHRINK_CONFIGURATIONS_MAX

    def impossible(operations: Sequence[Operation]) -> bool:
        nonlocal left
        if left <= 0:
            return False
        found = search(operations, configurations_max=left)
        left -= found.configurations + len(operations)
        return found.linearizable is False

    until = sorted((op for op in excerpt.operations if op.call_ns <= at.return_ns), key=lambda op: op.return_ns)
    settled = [op if op.return_ns <= at.return_ns else op.without_reads() for op in until]
    history = [op for op in settled if op is not None]
    end = next(i for i, op in enumerate(history) if op.op_id == at.op_id) + 1
    length = CORE_OPERATIONS_MAX
    while length < len(history):
        window = excerpt.completed(history[max(0, end - length) : end], 4 * length)
        if impossible(window):
            return _with_sources(excerpt, shrink(excerpt, window, impossible))
        length *= 4
    start = excerpt.sound(history)
    if start and impossible(start):
        return _with_sources(excerpt, shrink(excerpt, start, impossible))
    return list(excerpt.operations)


def _by_time(operations: Iterable[Operation]) -> list[Operation]:
    return sorted(operations, key=lambda op: (op.call_ns, op.op_id))
