"""`hwm-harness mutants`: shows what catches each mutant of the catalogue: a seed and a rule of the simulator, or a
test.

Exit codes: 0: all mutants were caught; 3: some mutants survived; 1: a mutant does not apply or does not run, or the
code without a mutant breaks a rule.
"""

from __future__ import annotations

import difflib
import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console
from rich.live import Live
from rich.table import Table

from harness.errors import BadInput
from harness.mutants.hunt import Hunt
from harness.mutants.mutant import Mutant, load_catalogue
from harness.mutants.outcome import HuntResult
from harness.mutants.process import Workers
from harness.mutants.sandbox import Copies

EXIT_ERROR, EXIT_SURVIVORS = 1, 3
_PIPE_WIDTH = 160  # The width of the output in columns, if the output does not go to a terminal.
_SHOWN_LIVING = 6


@click.command("mutants")
@click.option("--only", multiple=True, metavar="NAME", help="Only mutants with this in their name. Can be repeated.")
@click.option("--only-named", is_flag=True, help="Only the classic mistakes.")
@click.option(
    "--seeds-max",
    type=click.IntRange(1),
    default=10_000,
    show_default=True,
    help="The most seeds to simulate for each mutant.",
)
@click.option("--first-seed", type=int, default=1, show_default=True, help="The first seed.")
@click.option("--jobs", type=click.IntRange(1), default=None, help="How many processes run.  [default: one per core]")
@click.option("--list", "only_list", is_flag=True, help="Show the catalogue and run nothing.")
@click.option("--json", "as_json", is_flag=True, help="The result as JSON on stdout.")
def mutants(
    only: tuple[str, ...],
    only_named: bool,
    seeds_max: int,
    first_seed: int,
    jobs: int | None,
    only_list: bool,
    as_json: bool,
) -> None:
    """Put one small defect at a time into a copy of the production code, and simulate seeds until a rule catches it.

    A mutant whose code the simulator does not run names its tests. These tests run instead of seeds, and need a
    checkout.
    """
    chosen = [mutant for mutant in choose(load_catalogue(), only) if mutant.is_named or not only_named]
    if only_list:
        show_list(chosen, as_json=as_json)
        return
    results = search(chosen, seeds_max=seeds_max, first_seed=first_seed, jobs=jobs or os.cpu_count() or 1)
    if as_json:
        click.echo(json.dumps(summary(results, first_seed, seeds_max), indent=2))
    else:
        show_results(results)
    if any(result.error for result in results):
        sys.exit(EXIT_ERROR)
    if not all(result.is_killed for result in results):
        sys.exit(EXIT_SURVIVORS)


def choose(catalogue: Sequence[Mutant], only: Sequence[str]) -> list[Mutant]:
    """Return the mutants whose names contain one of the texts in `only`; all mutants if `only` is empty.

    Raises BadInput if no mutant has one of the texts in its name.
    """
    for text in only:
        if not any(text in mutant.name for mutant in catalogue):
            names = [mutant.name for mutant in catalogue]
            close = difflib.get_close_matches(text, names, n=1, cutoff=0.3)
            hint = f"did you mean {close[0]!r}?" if close else "`hwm-harness mutants --list` names them all"
            raise BadInput(f"no mutant has {text!r} in its name", hint)
    return [mutant for mutant in catalogue if not only or any(text in mutant.name for text in only)]


def search(chosen: Sequence[Mutant], *, seeds_max: int, first_seed: int, jobs: int) -> list[HuntResult]:
    """Search for all chosen mutants, with a live table on stderr. Returns the results in the order of the catalogue."""
    console = Console(stderr=True, width=None if sys.stderr.isatty() else _PIPE_WIDTH)
    with ended_in_order(), tempfile.TemporaryDirectory(prefix="hwm-mutants-") as folder:
        copies = Copies(Path(folder).resolve())
        hunt = Hunt(chosen, copies, Workers(), first_seed=first_seed, seeds_max=seeds_max, jobs=jobs)
        with Live(console=console, refresh_per_second=4, transient=True) as live:
            for result in hunt.run():
                if result is not None:
                    live.console.print(one_line(result), markup=False, highlight=False)
                live.update(progress(hunt, len(chosen)))
    return [hunt.results[mutant.name] for mutant in chosen]


@contextmanager
def ended_in_order() -> Iterator[None]:
    """Let SIGTERM end the search as Ctrl-C does, with all processes ended and all copies removed.

    Call this function from the main thread.
    """
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def one_line(result: HuntResult) -> str:
    """Return one result as a line of text, which is printed as soon as the result is known."""
    if result.error:
        return f"error     {result.name}: {result.error}"
    if result.failed_test is not None:
        return f"killed    {result.name}: {result.seconds:.1f} s, {result.failed_test}"
    if result.caught is None:
        return f"survived  {result.name}: {result.seeds_run} seeds, {result.seconds:.1f} s"
    return f"killed    {result.name}: seed {result.caught.seed}, {result.seconds:.1f} s, {result.caught.caught_by}"


def progress(hunt: Hunt, total: int) -> Table:
    """Return the table that is shown while seeds run."""
    killed = sum(result.is_killed for result in hunt.results.values())
    table = Table.grid(padding=(0, 2))
    table.add_row("killed", f"{killed} of {total}", "seeds", f"{hunt.seeds_run:,}")
    living = sorted(hunt.under_way.items(), key=lambda item: -item[1])
    for name, seeds in living[:_SHOWN_LIVING]:
        table.add_row("lives", name, "survived", f"{seeds:,}")
    return table


def summary(results: Sequence[HuntResult], first_seed: int, seeds_max: int) -> dict[str, object]:
    """Return all results as JSON data."""
    return {
        "killed": sum(result.is_killed for result in results),
        "total": len(results),
        "first_seed": first_seed,
        "seeds_max": seeds_max,
        "mutants": [result.to_json() for result in results],
    }


def show_results(results: Sequence[HuntResult]) -> None:
    """Print the final table, and the errors of the mutants for which no search was possible."""
    console = Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH)
    killed = sum(result.is_killed for result in results)
    table = Table("mutant", "", "seeds", "seconds", "caught by", title=f"mutants killed: {killed} of {len(results)}")
    for result in results:
        seeds = "-" if result.failed_test else f"{result.seeds_run:,}"
        table.add_row(result.name, result.verdict, seeds, f"{result.seconds:.1f}", result.caught_by)
    console.print(table, markup=False, highlight=False)
    for result in results:
        if result.error:
            console.print(f"{result.name}: {result.error}", markup=False, highlight=False, soft_wrap=True)


def show_list(chosen: Sequence[Mutant], *, as_json: bool) -> None:
    """Print the chosen mutants of the catalogue."""
    if as_json:
        rows = [
            {
                "name": mutant.name,
                "why": mutant.why,
                "property": mutant.property_lost,
                "tests": list(mutant.tests),
                "files": sorted({change.file for change in mutant.changes}),
                "named": mutant.is_named,
            }
            for mutant in chosen
        ]
        click.echo(json.dumps(rows, indent=2))
        return
    table = Table("mutant", "file", "property that dies", "why", title=f"{len(chosen)} mutants")
    for mutant in chosen:
        files = "\n".join(sorted({change.file for change in mutant.changes}))
        table.add_row(mutant.name, files, mutant.property_lost, mutant.why)
    Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH).print(table, markup=False, highlight=False)
