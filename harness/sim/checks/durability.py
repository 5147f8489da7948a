"""Checks durability with a real recovery from the contents that a member's disk is certain to hold now.

The recovery runs on a copy of the disk, and takes no simulated time.
"""

from __future__ import annotations

from harness.sim.engine.errors import require
from harness.sim.engine.rng import stream
from harness.sim.world.context import MachineView, World
from harness.sim.world.damage import SNAPSHOT_FOLDER
from harness.sim.world.disk import Immediately, SimFiles
from harness.sim.world.probes import LOG_FOLDER
from storage import OpenedStorage, open_storage


def recover_aside(world: World, member: MachineView) -> OpenedStorage | BaseException:
    """Return the result of the production recovery from the synced state alone, or the error with which it fails.

    The member's own disk is not touched.
    """
    plan = world.plan
    aside, random = Immediately(), stream(plan.seed, "aside")
    files = SimFiles(member.image.synced_copy(), plan.disks[member.node_id], random, aside)
    outcome: list[OpenedStorage | BaseException] = []
    open_storage(
        files,
        identity=member.identity,
        limits=plan.storage,
        done=outcome.append,
        random_bytes=random.randbytes,
    )
    aside.run()
    return outcome[0]


def check_is_durable(world: World, member: MachineView, opened: OpenedStorage) -> None:
    """Check that another recovery would find the same state if power failed now.

    The state includes file names. Each name must already be durable, because the new process does not sync folders that
    it does not change.

    See docs/reference/specification.md#35-recovery.
    """
    loose = [path for folder in (LOG_FOLDER, SNAPSHOT_FOLDER) for path in member.image.loose_names(folder)]
    require(not loose, "the names that recovery found are durable", member.node_id, loose)
    if member.image.is_lying:
        return  # The real contents of a disk that lies are checked after the loss of power.
    again = recover_aside(world, member)
    require(isinstance(again, OpenedStorage), "recovered entries are durable", member.node_id, repr(again))
    assert isinstance(again, OpenedStorage)
    # A crash may undo the deletion of a segment, so the log may begin at a lower index. The end of the log and its last
    # term must be the same.
    was, would_be = (
        (log.last_index, [run.term for run in log.term_runs()[-1:]], state.term, state.voted_for)
        for log, state in ((opened.log, opened.hard_state), (again.log, again.hard_state))
    )
    require(was == would_be, "recovered entries are durable", f"{member.node_id}: {was}, then {would_be}")
