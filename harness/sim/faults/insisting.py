"""An operator who asks the leader for something, and again until one takes it: there may be none, or it declines."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from harness.sim.plan.plan import MILLISECOND_NS
from raft import Busy, ChangeRefused, LevelRefused, Node, NodeStopped, NotLeader, Role

if TYPE_CHECKING:
    from harness.sim.simulation import Simulation

TRIES_MAX, PAUSE_NS = 12, 40 * MILLISECOND_NS
"""What nobody takes now may be taken soon: a leader is elected, another change ends, the last member is upgraded."""


class Operator:
    """Asks whoever the world takes for the leader, until `is_stopped`."""

    def __init__(self, world: Simulation) -> None:
        self._world = world
        self.is_stopped = False

    def ask(self, what: str, label: str, attempt: Callable[[Node], None], tries_left: int = TRIES_MAX) -> None:
        """Call `attempt` with a leader's node; what it raises when the node declines is tried again.

        `what` is in the mark of a refusal, `label` in the trace.
        """
        world = self._world
        member = world.members[world.striker.aim(None)]
        if self.is_stopped or not tries_left:
            return
        again = (PAUSE_NS, self.ask, what, label, attempt, tries_left - 1)
        if member.node is None or member.is_paused or member.node.core.role is not Role.LEADER:
            world.heap.after(*again)
            return

        def tried(node: Node) -> None:
            try:
                attempt(node)
            except (ChangeRefused, LevelRefused, NotLeader, Busy, NodeStopped) as error:
                world.mark(f"{what} was refused: {_word(error)}")
                world.heap.after(*again)

        member.call(label, tried)


def _word(error: Exception) -> str:
    return error.reason.value if isinstance(error, ChangeRefused | LevelRefused) else type(error).__name__
