"""`hwm-harness simulate`: runs many seeds on all cores with progress and a final table, or shows one run in detail."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import click
from rich.console import Console
from rich.live import Live

from harness.errors import BadInput, ExtraMissing
from harness.reports.page import check_page_path, write_page
from harness.sim.campaign import Totals, run_campaign
from harness.sim.diagram.draw import EVENTS_SHOWN, draw_lamport
from harness.sim.plan.draw import draw_plan
from harness.sim.plan.draw_etcd import draw_etcd_plan
from harness.sim.plan.plan import Plan
from harness.sim.plan.plan_file import read_plan, write_plan
from harness.sim.recorded_run import RecordedSimulation
from harness.sim.report import progress, report
from harness.sim.shrink import Shrinker
from harness.sim.simulation import Simulation

EXIT_VIOLATION, EXIT_BAD_INPUT, EXIT_NOT_REACHED, EXIT_INTERRUPTED = 1, 2, 4, 130
LINE_EVERY_SECONDS = 10.0

SHRUNK_MAX = 3
"""The most failing seeds of a campaign that are shrunk. Further failing seeds mostly show the same failure."""


@click.command("simulate")
@click.option("--seeds", type=click.IntRange(1), default=None, help="How many seeds to run.  [default: 100]")
@click.option("--first-seed", type=int, default=1, show_default=True, help="The first seed to run.")
@click.option("--seed", type=int, default=None, help="Run only this seed: the replay of a failure.")
@click.option(
    "--plan", "plan_path", type=click.Path(path_type=Path), default=None, help="Run only the plan in this file."
)
@click.option(
    "--minutes", type=click.FloatRange(0, min_open=True), default=None, help="Run seeds for this many minutes."
)
@click.option("--etcd", "with_etcd", is_flag=True, help="Give every seed clients that speak etcd's API.")
@click.option("--jobs", type=click.IntRange(1), default=None, help="Processes.  [default: one per core]")
@click.option("--trace", is_flag=True, help="With --seed or --plan: write one line per event.")
@click.option("--lamport", type=click.Path(path_type=Path), default=None, help="With --seed or --plan: draw the run.")
@click.option(
    "--last",
    type=click.IntRange(1),
    default=EVENTS_SHOWN,
    show_default=True,
    help="The most events that --lamport draws.",
)
@click.option("--shrink", is_flag=True, help="Shrink each failing plan, and write it to a file for --plan.")
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path(), help="The folder for these files.  [default: this one]"
)
@click.option("--json", "as_json", is_flag=True, help="The result as JSON on stdout.")
def simulate(
    seeds: int | None,
    first_seed: int,
    seed: int | None,
    plan_path: Path | None,
    minutes: float | None,
    with_etcd: bool,
    jobs: int | None,
    trace: bool,
    lamport: Path | None,
    last: int,
    shrink: bool,
    out: Path,
    as_json: bool,
) -> None:
    """Run the production node in a simulated world in which everything may fail, one world per seed.

    The same seed gives the same run, event for event, on every machine. Exit code 1: a rule was violated; 2: bad input;
    4: a coverage point was never hit, although the number of seeds was large enough for it; 130: the command was
    stopped.

    The seeds with --etcd are other runs than those without it. They need the extra `etcd` (2 without it).
    """
    draw, option = (draw_etcd_plan, " --etcd") if with_etcd else (draw_plan, "")
    try:
        if seed is not None and plan_path is not None:
            raise click.UsageError("--seed and --plan are two ways to say what to run: take one.")
        if seed is not None or plan_path is not None:
            plan = read_plan(plan_path) if plan_path is not None else draw(seed or 0)
            names = f"--seed {seed}{option}" if plan_path is None else f"--plan {plan_path}"
            plans = {plan.seed: (names, plan)}
            totals = replay(plan, trace=trace, lamport=lamport, last=last)
        elif trace or lamport:
            raise click.UsageError(f"{'--trace' if trace else '--lamport'} needs --seed or --plan: it shows one run.")
        else:
            plans = {}
            totals = campaign(first_seed, 100 if seeds is None and minutes is None else seeds, minutes, jobs, with_etcd)
        commands = {
            failed.seed: plans.get(failed.seed, (f"--seed {failed.seed}{option}", None))[0]
            for failed in totals.failures
        }
        if shrink:
            for failed in sorted(totals.failures, key=lambda failed: failed.seed)[:SHRUNK_MAX]:
                _, known = plans.get(failed.seed, ("", None))
                path = shrink_into(out, known or draw(failed.seed))
                commands[failed.seed] = f"--plan {path}"
    except (BadInput, ExtraMissing) as error:
        click.echo(f"hwm-harness: {error}", err=True)
        sys.exit(EXIT_BAD_INPUT)
    is_campaign = not plans
    if as_json:
        click.echo(json.dumps(totals.to_json(commands), indent=2, sort_keys=True))
    else:
        report(totals, commands, is_campaign=is_campaign)
    if totals.failures:
        sys.exit(EXIT_VIOLATION)
    if totals.is_interrupted:
        sys.exit(EXIT_INTERRUPTED)
    if is_campaign and totals.not_reached():
        sys.exit(EXIT_NOT_REACHED)


def replay(plan: Plan, *, trace: bool, lamport: Path | None, last: int) -> Totals:
    """Run one plan in this process, and return its totals. Raises BadInput."""
    if lamport is not None:
        check_page_path(lamport)
    words = Console(stderr=True, highlight=False)
    words.print(plan.words(), markup=False)
    write = click.echo if trace else None
    simulation = Simulation(plan, write) if lamport is None else RecordedSimulation(plan, write, last=last)
    result = simulation.run()
    words.print(f"trace hash {result.trace_hash}", markup=False)
    if lamport is not None and isinstance(simulation, RecordedSimulation):
        write_page(lamport, draw_lamport(simulation.picture(result)))
        words.print(f"drawn: {lamport}", markup=False)
    totals = Totals()
    totals.add(result)
    # A single run has a processor core to itself, so its processor time is used as its real time.
    totals.wall_seconds = result.seconds
    return totals


def shrink_into(folder: Path, plan: Plan) -> Path:
    """Shrink `plan`, write the smaller plan to a file in `folder`, and return the path of the file. Raises BadInput."""
    path = folder / f"seed-{plan.seed}.toml"
    click.echo(f"seed {plan.seed}: shrinking", err=True)
    shrunk = Shrinker(plan, tell=lambda line: click.echo(f"  {line}", err=True)).run()
    assert shrunk is not None, "it has failed a moment ago"
    click.echo(shrunk.words(), err=True)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_plan(shrunk.plan, path, f"{shrunk.words()}\nPlayed by: hwm-harness simulate --plan FILE --trace")
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error}", "name another folder with --out") from error
    return path


def campaign(
    first_seed: int, seeds: int | None, minutes: float | None, jobs: int | None, with_etcd: bool = False
) -> Totals:
    """Run many seeds. Prints a live table on stderr, or a line from time to time if stderr is not a terminal.

    A failing seed is reported at once. After Ctrl-C or SIGTERM the totals cover the seeds that have ended.
    """
    totals, told = Totals(), 0
    seconds = None if minutes is None else 60 * minutes
    console = Console(stderr=True, highlight=False)
    line_due = LINE_EVERY_SECONDS
    with (
        Live(console=console, refresh_per_second=4, transient=True) as live,
        closing(run_campaign(first_seed, seeds, seconds=seconds, jobs=jobs, with_etcd=with_etcd)) as steps,
        stopped_by_signals(),
    ):
        try:
            for totals in steps:
                for failed in totals.failures[told:]:
                    console.print(f"seed {failed.seed}: {failed.violation}", markup=False, soft_wrap=True)
                told = len(totals.failures)
                if console.is_terminal:
                    live.update(progress(totals, seeds))
                elif totals.wall_seconds >= line_due:
                    line_due = totals.wall_seconds + LINE_EVERY_SECONDS
                    words = f"{totals.seeds:,} seeds, {len(totals.failures)} failed, {totals.events:,} events"
                    click.echo(f"{words}, {totals.wall_seconds:.0f} s, {totals.reached_words()}", err=True)
        except KeyboardInterrupt:
            totals.is_interrupted = True
            click.echo(f"stopped after {totals.seeds:,} seeds", err=True)
    return totals


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """Make SIGTERM act like Ctrl-C. Works only in the main thread."""

    def stop(number: int, _: object) -> None:
        raise KeyboardInterrupt(number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
