"""`hwm lock` and `hwm elect`: runs a command under a lock, and takes part in an election."""

from __future__ import annotations

import math
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from functools import partial

import click
import trio

from kvstore.cli.common import (
    Data,
    ExitCode,
    Failure,
    Seconds,
    client_options,
    print_json,
    print_table,
    run_with_client,
)
from kvstore.cli.output import say
from kvstore.client.client import Client
from kvstore.protocol.results import KeyRecord
from kvstore.protocol.text import to_shown_text, to_text
from kvstore.recipes.lock import LOCK_TTL_SECONDS_DEFAULT

NOT_EXECUTABLE, NOT_FOUND, SIGNALLED = 126, 127, 128
"""The exit codes of a shell for a command that cannot be run, that does not exist, or that a signal has ended (128 plus
the number of the signal)."""

ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM) + ((signal.SIGHUP,) if os.name == "posix" else ())
"""At one of these signals, `hwm lock` ends its command and releases the lock."""

ttl_option = click.option(
    "--ttl",
    "ttl_seconds",
    type=Seconds(),
    default=LOCK_TTL_SECONDS_DEFAULT,
    show_default=True,
    metavar="SECONDS",
    help="If this command dies, others can take over after this time.",
)
wait_option = click.option(
    "--wait",
    "wait_seconds",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="How long to wait. Without this option there is no limit.",
)


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("name", type=Data())
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@ttl_option
@wait_option
@client_options
def lock(
    name: bytes,
    command: tuple[str, ...],
    ttl_seconds: float,
    wait_seconds: float | None,
    endpoints: str,
    deadline_seconds: float,
    as_json: bool,
) -> None:
    """Run COMMAND while this program holds the lock NAME: hwm lock NAME -- COMMAND ARGUMENT...

    Programs that wait get the lock in the order of their arrival. The environment of COMMAND has HWM_LOCK_KEY (the key
    of this holder), HWM_LOCK_FENCE (a number that rises from holder to holder) and HWM_LEASE_ID. If the lock is lost,
    or this program gets SIGINT, SIGTERM or SIGHUP, COMMAND gets SIGTERM, and SIGKILL if it still runs five seconds
    later.

    \b
    Exit codes: that of COMMAND (128 + N if signal N ended it; 126 or 127 if it cannot be run);
    3 the lock was not obtained; 4 the lock was lost; 2 and 5 as for every command.
    """

    async def hold(client: Client) -> int:
        patience = math.inf if wait_seconds is None else wait_seconds
        async with client.lock(name, ttl_seconds=ttl_seconds, wait_seconds=patience) as held:
            about = {"key": to_text(held.key), "fence": held.fence, "lease_id": held.lease.id}
            if as_json:
                print_json(about)
            environment = {"HWM_LOCK_KEY": to_text(held.key), "HWM_LOCK_FENCE": str(held.fence)}
            return await run_until_signal(command, {**environment, "HWM_LEASE_ID": str(held.lease.id)})

    sys.exit(run_with_client(endpoints, deadline_seconds, hold))


async def run_until_signal(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a command with the standard streams of this program. Return the exit code as a shell would.

    If this program gets one of ENDING_SIGNALS, or the call is cancelled, the command is ended before this function
    returns.
    """
    received = 0

    async def end_at_signal(scope: trio.CancelScope, *, task_status: trio.TaskStatus[None]) -> None:
        nonlocal received
        with trio.open_signal_receiver(*ENDING_SIGNALS) as signals:
            task_status.started()
            async for number in signals:
                received = number
                scope.cancel()

    code = ExitCode.UNKNOWN.value
    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:
            await nursery.start(end_at_signal, scope)
            code = await _run(command, {**os.environ, **environment})
        nursery.cancel_scope.cancel()
    return SIGNALLED + received if received else code


async def _run(command: Sequence[str], environment: Mapping[str, str]) -> int:
    run = partial(trio.run_process, list(command), stdin=None, check=False, env=dict(environment))
    try:
        done = await run()
    except FileNotFoundError:
        say(f"error: {command[0]}: command not found")
        return NOT_FOUND
    except OSError as error:
        say(f"error: {command[0]}: {(error.strerror or str(error)).lower()}")
        return NOT_EXECUTABLE
    return done.returncode if done.returncode >= 0 else SIGNALLED - done.returncode


@click.command()
@click.argument("name", type=Data())
@click.argument("value", type=Data(stdin=True), required=False)
@click.option("--listen", is_flag=True, help="Do not stand. Print the present leader, and then each new leader.")
@ttl_option
@wait_option
@client_options
def elect(
    name: bytes,
    value: bytes | None,
    listen: bool,
    ttl_seconds: float,
    wait_seconds: float | None,
    endpoints: str,
    deadline_seconds: float,
    as_json: bool,
) -> None:
    """Stand in the election NAME with VALUE. Once elected, print key and fence, and lead until interrupted.

    \b
    Exit codes: 3 not elected within --wait; 4 the leadership was lost; 130 interrupted; 2 and 5 as for every command.
    """
    if listen == (value is not None):
        raise click.UsageError("give a VALUE to stand with, or --listen")

    async def stand(client: Client) -> None:
        patience = math.inf if wait_seconds is None else wait_seconds
        async with client.election(name, ttl_seconds=ttl_seconds) as election:
            leadership = await election.campaign(value or b"", wait_seconds=patience)
            if as_json:
                about = {"key": leadership.key, "fence": leadership.fence, "lease_id": leadership.lease.id}
                print_json(about)
            else:
                print_table(("key", "fence"), [[to_shown_text(leadership.key), leadership.fence]])
            await trio.sleep_forever()

    async def observe(client: Client) -> None:
        async with client.election(name).observe() as leaders:
            async for leader in leaders:
                _show_leader(leader, as_json=as_json)
        raise Failure("the election is no longer observed", ExitCode.FAILED)

    run_with_client(endpoints, deadline_seconds, observe if listen else stand)


def _show_leader(leader: KeyRecord, *, as_json: bool) -> None:
    if as_json:
        print_json({"key": leader.key, "value": leader.value, "fence": leader.create_revision})
    else:
        row = [to_shown_text(leader.key), leader.create_revision, to_shown_text(leader.value or b"")]
        print_table(("key", "fence", "value"), [row])
