"""Faults of disks: failed syncs and reads, lies, lost disks, lack of space, rot, hangs, and slowness."""

from __future__ import annotations

from dataclasses import replace

from harness.sim.engine.rng import stream
from harness.sim.faults.damage_budget import DamageBudget
from harness.sim.faults.disk_loss import DiskLoss
from harness.sim.faults.log_rot import LOOK_NS, rot_what_is_read_next
from harness.sim.faults.processes import ProcessFaults
from harness.sim.faults.targets import choose_target
from harness.sim.plan.plan import Fault
from harness.sim.world.context import MachineView, World
from harness.sim.world.damage import SNAPSHOT_FOLDER
from harness.sim.world.probes import LOG_FOLDER
from storage import SyncFile, SyncFolder

SLOW_FACTOR = 20
LEADER_HANG_TIMEOUTS = 3
"""The shortest hang of a leader's disk, in multiples of the longest election time-out. A hang may last twice as long.

A leader hands over once its disk has hung for two such time-outs.
"""

ROOM_BYTES_MAX = 4_000
ROT_IN_USE_SHARE = 0.3

FAILING_SYNCS = (
    SyncFile(LOG_FOLDER),
    SyncFile(LOG_FOLDER),
    SyncFolder(LOG_FOLDER),
    SyncFile(SNAPSHOT_FOLDER),
    SyncFolder(SNAPSHOT_FOLDER),
    SyncFile(""),
    SyncFolder(""),
)
"""The syncs that may fail. `SyncFile` stands for the sync of any file in a folder, and `SyncFolder` for the sync of the
folder itself. The top folder holds the files `meta` and `pins`.
"""

FAILING_READS = (LOG_FOLDER, LOG_FOLDER, SNAPSHOT_FOLDER, "meta", "pins")


