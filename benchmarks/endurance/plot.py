"""Plots an endurance run over time: answers per second, the memory of each member, and the light client's waits."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from benchmarks.endurance.judge import MIB, Sample

_SHADES = {"greedy": "C1", "overload": "C3", "recovery": "C2"}


def spans(samples: Sequence[Sample]) -> list[tuple[str, float, float]]:
    """Return (name, start, end), in seconds, of each part of the run, except the parts with the steady load alone."""
    named = [
        (sample.phase if sample.phase != "steady" else "greedy" if sample.greedy else "", sample) for sample in samples
    ]
    found = []
    for name, group in groupby(named, key=lambda each: each[0]):
        moments = [sample.at for _, sample in group]
        if name:
            found.append((name, moments[0] - 1.0, moments[-1]))
    return found


def draw(samples: Sequence[Sample], path: Path) -> Path:
    """Write an SVG, and return its path."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (rates, memory, waits) = pyplot.subplots(3, 1, figsize=(10, 9), sharex=True)
    moments = [sample.at for sample in samples]
    rates.plot(moments, [sample.answers - sample.refused for sample in samples], label="answers")
    rates.plot(moments, [sample.refused for sample in samples], label="Busy")
    rates.set(ylabel="per second")
    for member in sorted({member for sample in samples for member in sample.rss}):
        sizes = [sample.rss[member] / MIB if member in sample.rss else float("nan") for sample in samples]
        memory.plot(moments, sizes, label=member)
    memory.set(ylabel="resident, MiB", ylim=(0, None))
    light = [each for sample in samples for each in sample.light]
    waits.plot(
        [moment for moment, _ in light],
        [seconds * 1e3 for _, seconds in light],
        ".",
        markersize=3,
        label="light client",
    )
    waits.set(ylabel="wait, ms", yscale="log", xlabel="seconds")
    for axes in (rates, memory, waits):
        for name, begin, end in spans(samples):
            axes.axvspan(begin, end, color=_SHADES[name], alpha=0.12, linewidth=0)
        axes.grid(visible=True, alpha=0.2)
        axes.legend(fontsize=8, loc="upper left")
    rates.set_title("endurance (shaded: greedy connection, overload, recovery)")
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None})
    pyplot.close(figure)
    return path
