"""Faults of clocks: a monotonic clock jumps forwards, runs at a wrong rate, or stands still with its machine."""

from __future__ import annotations

from harness.sim.engine.clock import FS_PER_NS
from harness.sim.plan.plan import Fault
from harness.sim.world.context import MachineView, World

HOUR_NS = 3_600 * 10**9
HOUR_SHARE = 0.1
WILD_SPREAD = 2.0


class ClockFaults:
    """Carries out CLOCK_KINDS."""

    def __init__(self, world: World) -> None:
        self._world = world

    def inject(self, fault: Fault, member: MachineView) -> None:
        """Begin one fault of CLOCK_KINDS, which ends by itself."""
        queue = self._world.queue
        match fault.kind:
            case "clock jumps":
                member.clock.jump(HOUR_NS if fault.shape < HOUR_SHARE else fault.duration_ns)
                member.clock_changed()
            case "clock runs wild":
                member.clock.run_at(int(FS_PER_NS * WILD_SPREAD ** (2 * fault.shape - 1)))
                member.clock_changed()
                queue.after(fault.duration_ns, self._tame, member)
            case "suspend":
                if member.is_up:
                    member.scheduler.pause(queue.now + fault.duration_ns)
                    member.clock.stand_still(queue.now + fault.duration_ns)
            case _:
                raise AssertionError(fault.kind)

    def heal(self) -> None:
        """Let all clocks run at their usual rates. The times of the clocks are not corrected."""
        for member in self._world.members.values():
            member.clock.go_on()
            member.clock_changed()

    def _tame(self, member: MachineView) -> None:
        member.clock.run_at(member.clock.usual_rate)
        member.clock_changed()
