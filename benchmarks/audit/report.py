"""Makes the Markdown report of the audit's benchmark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.audit.plan import LOCAL, RIVAL, SPARK

Row = Mapping[str, Any]
_HEAD = (
    "| engine | history | operations | unknown | kernel s | with encoding s | job s | command s | peak MiB | verdict |",
    "|---|---|---|---|---|---|---|---|---|---|",
)
_FAULT_HEAD = ("| fault | history | job s | command s | verdict | shown |", "|---|---|---|---|---|---|")


def report(document: Mapping[str, Any]) -> str:
    """Return the whole report. `document`: the content of `audit.json`."""
    rows: Sequence[Row] = document["rows"]
    machine = document["machine"]
    parts = [
        "# What the audit costs",
        f"- {document['date']}, plan `{document['plan']}`, seed {document['seed']}; one measurement per row, each in a"
        f" process of its own.\n- {machine['processor']}, {machine['cores']} cores, {machine['memory_gib']} GiB;"
        f" {machine['python']}; load average before the run {machine['load_average']}.\n"
        "- kernel: the columnar kernel in one thread, median of three; job: what the audit says that it took; command:"
        " all of it, start-up included; peak: resident sizes of all its processes together, 20 samples per second.",
        *(f"- Skipped: {text}" for text in document["skipped"]),
        "## True histories",
        "\n".join([*_HEAD, *(_line(row) for row in rows if row["fault"] is None)]),
        "## One fault in a history",
        "\n".join([*_FAULT_HEAD, *(_fault_line(row) for row in rows if row["fault"] is not None)]),
        "## Growth",
        "\n".join(growth(rows)) or "Not measured.",
    ]
    if any(row["engine"] == RIVAL for row in rows):
        parts += ["## Beside Porcupine", "\n".join(beside(rows)), _RIVAL_WORDS]
    return "\n\n".join(parts) + "\n"


_RIVAL_WORDS = (
    "Porcupine decides each key of the same history with a model of the same four operations, by values alone: it is"
    " given no revisions, and has no use for them. Its job is the check without reading the file."
)


def _line(row: Row) -> str:
    kernel, encoding = (_number(row[name], 3) for name in ("kernel_seconds", "kernel_and_encoding_seconds"))
    whole = f"{_number(row['job_seconds'], 2)} | {_number(row['command_seconds'], 2)}"
    verdict = row["verdict"] + (f", {row['undecided']} undecided" if row["undecided"] else "")
    return (
        f"| {row['engine']} | {row['shape']} | {row['operations']:,} | {row['unknown_share']:.0%} | {kernel}"
        f" | {encoding} | {whole} | {_number(row['peak_mib'], 0)} | {verdict} |"
    )


def _fault_line(row: Row) -> str:
    shown = "" if row["shown_max"] is None else row["shown_max"]
    return (
        f"| {row['fault']} | {row['shape']}, {row['operations']:,} | {_number(row['job_seconds'], 2)}"
        f" | {_number(row['command_seconds'], 2)} | {row['verdict']} | {shown} |"
    )


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


def growth(rows: Iterable[Row]) -> list[str]:
    """Return a table of the audit's own time per operation at each size, for engines and shapes with several sizes."""
    grouped: dict[tuple[str, str, float], dict[int, float]] = {}
    for row in rows:
        if row["fault"] is None and row["engine"] != RIVAL and row["job_seconds"] and row["operations"] >= 100_000:
            micros = row["job_seconds"] * 1e6 / row["operations"]
            grouped.setdefault((row["engine"], row["shape"], row["unknown_share"]), {})[row["operations"]] = micros
    lines = ["| engine | history | unknown | µs of the job for an operation | last ÷ first |", "|---|---|---|---|---|"]
    for (engine, shape, unknown), micros in grouped.items():
        if len(micros) > 1:
            sizes = sorted(micros)
            cells = ", ".join(f"{size:,}: {micros[size]:.2f}" for size in sizes)
            ratio = micros[sizes[-1]] / micros[sizes[0]]
            lines.append(f"| {engine} | {shape} | {unknown:.0%} | {cells} | {ratio:.2f} |")
    return lines if len(lines) > 2 else []


def beside(rows: Iterable[Row]) -> list[str]:
    """Return a table that compares the audit with the other checker (RIVAL) on the same histories: seconds, memory,
    verdicts."""
    by_history: dict[tuple[str, int, float], dict[str, Row]] = {}
    rows = list(rows)
    tried = {(row["shape"], row["unknown_share"]) for row in rows if row["engine"] == RIVAL}
    for row in rows:
        if row["fault"] is None and row["engine"] != SPARK:
            by_history.setdefault((row["shape"], row["operations"], row["unknown_share"]), {})[row["engine"]] = row
    lines = [
        "| history | operations | unknown | audit: command s, peak MiB, verdict | Porcupine: the same |",
        "|---|---|---|---|---|",
    ]
    for (shape, operations, unknown), both in by_history.items():
        if LOCAL in both and (shape, unknown) in tried:
            rival = _beside(both[RIVAL]) if RIVAL in both else "not tried, as a shorter one was given up"
            lines.append(f"| {shape} | {operations:,} | {unknown:.0%} | {_beside(both[LOCAL])} | {rival} |")
    return lines


def _beside(row: Row) -> str:
    return f"{_number(row['command_seconds'], 2)}, {_number(row['peak_mib'], 0)}, {row['verdict']}"
