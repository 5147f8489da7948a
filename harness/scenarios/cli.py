"""`hwm-harness scenario`: plays scenarios, prints their steps, lists scenarios, and explains their language."""

from __future__ import annotations

import json
import sys
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from harness.errors import HarnessError
from harness.scenarios.cluster_stage import ClusterStage
from harness.scenarios.errors import BadScenario, Broken, Mismatch
from harness.scenarios.expectations import LOOKS, OTHERS
from harness.scenarios.high_water_mark.cli import high_water_mark
from harness.scenarios.language import LEVELS, Scenario, Step
from harness.scenarios.play import load, named_scenarios, play
from harness.scenarios.verbs import ACTIONS

EXIT_MISMATCH = 3
_PIPE_WIDTH = 132
_PLAY = "play"


class PlayByDefault(click.Group):
    """Carries out `play` if the first word names no other command. So `scenario figure-7` needs no `play`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or args[0] not in (*self.commands, *ctx.help_option_names):
            args = [_PLAY, *args]
        return super().parse_args(ctx, args)


@click.group("scenario", cls=PlayByDefault)
def scenario() -> None:
    """Play scenarios of the protocol, step by step. `hwm-harness scenario NAME` is short for `scenario play NAME`."""


@scenario.command(_PLAY)
@click.argument("names", nargs=-1, metavar="[NAME|FILE]...")
@click.option("--list", "as_list", is_flag=True, help="List the scenarios with their titles.")
@click.option("--verbs", is_flag=True, help="Explain the language of scenario files.")
@click.option("--show", is_flag=True, help="Show every step, and all members after it.")
@click.option("--json", "as_json", is_flag=True, help="The result as JSON on stdout.")
def play_named(names: tuple[str, ...], as_list: bool, verbs: bool, show: bool, as_json: bool) -> None:
    """Play scenarios on the production core: scenarios by NAME, scenarios in a FILE, or by default all named scenarios.

    Exit code 3: an expectation did not hold, or the core failed; 2: a file has an error.
    """
    if verbs:
        _explain()
        return
    scenarios = [load(name) for name in names or named_scenarios()]
    if as_list:
        _list(scenarios, as_json=as_json)
        return
    results = [_play(each, show=show, quiet=as_json) for each in scenarios]
    if as_json:
        click.echo(json.dumps(results, indent=2))
    else:
        failed = sum(1 for result in results if not result["held"])
        click.echo(f"{len(results)} scenarios, {failed} failed")
    sys.exit(EXIT_MISMATCH if any(not result["held"] for result in results) else 0)


def _play(each: Scenario, *, show: bool, quiet: bool) -> dict[str, Any]:
    held = 0
    try:
        for step, stage in play(each):
            held += step.verb == "expect"
            if show and not quiet:
                _show(step, stage)
    except BadScenario:
        raise
    except (Mismatch, Broken) as error:
        return _told(each, held, error, quiet=quiet)
    return _told(each, held, None, quiet=quiet)


def _told(each: Scenario, held: int, error: HarnessError | None, *, quiet: bool) -> dict[str, Any]:
    if not quiet:
        click.echo(f"{'FAILED' if error else 'ok':<6}  {each.name}: {each.title}")
        if error:
            click.echo(str(error))
    problem = str(error) if error else None
    return {"name": each.name, "held": error is None, "expectations": held, "problem": problem}


def _show(step: Step, stage: ClusterStage) -> None:
    click.echo(f"{step.line:>4}  {step.text}")
    if step.verb == "expect":
        return
    for node_id, member in stage.members.items():
        state = "down" if node_id in stage.down else f"{member.core.role.value} of term {member.core.term}"
        log = " ".join(str(entry.term) for entry in member.disk.appended.entries)
        unsynced = f", {len(member.disk.unsynced)} writes not durable" if member.disk.unsynced else ""
        click.echo(f"        {node_id:<8} {state:<24} commit {member.core.commit_index:<3} log {log}{unsynced}")
    for letter in stage.wire:
        click.echo(f"        on the wire: {letter}")


def _list(scenarios: list[Scenario], *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps([{"name": each.name, "title": each.title} for each in scenarios], indent=2))
        return
    table = Table("scenario", "what it shows", box=None)
    for each in scenarios:
        table.add_row(each.name, each.title)
    _out().print(table)


def _explain() -> None:
    table = Table("step", "what happens", box=None)
    table.add_row("levels LEVEL…", f"before `cluster`: the scenario is played at each of these: {', '.join(LEVELS)}")
    table.add_row("cluster MEMBER… [with OPTION…]", "first line; single-entries: an append carries one entry;")
    table.add_row("", "nodes: the members are whole nodes, with clients, and not only cores")
    table.add_row(
        "log MEMBER TERM…", "before all else: its disk holds entries of these terms; e3t2 is entry 3 of term 2"
    )
    table.add_row("term MEMBER|all TERM", "before all else: the term on its disk")
    table.add_row("vote MEMBER CANDIDATE", "before all else: the vote on its disk")
    for action in ACTIONS.values():
        usage, _, meaning = (action.__doc__ or "").splitlines()[0].partition(": ")
        table.add_row(usage, meaning)
    table.add_row("at LEVEL…: STEP", "the step is carried out at these levels only")
    table.add_row("ending TITLE", "one of several endings; each is played after all steps before the first `ending`")
    for what, (meaning, _) in LOOKS.items():
        table.add_row(f"expect {what} MEMBER… = VALUE", meaning)
    for usage in OTHERS.values():
        left, _, meaning = usage.partition(" = ")
        table.add_row(f"{left} = VALUE", meaning)
    _out().print(table, highlight=False)


scenario.add_command(high_water_mark)


def _out() -> Console:
    return Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH, markup=False)
