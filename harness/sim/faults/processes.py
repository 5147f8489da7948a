"""Faults of processes and machines: crashes, losses of power, requests to stop or hand over, pauses, and slowness."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from harness.sim.engine.rng import stream
from harness.sim.faults.context import FaultyWorld
from harness.sim.faults.targets import choose_target
from harness.sim.plan.plan import MILLISECOND_NS, Fault
from harness.sim.world.context import MachineView
from harness.sim.world.disk import SimFiles
from raft import Node, NodeStopped, NotLeader, TransferRefused

SERVICE_NS_MIN = MILLISECOND_NS // 5
SERVICE_TIMES_MAX = 100

AMID_A_SYNC_SHARE = 0.7
"""Share of the crashes of single members that are timed to hit a sync. Without this timing, most crashes would hit an
idle member, where little can go wrong.
"""

INSTALL_DEATH_NS = 20 * MILLISECOND_NS

CONNECTION_LOSS_TOLD_RATE = 0.7
CONNECTION_LOSS_TOLD_NS_MAX = 20_000_000


class ProcessFaults:
    """Carries out PROCESS_KINDS."""

    def __init__(self, world: FaultyWorld) -> None:
        self._world = world
        self._random = stream(world.plan.seed, "connections")
        self._installs = stream(world.plan.seed, "installs")
        self._stopping: dict[str, Fault] = {}  # For each member that was asked to stop, the fault.
        self._stays_down: set[str] = set()
        self._is_healed = False

    def inject(self, fault: Fault, member: MachineView) -> None:
        """Begin one fault of PROCESS_KINDS, which ends by itself."""
        world = self._world
        match fault.kind:
            case "kill" | "lose power" if member.files is not None and fault.shape < AMID_A_SYNC_SHARE:
                self._take_down_amid_a_sync(member, member.files, fault)
            case "kill" | "lose power":
                self.take_down([member], fault)
            case "lose power everywhere":
                self.take_down(list(world.members.values()), fault)
            case "stop":
                if member.is_up:
                    self._stopping[member.node_id] = fault
                    member.call("stop", member.begin_stop)
            case "transfer":
                if member.is_up:
                    member.call("transfer", self._transfer)
            case "take over":
                leader = world.members[choose_target(world, None)]
                if leader.is_up and leader is not member:
                    leader.call("hand over", lambda node: self._transfer(node, member.node_id))
            case "pause":
                if member.is_up:
                    member.scheduler.pause(world.queue.now + fault.duration_ns)
            case "slow process":
                if member.is_up:
                    member.scheduler.service_ns = int(SERVICE_NS_MIN * SERVICE_TIMES_MAX**fault.shape)
                    world.queue.after(fault.duration_ns, self._quicken, member, member.life)
            case _:
                raise AssertionError(fault.kind)

    def has_stopped(self, member: MachineView) -> None:
        """Handle the end of a member that was asked to stop: start it again after the fault's duration."""
        fault = self._stopping.pop(member.node_id)
        self._world.cover("a member stopped in order")
        member.is_lost |= member.node_id in self._stays_down
        self.take_down([member], replace(fault, kind="kill", duration_ns=0 if self._is_healed else fault.duration_ns))

    def is_stopping(self, member: MachineView) -> bool:
        """True if the member's process was asked to stop, and has not stopped yet."""
        return member.node_id in self._stopping

    def ends_when_stopped(self, member: MachineView, restart_ns: int | None) -> None:
        """Handle a removed member that begins to stop.

        The member is started again after `restart_ns`, or never if it is None.
        """
        if restart_ns is None:
            self._stays_down.add(member.node_id)
        at_ns = self._world.queue.now
        fault = Fault(at_ns=at_ns, kind="stop", duration_ns=restart_ns or 0, target=None, shape=0.0)
        self._stopping.setdefault(member.node_id, fault)

    def _transfer(self, node: Node, successor_id: str | None = None) -> None:
        with suppress(NotLeader, TransferRefused, NodeStopped):
            node.transfer_leadership(successor_id)

    def amid_an_install(self, member: MachineView) -> None:
        """Take a member down in the middle of an install, with the probability `install_death_rate` of the plan.

        At this time the received snapshot is durable, but the log that replaces the old log is not yet durable.
        """
        world = self._world
        if self._installs.random() < world.plan.install_death_rate:
            world.cover("died amid an install")
            kind = self._installs.choice(("kill", "lose power"))
            fault = Fault(at_ns=world.queue.now, kind=kind, duration_ns=INSTALL_DEATH_NS, target=None, shape=0.0)
            world.queue.after(0, self._end_life, member, member.life, fault)

    def heal(self) -> None:
        """End all faults, and start the members that are down. A member that was asked to stop still stops, and is then
        started again at once.
        """
        self._is_healed = True
        for member in self._world.members.values():
            member.scheduler.wake()
            if member.files is None and not member.is_lost:
                member.boot()

    def take_down(self, members: list[MachineView], fault: Fault) -> None:
        """Crash these members. The members also lose power, unless the fault is a kill.

        The members start again one after the other, at intervals of the fault's duration.
        """
        world = self._world
        for place, member in enumerate(members):
            if member.files is None:
                continue
            self._stopping.pop(member.node_id, None)
            member.crash(power=fault.kind != "kill")
            world.load.on_down(member)
            for other in world.members.values():
                if other is not member and self._random.random() < CONNECTION_LOSS_TOLD_RATE:
                    delay = self._random.randrange(CONNECTION_LOSS_TOLD_NS_MAX)
                    # A machine without power closes no connection, so a peer sees only the end of its own connection.
                    ends = other.connections.lose if fault.kind == "kill" else other.lose_connection
                    world.queue.after(delay, ends, member.node_id)
            world.queue.after(fault.duration_ns * (place + 1), self._bring_up, member)

    def _take_down_amid_a_sync(self, member: MachineView, files: SimFiles, fault: Fault) -> None:
        """Take the member down during the next submission to its disk."""
        life = member.life
        files.on_start = lambda duration_ns: self._world.queue.after(
            int(duration_ns * fault.shape / AMID_A_SYNC_SHARE), self._end_life, member, life, fault
        )

    def _end_life(self, member: MachineView, life: int, fault: Fault) -> None:
        if member.life == life:
            self.take_down([member], fault)

    def _quicken(self, member: MachineView, life: int) -> None:
        if member.life == life:
            if len(member.scheduler) > 1:
                self._world.cover("a slow process was behind")
            member.scheduler.quicken()

    def _bring_up(self, member: MachineView) -> None:
        if member.files is None and not member.is_lost:
            self._world.note_world(f"{member.node_id} starts")
            member.boot()
