"""`hwm session`: lists and closes the sessions of all clients. These commands need no session."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import asdict
from typing import Any

import click

from kvstore.cli.common import (
    ExitCode,
    Failure,
    ResultT,
    client_options,
    failure_of,
    print_json,
    print_table,
    run_with_client,
)
from kvstore.client.client import Client
from kvstore.errors import OutcomeUnknown, StoreError, Unsupported
from kvstore.protocol.session_requests import PAGE_SESSIONS_MAX, SessionPage, SessionView

SECOND_NS = 1_000_000_000


def run_without_session(
    endpoints: str, deadline_seconds: float, work: Callable[[Client], Awaitable[ResultT]]
) -> ResultT:
    """Run `work` with a client. If the leader's build does not know a request, raise a Failure that explains this."""

    async def ask(client: Client) -> ResultT:
        try:
            return await work(client)
        except Unsupported as error:
            raise Failure(
                "the leader runs an older build, which does not know requests about sessions and limits",
                ExitCode.FAILED,
                "nothing has changed; upgrade the members, or make an upgraded member the leader (`hwm transfer`)",
                error,
            ) from error
        except OutcomeUnknown as error:
            failure = failure_of(error)
            failure.hint = "repeat the command: it is not an error if its goal is already reached"
            raise failure from error

    return run_with_client(endpoints, deadline_seconds, ask)


@click.group()
def session() -> None:
    """List the sessions of clients, and close sessions that nobody needs.

    A client registers a session by itself, and loses it after it was silent for the session's time-to-live. The
    commands here need no session, so they work even if there is no place for another session.

    \b
    Exit codes: 0 done; 2 wrong usage; 3 certainly not carried out;
    4 unknown, repeat the command; 5 nobody leads, or nobody can be reached.
    """


@session.command("list")
@click.option("--after", "after_id", type=click.IntRange(min=0), default=0, metavar="ID", help="Begin after this id.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Show at most this many. Default: all.")
@client_options
def list_sessions(after_id: int, limit: int | None, endpoints: str, deadline_seconds: float, as_json: bool) -> None:
    """Show the open sessions as the leader has them, ordered by id, which is the order of their registration.

    IDLE is the time since a command of the session was last applied, EXPIRES the time until the session expires if no
    further command is applied. RESULTS are kept for requests that the client has not acknowledged.
    """

    async def gather(client: Client) -> list[tuple[SessionPage, SessionView]]:
        found: list[tuple[SessionPage, SessionView]] = []
        async with aclosing(_pages(client, after_id)) as pages:
            async for page in pages:
                found += [(page, each) for each in page.items]
                if limit is not None and len(found) >= limit:
                    break
        return found[:limit]

    rows = run_without_session(endpoints, deadline_seconds, gather)
    if as_json:
        print_json({"sessions": [_as_json(page, each) for page, each in rows]})
    else:
        columns = ("id", "ttl s", "idle s", "expires s", "used", "results", "result bytes")
        print_table(columns, [_cells(page, each) for page, each in rows])


@session.command("close")
@click.argument("session_ids", metavar="[ID]...", type=click.IntRange(min=1), nargs=-1)
@click.option("--never-used", is_flag=True, help="All sessions under which no request was carried out.")
@click.option("--all", "all_of_them", is_flag=True, help="All sessions. Needs --yes.")
@click.option("--yes", is_flag=True, help="Confirms --all.")
@client_options
def close_sessions(
    session_ids: tuple[int, ...],
    never_used: bool,
    all_of_them: bool,
    yes: bool,
    endpoints: str,
    deadline_seconds: float,
    as_json: bool,
) -> None:
    """Close sessions by ID, or all that were never used, or all there are; print how many were closed.

    A client whose session is closed registers another session by itself. If the response to one of its commands was
    lost, the outcome of this command becomes unknown, and the client does not repeat it. It is not an error if a
    session does not exist.
    """
    if bool(session_ids) + never_used + all_of_them != 1:
        raise click.UsageError("Give some IDs, or --never-used, or --all.")
    if all_of_them and not yes:
        raise click.UsageError("--all also closes the sessions of active clients; add --yes to confirm this.")

    async def close(client: Client) -> list[int]:
        if session_ids:
            return await _close(client, list(dict.fromkeys(session_ids)), only_unused=False)
        closed: list[int] = []
        async with aclosing(_pages(client, 0)) as pages:
            async for page in pages:
                wanted = [each.session_id for each in page.items if all_of_them or each.is_unused]
                closed += await _close(client, wanted, only_unused=never_used)
        return closed

    closed = run_without_session(endpoints, deadline_seconds, close)
    missing = sorted({*session_ids} - {*closed})
    if as_json:
        print_json({"closed": closed, "missing": missing})
    else:
        click.echo(len(closed))
    if missing:
        click.echo(f"no such session: {', '.join(map(str, missing))}", err=True)


async def _pages(client: Client, after_id: int) -> AsyncGenerator[SessionPage, None]:
    """Yield the pages one by one. Each page is requested when it is needed. Between two pages, the leader serves other
    requests."""
    while True:
        page = await client.sessions(after_id=after_id, limit=PAGE_SESSIONS_MAX)
        yield page
        if not page.more:
            return
        after_id = page.items[-1].session_id


async def _close(client: Client, session_ids: list[int], *, only_unused: bool) -> list[int]:
    """Close sessions, and return the ids of the closed sessions. If a call fails, raise the first error after all calls
    have ended."""
    ends = await client.close_sessions(session_ids, only_unused=only_unused)
    for end in ends:
        if isinstance(end, StoreError):
            raise end
    return [session_id for session_id, end in zip(session_ids, ends, strict=True) if end is True]


def _cells(page: SessionPage, view: SessionView) -> list[object]:
    expires_ns = max(0, view.deadline - page.leader_time)
    seconds = [f"{each / SECOND_NS:.1f}" for each in (view.ttl_ns, page.idle_ns(view), expires_ns)]
    return [view.session_id, *seconds, "no" if view.is_unused else "yes", view.results, view.results_bytes]


def _as_json(page: SessionPage, view: SessionView) -> dict[str, Any]:
    return {**asdict(view), "idle_ns": page.idle_ns(view), "expires_ns": max(0, view.deadline - page.leader_time)}
