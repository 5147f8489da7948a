"""`hwm lease`: grant, revoke, renew and show leases."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Any

import click
import trio

from kvstore.cli.common import ExitCode, Seconds, client_options, print_json, print_table, run_with_client
from kvstore.cli.output import say, show
from kvstore.client.client import Client
from kvstore.errors import LeaseNotFound
from kvstore.limits import SECOND_NS
from kvstore.protocol.lease_requests import LeaseDetails, LeasePage, LeaseView
from kvstore.protocol.text import to_shown_text
from kvstore.recipes.lease_term import RENEWALS_PER_TERM

ID = click.argument("lease_id", metavar="ID", type=click.IntRange(min=1))


@click.group()
def lease() -> None:
    """Grant, renew, revoke and show leases. When a lease ends, the store removes the keys that are attached to it.

    \b
    Exit codes: 0 done; 1 there is no such lease; 2 wrong usage; 3 certainly not carried out;
    4 unknown; 5 nobody leads, or nobody can be reached.
    """


@lease.command()
@click.argument("ttl_seconds", metavar="SECONDS", type=Seconds())
@click.option("--id", "lease_id", type=click.IntRange(min=1), metavar="ID", help="Default: the store picks an id.")
@client_options
def grant(ttl_seconds: float, lease_id: int | None, endpoints: str, deadline_seconds: float, as_json: bool) -> None:
    """Grant a lease that ends after SECONDS unless it is renewed; print its id."""
    granted = run_with_client(
        endpoints, deadline_seconds, lambda client: client.lease_grant(ttl_seconds, lease_id=lease_id or 0)
    )
    if as_json:
        print_json({"lease_id": granted.lease_id, "ttl_ns": granted.ttl_ns, "revision": granted.revision})
    else:
        show(granted.lease_id)


@lease.command()
@ID
@client_options
def revoke(lease_id: int, endpoints: str, deadline_seconds: float, as_json: bool) -> None:
    """End a lease and remove its keys; exit code 1 if there is no such lease."""

    async def end(client: Client) -> int | None:
        try:
            return (await client.lease_revoke(lease_id)).keys
        except LeaseNotFound:
            return None

    keys = run_with_client(endpoints, deadline_seconds, end)
    if as_json:
        print_json({"lease_id": lease_id, "found": keys is not None, "keys": keys or 0})
    else:
        say(_missing(lease_id) if keys is None else f"revoked; keys removed: {keys}")
    _exit_unless(keys is not None)


@lease.command("keep-alive")
@ID
@click.option("--once", is_flag=True, help="Renew it once, and end.")
@client_options
def keep_alive(lease_id: int, once: bool, endpoints: str, deadline_seconds: float, as_json: bool) -> None:
    """Renew a lease after each third of its time to live, until the lease is gone or this command is interrupted.

    Prints the time to live after each renewal. Exit code 1 once there is no such lease.
    """

    async def keep(client: Client) -> bool:
        while True:
            try:
                ttl_seconds = await client.lease_renew(lease_id)
            except LeaseNotFound:
                return False
            if as_json:
                print_json({"lease_id": lease_id, "ttl_ns": round(ttl_seconds * SECOND_NS)})
            else:
                show(f"{ttl_seconds:g}")
            if once:
                return True
            await trio.sleep(ttl_seconds / RENEWALS_PER_TERM)

    is_there = run_with_client(endpoints, deadline_seconds, keep)
    if not is_there:
        say(_missing(lease_id))
    _exit_unless(is_there)


@lease.command()
@ID
@click.option("--keys", "with_keys", is_flag=True, help="Also print its keys, one per line.")
@client_options
def ttl(lease_id: int, with_keys: bool, endpoints: str, deadline_seconds: float, as_json: bool) -> None:
    """Print in how many seconds a lease ends unless it is renewed; exit code 1 if there is no such lease."""
    found = run_with_client(endpoints, deadline_seconds, lambda client: client.lease_time_to_live(lease_id))
    if as_json:
        print_json({"found": found is not None, **(_details_json(found) if found is not None else {})})
    elif found is None:
        say(_missing(lease_id))
    else:
        show(f"{found.remaining_ns / SECOND_NS:.3f}")
        for key in found.keys if with_keys else ():
            show(to_shown_text(key))
    _exit_unless(found is not None)


@lease.command("list")
@click.option("--after", "after_id", type=click.IntRange(min=0), default=0, metavar="ID", help="Begin after this id.")
@client_options
def list_leases(after_id: int, endpoints: str, deadline_seconds: float, as_json: bool) -> None:
    """Show the leases as the leader has them, ordered by id. EXPIRES is the time until a lease ends if not renewed."""

    async def gather(client: Client) -> list[tuple[LeasePage, LeaseView]]:
        found: list[tuple[LeasePage, LeaseView]] = []
        at = after_id
        while True:
            page = await client.leases(after_id=at)
            found += [(page, each) for each in page.items]
            if not page.more:
                return found
            at = page.items[-1].lease_id

    rows = run_with_client(endpoints, deadline_seconds, gather)
    if as_json:
        print_json({"leases": [{**asdict(each), "remaining_ns": page.remaining_ns(each)} for page, each in rows]})
    else:
        cells = [
            (each.lease_id, f"{each.ttl_ns / SECOND_NS:.1f}", f"{page.remaining_ns(each) / SECOND_NS:.1f}", each.keys)
            for page, each in rows
        ]
        print_table(("id", "ttl s", "expires s", "keys"), cells)


def _details_json(found: LeaseDetails) -> dict[str, Any]:
    return {
        "lease_id": found.lease_id,
        "ttl_ns": found.ttl_ns,
        "remaining_ns": found.remaining_ns,
        "keys": list(found.keys),
    }


def _missing(lease_id: int) -> str:
    return f"there is no lease {lease_id}"


def _exit_unless(is_there: bool) -> None:
    if not is_there:
        sys.exit(ExitCode.NEGATIVE)
