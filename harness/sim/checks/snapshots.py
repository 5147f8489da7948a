"""What snapshots on a member's disk are worth: one that was just built is read back, and is the state at its index."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.sim.engine.errors import require
from kvstore import KvMachine
from storage import OpenedStorage

if TYPE_CHECKING:
    from harness.sim.world.member import Member


def check_built(member: Member, storage: OpenedStorage) -> None:
    """A snapshot is the state at its index, however long it took and whatever was applied meanwhile.

    See docs/reference/specification.md#51-state-at-an-index.
    """
    info, ledger = storage.snapshots.latest(), member.world.ledger
    index, term = info.header.index, info.header.term
    who = f"{member.node_id}'s snapshot"
    require(ledger.is_committed(index, term), "a snapshot is of what is committed", who, index, term)
    members = ledger.members.in_force(member.copies.memory, index)
    require(info.header.configuration == members, "a snapshot has the members as of its index", who, index, members)
    image = member.image
    machine = KvMachine(levels=member.world.upgrading.levels[member.node_id])  # Of the build that wrote it.
    to_fail, image.fails_read_of = image.fails_read_of, None  # What follows are our reads.
    machine.restore(info.header.machine, storage.snapshots.chunks(info))
    image.fails_read_of = to_fail
    ledger.hashed(who, index, machine.state_hash())
