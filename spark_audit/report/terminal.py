"""The verdict on a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from spark_audit.verdict.verdict import LINEARIZABLE, PROPERTIES, SHOWN_MAX, UNDECIDED, VIOLATION, Verdict, Violation
from spark_audit.verdict.words import levels_words, services_words

_STYLES = {LINEARIZABLE: "bold green", VIOLATION: "bold red", UNDECIDED: "bold yellow"}
_WORDS = {LINEARIZABLE: "holds", VIOLATION: "VIOLATED", UNDECIDED: "UNDECIDED"}


def print_verdict(verdict: Verdict, console: Console) -> None:
    """Print the properties, the counterexamples and the open questions.

    The verdict comes last, because the end of the output stays visible.
    """
    console.print(_properties(verdict))
    for words in (services_words(verdict), levels_words(verdict)):
        if words is not None:
            console.print(words, highlight=False)
    for violation in verdict.violations:
        _print_violation(violation, console)
    for open_question in verdict.undecided:
        where = f"key {open_question.key}: " if open_question.key is not None else ""
        console.print(Text.assemble(("undecided ", _STYLES[UNDECIDED]), f"{where}{open_question.reason}"))
    hidden = sum(prop.violated + prop.undecided for prop in verdict.properties.values())
    hidden -= len(verdict.violations) + len(verdict.undecided)
    if hidden > 0:
        console.print(f"… and {hidden} more (the first {SHOWN_MAX} of each property are shown)")
    console.print(_summary(verdict))


def _properties(verdict: Verdict) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("property", overflow="fold")
    for name in ("checked", "violated", "undecided"):
        table.add_column(name, justify="right")
    table.add_column("")
    for name, prop in verdict.properties.items():
        outcome = Text(_WORDS[prop.status], _STYLES[prop.status]) if prop.checked else Text("nothing to check", "dim")
        counts = [f"{n:,}" if n else "–" for n in (prop.checked, prop.violated, prop.undecided)]
        table.add_row(PROPERTIES[name], *counts, outcome)
    return table


def _print_violation(violation: Violation, console: Console) -> None:
    where = f"run {violation.run_id}" + (f", key {violation.key}" if violation.key is not None else "")
    console.print(Text.assemble(("\nviolation ", _STYLES[VIOLATION]), (where, "bold")))
    console.print(Text(f"  {violation.text}"))
    if not violation.operations:
        return
    start = min(op.call_ns for op in violation.operations)
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2))
    for name in ("  called", "returned"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("client", no_wrap=True)
    table.add_column("operation", overflow="fold")
    for op in violation.operations:
        end = f"{(op.return_ns - start) / 1e6:+.3f} ms" if op.return_ns is not None else "never"
        table.add_row(f"  {(op.call_ns - start) / 1e6:+.3f} ms", end, op.client, Text(op.words))
    console.print(table)


def _summary(verdict: Verdict) -> Text:
    keys = ", ".join(f"{count:,} by {method}" for method, count in sorted(verdict.methods.items()))
    engine = "in Spark" if verdict.engine == "spark" else "in this process"
    counts = (
        f"  {verdict.operations:,} operations ({verdict.unknown:,} of unknown outcome, {verdict.failed:,} failed) of "
        f"{verdict.runs:,} run{'s' if verdict.runs != 1 else ''}; keys: {keys or 'none'}; "
        f"{verdict.revision_gaps:,} revisions not among the acknowledged; {verdict.seconds:.1f} s, {engine}"
    )
    return Text.assemble("\n", (verdict.status.upper(), _STYLES[verdict.status]), counts)
