"""`hwm limits`: show the replicated limits of the store, and change them while it runs. No session is needed."""

from __future__ import annotations

import click
from click.core import ParameterSource

from kvstore.cli.common import client_options, print_json, print_table
from kvstore.cli.coordination.session import run_without_session
from kvstore.client.client import Client
from kvstore.limits import StoreLimits, limit_max, limit_min
from kvstore.protocol.session_requests import LimitsView


@click.group(invoke_without_command=True)
@client_options
@click.pass_context
def limits(context: click.Context, endpoints: str, deadline_seconds: float, as_json: bool) -> None:
    """Show the replicated limits, and how much of each is used.

    For a limit per session, the command shows the use of the session that uses most. `hwm limits set NAME=VALUE...`
    changes limits.

    \b
    Exit codes: 0 done; 2 wrong usage; 3 refused, nothing has changed;
    4 unknown, repeat the command; 5 nobody leads, or nobody can be reached.
    """
    if context.invoked_subcommand is not None:
        for name in context.params:
            if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
                raise click.UsageError("Options belong behind the command: hwm limits set NAME=VALUE ... --option")
        return
    _show(run_without_session(endpoints, deadline_seconds, lambda client: client.limits()), as_json=as_json)


@limits.command("set")
@click.argument("changes", metavar="NAME=VALUE...", nargs=-1, required=True)
@click.option("--force", is_flag=True, help="Allow limits below their present use. Requests for more are then refused.")
@client_options
def set_limits(changes: tuple[str, ...], force: bool, endpoints: str, deadline_seconds: float, as_json: bool) -> None:
    """Change limits of all members at once and permanently, and show all limits. The other limits stay unchanged."""
    wanted = dict(map(_read_change, changes))
    if len(wanted) < len(changes):
        raise click.UsageError("A limit is named twice.")

    async def change(client: Client) -> LimitsView:
        await client.set_limits(force=force, **wanted)
        return await client.limits()

    _show(run_without_session(endpoints, deadline_seconds, change), as_json=as_json)


def _read_change(text: str) -> tuple[str, int]:
    name, _, value = text.partition("=")
    if name not in StoreLimits.names():
        raise click.UsageError(f"There is no limit {name!r}. There are: {', '.join(StoreLimits.names())}.")
    try:
        return name, StoreLimits(**{name: int(value)}).to_map()[name]
    except ValueError as error:
        least, greatest = limit_min(name), limit_max(name)
        shown = "2^63-1" if greatest == 2**63 - 1 else str(greatest)
        raise click.UsageError(f"{text!r}: the value is a whole number from {least} to {shown}.") from error


def _show(view: LimitsView, *, as_json: bool) -> None:
    limits = view.limits.to_map()
    rows = [(name, limits[name], used) for name, used in view.used.items()]
    if as_json:
        print_json({name: {"limit": limit, "used": used} for name, limit, used in rows})
    else:
        print_table(("limit", "value", "used"), rows)
