"""The Markdown report: first the cells in which Highwatermark loses, then the medians of all contenders."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.measure.statistics import CELL_FIELDS, medians

OURS = "highwatermark"
RIVALS = ("etcd", "pysyncobj", "pysyncobj-tuned")
"""The systems that are compared with the contender `highwatermark`. All other systems appear only in the tables."""

_FIELDS = tuple(name for name in CELL_FIELDS if name != "connections")


def report(document: Mapping[str, Any]) -> str:
    """Return the whole report. `document`: the content of `latest.json`."""
    cells = medians(document["rows"])
    parts = [
        "# Benchmark results",
        _circumstances(document),
        "## Where Highwatermark loses",
        "\n".join(losses(cells)) or "Nowhere in this run: no rival had more throughput or a lower p99 in any cell.",
    ]
    titles: dict[str, list[str]] = {}
    for cell, systems in cells.items():
        titles.setdefault(_title(cell), []).extend(_lines(systems))
    for title, lines in titles.items():
        parts += [f"## {title}", "\n".join([*_HEAD, *lines])]
    return "\n\n".join(parts) + "\n"


def _circumstances(document: Mapping[str, Any]) -> str:
    machine = document["machine"]
    lines = [
        f"- {document['date']}, plan `{document['plan']}`, {document['repetitions']} repetitions; numbers are medians.",
        f"- {machine['processor']}, {machine['cores']} cores, {machine['memory_gib']} GiB; {machine['system']}; "
        f"{machine['python']}; {machine['filesystem']}, {machine['fdatasync_us']} µs per synced 4 KiB; "
        f"load average before the run {machine['load_average']}.",
        f"- etcd {document['etcd']}; versions {machine['versions']}. Servers and load generator share the cores.",
        "- Highwatermark and etcd sync every write; PySyncObj never syncs its journal, and its load is made by calls "
        "inside the leader's process (`pysyncobj`: all defaults; `pysyncobj-tuned`: see pysyncobj_node.py). It has no "
        "linearizable read.",
        "- `highwatermark` and `etcd` are driven by one lean generator over raw frames, connected to the leader; "
        "`highwatermark-client` is the same store through `kvstore.Client`.",
        "- CPU: µs per operation, user and system, by process; the generator's own stands apart.",
    ]
    lines += [f"- Skipped: {text}" for text in document["skipped"]]
    lines += [f"- Failed: {text}" for text in document["failures"]]
    return "\n".join(lines)


_HEAD = (
    "| load | system | ops/s (least–greatest) | ours is | p50 ms | p99 ms | p99.9 ms | CPU of servers | "
    "leader / followers | generator |",
    "|---|---|---|---|---|---|---|---|---|---|",
)


def _title(cell: tuple[Any, ...]) -> str:
    values = dict(zip(_FIELDS, cell, strict=True))
    return f"{values['work']}: {values['value_bytes']} B, {values['existing_keys']:,} keys, {values['members']} members"


def _load(row: Mapping[str, Any]) -> str:
    if row["offered_per_second"]:
        return f"{row['offered_per_second']:,}/s offered"
    return f"{row['in_flight']:,} in flight" + (f" on {row['connections']}" if row["connections"] else "")


def _lines(systems: Mapping[str, Mapping[str, Any]]) -> Iterable[str]:
    ours = systems.get(OURS)
    for name, row in systems.items():
        ratio = ""
        if ours is not None and name in RIVALS and not row["offered_per_second"]:
            ratio = f"{ours['ops_per_second'] / row['ops_per_second']:.2f}×"
        low, high = row["ops_per_second_range"]
        processes = row["cpu_us_per_op_by_process"]
        followers = " ".join(_number(spent) for each, spent in processes.items() if each != "leader") or "–"
        doubt = "" if row["verified"] else f" **not verified, {row['errors']} errors**"
        yield (
            f"| {_load(row)} | {name}{doubt} | {row['ops_per_second']:,.0f} ({low:,.0f}–{high:,.0f}) | {ratio} | "
            f"{_number(row['p50_ms'])} | {_number(row['p99_ms'])} | {_number(row['p999_ms'])} | "
            f"{_number(row['cpu_us_per_op'])} | {_number(processes.get('leader'))} / {followers} | "
            f"{_number(row['generator_cpu_us_per_op'])} |"
        )


def losses(cells: Mapping[tuple[Any, ...], Mapping[str, Mapping[str, Any]]]) -> Sequence[str]:
    """Return one line for each cell and rival with more throughput or a lower p99 than Highwatermark.

    In an open loop, the rival's throughput must be more than 1 % higher.
    """
    lines = []
    for cell, systems in cells.items():
        ours = systems.get(OURS)
        for name in RIVALS:
            rival = systems.get(name)
            if ours is None or rival is None:
                continue
            words = []
            ratio = ours["ops_per_second"] / rival["ops_per_second"]
            if ratio < (0.99 if ours["offered_per_second"] else 1.0):
                words.append(f"{ratio:.2f}× the throughput")
            if ours["p99_ms"] > rival["p99_ms"]:
                words.append(f"p99 {_number(ours['p99_ms'])} against {_number(rival['p99_ms'])} ms")
            if words:
                lines.append(f"- {_title(cell)}, {_load(ours)}: against {name} {', '.join(words)}")
    return lines


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
