"""Membership changes as an operator would make them, during other faults."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from harness.nemesis.active_fault import ActiveFault
from harness.nemesis.expected_exits import WAS_REMOVED, WHILE_JOINING, blame
from kvstore import Client, StoreError
from raft import MEMBERS_MAX, Member

MEMBERS_MIN = 3  # A smaller cluster could not lose a member and keep a majority.
ADDED_TO_MAX = MEMBERS_MAX - 2
"""The fault `add` is skipped if the cluster has this size or more. The last two places are kept free for replacements,
because a new member joins before the old one leaves.
"""
_CHANGE_SECONDS_MAX = 90.0  # Much longer than any other fault lasts, because other faults end within a few seconds.
_TRY_SECONDS = 20.0
_PAUSE_SECONDS = 0.2
_END_SECONDS = 15.0  # A removed member ends once it learns of its removal, and other faults may delay this.


@asynccontextmanager
async def added(active: ActiveFault) -> AsyncIterator[None]:
    """A member with a new id and an empty folder joins, catches up, and gets a vote."""
    count = len(active.cluster.members)
    if count >= ADDED_TO_MAX:
        active.record.outcome["skipped"] = (
            f"there are {count} members already, and a replacement needs room for one more"
        )
    else:
        new = await active.cluster.start_new_member()
        active.record.outcome["added"] = new.node_id
        async with _looked_after(active, new):
            await _insist(active, lambda client: client.add_member(new, promote=True, wait_seconds=_TRY_SECONDS))
    yield


@asynccontextmanager
async def removed(active: ActiveFault) -> AsyncIterator[None]:
    """A member is removed while its process runs; the process must then end by itself.

    The outcome `exit_code` is None if the process did not end by itself and was killed.
    """
    cluster = active.cluster
    is_one_spared = len(cluster.members) > MEMBERS_MIN
    if not is_one_spared or not active.record.victims:
        few = f"there are only {len(cluster.members)} members"
        active.record.outcome["skipped"] = "every member is already hit by another fault" if is_one_spared else few
        yield
        return
    (old,) = active.members
    old.may_end = True
    active.record.outcome["removed"] = old.node_id
    await _insist(active, lambda client: client.remove_member(old.node_id, wait_seconds=_TRY_SECONDS))
    for _ in range(round(_END_SECONDS / _PAUSE_SECONDS)):
        if old.died() is not None:
            break
        await trio.sleep(_PAUSE_SECONDS)
    active.record.outcome["exit_code"] = old.died()
    if "failed" not in active.record.outcome:
        blame(active, "removed", {old.node_id: old.died()}, {old.node_id: frozenset({WAS_REMOVED})})
    await cluster.forget(old.node_id)
    yield


@asynccontextmanager
async def replaced(active: ActiveFault) -> AsyncIterator[None]:
    """A member is killed and never started again, as if its disk were lost; a new member replaces it."""
    if not active.record.victims:
        active.record.outcome["skipped"] = "every member is already hit by another fault"
        yield
        return
    (old,) = active.members
    old.kill()
    await _replace(active, old.node_id)
    yield


@asynccontextmanager
async def lied_to(active: ActiveFault) -> AsyncIterator[None]:
    """A member's disk confirms syncs that it has not done. Then its power fails, and a new member replaces it.

    The old member is never started again, because it cannot know what it has forgotten. The outcome `check` is the
    report of `hwm check` about the old data folder. The run does not judge this report, because `hwm check` cannot
    notice that a log ends too early.
    """
    cluster = active.cluster
    if len(cluster.members) < MEMBERS_MIN or not active.record.victims:
        active.record.outcome["skipped"] = "no member can be spared"
        yield
        return
    (old,), (volume,) = active.members, active.volumes
    old.controls.lie()
    yield
    old.pause()  # As in a power failure, the member sends nothing more.
    await trio.to_thread.run_sync(volume.cut_power)
    old.kill()
    await trio.to_thread.run_sync(volume.repair)
    active.record.outcome["check"] = await _check(volume.data)
    await _replace(active, old.node_id)


async def _check(folder: Path) -> object:
    command = [sys.executable, "-P", "-m", "kvstore.cli.main", "check", str(folder), "--json"]
    done = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
    try:
        return json.loads(done.stdout)
    except ValueError:
        return done.stderr.decode("utf-8", "replace")


async def _replace(active: ActiveFault, old_id: str) -> None:
    """Replace a member that is never started again by a new member."""
    cluster = active.cluster
    new = await cluster.start_new_member()
    active.record.outcome.update(removed=old_id, added=new.node_id)
    async with _looked_after(active, new):
        await _insist(active, lambda client: client.replace_member(old_id, new, wait_seconds=_TRY_SECONDS))
    await cluster.forget(old_id)


@asynccontextmanager
async def _looked_after(active: ActiveFault, new: Member) -> AsyncIterator[None]:
    """Restart a joining member each time it ends by itself, because during other faults no member may answer it.

    The outcome `exit_codes` has the exit codes of all processes of this member that ended before it had joined.
    """
    process = active.cluster.members[new.node_id]
    exit_codes: list[int] = []
    process.is_joining = True

    async def look_after() -> None:
        while True:
            exit_code = process.died()
            if exit_code is not None and not process.may_end:
                exit_codes.append(exit_code)
                active.record.outcome["exit_codes"] = exit_codes
                blame(active, "while it joined", {new.node_id: exit_code}, {new.node_id: WHILE_JOINING})
                process.kill()
                process.start()
            await trio.sleep(_PAUSE_SECONDS)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(look_after)
        yield
        nursery.cancel_scope.cancel()
    process.is_joining = False


async def _insist(active: ActiveFault, change: Callable[[Client], Awaitable[object]]) -> None:
    """Request a membership change repeatedly until it is made, because other faults may delay the change.

    After _CHANGE_SECONDS_MAX, record the change as failed.
    """
    error: StoreError | None = None
    with trio.move_on_after(_CHANGE_SECONDS_MAX):
        while True:
            try:
                async with Client(active.cluster.endpoints, session=False, tls=active.cluster.tls) as client:
                    await change(client)
                return
            except StoreError as failed:
                error = failed
            await trio.sleep(_PAUSE_SECONDS)
    active.record.outcome["failed"] = f"not made within {_CHANGE_SECONDS_MAX:.0f} s: {error}"
