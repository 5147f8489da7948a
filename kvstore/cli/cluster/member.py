"""`hwm member`, `hwm transfer`, `hwm upgrade`: changes the members, the leader, and the feature level in force."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any

import click

from kvstore.cli.common import (
    ExitCode,
    Failure,
    FunctionT,
    MemberType,
    Seconds,
    client_options,
    failure_of,
    print_json,
    print_table,
    run_with_client,
)
from kvstore.cli.output import say, show
from kvstore.client.client import Client
from kvstore.client.feature_level import raise_feature_level
from kvstore.client.membership import WAIT_SECONDS_DEFAULT
from kvstore.errors import OutcomeUnknown, Unavailable
from kvstore.protocol.membership import Membership, MemberView
from raft import Member

NEW = click.argument("new", type=MemberType(), metavar="ID=PEER/CLIENT")
ID = click.argument("node_id", metavar="ID")


def _waiting(function: FunctionT) -> FunctionT:
    """Add the option `--wait`, and the options of all commands for a cluster."""
    wait = click.option(
        "--wait",
        "wait_seconds",
        type=Seconds(),
        default=WAIT_SECONDS_DEFAULT,
        show_default=True,
        metavar="SECONDS",
        help="How long to wait until another change has ended, and until a member has caught up. --deadline applies to "
        "each request.",
    )
    return wait(client_options(function))


@click.group()
def member() -> None:
    """Add, promote, remove and replace members of a running cluster.

    A new member is started with `hwm serve DIR --join HOST:PORT --member ID=PEER/CLIENT`, before or after it is added.
    It is not an error if the goal of a command is already reached, so an interrupted command can be repeated.

    \b
    Exit codes: 0 the goal is reached; 2 wrong usage; 3 refused, nothing has changed;
    4 unknown, repeat the command; 5 nobody leads, or nobody can be reached.
    """


@member.command("list")
@client_options
def list_members(endpoints: str, deadline_seconds: float, as_json: bool) -> None:
    """Show the members: the part of each, its addresses, how far it is behind, and whether the leader hears it.

    The leader reports this. If no leader answers, another member reports what it knows: parts and addresses only.

    \b
    Exit codes: 0 all members answer the leader; 1 some do not, or no leader
    answered; 2 wrong usage; 5 nobody could be reached.
    """

    async def look(client: Client) -> Membership:
        try:
            return await client.membership(of_leader=True)
        except Unavailable:
            return await client.membership()

    now = run_with_client(endpoints, deadline_seconds, look)
    if as_json:
        print_json(_as_json(now))
    else:
        print_table(
            ("member", "part", "peer address", "client address", "lag", "heard"), [_cells(each) for each in now.members]
        )
        if now.is_changing:
            say("a change is under way")
    if not _is_by_leader(now):
        leads = "nobody leads" if now.leader_id in (None, now.node_id) else f"{now.leader_id} leads, but did not answer"
        say(f"{leads}, says {now.node_id}")
    if not all(each.is_heard for each in now.members):
        sys.exit(ExitCode.NEGATIVE)


@member.command()
@NEW
@click.option("--promote", is_flag=True, help="Make the new member a voter as soon as it has caught up.")
@_waiting
def add(
    new: Member, promote: bool, wait_seconds: float, endpoints: str, deadline_seconds: float, as_json: bool
) -> None:
    """Add a new member at these addresses, as a learner: it gets all data and has no vote yet."""
    change_members(
        lambda client: client.add_member(new, promote=promote, wait_seconds=wait_seconds),
        endpoints, deadline_seconds, as_json,
    )  # fmt: skip


@member.command()
@ID
@_waiting
def promote(node_id: str, wait_seconds: float, endpoints: str, deadline_seconds: float, as_json: bool) -> None:
    """Make a learner a voter as soon as it has caught up."""
    change_members(
        lambda client: client.promote_member(node_id, wait_seconds=wait_seconds), endpoints, deadline_seconds, as_json
    )


@member.command()
@ID
@_waiting
def remove(node_id: str, wait_seconds: float, endpoints: str, deadline_seconds: float, as_json: bool) -> None:
    """Remove a member permanently. Its server stops when it learns of the removal.

    If the removed member leads, another member will lead.

    The id of a removed member can never be used again.
    """
    change_members(
        lambda client: client.remove_member(node_id, wait_seconds=wait_seconds), endpoints, deadline_seconds, as_json
    )


@member.command()
@click.argument("old")
@NEW
@_waiting
def replace(old: str, new: Member, wait_seconds: float, endpoints: str, deadline_seconds: float, as_json: bool) -> None:
    """Replace OLD, dead or alive, by a new member: add it, wait until it has caught up, then swap both in one change.

    There are never fewer voters than before. OLD must not come back. If its server still runs, it stops when it learns
    of the removal.
    """
    if old == new.node_id:
        raise Failure(
            f"{old} cannot take its own place: an id is never used again",
            ExitCode.USAGE,
            f"give the new member another id; for other addresses of {old} there is `hwm member update`",
        )
    change_members(
        lambda client: client.replace_member(old, new, wait_seconds=wait_seconds), endpoints, deadline_seconds, as_json
    )


@member.command()
@NEW
@_waiting
def update(new: Member, wait_seconds: float, endpoints: str, deadline_seconds: float, as_json: bool) -> None:
    """Record new addresses of a member, so that all members and clients learn them. Then start the member there."""
    change_members(
        lambda client: client.update_member(new, wait_seconds=wait_seconds), endpoints, deadline_seconds, as_json
    )


def change_members(
    work: Callable[[Client], Awaitable[Membership]], endpoints: str, deadline_seconds: float, as_json: bool
) -> None:
    """Carry out `work`, and print the resulting members. Raises Failure with a hint for the next step."""

    async def change(client: Client) -> Membership:
        try:
            return await work(client)
        except OutcomeUnknown as error:
            failure = failure_of(error)
            failure.hint = "repeat the command: it is not an error if its goal is already reached"
            raise failure from error

    now = run_with_client(endpoints, deadline_seconds, change)
    if as_json:
        print_json(_as_json(now))
    else:
        show(", ".join(f"{each.node_id} ({each.part})" for each in now.members))


def _is_by_leader(now: Membership) -> bool:
    return any(each.is_heard is not None for each in now.members)  # Only a leader reports `is_heard`.


def _cells(view: MemberView) -> list[object]:
    heard = {True: "yes", False: "no", None: "-"}[view.is_heard]
    lag = "-" if view.lag is None else view.lag
    return [view.node_id, view.part, view.peer_address or "-", view.client_address or "-", lag, heard]


def _as_json(now: Membership) -> dict[str, Any]:
    members = [{**asdict(each), "incarnation_id": each.incarnation_id.hex()} for each in now.members]
    fields = {**asdict(now), "cluster_id": now.cluster_id.hex(), "members": members}
    del fields["incarnation_id"]  # `about` is always empty here, because the request has no id in it.
    return fields


@click.command()
@click.argument("member", required=False)
@client_options
def transfer(member: str | None, endpoints: str, deadline_seconds: float, as_json: bool) -> None:
    """Transfer the leadership to MEMBER, by default to the fittest other member, and wait until that member leads.

    Exit code 3 if the leader refuses, or if the new leader does not lead by the deadline.
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


@click.command()
@click.option(
    "--level", type=click.IntRange(min=1), help="The feature level. Default: the highest level that all members know."
)
@client_options
def upgrade(level: int | None, endpoints: str, deadline_seconds: float, as_json: bool) -> None:
    """Raise the feature level, and print the level in force. Do this after every member was started with the new build.
    The level can never be lowered again.

    Before it is raised, every member can go back to its old build. Exit code 3 if some member does not know the level,
    or does not answer. In this case nothing has changed.
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
