"""Begins each fault of a plan at its time, on its machine. The code of the fault's family carries out the fault."""

from __future__ import annotations

from harness.sim.faults.clients import ClientFaults
from harness.sim.faults.clocks import ClockFaults
from harness.sim.faults.context import FaultyWorld
from harness.sim.faults.disks import DiskFaults
from harness.sim.faults.network import NetworkFaults
from harness.sim.faults.processes import ProcessFaults
from harness.sim.faults.targets import choose_target
from harness.sim.plan.plan import CLIENT_KINDS, CLOCK_KINDS, DISK_KINDS, NETWORK_KINDS, PROCESS_KINDS, Fault
from harness.sim.world.context import MachineView


class Injector:
    """Injects faults until `heal`."""

    def __init__(self, world: FaultyWorld, processes: ProcessFaults, disks: DiskFaults) -> None:
        self._world, self._processes, self._disks = world, processes, disks
        self._network, self._clocks, self._clients = NetworkFaults(world), ClockFaults(world), ClientFaults(world)
        self._families = (
            (PROCESS_KINDS, self._processes),
            (NETWORK_KINDS, self._network),
            (DISK_KINDS, self._disks),
            (CLOCK_KINDS, self._clocks),
            (CLIENT_KINDS, self._clients),
        )
        self._is_stopped = False

    def start(self) -> None:
        """Put all faults of the plan into the queue."""
        for fault in self._world.plan.faults:
            self._world.queue.at(fault.at_ns, self.inject, fault)

    def heal(self) -> None:
        """Inject no further faults, end all faults, and then start the processes that are down."""
        self._is_stopped = True
        self._network.heal()
        self._clients.heal()
        self._clocks.heal()
        self._disks.heal()
        self._processes.heal()

    def amid_an_install(self, member: MachineView) -> None:
        """See `ProcessFaults`."""
        if not self._is_stopped:
            self._processes.amid_an_install(member)

    def inject(self, fault: Fault) -> None:
        """Carry out one fault now."""
        if self._is_stopped:
            return
        member = self._world.members[choose_target(self._world, fault.target)]
        self._world.note_world(f"{fault.kind}: {member.node_id} for {fault.duration_ns / 1e6:.0f} ms")
        self._world.cover(fault.kind)
        for kinds, family in self._families:
            if fault.kind in kinds:
                family.inject(fault, member)
                return
        raise AssertionError(fault.kind)
