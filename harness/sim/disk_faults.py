"""Faults of disks: they fail and lie, fill up, rot, and are slow."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from harness.sim.fault import Fault, Kinds
from harness.sim.streams import stream
from harness.sim.taps import LOG_FOLDER

if TYPE_CHECKING:
    from harness.sim.member import Member
    from harness.sim.simulation import Simulation

DISK_KINDS: Kinds = {
    "slow disk": (0.3, 2.0),
    "fail a sync": (0.3, 2.0),  # The next sync of the log fails, and those behind it lie; the process must stop.
    "full disk": (0.3, 3.0),  # No room for a while, or for a few bytes only.
    "bit rot": (0.4, 1.0),  # Power is lost, and one bit that had been proven durable changes.
}

SLOW_FACTOR = 20
ROOM_BYTES_MAX = 4_000


class DiskFaults:
    """Carries them out."""

    def __init__(self, world: Simulation) -> None:
        self._world = world
        self._rot_random = stream(world.plan.seed, "rot")
        self._failing: dict[str, Fault] = {}
        self._is_healed = False

    def strike(self, fault: Fault, member: Member) -> None:
        """Carry out one step of DISK_KINDS; it ends by itself."""
        world = self._world
        match fault.kind:
            case "fail a sync":
                if member.files is not None:
                    self._failing[member.node_id] = fault
                    member.files.fails_syncs_of = LOG_FOLDER
            case "full disk":
                self._failing[member.node_id] = fault
                member.image.size_bytes_max = member.image.size_bytes + int(ROOM_BYTES_MAX * fault.shape**2)
                world.heap.after(fault.duration_ns, self._give_room, member)
            case "bit rot":
                if member.files is not None and self._may_be_lost():
                    world.striker.take_down([member], fault)
                    member.rot(self._rot_random)
            case "slow disk":
                if member.files is not None:
                    member.files.slow_factor = SLOW_FACTOR
                    world.heap.after(fault.duration_ns, self._quicken, member, member.life)
            case _:
                raise AssertionError(fault.kind)

    def heal(self) -> None:
        """End all that is under way; what is damaged stays damaged."""
        self._is_healed = True
        for member in self._world.members.values():
            member.image.size_bytes_max = None
            if member.files is not None:
                member.files.slow_factor = 1
                member.files.fails_syncs_of = None

    def has_failed(self, member: Member) -> None:
        """Its process has seen that a sync failed, and ends now. With it, or a little later, the power may go."""
        self._world.heap.after(0, self._take_down_failed, member, member.life)

    def _take_down_failed(self, member: Member, life: int) -> None:
        if member.life == life:
            fault = self._failing[member.node_id]
            kind = "kill" if fault.shape < 0.5 else "lose power"
            duration_ns = 0 if self._is_healed else fault.duration_ns
            self._world.striker.take_down([member], replace(fault, kind=kind, duration_ns=duration_ns))

    def _may_be_lost(self) -> bool:
        """True if one more member may be lost for good: a quorum of good copies stays."""
        members = self._world.members.values()
        return sum(member.is_damaged for member in members) < (len(members) - 1) // 2

    def _give_room(self, member: Member) -> None:
        member.image.size_bytes_max = None

    def _quicken(self, member: Member, life: int) -> None:
        if member.life == life and member.files is not None:
            member.files.slow_factor = 1
