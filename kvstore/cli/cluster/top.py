"""`hwm top`: repeatedly looks at all members, and shows the results."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import click
import trio

from kvstore.cli.cluster.status import member_json
from kvstore.cli.common import Seconds, client_options, print_json_when_read, run_with_client
from kvstore.cli.output import show_bytes_when_read
from kvstore.client.client import Client
from kvstore.errors import StoreError
from kvstore.protocol.status import MemberStatus

if TYPE_CHECKING:
    from rich.live import Live

    from kvstore.cli.cluster.picture import Look

INTERVAL_SECONDS_DEFAULT = 2.0
LOOK_SECONDS_MAX = 2.0
"""The longest time for which a look waits for a member. A slower member is shown as a member without an answer."""

ABSENT_KEY = b"\0hwm top"
"""A look reads this key to measure a linearizable read. The key is most likely absent."""


@click.command()
@click.option(
    "--interval-seconds",
    type=Seconds(),
    default=INTERVAL_SECONDS_DEFAULT,
    show_default=True,
    metavar="SECONDS",
    help="The time between two looks.",
)
@click.option("--once", is_flag=True, help="Print one picture, from two looks, and end.")
@client_options
def top(interval_seconds: float, once: bool, endpoints: str, deadline_seconds: float, as_json: bool) -> None:
    """Show a live picture of a cluster: the members, their marks, rates and lags, and what is held back by whom.

    Rates are those between two looks. `answer` is the time that a member took to report its status, and
    `linearizable read` the time of one such read; both include the way through the network. A wider terminal has more
    columns. `q` or Ctrl-C ends the command. If standard output is not a terminal that can place text, the pictures are
    printed one after the other. NO_COLOR=1 turns colours off.

    \b
    Exit codes: 0 ended by the user, or --once; 5 no member could be reached at
    the beginning. Later looks that fail are shown, and the command goes on.
    """
    look_seconds = min(deadline_seconds, LOOK_SECONDS_MAX)

    async def work(client: Client) -> None:
        first = await _look(client, look_seconds, None)
        is_dumb = os.environ.get("TERM", "dumb") in ("dumb", "unknown")
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as ends:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_cancel_at, ends, nursery.cancel_scope)
                if as_json or once or is_dumb or not sys.stdout.isatty():
                    await _print_pictures(client, look_seconds, first, interval_seconds, once=once, as_json=as_json)
                else:
                    await _show_live(client, look_seconds, first, interval_seconds)
                nursery.cancel_scope.cancel()

    run_with_client(endpoints, deadline_seconds, work)


async def _cancel_at(signals: AsyncIterator[int], scope: trio.CancelScope) -> None:
    """End at a signal. Without this handling, KeyboardInterrupt could come while a picture is drawn."""
    await anext(signals)
    scope.cancel()


async def _look(client: Client, look_seconds: float, before: Look | None) -> Look:
    """Look at all members at once. After the first look, a failure is shown in the picture instead of ending the
    command."""
    from kvstore.cli.cluster.picture import Look

    members: dict[str, MemberStatus | StoreError] = {}
    round_trips: dict[str, float] = {}
    reads: list[float | StoreError] = []
    try:
        view = await client.members(deadline_seconds=look_seconds)
    except StoreError as error:
        if before is None:
            raise
        return Look(
            at_seconds=time.monotonic(),
            members=dict.fromkeys(before.members, error),
            round_trip_seconds={},
            read_seconds=error,
        )

    async def ask(node_id: str, address: str) -> None:
        begin = time.monotonic()
        try:
            members[node_id] = await client.status(address or node_id, deadline_seconds=look_seconds)
        except StoreError as error:
            members[node_id] = error
        round_trips[node_id] = time.monotonic() - begin

    async def read() -> None:
        begin = time.monotonic()
        try:
            await client.get(ABSENT_KEY, deadline_seconds=look_seconds)
        except StoreError as error:
            reads.append(error)
        else:
            reads.append(time.monotonic() - begin)

    begin = time.monotonic()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        for node_id, address in view.members:
            nursery.start_soon(ask, node_id, address)
    return Look(
        at_seconds=begin,
        members={node_id: members[node_id] for node_id, _ in view.members},
        round_trip_seconds=round_trips,
        read_seconds=reads[0],
    )


async def _print_pictures(
    client: Client, look_seconds: float, before: Look, interval_seconds: float, *, once: bool, as_json: bool
) -> None:
    """Print one picture after the other, as plain text, or as one JSON object each."""
    from rich.console import Console

    from kvstore.cli.cluster.picture import picture

    while True:
        await trio.sleep(interval_seconds)
        now = await _look(client, look_seconds, before)
        if as_json:
            await print_json_when_read(_json(before, now))
        else:
            console = Console(highlight=False)
            with console.capture() as captured:
                console.print(picture(before, now, console.width))
            end = "" if once else "\n"
            await show_bytes_when_read((captured.get() + end).encode())
        if once:
            return
        before = now


async def _show_live(client: Client, look_seconds: float, first: Look, interval_seconds: float) -> None:
    """Show pictures on the whole terminal, which shows its earlier contents again at the end."""
    from rich.console import Console
    from rich.live import Live

    from kvstore.cli.cluster.picture import picture

    console = Console(highlight=False)
    before: Look | None = None
    now = first

    def draw(live: Live) -> None:
        live.update(picture(before, now, console.width), refresh=True)

    with (
        Live(console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False) as live,
        _keys_at_once() as keyboard,
        trio.open_signal_receiver(signal.SIGWINCH) as resizes,
    ):
        async with trio.open_nursery() as nursery:
            if keyboard is not None:
                nursery.start_soon(_cancel_at_q, keyboard, nursery.cancel_scope)
            nursery.start_soon(_redraw, resizes, partial(draw, live))
            while True:
                draw(live)
                await trio.sleep(interval_seconds)
                before, now = now, await _look(client, look_seconds, now)


async def _redraw(resizes: AsyncIterator[int], draw: Callable[[], None]) -> None:
    async for _ in resizes:
        draw()


async def _cancel_at_q(keyboard: int, scope: trio.CancelScope) -> None:
    while True:
        await trio.lowlevel.wait_readable(keyboard)
        keys = os.read(keyboard, 64)
        if not keys or b"q" in keys.lower():
            scope.cancel()
            return


@contextmanager
def _keys_at_once() -> Iterator[int | None]:
    """Deliver pressed keys at once, and do not show them on the terminal. Yields the descriptor of the keyboard; None
    if standard input is not a terminal."""
    if sys.stdin is None or not sys.stdin.isatty():
        yield None
        return
    import termios
    import tty

    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    try:
        tty.setcbreak(keyboard)
        yield keyboard
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


def _json(before: Look, now: Look) -> dict[str, object]:
    from kvstore.cli.cluster.picture import messages_of, rates_of

    rates = rates_of(before, now)
    mark = max((found.commit_index for found in now.found), default=0)
    return {
        "changes_per_second": rates.revisions,
        "entries_per_second": rates.entries,
        "read_seconds": None if isinstance(now.read_seconds, StoreError) else now.read_seconds,
        "members": [
            {
                **member_json(node_id, found, mark),
                "round_trip_seconds": now.round_trip_seconds.get(node_id),
                "applied_per_second": rates.applied.get(node_id),
            }
            for node_id, found in now.members.items()
        ],
        "messages": messages_of(now),
    }
