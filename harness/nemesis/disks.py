"""Faults of the victims' disks, which are full, failing, hanging, slow or without power.

Each member has its own file system.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress

import trio

from harness.cluster.os_faults import Operation
from harness.cluster.process import MemberProcess
from harness.cluster.volumes import Volume
from harness.nemesis.active_fault import ActiveFault
from harness.nemesis.expected_exits import blame, if_its_disk_fails
from kvstore import Client, StoreError, Tls

_STUTTER_SECONDS = (0.03, 0.2)  # The shortest and the longest freeze, both shorter than an election time-out.
_BREATH_SECONDS = 0.03
# Within _END_SECONDS, a member with a disk error sends its last messages to its peers and ends.
_END_SECONDS, _LOOK_SECONDS = 5.0, 0.05
_ASK_SECONDS = 0.5
_NOBODYS_KEY = "nothing is ever written here"
_ONCE: tuple[Operation, ...] = ("write", "sync")


@asynccontextmanager
async def full(active: ActiveFault) -> AsyncIterator[None]:
    """The disks of the victims have no free space (ENOSPC) until the end of the fault."""
    volumes = active.volumes
    try:
        await _each(volumes, Volume.fill)
        yield
    finally:
        await _each(volumes, Volume.free)


@asynccontextmanager
async def failing(active: ActiveFault) -> AsyncIterator[None]:
    """Every operation on the disk fails (EIO), and the victim must end by itself. Data that was written before is kept.

    At the end the disk works again, and the victim is started again. The outcome `exit_codes` has the exit code of each
    victim, or None if it did not end by itself and was killed.
    """
    members, volumes = active.members, active.volumes
    exit_codes: dict[str, int | None] = {}
    active.record.outcome["exit_codes"] = exit_codes
    allowed = if_its_disk_fails(active)
    for member in members:
        member.may_end = True
    try:
        await _each(volumes, Volume.fail)
        yield
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_have_all_write, active.cluster.endpoints, active.cluster.tls)
            await _ended(lambda: members)
            nursery.cancel_scope.cancel()
        exit_codes.update({member.node_id: member.died() for member in members})
        blame(active, "while every operation on the disk failed", exit_codes, allowed)
    finally:
        for member in members:
            member.kill()
        await _each(volumes, Volume.repair)
        for member in members:
            member.start()


@asynccontextmanager
async def failing_once(active: ActiveFault) -> AsyncIterator[None]:
    """One write or one sync of the log fails (EIO); all other operations succeed.

    A victim whose operation has failed must end by itself, because it cannot know which part of the log is on its disk.
    At the end each victim is started again. The outcome `exit_codes` has the exit codes of the victims whose operation
    has failed.
    """
    members, operation = active.members, active.random.choice(_ONCE)
    exit_codes: dict[str, int | None] = {}
    active.record.outcome.update(operation=operation, exit_codes=exit_codes)
    allowed = if_its_disk_fails(active)
    for member in members:
        member.may_end = True
        member.controls.fail_next(operation)

    def who_met_it() -> list[MemberProcess]:
        return [member for member in members if member.controls.failed]

    try:
        yield
        await _ended(who_met_it)
        exit_codes.update({member.node_id: member.died() for member in who_met_it()})
        blame(active, f"after a {operation} of the log had failed", exit_codes, allowed)
    finally:
        for member in members:
            member.kill()  # A victim that has written nothing still runs, because no operation has failed.
            member.start()


async def _ended(who: Callable[[], Sequence[MemberProcess]]) -> None:
    """Wait until all members that `who` returns have ended, but at most for about _END_SECONDS."""
    for _ in range(round(_END_SECONDS / _LOOK_SECONDS)):
        if all(member.died() is not None for member in who()):
            return
        await trio.sleep(_LOOK_SECONDS)


async def _have_all_write(endpoints: Sequence[str], tls: Tls | None) -> None:
    """Make every member write to its log, even without load, by repeated deletions of a key that does not exist."""
    while True:
        await trio.sleep(_ASK_SECONDS)
        with suppress(StoreError):
            async with Client(endpoints, session=False, tls=tls) as client:
                await client.delete(_NOBODYS_KEY, deadline_seconds=_ASK_SECONDS)


@asynccontextmanager
async def hanging(active: ActiveFault) -> AsyncIterator[None]:
    """Every write and sync waits until the end of the fault. The process is not stopped."""
    volumes = active.volumes
    try:
        await _each(volumes, lambda volume: volume.freeze(active.seconds))
        yield
    finally:
        await _each(volumes, Volume.thaw)


@asynccontextmanager
async def slow(active: ActiveFault) -> AsyncIterator[None]:
    """The disk repeatedly hangs for a moment, so that a sync can take some tenths of a second."""
    volumes = active.volumes

    async def stutter() -> None:
        while True:
            try:
                await _each(volumes, lambda volume: volume.freeze(_STUTTER_SECONDS[1]))
                await trio.sleep(active.random.uniform(*_STUTTER_SECONDS))
            finally:
                await _each(volumes, Volume.thaw)
            await trio.sleep(_BREATH_SECONDS)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stutter)
        try:
            yield
        finally:
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def without_power(active: ActiveFault) -> AsyncIterator[None]:
    """The process and its disk stop at the same time, and unsynced data is lost.

    At the end the process is started again.
    """
    members, volumes = active.members, active.volumes
    for member in members:
        # From now on the member must send nothing and close no file, because closing a file could write data to the
        # disk.
        member.pause()
    await _each(volumes, Volume.cut_power)
    for member in members:
        member.kill()
    await _each(volumes, Volume.repair)
    try:
        yield
    finally:
        for member in members:
            member.start()


async def _each(volumes: Sequence[Volume], act: Callable[[Volume], object]) -> None:
    """Run `act` on all volumes at once, in threads.

    The calls are not cancelled, because a change that stops halfway could make a volume useless.
    """
    with trio.CancelScope(shield=True):
        async with trio.open_nursery() as nursery:
            for volume in volumes:
                nursery.start_soon(trio.to_thread.run_sync, act, volume)
