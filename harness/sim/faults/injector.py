"""Carries out the steps of a fault plan on a running world: when, and on whom. What they do is their family's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.sim.faults.clients import ClientFaults
from harness.sim.faults.clocks import ClockFaults
from harness.sim.faults.disks import DiskFaults
from harness.sim.faults.network import NetworkFaults
from harness.sim.faults.processes import ProcessFaults
from harness.sim.plan.plan import CLIENT_KINDS, CLOCK_KINDS, DISK_KINDS, NETWORK_KINDS, PROCESS_KINDS, Fault
from raft import Role

if TYPE_CHECKING:
    from harness.sim.simulation import Simulation
    from harness.sim.world.member import Member


class Injector:
    """Does harm until `heal`."""

    def __init__(self, world: Simulation) -> None:
        self._world = world
        self._processes, self._network, self._disks = ProcessFaults(world), NetworkFaults(world), DiskFaults(world)
        self._clocks, self._clients = ClockFaults(world), ClientFaults(world)
        self._families = (
            (PROCESS_KINDS, self._processes),
            (NETWORK_KINDS, self._network),
            (DISK_KINDS, self._disks),
            (CLOCK_KINDS, self._clocks),
            (CLIENT_KINDS, self._clients),
        )
        self.take_down = self._processes.take_down
        self.has_failed = self._disks.has_failed
        self.has_stopped = self._processes.has_stopped
        self.is_stopping = self._processes.is_stopping
        self.ends_when_stopped = self._processes.ends_when_stopped
        self._is_stopped = False

    def start(self) -> None:
        """Put all steps of the plan on the heap."""
        for fault in self._world.plan.faults:
            self._world.queue.at(fault.at_ns, self.inject, fault)

    def heal(self) -> None:
        """No further step is carried out; networks and disks are well again, then processes start."""
        self._is_stopped = True
        self._network.heal()
        self._clients.heal()
        self._clocks.heal()
        self._disks.heal()
        self._processes.heal()

    def amid_an_install(self, member: Member) -> None:
        """See `ProcessFaults`."""
        if not self._is_stopped:
            self._processes.amid_an_install(member)

    def inject(self, fault: Fault) -> None:
        """Carry out one step now."""
        if self._is_stopped:
            return
        member = self._world.members[self.choose_target(fault.target)]
        self._world.note_world(f"{fault.kind}: {member.node_id} for {fault.duration_ns / 1e6:.0f} ms")
        self._world.cover(fault.kind)
        for kinds, family in self._families:
            if fault.kind in kinds:
                family.inject(fault, member)
                return
        raise AssertionError(fault.kind)

    def choose_target(self, target: float | None) -> str:
        """Who is meant: a share of the members in order, or whoever leads (the newest, if several think so)."""
        members = self._world.plan.members
        if target is not None:
            return members[int(target * len(members))]
        leaders = [m for m in self._world.members.values() if m.node is not None and m.node.core.role is Role.LEADER]
        newest: Member | None = max(leaders, key=lambda member: member.current_term, default=None)
        return newest.node_id if newest is not None else members[0]
