"""Carries out the steps of a fault plan on a running world."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from harness.sim.disk import SimFiles
from harness.sim.faults import Fault, cut_links
from harness.sim.streams import stream
from harness.sim.taps import LOG_FOLDER
from raft import Role

if TYPE_CHECKING:
    from harness.sim.member import Member
    from harness.sim.simulation import Simulation

SLOW_FACTOR = 20
ROOM_BYTES_MAX = 4_000
AMID_A_SYNC_SHARE = 0.7
"""Of the crashes of one member: most moments are idle ones, in which little can go wrong."""

CONNECTION_LOSS_TOLD_RATE = 0.7
CONNECTION_LOSS_TOLD_NS_MAX = 20_000_000


class Striker:
    """Does harm until `stop`."""

    def __init__(self, world: Simulation) -> None:
        self._world = world
        self._random = stream(world.plan.seed, "connections")
        self._rot_random = stream(world.plan.seed, "rot")
        self._failing: dict[str, Fault] = {}
        self._is_stopped = False

    def start(self) -> None:
        """Put all steps of the plan on the heap."""
        for fault in self._world.plan.faults:
            self._world.heap.at(fault.at_ns, self._strike, fault)

    def stop(self) -> None:
        """No further step is carried out."""
        self._is_stopped = True

    def _strike(self, fault: Fault) -> None:
        if self._is_stopped:
            return
        world = self._world
        target = self.aim(fault.target)
        member = world.members[target]
        world.note_world(f"{fault.kind}: {target} for {fault.duration_ns / 1e6:.0f} ms")
        world.mark(fault.kind)
        until = world.heap.now + fault.duration_ns
        match fault.kind:
            case "kill" | "lose power" if member.files is not None and fault.shape < AMID_A_SYNC_SHARE:
                self._take_down_amid_a_sync(member, member.files, fault)
            case "kill" | "lose power":
                self._take_down([member], fault)
            case "fail a sync":
                if member.files is not None:
                    self._failing[target] = fault
                    member.files.fails_syncs_of = LOG_FOLDER
            case "full disk":
                self._failing[target] = fault
                member.image.size_bytes_max = member.image.size_bytes + int(ROOM_BYTES_MAX * fault.shape**2)
                world.heap.at(until, self._give_room, member)
            case "bit rot":
                if member.files is not None and self._may_be_lost():
                    self._take_down([member], fault)
                    member.rot(self._rot_random)
            case "lose power everywhere":
                self._take_down(list(world.members.values()), fault)
            case "pause":
                if member.is_up:
                    member.paused_until = max(member.paused_until, until)
            case "slow disk":
                if member.files is not None:
                    member.files.slow_factor = SLOW_FACTOR
                    world.heap.at(until, self._quicken, member, member.life)
            case "lose connection":
                other = self.aim(fault.shape)
                if other != target:
                    member.lose_connection(other)
                    world.members[other].lose_connection(target)
            case _:
                links = cut_links(fault, target, world.plan.members)
                world.network.cut(links)
                world.heap.at(until, world.network.mend, links)

    def aim(self, target: float | None) -> str:
        """Who is meant: a share of the members in order, or whoever leads (the newest, if several think so)."""
        members = self._world.plan.members
        if target is not None:
            return members[int(target * len(members))]
        leaders = [m for m in self._world.members.values() if m.node is not None and m.node.core.role is Role.LEADER]
        newest = max(leaders, key=lambda member: member.current_term, default=None)
        return newest.node_id if newest is not None else members[0]

    def has_failed(self, member: Member) -> None:
        """Its process has seen that a sync failed, and ends now. With it, or a little later, the power may go."""
        self._world.heap.after(0, self._take_down_failed, member, member.life)

    def _take_down_failed(self, member: Member, life: int) -> None:
        if member.life == life:
            fault = self._failing[member.node_id]
            kind = "kill" if fault.shape < 0.5 else "lose power"
            self._take_down(
                [member], replace(fault, kind=kind, duration_ns=0 if self._is_stopped else fault.duration_ns)
            )

    def _may_be_lost(self) -> bool:
        """True if one more member may be lost for good: a quorum of good copies stays."""
        members = self._world.members.values()
        return sum(member.is_damaged for member in members) < (len(members) - 1) // 2

    def _take_down_amid_a_sync(self, member: Member, files: SimFiles, fault: Fault) -> None:
        """Wait until the disk has something to do, and strike before it is done."""
        life = member.life

        def strike() -> None:
            if member.life == life:
                self._take_down([member], fault)

        files.on_start = lambda duration_ns: self._world.heap.after(
            int(duration_ns * fault.shape / AMID_A_SYNC_SHARE), strike
        )

    def _take_down(self, members: list[Member], fault: Fault) -> None:
        world = self._world
        for place, member in enumerate(members):
            if member.files is None:
                continue
            member.crash(power=fault.kind != "kill")
            world.load.on_down(member)
            for other in world.members.values():
                if other is not member and self._random.random() < CONNECTION_LOSS_TOLD_RATE:
                    delay = self._random.randrange(CONNECTION_LOSS_TOLD_NS_MAX)
                    world.heap.after(delay, other.lose_connection, member.node_id)
            world.heap.after(fault.duration_ns * (place + 1), self._bring_up, member)

    def _bring_up(self, member: Member) -> None:
        if member.files is None and not member.is_lost:
            self._world.note_world(f"{member.node_id} starts")
            member.boot()

    def _give_room(self, member: Member) -> None:
        member.image.size_bytes_max = None

    def _quicken(self, member: Member, life: int) -> None:
        if member.life == life and member.files is not None:
            member.files.slow_factor = 1
