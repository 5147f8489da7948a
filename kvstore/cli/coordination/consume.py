"""`hwm consume` and `hwm group`: consumes the changes under a prefix, and shows the consumer groups."""

from __future__ import annotations

import math
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import click
import trio

from kvstore.cli.common import (
    Data,
    ExitCode,
    client_options,
    print_json,
    print_json_when_read,
    print_table,
    run_with_client,
)
from kvstore.cli.coordination.lock import ttl_option, wait_option
from kvstore.cli.keys.watch import change_json, change_line
from kvstore.cli.output import say, show_when_read, stdout_descriptor
from kvstore.client.client import Client
from kvstore.errors import RevisionCompacted
from kvstore.protocol.results import KeyRecord, Record
from kvstore.protocol.text import to_shown_text, to_text
from kvstore.protocol.watches import Change
from kvstore.recipes.consumers.consumer import Consumer
from kvstore.recipes.consumers.group_keys import GroupAbout, GroupKeys
from kvstore.recipes.consumers.group_status import GroupMember, GroupStatus, ShareStatus
from kvstore.store.map import FIRST_REVISION

COMMIT_IDLE_SECONDS = 1.0
"""With --commit-every above 1, the printed records are also committed when no further record has come for this time."""

STOPPING_SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""At one of these signals, `hwm consume` commits the printed records, and ends."""


class _OutputLost(Exception):
    """A record could not be written to stdout, so the record must not be committed."""


@click.command()
@click.argument("prefix", type=Data())
@click.option("--group", type=Data(), metavar="NAME", help="Keep the position in the store, for this group.")
@click.option(
    "--from-revision",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Where a new group begins; 0: with the next change, 1: with the first change of the store.",
)
@click.option(
    "--commit-every",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="Commit the position after N records, after a second without records, and at the end.",
)
@click.option("--present", is_flag=True, help="If the history has forgotten records, print the present ones instead.")
@click.option("--limit", type=click.IntRange(min=0), default=0, help="End after this many records; 0: never.")
@click.option("--member", type=Data(), metavar="NAME", help="The name that `hwm group` shows; default: host:pid.")
@ttl_option
@wait_option
@client_options
def consume(
    prefix: bytes,
    group: bytes | None,
    from_revision: int,
    commit_every: int,
    present: bool,
    limit: int,
    member: bytes | None,
    ttl_seconds: float,
    wait_seconds: float | None,
    endpoints: str,
    deadline_seconds: float,
    as_json: bool,
) -> None:
    """Print each change of the keys that begin with PREFIX, in order, until interrupted.

    With --group, the position of the group is kept in the store. It moves only after the records were written to
    stdout, so a record may be printed again after a crash, but none is left out. One consumer of a group is active at a
    time; the others wait, and take over in the order of their arrival. An interrupt (Ctrl-C, SIGTERM) commits the
    printed records, and lets the next consumer continue.

    Each line has the revision, `put` or `delete`, the key, and the value. With --json, or if the output is not a
    terminal, each line is a change as a JSON object.

    \b
    Exit codes: 3 records were lost to compaction, or no turn within --wait; 4 the lease was lost; 74 the output could
    not be written; 2 and 5 as for every command.
    """
    about = _checked(lambda: GroupAbout(prefix))
    if group is not None:
        _checked(lambda: GroupKeys(group))
    elif present or commit_every > 1:
        raise click.UsageError("--present and --commit-every need --group")
    is_for_programs = as_json or not sys.stdout.isatty()
    name = member if member is not None else f"{socket.gethostname()}:{os.getpid()}".encode()

    async def print_all(changes: tuple[Change, ...]) -> None:
        for change in changes:
            if is_for_programs:
                await print_json_when_read(change_json(change, with_previous=False))
            else:
                await show_when_read(change_line(change, with_previous=False))
        descriptor = stdout_descriptor()
        if descriptor is not None and descriptor.failure is not None:
            raise _OutputLost

    async def as_member(client: Client, named: bytes) -> str:
        patience = math.inf if wait_seconds is None else wait_seconds
        async with client.consume(
            about.prefix,
            group=named,
            member=name,
            from_revision=from_revision,
            ttl_seconds=ttl_seconds,
            wait_seconds=patience,
        ) as consumer:
            printing = _Printing(consumer, print_all, commit_every, limit)
            await until_signal(lambda: printing.run(with_present=present))
            await printing.commit()
            return f"position {consumer.position} of group {to_text(named)}"

    async def alone(client: Client) -> str:
        first = max(from_revision, FIRST_REVISION + 1) if from_revision else 0  # No change has a lower revision.
        async with client.watch(prefix=about.prefix, from_revision=first) as watch:

            async def follow() -> None:
                count = 0
                async for changes in watch.batches():
                    await print_all(changes)
                    count += 1
                    if count == limit:
                        return

            await until_signal(follow)
            return f"consumed up to revision {watch.revision}; --from-revision {watch.revision + 1} goes on there"

    try:
        say(run_with_client(endpoints, deadline_seconds, lambda c: alone(c) if group is None else as_member(c, group)))
    except _OutputLost:  # The exit code says that output was lost.
        return


class _Printing:
    """Prints the records of a consumer, and commits the written records."""

    def __init__(
        self,
        consumer: Consumer,
        print_all: Callable[[tuple[Change, ...]], Awaitable[None]],
        commit_every: int,
        limit: int,
    ) -> None:
        self._consumer, self._print_all = consumer, print_all
        self._commit_every, self._limit = commit_every, limit
        self._printed = 0  # The position up to which all records were written.
        self._uncommitted = 0

    async def commit(self) -> None:
        """Commit the printed records."""
        if self._printed > self._consumer.position:
            await self._consumer.commit(self._printed)
        self._uncommitted = 0

    async def run(self, *, with_present: bool) -> None:
        """Print records until the limit, or without end if there is no limit."""
        count = 0
        while True:
            try:
                with trio.move_on_after(COMMIT_IDLE_SECONDS if self._uncommitted else math.inf) as idle:
                    record = await anext(self._consumer)
            except RevisionCompacted as error:
                if not with_present:
                    raise
                say(f"{error}; the present records follow")
                count += await self._print_present()
                if 0 < self._limit <= count:
                    return
                continue
            if idle.cancelled_caught:
                await self.commit()
                continue
            await self._print_all(record.changes)
            self._printed, self._uncommitted, count = record.revision, self._uncommitted + 1, count + 1
            if self._uncommitted >= self._commit_every:
                await self.commit()
            if count == self._limit:
                return

    async def _print_present(self) -> int:
        """Print all present records, and commit them together. Returns the number of records."""
        items: AsyncIterator[KeyRecord] = self._consumer.present()
        count = 0
        async for item in items:
            count += 1
            record = Record(item.value or b"", item.create_revision, item.mod_revision, item.version, item.lease_id)
            await self._print_all((Change("put", item.key, record, None, item.mod_revision),))
        self._printed = self._consumer.revision
        await self.commit()
        return count


async def until_signal(run: Callable[[], Any]) -> None:
    """Run until the end, or until one of STOPPING_SIGNALS."""
    failure: Exception | None = None

    async def cancel_at_signal(scope: trio.CancelScope, *, task_status: trio.TaskStatus[None]) -> None:
        with trio.open_signal_receiver(*STOPPING_SIGNALS) as signals:
            task_status.started()
            async for _ in signals:
                scope.cancel()

    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:
            await nursery.start(cancel_at_signal, scope)
            try:
                await run()
            except Exception as error:  # The errors are raised below, without an exception group.
                failure = error
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


@click.command()
@click.argument("name", type=Data(), required=False)
@client_options
def group(name: bytes | None, endpoints: str, deadline_seconds: float, as_json: bool) -> None:
    """Show the consumer group NAME: its positions, its active consumers, and its lag; or list all groups.

    The lag is the number of revisions of the whole store after the position. Exit code 1 if there is no such group.
    """
    if name is None:
        names = run_with_client(endpoints, deadline_seconds, _all_groups)
        if as_json:
            print_json({"groups": names})
        else:
            print_table(["group"], [[to_shown_text(each)] for each in names])
        return
    _checked(lambda: GroupKeys(name))
    status = run_with_client(endpoints, deadline_seconds, lambda client: client.consumer_group(name))
    if status is None:
        if as_json:
            print_json({"group": name, "found": False})
        say(f"not found: {to_text(name)}")
        sys.exit(ExitCode.NEGATIVE)
    if as_json:
        print_json(_group_json(status))
    else:
        say(f"group {to_text(name)} of {to_text(status.prefix)}, at revision {status.revision}")
        columns = ["share", "from", "position", "lag", "active", "fence", "waiting"]
        print_table(columns, [_share_row(status, each) for each in status.shares])


async def _all_groups(client: Client) -> list[bytes]:
    names: list[bytes] = []
    while found := await client.consumer_groups(after=names[-1] if names else b""):
        names += found
    return names


def _share_row(status: GroupStatus, each: ShareStatus) -> list[object]:
    active = each.active
    lag = "-" if each.position is None else max(0, status.revision - each.position)
    return [
        each.share.number,
        to_shown_text(each.share.start),
        "-" if each.position is None else each.position,
        lag,
        "-" if active is None else to_shown_text(active.name),
        "-" if active is None else active.fence,
        each.waiting,
    ]


def _group_json(status: GroupStatus) -> dict[str, Any]:
    return {
        "group": status.group,
        "prefix": status.prefix,
        "revision": status.revision,
        "position": status.position,
        "lag_revisions": status.lag_revisions,
        "shares": [
            {
                "share": each.share.number,
                "start": each.share.start,
                "end": each.share.end,
                "position": each.position,
                "lag_revisions": None if each.position is None else max(0, status.revision - each.position),
                "active": None if each.active is None else _member_json(each.active),
                "waiting": each.waiting,
            }
            for each in status.shares
        ],
        "members": [_member_json(each) for each in status.members],
    }


def _member_json(member: GroupMember) -> dict[str, Any]:
    return {"member": member.name, "lease_id": member.lease_id, "fence": member.fence}


def _checked(make: Callable[[], Any]) -> Any:
    """Return the result of `make`. A ValueError of `make` becomes an error of usage."""
    try:
        return make()
    except ValueError as error:
        raise click.UsageError(str(error)) from error
