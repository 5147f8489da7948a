"""`hwm upgrade`: the last step of an upgrade, which lets all members use what their new build can."""

from __future__ import annotations

import click

from kvstore.cli.common import client_options, print_json, run_with_client
from kvstore.cli.output import show
from kvstore.client.feature_level import raise_feature_level


@click.command()
@click.option("--level", type=click.IntRange(min=1), help="This feature level; without it the highest that all know.")
@client_options
def upgrade(level: int | None, endpoints: str, deadline_seconds: float, as_json: bool) -> None:
    """Raise the feature level, once every member runs the new build, and print the one in force. It is final.

    Before it, every member can go back to the build that it had. Exit code 3 if a member does not know the level, or is
    not heard: then nothing has changed.
    """
    in_force = run_with_client(
        endpoints,
        deadline_seconds,
        lambda client: raise_feature_level(client, level, deadline_seconds=deadline_seconds),
    )
    if as_json:
        print_json({"feature_level": in_force})
    else:
        show(in_force)
