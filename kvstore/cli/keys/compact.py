"""`hwm compact`: drops old revisions."""

from __future__ import annotations

import click

from kvstore.cli.common import client_options, print_json, run_with_client
from kvstore.cli.output import say


@click.command()
@click.argument("revision", type=click.IntRange(min=1))
@client_options
def compact(revision: int, endpoints: str, deadline_seconds: float, as_json: bool) -> None:
    """Forget the history below REVISION. Reads and watches at REVISION or a later revision still work.

    The history has bounds of its own (`hwm limits`: history_bytes_max, history_events_max), so this is seldom needed.
    """
    run_with_client(endpoints, deadline_seconds, lambda client: client.compact(revision))
    if as_json:
        print_json({"compact_revision": revision})
    else:
        say(f"the oldest revision that can be read is {revision}")
