"""The end of the faults: a quorum is healed. Other members may stay dead, and may come back later.

If every member were healed, a run could not show that a cluster works without some of its members. The healed quorum
must make progress within a time limit. Dead members need not make progress, but they must not break a safety rule.
"""

from __future__ import annotations

from harness.sim.checks.context import CheckedWorld
from harness.sim.engine.errors import require
from harness.sim.faults.former_folders import FormerFolders
from harness.sim.faults.injector import Injector
from harness.sim.faults.network import cut_links
from harness.sim.faults.processes import ProcessFaults
from harness.sim.faults.targets import choose_target
from harness.sim.plan.plan import Fault
from harness.sim.world.context import MachineView
from raft import Role

EVER_NS = 1 << 62
CUT_FOR_GOOD = 1 << 30

CALM_ELECTION_TIMEOUTS = 3
"""How long a quorum is watched before and after the dead members return, in multiples of the longest election time-out.
"""


class Healing:
    """Heals the cluster, and keeps the list of the members that stay dead."""

    def __init__(
        self, world: CheckedWorld, injector: Injector, processes: ProcessFaults, former_folders: FormerFolders
    ) -> None:
        self._world, self._injector, self._processes = world, injector, processes
        self._former_folders = former_folders
        self._dead: dict[str, str] = {}  # For each member that stays dead: one of DEAD_KINDS.
        self._term_when_cut: dict[str, int] = {}

    @property
    def dead_count(self) -> int:
        """The number of machines that are not among `living`, because they stay dead, are lost, or are not members."""
        return len(self._world.members) - len(self.living())

    def living(self) -> list[MachineView]:
        """The members that must make progress.

        Machines that are not yet members, or no longer members, are not included. Learners whose new folder is not yet
        accepted (`FormerFolders.waits`) are not included either.
        """
        members = self._world.safety.members.committed
        healed = [m for m in self._world.members.values() if not m.is_lost and m.node_id not in self._dead]
        former = self._former_folders
        return [m for m in healed if members.member(m.node_id) is not None and not former.waits(m.node_id)]

    def heal(self) -> None:
        """End all faults, but let the members that the plan selects stay dead."""
        world = self._world
        dead = self._choose()
        behind = {member.node_id for member in world.members.values() if member.is_paused or member.scheduler}
        self._injector.heal()
        for node_id, kind in dead.items():
            world.note_world(f"{node_id} stays dead: {kind}")
            world.cover(f"a member stayed dead: {kind}")
            self._leave(world.members[node_id], kind)
            member = world.members[node_id]
            # This check leaves out members that were paused or starved (`behind`), because they may still have to
            # handle frames from before the cut.
            if kind == "cut off" and member.is_up and node_id not in behind:
                self._term_when_cut[node_id] = member.current_term
        self._dead = dead

    def _choose(self) -> dict[str, str]:
        members = self._world.members
        left = (len(members) - 1) // 2 - sum(m.is_damaged or m.is_lost for m in members.values())
        chosen: dict[str, str] = {}
        for dead in self._world.plan.heal.dead:
            member = members[choose_target(self._world, dead.target)]
            if len(chosen) < left and not (member.is_damaged or member.is_lost or member.node_id in chosen):
                chosen[member.node_id] = dead.kind
        return chosen

    def _leave(self, member: MachineView, kind: str) -> None:
        fault = Fault(at_ns=self._world.queue.now, kind=kind, duration_ns=0, target=None, shape=0.0)
        match kind:
            case "cut off":
                links = cut_links(fault, member.node_id, self._world.plan.members)
                self._world.network.cut(links, count=CUT_FOR_GOOD)
            case "pause":
                member.scheduler.pause(EVER_NS)
            case _:
                self._processes.take_down([member], fault)
                member.is_lost = True

    # -- the return of the dead members

    def latest_term_of_the_dead(self) -> int:
        """Return the latest term of any dead member.

        If a member comes back with a later term than the leader has, the leader steps down.
        """
        dead = [self._world.members[node_id] for node_id in self._dead]
        return max((member.logs.memory.hard_state.term for member in dead), default=0)

    def bring_back(self) -> None:
        """Bring the dead members back: mend the cuts, and start or resume their processes."""
        world = self._world
        dead, self._dead = self._dead, {}
        self._check_terms()
        world.network.heal()
        for node_id, kind in dead.items():
            world.note_world(f"{node_id} comes back")
            world.cover(f"a member came back: {kind}")
            member = world.members[node_id]
            if kind == "pause":
                member.scheduler.wake()  # The process resumes, and does not notice the pause.
            elif kind != "cut off":
                member.is_lost = False
                member.boot()

    def has_dead_to_bring_back(self) -> bool:
        """True if there are dead members that must come back."""
        return self._world.plan.heal.returns and bool(self._dead)

    def _check_terms(self) -> None:
        """Check that pre-vote has kept the members that were cut off from raising their terms.

        Such a member may have begun one election, because it may have received pre-votes before the cut.
        """
        for node_id, term in self._term_when_cut.items():
            member = self._world.members[node_id]
            if member.is_up:
                require(
                    member.current_term <= term + 1,
                    "a member that hears nobody keeps its term",
                    f"{node_id} was in term {term} when it was cut off, and is in {member.current_term}",
                )

    def leadership(self) -> tuple[int, str] | None:
        """Return (term, leader) if all living members follow one leader, else None."""
        cores = [member.node.core for member in self.living() if member.node is not None]
        seen = {(core.term, core.leader_id) for core in cores}
        leads = any(core.role is Role.LEADER for core in cores)
        if len(cores) < len(self.living()) or len(seen) != 1 or not leads:
            return None
        term, leader_id = seen.pop()
        return None if leader_id is None else (term, leader_id)
