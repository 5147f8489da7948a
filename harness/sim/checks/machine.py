"""The checks of one machine over all its processes: the state at each start, and the refusal to start after damage.

A damaged machine must notice its damage, at a start or while it runs. Only damage that no checksum can show is exempt.
"""

from __future__ import annotations

from harness.sim.checks.commitment import CommitmentChecker
from harness.sim.checks.context import CheckedWorld
from harness.sim.checks.durability import check_is_durable
from harness.sim.checks.log_copies import ShadowLogs
from harness.sim.checks.member import MemberChecker
from harness.sim.engine.errors import require
from harness.sim.world.context import MachineView, World
from harness.sim.world.damage import SEALED_PATHS
from harness.sim.world.probes import LOG_FOLDER
from raft import LogPosition
from storage import CorruptLog, CorruptMeta, CorruptSnapshot, OpenedStorage

READ_BACK = "a frame that had rotted was read back"


class MachineChecker:
    """Keeps the shadow logs of a machine, and makes a checker for each of its processes."""

    def __init__(self, world: CheckedWorld, node_id: str, commitment: CommitmentChecker) -> None:
        self._world, self._commitment = world, commitment
        self.logs = ShadowLogs(node_id, world.safety)

    def process(self, machine: MachineView, opened: OpenedStorage) -> MemberChecker:
        """Return new checks for a process that starts now."""
        return MemberChecker(self._world, machine, opened, self._commitment)

    def refused(self, machine: MachineView, refusal: CorruptLog | CorruptSnapshot | CorruptMeta) -> None:
        """Check a machine that refuses to start because it has found damage."""
        check_refusal(self._world, machine, refusal)

    def damage_read(self, machine: MachineView, refusal: CorruptLog) -> None:
        """Check a machine whose running process has read rotten bytes."""
        check_damage_read(self._world, machine, refusal)

    def is_whole(self, machine: MachineView, opened: OpenedStorage) -> bool:
        """Check a damaged machine that starts. Returns False if the machine cannot know what it has lost."""
        return is_whole(self._world, machine, opened)

    def recovered(self, machine: MachineView, opened: OpenedStorage, snapshot: LogPosition) -> None:
        """Check the state that recovery found at a start. `snapshot`: the position of the newest snapshot."""
        found = self.logs.recovered(opened.log, opened.hard_state, snapshot)
        if found:
            self._world.cover(found)
        check_is_durable(self._world, machine, opened)


def check_refusal(world: World, member: MachineView, refusal: CorruptLog | CorruptSnapshot | CorruptMeta) -> None:
    """Check the refusal of a member that has noticed its damage.

    If the rotten file is a snapshot, `meta` or `pins`, the refusal must name this file.
    """
    rotten, is_log = member.proven.rotten_path, refusal.path.startswith(LOG_FOLDER)
    is_named = refusal.path == rotten or (is_log and rotten.startswith(LOG_FOLDER))
    require(is_named or (is_log and not rotten), "a refusal names the damage", member.node_id, rotten, repr(refusal))
    kind = "log" if is_log else refusal.path.rpartition(".")[2]
    world.cover(f"a member refused to start on a rotten {kind}" if rotten else "a member noticed a lying disk")


def check_damage_read(world: World, member: MachineView, refusal: CorruptLog) -> None:
    """Check that a running member that has read rotten bytes names the rotten file.

    Later checks require the member's end.
    """
    rotten = member.proven.rotten_path
    require(refusal.path == rotten, "a refusal names the damage", member.node_id, rotten, repr(refusal))
    member.has_read_damage = True
    world.cover(READ_BACK)


def is_whole(world: World, member: MachineView, opened: OpenedStorage) -> bool:
    """Check a damaged member that starts. Returns False if the member cannot know what it has lost, because no checksum
    shows the loss.

    A damaged member may start only if it does not use the rotten file, and if no later frame proves a loss on its disk.

    See docs/reference/specification.md#48-torn-tail-and-damage.
    """
    rotten, latest = member.proven.rotten_path, opened.snapshots.latest()
    header = latest.header
    require(
        rotten not in SEALED_PATHS and not rotten.endswith(f"/{latest.name}"),
        "rotten data is never used",
        member.node_id,
        rotten,
    )
    warned = {warning.path for warning in opened.warnings}
    require(warned <= {rotten}, "no snapshot is damaged but the one that rotted", member.node_id, warned, rotten)
    if warned:
        world.cover("an older snapshot took the place of a rotten one")
    position = LogPosition(header.index, header.term)
    if not rotten and not member.logs.are_all_in(opened.log, opened.hard_state, position):
        require(not member.proven.is_lie_proven, "a loss is noticed if later frames prove it", member.node_id)
        world.cover("no checksum can tell which writes a lying disk lost")
        return False
    if not member.image.is_lying and not warned:
        member.is_damaged = False
        member.proven.forget_damage()
    return True
