"""`hwm watch`: prints the changes of keys."""

from __future__ import annotations

import sys
from typing import Any

import click

from kvstore.cli.common import Data, client_options, print_json, run_with_client
from kvstore.cli.keys.data import record_json
from kvstore.cli.output import say, show
from kvstore.client.client import Client
from kvstore.client.watches.watch import Watch
from kvstore.protocol.text import to_shown_text
from kvstore.protocol.watches import Change

KEY = Data()


def change_json(change: Change, *, with_previous: bool) -> dict[str, Any]:
    """Convert a change for JSON output."""
    shown: dict[str, Any] = {"op": change.kind, "key": change.key, "revision": change.revision}
    if change.record is not None:
        shown |= record_json(change.record)
    if with_previous:
        shown["previous"] = None if change.previous is None else record_json(change.previous)
    return shown


def change_line(change: Change, *, with_previous: bool) -> str:
    """Return a change as one human-readable line."""
    value = "" if change.record is None else f" {to_shown_text(change.record.value)}"
    before = f"  (was {to_shown_text(change.previous.value)})" if with_previous and change.previous is not None else ""
    return f"{change.revision} {change.kind} {to_shown_text(change.key)}{value}{before}"


@click.command()
@click.argument("key", type=KEY, required=False)
@click.option("--prefix", type=KEY, metavar="TEXT", help="All keys that begin with this.")
@click.option(
    "--from-revision",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Begin with the changes of this revision; 0: begin with the next change.",
)
@click.option("--initial", is_flag=True, help="First print the present records.")
@click.option("--previous", is_flag=True, help="Also print the previous value.")
@click.option("--limit", type=click.IntRange(min=0), default=0, help="End after this many changes; 0: never.")
@client_options
def watch(
    key: bytes | None,
    prefix: bytes | None,
    from_revision: int,
    initial: bool,
    previous: bool,
    limit: int,
    endpoints: str,
    deadline_seconds: float,
    as_json: bool,
) -> None:
    """Print each change of KEY, of the keys with a prefix, or of all keys, until interrupted.

    Each line has the revision, `put` or `delete`, the key, and the value. With --json, or if the output is not a
    terminal, each line is a change as a JSON object. --deadline applies only to the start of the watch. If the member
    that serves the watch fails, another member continues it; no change is left out or repeated. Exit code 3 if changes
    were lost to compaction.
    """
    if key is not None and prefix is not None:
        raise click.UsageError("give KEY or --prefix")
    if initial and from_revision:
        raise click.UsageError("give --initial or --from-revision")
    is_for_programs = as_json or not sys.stdout.isatty()
    begun: list[Watch] = []

    async def follow(client: Client) -> None:
        watched = client.watch(key, prefix=prefix, from_revision=from_revision, initial=initial, previous=previous)
        count = 0
        async with watched as changes:
            begun.append(watched)
            async for change in changes:
                if is_for_programs:
                    print_json(change_json(change, with_previous=previous))
                else:
                    show(change_line(change, with_previous=previous))
                count += 1
                if count == limit:
                    return

    try:
        run_with_client(endpoints, deadline_seconds, follow)
    except KeyboardInterrupt:
        if not begun:
            raise
    if begun[0].revision:
        say(f"watched up to revision {begun[0].revision}; --from-revision {begun[0].revision + 1} goes on there")