class DiskFaults:
    """Carries out DISK_KINDS."""

    def __init__(self, world: World, processes: ProcessFaults, disk_loss: DiskLoss) -> None:
        self._world, self._processes, self._disk_loss = world, processes, disk_loss
        self._rot_random = stream(world.plan.seed, "rot")
        self._log_rot_random = stream(world.plan.seed, "log rot")
        self._budget = DamageBudget(world)
        self._failing: dict[str, Fault] = {}
        self._is_healed = False

    def inject(self, fault: Fault, member: MachineView) -> None:
        """Begin one fault of DISK_KINDS. Damage is permanent; other faults end by themselves."""
        world = self._world
        match fault.kind:
            case "fail a sync":
                self._failing[member.node_id] = fault
                member.image.fails_sync = FAILING_SYNCS[int(fault.shape * len(FAILING_SYNCS))]
            case "fail a read":
                self._failing[member.node_id] = fault
                member.image.fails_read_of = FAILING_READS[int(fault.shape * len(FAILING_READS))]
            case "short reads":
                member.image.reads_are_short = True
                world.queue.after(fault.duration_ns, self._read_whole, member)
            case "full disk":
                self._failing[member.node_id] = fault
                member.image.size_bytes_max = member.image.size_bytes + int(ROOM_BYTES_MAX * fault.shape**2)
                world.queue.after(fault.duration_ns, self._give_room, member)
            case "bit rot":
                if member.is_up and fault.shape < ROT_IN_USE_SHARE and self._budget.allows(member):
                    self._rot_in_use(member, fault)
                elif member.files is not None and self._budget.allows(member):
                    self._processes.take_down([member], fault)
                    member.rot(self._rot_random)
            case "rotting log":
                until_ns = world.queue.now + fault.duration_ns
                self._rot_log(member, until_ns)
            case "lying disk":
                if member.is_up and self._budget.allows(member):
                    self._let_lie(member, fault)
            case "lose a disk":
                self._disk_loss.lose(fault, member)
            case "slow disk":
                if member.files is not None:
                    member.files.slow_factor = SLOW_FACTOR
                    world.queue.after(fault.duration_ns, self._quicken, member, member.life)
            case "hanging disk":
                if member.files is not None:
                    member.files.hangs = True
                    world.queue.after(fault.duration_ns, self._let_answer, member, member.life)
            case "leader's disk hangs":
                self._hang_leader(fault)
            case _:
                raise AssertionError(fault.kind)

    def _hang_leader(self, fault: Fault) -> None:
        world = self._world
        leader = world.members[choose_target(world, None)]
        if leader.files is not None:
            leader.files.hangs = True
            hang_ns = int(LEADER_HANG_TIMEOUTS * (1 + fault.shape) * world.plan.election_timeout_max_ns)
            world.queue.after(hang_ns, self._let_answer, leader, leader.life)

    def heal(self) -> None:
        """End all faults of disks that are under way. Damaged bytes stay damaged."""
        self._is_healed = True
        for member in self._world.members.values():
            member.image.size_bytes_max = None
            member.image.reads_are_short = False
            member.image.fails_sync = member.image.fails_read_of = None
            if member.files is not None:
                member.files.slow_factor = 1
                member.files.lies_about = None
                member.files.answer()
            if member.is_up and member.proven.rotten_path:
                # Because of the restart, the member finds the rot now. Otherwise the member could find the rot only
                # later, when it leads and has to send entries of the rotten file.
                self._restart(member, "kill")

    def has_failed(self, member: MachineView) -> None:
        """Handle the end of a process because of a failed sync or read. The machine may lose power at the same time."""
        self._world.queue.after(0, self._take_down_failed, member, member.life)

    def _take_down_failed(self, member: MachineView, life: int) -> None:
        if member.life == life:
            fault = self._failing[member.node_id]
            kind = "kill" if fault.shape * 100 % 1 < 0.5 else "lose power"
            duration_ns = 0 if self._is_healed else fault.duration_ns
            self._processes.take_down([member], replace(fault, kind=kind, duration_ns=duration_ns))

    def _let_lie(self, member: MachineView, fault: Fault) -> None:
        """Let the next sync of the log lie, if the budget still allows the damage.

        The member loses power some time later.
        """
        files = member.files
        assert files is not None

        def lied(how: str) -> None:
            member.is_damaged = True
            member.proven.lied()
            self._world.cover(how)
            self._world.note_world(f"{member.node_id}: {how}")
            self._world.queue.after(fault.duration_ns, self._uncover, member)

        files.lies_about, files.on_lie = LOG_FOLDER, lied
        files.may_lie = lambda: self._budget.allows(member)

    def _uncover(self, member: MachineView) -> None:
        if not self._is_healed and member.image.is_lying:
            self._restart(member, "lose power")

    def _rot_in_use(self, member: MachineView, fault: Fault) -> None:
        """Change a bit of the newest snapshot, or sometimes of another snapshot.

        The member may be sending this snapshot to a peer.

        After some time the member is started again, and must notice the damage.
        """
        member.is_damaged = member.proven.rot_snapshot(self._rot_random)
        self._world.cover("a snapshot rotted in use")
        self._world.queue.after(fault.duration_ns, self._reread, member)

    def _rot_log(self, member: MachineView, until_ns: int) -> None:
        """Damage a frame of the log as soon as the member is about to read this frame. If the member does not read this
        frame, its next start must find the damage.
        """
        queue = self._world.queue
        if self._is_healed or not self._budget.allows(member):
            return
        if rot_what_is_read_next(self._world, member, self._log_rot_random):
            member.is_damaged = True
            self._world.cover("the log rotted in use")
            queue.after(max(0, until_ns - queue.now), self._reread, member)
        elif queue.now < until_ns:
            queue.after(LOOK_NS, self._rot_log, member, until_ns)

    def _reread(self, member: MachineView) -> None:
        if member.proven.rotten_path:
            self._restart(member, "kill")

    def _restart(self, member: MachineView, kind: str) -> None:
        fault = Fault(at_ns=self._world.queue.now, kind=kind, duration_ns=0, target=None, shape=0.0)
        self._processes.take_down([member], fault)

    def _give_room(self, member: MachineView) -> None:
        member.image.size_bytes_max = None

    def _read_whole(self, member: MachineView) -> None:
        member.image.reads_are_short = False

    def _quicken(self, member: MachineView, life: int) -> None:
        if member.life == life and member.files is not None:
            member.files.slow_factor = 1

    def _let_answer(self, member: MachineView, life: int) -> None:
        if member.life == life and member.files is not None:
            member.files.answer()
