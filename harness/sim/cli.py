"""`hwm-harness simulate`: seeds on all cores, progress while they run, a table at the end."""

from __future__ import annotations

import json
import sys

import click
from rich.console import Console
from rich.live import Live
from rich.table import Table

from harness.sim.campaign import Totals, run_campaign
from harness.sim.plan import draw_plan
from harness.sim.simulation import Simulation

EXIT_VIOLATION = 1
LINE_EVERY_SECONDS = 10.0


@click.command("simulate")
@click.option("--seeds", type=click.IntRange(1), default=None, help="How many seeds to run.  [default: 100]")
@click.option("--first-seed", type=int, default=1, show_default=True, help="The first of them.")
@click.option("--seed", type=int, default=None, help="Run only this seed: the replay of a failure.")
@click.option("--minutes", type=click.FloatRange(0, min_open=True), default=None, help="Run seeds for so long.")
@click.option("--jobs", type=click.IntRange(1), default=None, help="Processes.  [default: one per core]")
@click.option("--trace", is_flag=True, help="With --seed: write one line per event.")
@click.option("--json", "as_json", is_flag=True, help="The result as JSON on stdout.")
def simulate(
    seeds: int | None,
    first_seed: int,
    seed: int | None,
    minutes: float | None,
    jobs: int | None,
    trace: bool,
    as_json: bool,
) -> None:
    """Run the production node in a simulated world that breaks everything, one world per seed.

    The same seed is the same run, event for event, on every machine. Exit code 1: a rule was violated.
    """
    if seed is not None:
        totals = replay(seed, trace=trace)
    elif trace:
        raise click.UsageError("--trace needs --seed: it writes one line per event.")
    else:
        if seeds is None and minutes is None:
            seeds = 100
        totals = campaign(first_seed, seeds, minutes, jobs)
    if as_json:
        click.echo(json.dumps(totals.to_json(), indent=2, sort_keys=True))
    else:
        report(totals)
    if totals.failures:
        sys.exit(EXIT_VIOLATION)


def replay(seed: int, *, trace: bool) -> Totals:
    """One seed in this process."""
    plan = draw_plan(seed)
    words = Console(stderr=True, highlight=False)
    words.print(plan.words(), markup=False)
    simulation = Simulation(plan, click.echo if trace else None)
    result = simulation.run()
    words.print(f"trace hash {result.trace_hash}", markup=False)
    totals = Totals()
    totals.add(result)
    totals.wall_seconds = result.seconds  # One seed has its core alone.
    return totals


def campaign(first_seed: int, seeds: int | None, minutes: float | None, jobs: int | None) -> Totals:
    """Many seeds, with a live picture on stderr; where that is no terminal, a line now and then."""
    totals = Totals()
    seconds = None if minutes is None else 60 * minutes
    console = Console(stderr=True, highlight=False)
    line_due = LINE_EVERY_SECONDS
    with Live(console=console, refresh_per_second=4, transient=True) as live:
        for totals in run_campaign(first_seed, seeds, seconds=seconds, jobs=jobs):
            if console.is_terminal:
                live.update(progress(totals, seeds))
            elif totals.wall_seconds >= line_due:
                line_due = totals.wall_seconds + LINE_EVERY_SECONDS
                words = f"{totals.seeds:,} seeds, {len(totals.failures)} failed, {totals.events:,} events"
                click.echo(f"{words}, {totals.wall_seconds:.0f} s", err=True)
    return totals


def progress(totals: Totals, seeds: int | None) -> Table:
    """What is seen while seeds run."""
    table = Table.grid(padding=(0, 2))
    of = f" of {seeds}" if seeds else ""
    table.add_row("seeds", f"{totals.seeds}{of}", "failed", str(len(totals.failures)))
    table.add_row(
        "events per core second", f"{totals.events_per_second:,.0f}", "simulated : real", f"{totals.speed:.1f}"
    )
    rare = ", ".join(f"{name} {hits}" for name, hits in sorted(totals.marks.items(), key=lambda item: item[1])[:4])
    table.add_row("marks", str(len(totals.marks)), "rarest", rare)
    return table


def report(totals: Totals) -> None:
    """The tables at the end: figures, marks, and for each failure the command that replays it."""
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
    marks = Table("mark", "seeds", title="what happened at least once")
    for name, hits in sorted(totals.marks.items(), key=lambda item: (-item[1], item[0])):
        marks.add_row(name, str(hits))
    console.print(marks)
    for failure in sorted(totals.failures, key=lambda failure: failure.seed):
        console.print(f"seed {failure.seed}: {failure.violation}", markup=False, highlight=False, soft_wrap=True)
        click.echo(f"  replay: hwm-harness simulate --seed {failure.seed} --trace")
