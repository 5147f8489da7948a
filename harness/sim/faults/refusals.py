"""Delivers refusals of hellos to the node of the caller, as the transport does (`raft.runtime.driver`).

Two kinds of refusal end the caller's process. If a member started with an empty log, and the others know another data
folder of this member, the member has forgotten its promises, and its process fails. A removed member stops in order. A
removed member that its supervisor starts again is refused again.

See docs/reference/specification.md#13-incarnations-and-pins.
"""

from __future__ import annotations

from harness.sim.checks.context import CheckedWorld
from harness.sim.checks.coverage import GHOST_ENDED, TOLD_BY_REFUSAL
from harness.sim.engine.errors import require
from harness.sim.engine.rng import stream
from harness.sim.faults.disk_loss import DiskLoss
from harness.sim.faults.processes import ProcessFaults
from harness.sim.plan.plan import SECOND_NS, Fault
from harness.sim.world.context import MachineView
from raft import IncarnationReplaced, Node

REMOVED_CODE, WRONG_INCARNATION_CODE = "removed", "wrong_incarnation"

JOINER_ENDED = "a machine that was made again before it was added ended itself"
BLANK_MEMBER_ENDS = "a blank member that is known with another folder ends"
TOLD_REMOVED_END = "a removed member that learns of its removal by a refusal ends"
ONLY_REMOVED_END = "a member that ends as removed was removed"

RESTARTED_SHARE = 0.5
"""Share of the removed members that are started again after a refusal has ended their process."""

RESTART_NS = SECOND_NS // 5


class Refusals:
    """Handles the refused hellos of a run."""

    def __init__(self, world: CheckedWorld, processes: ProcessFaults, disk_loss: DiskLoss) -> None:
        self._world, self._processes, self._disk_loss = world, processes, disk_loss
        self._random = stream(world.plan.seed, "refusals")

    def tell(self, caller: MachineView, peer_id: str, code: str) -> None:
        """Inform the process on `caller`, a little later, that `peer_id` has refused its hello."""
        process = caller.stand_in or caller
        if process.node is not None:
            delay_ns = self._world.plan.network.delay_ns
            self._world.queue.after(delay_ns, self._arrive, process, process.life, peer_id, code)

    def _arrive(self, process: MachineView, life: int, peer_id: str, code: str) -> None:
        if not self._world.network.is_cut(peer_id, process.node_id):
            process.refused(life, peer_id, code)

    def told(self, member: MachineView, node: Node, peer_id: str, code: str) -> None:
        """Handle a refusal by `peer_id` that the node of `member` has received."""
        if code == WRONG_INCARNATION_CODE and member.is_blank and node.core.is_peer(peer_id):
            cause = node.failure.__cause__ if node.failure is not None else None
            require(
                isinstance(cause, IncarnationReplaced),
                BLANK_MEMBER_ENDS,
                f"{member.node_id} was told so by {peer_id}, and runs on",
            )
            self._disk_loss.was_told(member)
        if node.is_removed:
            committed = self._world.safety.members.committed
            require(
                member.node_id in committed.removed,
                ONLY_REMOVED_END,
                f"{member.node_id} takes itself for removed, and the members are {committed}",
            )
        if code == REMOVED_CODE and node.core.is_peer(peer_id):
            require(node.is_removed, TOLD_REMOVED_END, f"{member.node_id} was told so by {peer_id}, and runs on")
            if not node.core.is_removed:
                self._world.cover(TOLD_BY_REFUSAL)
        if code == REMOVED_CODE and node.is_removed and not node.is_stopped:
            self._stop_removed(member, node)

    def _stop_removed(self, member: MachineView, node: Node) -> None:
        """Request the stop of a removed member, as its driver does in production."""
        member.begin_stop(node)
        restarts = self._random.random() < RESTARTED_SHARE
        self._processes.ends_when_stopped(member, RESTART_NS if restarts else None)

    def has_forgotten(self, member: MachineView) -> None:
        """Handle the failure of a node because other members know another data folder under its member id. A supervisor
        may start its process again.
        """
        is_ghost = member is not self._world.members[member.node_id]
        self._world.cover(GHOST_ENDED if is_ghost else JOINER_ENDED)
        self._world.queue.after(0, self._end_forgotten, member, member.life)

    def _end_forgotten(self, member: MachineView, life: int) -> None:
        if member.life != life:
            return
        if member is not self._world.members[member.node_id]:
            self._disk_loss.ghost_ended(member)
            return
        now = self._world.queue.now
        fault = Fault(at_ns=now, kind="kill", duration_ns=RESTART_NS, target=None, shape=0.0)
        self._processes.take_down([member], fault)
