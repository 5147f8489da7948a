"""Reads back each new snapshot, and checks that it contains the state at its index."""

from __future__ import annotations

from harness.sim.checks.cluster import SafetyChecker
from harness.sim.engine.errors import require
from harness.sim.world.context import MachineView
from kvstore import KvMachine
from storage import OpenedStorage


def check_built(safety: SafetyChecker, member: MachineView, storage: OpenedStorage) -> None:
    """Check that a snapshot contains the state at its index, even if entries were applied during its construction.

    See docs/reference/specification.md#51-state-at-an-index.
    """
    info = storage.snapshots.latest()
    index, term = info.header.index, info.header.term
    who = f"{member.node_id}'s snapshot"
    require(safety.is_committed(index, term), "a snapshot contains only committed entries", who, index, term)
    members = safety.members.in_force(member.logs.memory, index)
    require(info.header.configuration == members, "a snapshot has the members as of its index", who, index, members)
    image = member.image
    machine = KvMachine(levels=member.levels)  # The feature levels of the build that wrote the snapshot.
    # A read fault that was injected must not hit the reads of this checker.
    to_fail, image.fails_read_of = image.fails_read_of, None
    machine.restore(info.header.machine, storage.snapshots.chunks(info))
    image.fails_read_of = to_fail
    safety.hashed(who, index, machine.state_hash())
