"""Plots throughput against latency: one picture per work (put, get, mixed), one line per system."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.load.plan import USUAL_MEMBERS, USUAL_VALUE_BYTES
from benchmarks.measure.statistics import medians


def curves(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Return, by work and then by system, the median rows with the usual sizes, in the order of rising load.

    A work with a single level of load is left out, because one point makes no curve.
    """
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for systems in medians(rows).values():
        for system, row in systems.items():
            if row["members"] == USUAL_MEMBERS and row["value_bytes"] == USUAL_VALUE_BYTES:
                found.setdefault(row["work"], {}).setdefault(system, []).append(row)
    for by_system in found.values():
        for line in by_system.values():
            line.sort(key=lambda row: row["offered_per_second"] or row["in_flight"])
    return {work: lines for work, lines in found.items() if max(map(len, lines.values())) > 1}


def draw(rows: Sequence[dict[str, Any]], folder: Path, stem: str) -> list[Path]:
    """Write one SVG per work, and return the paths.

    Each system has a solid line for p50 and a dotted line for p99. Each point is one level of load.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    paths = []
    for work, lines in curves(rows).items():
        figure, axes = pyplot.subplots(figsize=(8, 5))
        for number, (system, points) in enumerate(lines.items()):
            rates = [row["ops_per_second"] for row in points]
            color = f"C{number}"
            axes.plot(rates, [row["p50_ms"] for row in points], "o-", color=color, label=f"{system} p50")
            axes.plot(rates, [row["p99_ms"] for row in points], "x:", color=color, label=f"{system} p99")
            for row in points:
                level = row["in_flight"] or f"{row['offered_per_second']}/s"
                axes.annotate(str(level), (row["ops_per_second"], row["p50_ms"]), fontsize=7, color=color)
        axes.set(xscale="log", yscale="log", xlabel="operations per second", ylabel="latency, ms", title=work)
        axes.grid(visible=True, which="both", alpha=0.2)
        axes.legend(fontsize=8)
        path = folder / f"{stem}-{work}.svg"
        figure.savefig(path, bbox_inches="tight", metadata={"Date": None})
        pyplot.close(figure)
        paths.append(path)
    return paths
