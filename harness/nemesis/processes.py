"""Faults of processes: a kill, a pause, an orderly restart, a changed clock, and a leadership transfer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from harness.nemesis.active_fault import ActiveFault
from harness.nemesis.expected_exits import blame, if_asked_to_stop
from kvstore import Client, StoreError

_CLOCK_SHIFT_SECONDS_MAX = 30 * 24 * 3600
_WALL_SHIFT_SECONDS_MAX = 10 * 365 * 24 * 3600
# The longest jump exceeds all time-outs, but is only half of a session's time to live.
_JUMP_NS_MAX = 30_000_000_000
_TRANSFER_SECONDS = 5.0


@asynccontextmanager
async def killed(active: ActiveFault) -> AsyncIterator[None]:
    """The victims are killed (`kill -9`), and started again at the end."""
    members = active.members
    for member in members:
        member.kill()
    try:
        yield
    finally:
        for member in members:
            member.start()


@asynccontextmanager
async def paused(active: ActiveFault) -> AsyncIterator[None]:
    """The victims' processes are paused (SIGSTOP), and resumed at the end."""
    members = active.members
    for member in members:
        member.pause()
    try:
        yield
    finally:
        for member in members:
            member.resume()


@asynccontextmanager
async def restarted(active: ActiveFault) -> AsyncIterator[None]:
    """The victims are asked to end (SIGTERM), as before an upgrade, and started again at the end.

    Each victim must end with an exit code that is allowed after a SIGTERM.
    """
    members = active.members
    exit_codes: dict[str, int] = {}
    active.record.outcome["exit_codes"] = exit_codes
    allowed = if_asked_to_stop(active)
    try:
        for member in members:
            exit_codes[member.node_id] = await member.stop()
        blame(active, "asked to stop", exit_codes, allowed)
        yield
    finally:
        for member in members:
            member.kill()  # The process still runs if the harness was interrupted during `stop`.
            member.start()


@asynccontextmanager
async def booted_at_another_time(active: ActiveFault) -> AsyncIterator[None]:
    """The victims are killed, and started again with monotonic clocks that are unrelated to their earlier clocks."""
    shifts = {member.node_id: active.random.randrange(_CLOCK_SHIFT_SECONDS_MAX) for member in active.members}
    active.record.outcome["clock_shift_seconds"] = shifts
    for member in active.members:
        member.clock_shift_seconds = shifts[member.node_id]
    async with killed(active):
        yield


@asynccontextmanager
async def told_another_date(active: ActiveFault) -> AsyncIterator[None]:
    """The wall clock of a running process jumps by up to ten years into the past or the future.

    At the end, it is set to the right time again.
    """
    limit = _WALL_SHIFT_SECONDS_MAX
    shifts = {member.node_id: active.random.randrange(-limit, limit) for member in active.members}
    active.record.outcome["wall_shift_seconds"] = shifts
    members = active.members
    for member in members:
        member.set_wall_clock(shifts[member.node_id])
    try:
        yield
    finally:
        for member in members:
            member.set_wall_clock(0)


@asynccontextmanager
async def jumped_ahead(active: ActiveFault) -> AsyncIterator[None]:
    """The monotonic clock of a running process jumps ahead by up to half a minute, and is not set back.

    Lease reads are unsafe under this fault, because each member uses its own clock to measure how long it must vote for
    no other member.
    """
    jumps = {member.node_id: active.random.randrange(_JUMP_NS_MAX) for member in active.members}
    active.record.outcome["jumped_ahead_seconds"] = {node_id: round(ns / 1e9, 3) for node_id, ns in jumps.items()}
    for member in active.members:
        member.controls.jump(jumps[member.node_id])
    yield


@asynccontextmanager
async def handed_over(active: ActiveFault) -> AsyncIterator[None]:
    """The leader is asked to let another member lead."""
    try:
        async with Client(active.cluster.endpoints, session=False, tls=active.cluster.tls) as client:
            new = await client.transfer_leadership(deadline_seconds=_TRANSFER_SECONDS)
        active.record.outcome["new_leader_id"] = new
    # A leader may decline, for example during a membership change, and continue to lead.
    except StoreError as error:
        active.record.outcome["declined"] = str(error)
    await trio.lowlevel.checkpoint()
    yield
