"""`hwm transfer`: have another member lead."""

from __future__ import annotations

import click

from kvstore.cli.common import client_options, print_json, run_with_client
from kvstore.cli.output import show


@click.command()
@click.argument("member", required=False)
@client_options
def transfer(member: str | None, endpoints: str, deadline_seconds: float, as_json: bool) -> None:
    """Hand leadership over to MEMBER, or to the one that is fittest for it, and wait until it leads.

    Exit code 3 if it cannot, or has not by the deadline: then whoever leads goes on.
    """
    leader_id = run_with_client(
        endpoints,
        deadline_seconds,
        lambda client: client.transfer_leadership(member, deadline_seconds=deadline_seconds),
    )
    if as_json:
        print_json({"leader_id": leader_id})
    else:
        show(leader_id)
