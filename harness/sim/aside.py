"""The true check of durability: recover, aside and without time, what a member's disk is sure to hold now."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.sim.disk import Immediately, SimFiles
from harness.sim.streams import stream
from storage import OpenedStorage, open_storage

if TYPE_CHECKING:
    from harness.sim.member import Member


def recover_aside(member: Member) -> OpenedStorage | BaseException:
    """What the production recovery makes of only that which was synced. The member's own disk is not touched."""
    plan = member.world.plan
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
