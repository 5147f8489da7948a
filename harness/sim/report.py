"""Prints simulated runs on a terminal: a live table during the runs, and tables at the end."""

from __future__ import annotations

from collections.abc import Mapping

import click
from rich.console import Console
from rich.table import Table

from harness.sim.campaign import Totals
from harness.sim.checks.coverage import CAMPAIGN_SEEDS_MIN, is_too_rare

RAREST_SHOWN = 4


def progress(totals: Totals, seeds: int | None) -> Table:
    """Return the live table."""
    table = Table.grid(padding=(0, 2))
    of = f" of {seeds:,}" if seeds else ""
    table.add_row("seeds", f"{totals.seeds:,}{of}", "failed", str(len(totals.failures)))
    table.add_row(
        "events per core second", f"{totals.events_per_second:,.0f}", "simulated : real", f"{totals.speed:.1f}"
    )
    rarest = sorted(
        (point for point in totals.wanted if totals.covered[point]), key=lambda point: totals.covered[point]
    )
    rare = ", ".join(f"{point} {totals.covered[point]}" for point in rarest[:RAREST_SHOWN])
    table.add_row("marks", totals.reached_words(), "rarest", rare)
    return table


def report(totals: Totals, commands: Mapping[int, str], *, is_campaign: bool) -> None:
    """Print the final tables: figures, coverage points, and for each failure the command that replays it."""
    console = Console()
    figures = Table(title="simulated runs", show_header=False)
    figures.add_row("seeds", f"{totals.seeds:,}")
    figures.add_row("failed", f"{len(totals.failures):,}")
    figures.add_row("events", f"{totals.events:,}")
    figures.add_row("events per core second", f"{totals.events_per_second:,.0f}")
    figures.add_row("simulated : real, per core", f"{totals.speed:.1f}")
    figures.add_row("wall time", f"{totals.wall_seconds:.1f} s")
    for name, number in sorted(totals.counts.items()):
        figures.add_row(name, f"{number:,}")
    console.print(figures)
    console.print(mark_table(totals, with_wanted=is_campaign))
    if is_campaign and totals.never_reached():
        weight = "NOT REACHED" if totals.not_reached() else f"not reached (it counts from {CAMPAIGN_SEEDS_MIN:,} seeds)"
        click.echo(f"{weight}: {'; '.join(totals.never_reached())}")
    for failure in sorted(totals.failures, key=lambda failure: failure.seed):
        how = commands[failure.seed]
        console.print(f"seed {failure.seed}: {failure.violation}", markup=False, highlight=False, soft_wrap=True)
        click.echo(f"  replay: hwm-harness simulate {how} --trace")
        click.echo(f"  picture: hwm-harness simulate {how} --lamport seed-{failure.seed}.html")


def mark_table(totals: Totals, *, with_wanted: bool) -> Table:
    """Return a table of the coverage points: how many seeds have hit each point, and how many should hit it."""
    table = Table("mark", "seeds", "wanted in", title="what happened at least once")
    names = {*totals.covered, *(totals.wanted if with_wanted else ())}
    for name in sorted(names, key=lambda name: (-totals.covered[name], name)):
        hits = totals.covered[name]
        wanted = f"1 of {totals.wanted[name]}" if name in totals.wanted else ""
        if with_wanted and is_too_rare(name, hits, totals.seeds, totals.wanted):
            wanted += ": rare" if hits else ": never"
        table.add_row(name, f"{hits:,}", wanted)
    return table
