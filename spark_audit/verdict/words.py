"""Describes operations and violations in words, for the readers of a verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, combinations
from typing import Any

from spark_audit.history.clocks import Clocks
from spark_audit.history.operation import FOREVER, Operation, Seen, Step
from spark_audit.history.services import SERVICE_OPS, number_words
from spark_audit.key.counterexample import ANYTHING, NOTHING, tokens_observed, tokens_written
from spark_audit.verdict.verdict import LEVEL_PROPERTIES, SERVICE_PROPERTIES, Verdict

VALUE_CHARACTERS_MAX = 40  # A sentence shows at most this many characters of a value.


def describe(op: Operation) -> str:
    """Return what an operation did to its key, as in `get #812 returned v17 (revision 40)`."""
    held = "found" if op.guards_hold else "did not find all of"
    guards = [f"{held} {', '.join(f'{g.target} {g.sign} {g.value}' for g in op.guards)}"] if op.guards else []
    text = "; ".join([*guards, *(_step_words(step, op) for step in op.steps)]) or "compared it"
    return f"{op.name} {number_words(op.op_id)} {text}{_revision_words(op)}"


def _revision_words(op: Operation) -> str:
    if op.unknown:
        return ", its outcome unknown"
    shown = op.steps[0].seen if len(op.steps) == 1 else None
    if shown is not None and shown.found:
        return ""  # The text of the step already includes the revision.
    return f" (revision {op.revision})" if op.revision is not None else ""


def _step_words(step: Step, op: Operation) -> str:
    done = not op.unknown
    # A step of another kind means that key/appends.py has replaced the append by a compare-and-set or a put.
    if op.name == "append" and step.kind != "append":
        return _append_words(step)
    match step.kind:
        case "get":
            verb = {"get": "returned", "range": "listed"}.get(op.name, "read")
            return f"{verb} {_seen_words(step.seen)}" if step.seen is not None else "read"
        case "put":
            return f"{'wrote' if done else 'may have written'} {short(step.value)}"
        case "append":
            return f"{'appended' if done else 'may have appended'} {short(step.value)}"
        case "delete":
            if step.flag is False:
                return "found nothing to remove"
            return "removed the key" if done else "may have removed the key"
    expected = f"revision {step.expected_mod_revision}" if step.expected_mod_revision else short(step.expected)
    if step.flag is False:
        seen = f", it saw {_seen_words(step.seen)}" if step.seen is not None else ""
        return f"refused to write {short(step.value)} over {expected}{seen}"
    return f"{'wrote' if done else 'may have written'} {short(step.value)} over {expected}"


def _append_words(step: Step) -> str:
    left = step.value or ""
    if step.kind == "put":
        return f"left …{left[-VALUE_CHARACTERS_MAX:]}"
    return f"appended {short(left[len(step.expected or '') :])}, which made {_end(left)}"


def _seen_words(seen: Seen | None) -> str:
    if seen is None or not seen.found:
        return "nothing (the key absent)"
    details = [f"revision {seen.mod_revision}"] if seen.mod_revision is not None else []
    details += [f"version {seen.version}"] if seen.version is not None else []
    return (short(seen.value) if seen.value is not None else "a record") + (
        f" ({', '.join(details)})" if details else ""
    )


def short(value: str | None) -> str:
    """Return the text by which a sentence shows a value."""
    if value is None:
        return "nothing"
    text = value if value.isprintable() and value and " " not in value else repr(value)
    return text if len(text) <= VALUE_CHARACTERS_MAX else f"{text[: VALUE_CHARACTERS_MAX - 1]}…"


def span(nanoseconds: int) -> str:
    """Return a duration with three significant digits and a unit."""
    for unit, size in (("s", 10**9), ("ms", 10**6), ("µs", 10**3)):
        if nanoseconds >= size:
            return f"{nanoseconds / size:.3g} {unit}"
    return f"{nanoseconds} ns"


def sentence(proof: Sequence[Operation], failed_values: Mapping[str, int], clocks: Clocks) -> str:
    """Return the reason why these operations have no valid order.

    `failed_values` maps each value to the op_id of the operation that failed to write this value.
    """
    value_at: dict[int, str] = {}
    for op in proof:
        for step in op.steps:
            if op.revision is not None and step.value is not None and op.writes:
                value_at[op.revision] = step.value
    if text := _conflicting_appends(proof):
        return text
    readers = sorted((op for op in proof if tokens_observed(op, value_at)), key=lambda op: op.call_ns, reverse=True)
    for reader in readers:
        text = _reader_sentence(reader, proof, value_at, failed_values, clocks)
        if text:
            return f"{_evidence_words(reader, proof)}{text}"
    for one, other in combinations([op for op in readers if op.writes and not op.unknown], 2):
        if tokens_observed(one, value_at) & tokens_observed(other, value_at) - {ANYTHING, NOTHING}:
            return f"{describe(one)}, and {describe(other)}: both found a record that only one can have overwritten"
    return f"these {len(proof)} operations cannot be put in any order that explains their answers"


def _reader_sentence(
    reader: Operation,
    proof: Sequence[Operation],
    value_at: dict[int, str],
    failed_values: Mapping[str, int],
    clocks: Clocks,
) -> str | None:
    tokens = tokens_observed(reader, value_at) - tokens_written(
        reader
    )  # A transaction may read what it has just written.
    if not tokens:
        return None
    sources = [op for op in proof if op is not reader and tokens_written(op) & tokens]
    token = min(tokens)
    if not sources and "\0" not in token and any(step.kind == "append" for op in proof for step in op.steps):
        lost = _lost_append(reader, proof, clocks)
        return lost or f"{describe(reader)}, which fits no order of these {len(proof)} operations"
    if not sources and token != NOTHING and "\0" not in token:
        because = f" ({_failed(failed_values[token])})" if token in failed_values else ""
        return f"{describe(reader)}, a value that no operation wrote{because}"
    if sources and all(clocks.precedes(reader, op) for op in sources):
        gap = span(sources[0].call_ns - reader.return_ns)
        return f"{describe(reader)} {gap} before {describe(sources[0])} was called"
    seen = reader.steps[0].seen if reader.steps else None  # Empty if the transaction only compares this key.
    revision = seen.mod_revision if seen is not None else None
    if revision and len(sources) == 1 and sources[0].revision not in (None, revision):
        return f"{describe(reader)}, although {describe(sources[0])}: it took effect more than once"
    between = [
        op
        for op in proof
        if op.writes and not op.unknown and op not in sources and op is not reader and clocks.precedes(op, reader)
        and all(clocks.precedes(source, op) for source in sources)
    ]  # fmt: skip
    if not between:
        return None
    last = max(between, key=lambda op: op.call_ns)
    after = (
        f" and had itself been called {span(last.call_ns - sources[0].return_ns)} after {describe(sources[0])}"
        if sources
        else ""
    )
    if last.return_ns == FOREVER:
        return None
    gap = span(reader.call_ns - last.return_ns)
    return f"{describe(reader)}, although {describe(last)} had returned {gap} before it was called{after}"


def _evidence_words(append: Operation, proof: Sequence[Operation]) -> str:
    """Return words that name a read which shows the result of this append; empty if no read shows it."""
    left = append.steps[0].value if append.name == "append" and append.steps[0].kind == "cas" else None
    for op in proof if left is not None else ():
        for step in op.steps:
            if step.seen is not None and (step.seen.value or "").startswith(left or ""):
                return f"as {op.name} #{op.op_id} shows, "
    return ""


def _conflicting_appends(proof: Sequence[Operation]) -> str | None:
    """Return the sentence for an append that found two different values, according to reads. Return None if there is no
    such append."""
    writes = [op for op in proof if op.writes]
    append = writes[0] if len(writes) == 1 and writes[0].steps[0].kind == "append" else None
    text = append.steps[0].value if append is not None else None
    if append is None or not text:
        return None
    found = [
        f"{op.name} #{op.op_id} has it after {_end(before)}"
        for op in proof
        for step in op.steps
        if step.seen is not None and op is not append
        for before in list(accumulate((step.seen.value or "").split(text), lambda a, b: a + text + b))[:-1]
    ]
    return f"{describe(append)}, once; yet {', and '.join(found)}" if len(found) > 1 else None


def _end(text: str) -> str:
    return (text if len(text) <= VALUE_CHARACTERS_MAX else f"…{text[-VALUE_CHARACTERS_MAX:]}") or "nothing"


def _lost_append(reader: Operation, proof: Sequence[Operation], clocks: Clocks) -> str | None:
    """Return the sentence for a read that lacks an earlier append although nothing overwrote the append. Return None if
    no append is lost."""
    seen = reader.steps[0].seen if len(reader.steps) == 1 else None
    if seen is None or seen.value is None:
        return None
    overwriting = [op for op in proof if op.writes and any(step.kind != "append" for step in op.steps)]
    for op in proof:
        step = op.steps[0] if len(op.steps) == 1 else None
        if step is None or step.kind != "append" or (step.value or "") in seen.value or not clocks.precedes(op, reader):
            continue
        if all(clocks.precedes(other, op) for other in overwriting):
            gap = span(reader.call_ns - op.return_ns)
            return f"{describe(reader)}, although {describe(op)} had returned {gap} before it was called"
    return None


def _failed(op_id: int) -> str:
    return f"operation #{op_id}, which would have written it, was reported as certainly failed"


def row_words(row: Mapping[str, Any]) -> str:
    """Return the words for a whole row in findings about the whole store. Such a row may concern several keys."""
    key = f" of {short(row['key'])}" if row.get("key") else ""
    text = f" (revision {row['revision']})" if row["return_ns"] is not None else ", its outcome unknown"
    if row["op"] in SERVICE_OPS and row["return_ns"] is not None and row["revision"] is None:
        text = ""
    return f"{row['op']} {number_words(row['op_id'])}{key}{text}"


def services_words(verdict: Verdict) -> str | None:
    """Return a sentence about the checks of watches; None if the history has no rows of services."""
    if not any(name in SERVICE_PROPERTIES for name in verdict.properties):
        return None
    lags = [f"p{percent} {span(lag)}" for percent in (50, 99) if (lag := verdict.lag_ns(percent)) is not None]
    late = f"; they arrived after the return of their write by {', '.join(lags)}" if lags else ""
    settled = f"; {verdict.settled:,} unknown writes were settled by events" if verdict.settled else ""
    watches = f"{verdict.watches:,} watch{'es' if verdict.watches != 1 else ''}"
    return f"judged: {verdict.events:,} event{'s' if verdict.events != 1 else ''} of {watches}{late}{settled}"


def levels_words(verdict: Verdict) -> str | None:
    """Return a sentence about the writes with acknowledgement levels; None if the history has none."""
    if not any(name in LEVEL_PROPERTIES for name in verdict.properties):
        return None
    text = f"accepted writes: {verdict.settled:,} unknown writes were settled, {verdict.lost:,} were lost"
    if verdict.in_sync_unjudged:
        copies = f"the copies of {verdict.in_sync_unjudged:,} in-sync writes were not judged"
        text += f"; {copies}, because run.json has no min_in_sync"
    return text
