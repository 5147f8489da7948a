"""A simulated run that is recorded for a diagram."""

from __future__ import annotations

from collections.abc import Callable

from harness.sim.diagram.record import Picture, Recorder
from harness.sim.plan.plan import Plan
from harness.sim.simulation import SeedResult, Simulation
from harness.sim.world.context import MachineView
from raft import Effects, Node


class RecordedSimulation(Simulation):
    """A run that records its last events. The recording does not change the run."""

    def __init__(self, plan: Plan, write_line: Callable[[str], None] | None = None, *, last: int) -> None:
        self._recorder = Recorder(last=last)
        super().__init__(plan, write_line, queue=self._recorder.queue)
        self._recorder.follow(self, self.load.connections)

    def picture(self, result: SeedResult) -> Picture:
        """Return the recorded end of the run. Call this method after the run."""
        violation = None if result.violation is None else str(result.violation)
        return self._recorder.picture(self.plan.words(), violation)

    def note(
        self, member: MachineView, node: Node, what: str, content: bytes, message: object, effects: Effects
    ) -> None:
        """See Simulation."""
        super().note(member, node, what, content, message, effects)
        self._recorder.note(member, node, what, content, message, effects)

    def note_client(self, name: str, content: bytes) -> None:
        """See Simulation."""
        super().note_client(name, content)
        self._recorder.note_client(name, content)

    def note_world(self, what: str) -> None:
        """See Simulation."""
        super().note_world(what)
        self._recorder.note_world(what)
