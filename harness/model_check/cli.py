"""`hwm-harness explore`: tries every order of events in a small world, and reports the result."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import click
from rich.console import Console
from rich.live import Live
from rich.table import Table

from harness.model_check.bounds import EXPLORED, LEFT_OUT, MEMBERS_MAX, Bounds
from harness.model_check.replay_path import replay
from harness.model_check.search import Found, Search

EXIT_VIOLATION = 3
_PIPE_WIDTH = 132


Decorator = Callable[[Callable[..., None]], Callable[..., None]]


def _count(name: str, least: int, most: int | None, text: str) -> Decorator:
    default = getattr(Bounds(), name.replace("-", "_"))
    return click.option(f"--{name}", type=click.IntRange(least, most), default=default, show_default=True, help=text)


@click.command("explore")
@_count("members", 1, MEMBERS_MAX, "Members of the cluster.")
@_count("terms", 1, 9, "The last term in which anybody campaigns.")
@_count("entries", 0, 9, "Commands that are proposed, in addition to the no_op of each new leader.")
@_count("crashes", 0, 9, "Crashes; each keeps any prefix of the unsynced data.")
@_count("in-flight", 1, 20, "The most messages in flight; above it, every choice of lost messages is tried.")
@_count("heartbeats", 0, 9, "Heartbeats; after a loss, they make the leader send the lost entries again.")
@_count(
    "hints",
    0,
    9,
    "Hints to a follower that its leader's connections ended; with --pre-votes the follower first asks for pre-votes.",
)
@_count("duplicates", 0, 9, "Messages that arrive a second time.")
@_count("reads", 0, 3, "Linearizable reads that are requested.")
@click.option(
    "--elected", is_flag=True, help="Begin with a leader of term 1 whose first entry is committed everywhere."
)
@click.option(
    "--pre-votes", is_flag=True, help="Pre-votes are messages, too; without this option they are granted at once."
)
@click.option("--depth", type=click.IntRange(1), default=None, help="The greatest number of events on a path.")
@click.option(
    "--seconds", type=click.FloatRange(0, min_open=True), default=60.0, show_default=True, help="Stop after this time."
)
@click.option(
    "--states",
    type=click.IntRange(1),
    default=5_000_000,
    show_default=True,
    help="Stop after this number of states, which take about 250 B each.",
)
@click.option(
    "--symmetry/--no-symmetry", default=True, help="Count states that differ only by a renaming of members as one."
)
@click.option("--json", "as_json", is_flag=True, help="The result as JSON on stdout.")
def explore(as_json: bool, **bounds: Any) -> None:
    """Try every order of deliveries, losses, syncs, crashes and time-outs in a small world of production cores.

    Shorter paths are tried first, so no path to a violation is shorter than the printed path. Exit code 3: a rule was
    violated.
    """
    search = Search(Bounds(**bounds))
    with Live(console=Console(stderr=True), refresh_per_second=2, transient=True) as live:
        for found in search.run():
            live.update(_progress(found))
    if as_json:
        click.echo(json.dumps(to_json(search), indent=2))
    else:
        _report(search)
    sys.exit(EXIT_VIOLATION if search.found.violation else 0)


def to_json(search: Search) -> dict[str, Any]:
    """Return the result as JSON data."""
    found = search.found
    return {
        "bounds": {name: getattr(found.bounds, name) for name in found.bounds.__dataclass_fields__},
        "states": found.states,
        "transitions": found.transitions,
        "depth": found.depth,
        "exhausted": found.exhausted,
        "stopped_by": found.stopped_by,
        "frontier": found.frontier,
        "seconds": round(found.seconds, 3),
        "states_per_second": round(found.states / max(found.seconds, 1e-9)),
        "local_states": found.local_states,
        "core_steps": found.local_steps,
        "messages": found.letters,
        "levels": found.levels,
        "violation": {"rule": found.violation.rule, "detail": found.violation.detail} if found.violation else None,
        "path": [str(line) for line in replay(search)] if found.violation else [],
        "explored": list(EXPLORED),
        "left_out": list(LEFT_OUT),
    }


def _progress(found: Found) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_row("states", f"{found.states:,}", "depth", str(found.depth), "to expand", f"{found.frontier:,}")
    table.add_row("states/s", f"{found.states / max(found.seconds, 1e-9):,.0f}", "seconds", f"{found.seconds:.0f}")
    return table


def _report(search: Search) -> None:
    found, console = search.found, Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH, highlight=False)
    figures = Table(show_header=False, box=None)
    figures.add_row("states", f"{found.states:,}")
    figures.add_row("transitions", f"{found.transitions:,}")
    figures.add_row("depth", f"{found.depth} events")
    figures.add_row("states/s", f"{found.states / max(found.seconds, 1e-9):,.0f} in {found.seconds:.1f} s")
    figures.add_row("of one member", f"{found.local_states:,} states, {found.local_steps:,} steps of the core")
    console.print(found.bounds.words())
    console.print(figures)
    if found.violation is not None:
        for number, line in enumerate(replay(search), start=1):
            console.print(f"{number:>3}  {line}", markup=False, soft_wrap=True)
        console.print(f"violated: {found.violation}", markup=False, soft_wrap=True)
        return
    if found.exhausted:
        console.print("exhausted: every state within these bounds was reached, and all rules hold in it")
    else:
        complete = f"complete for paths of up to {found.depth} events"
        console.print(
            f"NOT exhausted: stopped by {found.stopped_by}; {complete}; {found.frontier:,} states not expanded"
        )
    console.print("\nexplored:")
    for text in EXPLORED:
        console.print(f"  - {text}", markup=False)
    console.print("left out:")
    for text in LEFT_OUT:
        console.print(f"  - {text}", markup=False)
