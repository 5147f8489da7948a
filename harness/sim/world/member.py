"""One machine of a simulated cluster.

The disk of a machine outlives its processes. Each process runs the production node.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import partial
from random import Random

from harness.sim.engine.clock import Clock
from harness.sim.engine.errors import Violation, require
from harness.sim.engine.rng import identifier, stream
from harness.sim.world.context import MachineChecks, MachineView, ProcessChecks, World
from harness.sim.world.damage import ProvenBytes
from harness.sim.world.disk import Immediately, SimFiles
from harness.sim.world.disk_image import DiskImage
from harness.sim.world.peer_connections import PeerConnections
from harness.sim.world.probes import LOG_FOLDER, LogProbe, MachineProbe, NodeProbe, StoreProbe
from harness.sim.world.process import ProcessScheduler
from kvstore import KvMachine, PasswordCheck, Service, UnsupportedFeatureLevel, initial_header
from raft import (
    Effects,
    Identity,
    IncarnationReplaced,
    LevelRange,
    LogPosition,
    Node,
    ProtocolError,
    decode_message,
    encode_message,
)
from storage import CorruptLog, CorruptMeta, CorruptSnapshot, OpenedStorage, initialize, open_storage

EXPIRY_NS = 1_000_000_000
"""The interval at which a service looks for expired sessions and leases, in ns by the clock of its machine."""

PASSWORD_NS = 1_000_000
"""How long a member takes to check a password. The simulator uses the cheapest parameters of scrypt."""

TICKS_IN_PLACE_MAX = 1_000
"""A node that asks for this many ticks, although no time passes and nothing is applied, is stuck."""


class SimMember:
    """A simulated machine.

    The number `life` grows at each start or end of a process. Events of earlier lives are dropped.

    The machine reports all events to `checks`, which contain the rules.
    """

    def __init__(self, world: World, node_id: str, checks: MachineChecks) -> None:
        self.world, self.node_id, self.checks = world, node_id, checks
        plan = world.plan
        self.identity = Identity(
            cluster_id=identifier(plan.seed, "cluster"),
            group_id=0,
            node_id=node_id,
            incarnation_id=identifier(plan.seed, f"incarnation/{node_id}"),
        )
        # The identity that the machine states in its hellos. A machine that has lost its disk may state another
        # incarnation (faults/disk_loss.py).
        self.says_it_is = self.identity
        # The other incarnation of this machine, with another process and another disk; None if there is none.
        self.stand_in: MachineView | None = None
        self.image = DiskImage()
        self.logs = checks.logs
        self.life = 0
        self.node: Node | None = None
        self.checker: ProcessChecks
        self.machine: KvMachine | None = None
        self.service: Service | None = None
        self.files: SimFiles | None = None
        self.levels: LevelRange  # The feature levels of the build of the last process.
        self.scheduler = ProcessScheduler(world.queue)
        clocks = plan.clocks
        self.clock = Clock(
            world.queue, plan.seed, node_id, clocks.spread, at_edges=clocks.at_edges, grain_ns=clocks.grain_ns
        )
        self.applied_max = 0  # The highest index that any process of this machine has applied.
        self.is_damaged = False  # True if a bit has rotted or the disk has lied (faults/damage_budget.py).
        self.has_read_damage = False  # True if the present process has read rotten bytes.
        # True if the machine stays down, because it refused to start, cannot know its losses, or is removed.
        self.is_lost = False
        self.is_blank = False  # True if the present process began with an empty log.
        self.proven = ProvenBytes(self.image)
        self._disk_random = stream(plan.seed, f"disk/{node_id}")
        self._crash_random = stream(plan.seed, f"crash/{node_id}")
        self._timer_at: int | None = None
        self._log: LogProbe  # The log of the present process.
        # After a request to stop: the time by which the process must have ended, in ns of the node's clock.
        self._stops_by: int | None = None
        self._ticks_in_place = 0
        self._progress = (0, 0)
        self.connections = PeerConnections(world, self)

    # -- from first start to the end of a process

    @property
    def is_up(self) -> bool:
        """True if a node runs on this machine."""
        return self.node is not None

    @property
    def is_paused(self) -> bool:
        """True while the process is paused."""
        return self.scheduler.is_paused

    def initialize(self) -> None:
        """Make the data folder without simulated time, and keep only durable data."""
        aside = Immediately()
        files = SimFiles(self.image, self.world.plan.disks[self.node_id], self._disk_random, aside)
        outcome: list[BaseException | None] = []
        initialize(
            files,
            identity=self.identity,
            configuration=self.world.configuration,
            machine_header=initial_header(self.world.plan.store),
            machine_chunks=(),
            done=outcome.append,
            random_bytes=self._disk_random.randbytes,
        )
        aside.run()
        require(outcome == [None], "a data folder can be made", self.node_id, outcome)
        self.image = self.image.synced_copy()
        self.proven = ProvenBytes(self.image)

    def boot(self) -> None:
        """Start a process: recovery first, then the node."""
        assert self.files is None, "it is running"
        self.life += 1
        self.has_read_damage = False
        self.files = SimFiles(self.image, self.world.plan.disks[self.node_id], self._disk_random, self._schedule)
        life = self.life

        def opened(outcome: OpenedStorage | BaseException) -> None:
            if life == self.life and self.files is not None:
                self._opened(outcome)

        open_storage(
            self.files,
            identity=self.identity,
            limits=self.world.plan.storage,
            done=opened,
            random_bytes=self._disk_random.randbytes,
        )

    def _opened(self, outcome: OpenedStorage | BaseException) -> None:
        world = self.world
        assert self.files is not None
        if isinstance(outcome, CorruptLog | CorruptSnapshot | CorruptMeta) and self.is_damaged:
            self.checks.refused(self, outcome)
            self.lose(str(outcome))
            return
        if isinstance(outcome, OSError) and (self.files.has_erred or outcome.errno == errno.ENOSPC):
            world.disk_failed(self)
            return
        require(isinstance(outcome, OpenedStorage), "a member can always restart", self.node_id, repr(outcome))
        assert isinstance(outcome, OpenedStorage)
        header = outcome.snapshots.latest().header
        if self.files.has_read_short:
            world.cover("a member started from short reads")
        # A read fault that was injected must not hit the reads of the checker.
        to_fail, self.image.fails_read_of = self.image.fails_read_of, None
        if self.is_damaged and not self.checks.is_whole(self, outcome):
            self.lose("its disk has lost data that it had reported as synced")
            return
        require(self.is_damaged or not outcome.warnings, "no snapshot is damaged", self.node_id, outcome.warnings)
        self.checks.recovered(self, outcome, LogPosition(header.index, header.term))
        self.files.accepted = self.image.unsynced(LOG_FOLDER)
        self.image.fails_read_of = to_fail
        try:
            self._run(outcome)
        except OSError:
            if not self.files.has_erred:
                raise
            world.disk_failed(self)  # The process cannot read its snapshot.
            return
        except UnsupportedFeatureLevel as error:
            world.level_unknown(self, error)
            return
        world.on_up(self)
        self.settle("start")

    def _run(self, outcome: OpenedStorage) -> None:
        """Make the node, its state machine and its service."""
        world = self.world
        if outcome.torn_bytes:
            world.cover("a torn tail was cut")
        self.is_blank = outcome.log.last_index == 0
        self.checker = self.checks.process(self, outcome)
        self.levels = levels = world.process_starts(self)
        self.machine = StoreProbe(world.cover, chunk_bytes=world.plan.raft.snapshot_chunk_bytes, levels=levels)
        self.connections.begin()
        self._log = log = LogProbe(outcome.log, self.logs, self._is_synced, self.checker.dropping, self._damage_read)
        node = NodeProbe(
            identity=self.identity,
            config=world.plan.raft_of(self.node_id),
            log=log,
            snapshots=outcome.snapshots,
            pins=outcome.pins,
            hard_state=outcome.hard_state,
            machine=MachineProbe(self.machine, self.checker),
            random=stream(world.plan.seed, f"node/{self.node_id}/{self.life}"),
            now=self.now(),
            levels=levels,
        )
        self.checker.begins(node)
        self.node = node
        if world.plan.load.with_service:
            self.service = Service(self.node, self.machine)
            self.service.check_password = self._check_password
            self._expire_later()

    def _lose_process(self, life: int, reason: str) -> None:
        if life == self.life:
            self.lose(reason)

    def _damage_read(self, refusal: CorruptLog) -> None:
        self.checks.damage_read(self, refusal)

    def lose(self, reason: str) -> None:
        """End the process, and never start the machine again."""
        self.world.note_world(f"{self.node_id} is lost for good: {reason}")
        self.world.cover("a member is lost for good")
        self.crash(power=False)
        self.is_lost = True

    def crash(self, *, power: bool) -> None:
        """Kill the process. With `power`, the machine loses power too, and a draw decides which un-synced data
        survives.
        """
        if self.files is None:
            return
        self.files.crash(self._crash_random)
        if power:
            for happened in sorted(self.image.lose_power(self._crash_random)):
                self.world.cover(happened)
            self.clock.begin_anew()
        self.node, self.machine, self.service, self.files = None, None, None, None
        self._timer_at = self._stops_by = None
        self.scheduler.forget()
        self.clock.go_on()
        self.life += 1

    def lose_disk(self) -> None:
        """Lose every file. The machine must be down. Other members still rely on the votes and acknowledgements that
        this machine has sent."""
        self.image = DiskImage()
        self.proven = ProvenBytes(self.image)
        self.is_damaged = self.is_lost = True

    def rot(self, random: Random) -> None:
        """Change one stored bit: either in the part of the log that is proven to be durable, or in another file (a
        snapshot, `meta` or `pins`). The machine must be down."""
        rot = self.proven.rot if random.random() < 0.6 else self.proven.rot_elsewhere
        self.is_damaged = rot(random)
        if self.is_damaged:
            self.world.cover("a bit rotted")

    def _is_synced(self, folder: str) -> bool:
        """Handle a sync of the log that the disk reports as successful. Returns True if the folder really is synced."""
        assert self.files is not None
        self.checker.sync_ended()
        is_synced = self.files.is_synced(folder)
        if is_synced:
            self.proven.log_synced()
        return is_synced

    @property
    def current_term(self) -> int:
        """The term of the node on this machine, or the last known term if no node runs."""
        return self.node.core.term if self.node is not None else self.checker.term

    def state_words(self) -> str:
        """Role, term and indexes in one aligned line."""
        if self.node is None:
            return "down" if self.files is None else "recovering"
        core = self.node.core
        return (
            f"{core.role.value:<13} t{core.term:<3} log {core.first_index}..{core.last_index} dur {core.durable_index} "
            f"com {core.commit_index} app {core.last_applied} snap {core.snapshot_index} low {core.low_watermark}"
        )

    # -- events

    def now(self) -> int:
        """Return the time of this machine's monotonic clock, in ns."""
        return self.clock.now()

    def clock_changed(self) -> None:
        """Arm the timer again, because after a jump or a change of the clock's rate a deadline may be due earlier."""
        if self.node is not None and self.node.failure is None:
            self._arm()

    def _schedule(self, delay_ns: int, callback: Callable[[], None]) -> None:
        self.world.queue.after(delay_ns, self._on_disk, self.life, callback)

    def _on_disk(self, life: int, callback: Callable[[], None]) -> None:
        if life != self.life or self.scheduler.postpones(self._on_disk, life, callback):
            return
        callback()
        self.settle("disk")

    def deliver(self, sender: str, frame: bytes) -> None:
        """Receive a frame from a peer."""
        if self.stand_in is not None:
            self.world.deliver_to_stand_in(self.stand_in, sender, frame)
            return
        if self.node is None or self.scheduler.postpones(self.deliver, sender, frame):
            return
        if not self.connections.take(self.world.members[sender]):
            return
        try:
            _, message = decode_message(frame)
        except ProtocolError as error:
            raise Violation("peers understand each other", f"{sender} → {self.node_id}: {error}") from error
        self._tick()
        self.node.receive(sender, message)
        self.checker.received(self.node.core, sender, message)
        self.settle(f"from {sender}", frame, message)

    def lose_connection(self, peer_id: str) -> None:
        """Break the connection to a peer."""
        if self.node is not None and not self.scheduler.postpones(self.lose_connection, peer_id):
            self._tick()
            self.connections.hung_up(peer_id)
            self.world.connection_lost(self, peer_id)
            self.node.peer_unreachable(peer_id)
            self.settle(f"lost {peer_id}")

    def refused(self, life: int, peer_id: str, code: str) -> None:
        """Inform process `life` that a peer has refused its hello. `code`: the reason."""
        if life != self.life or self.node is None or self.scheduler.postpones(self.refused, life, peer_id, code):
            return
        self._tick()
        self.node.peer_refused(peer_id, code)
        self.world.refusal_read(self, self.node, peer_id, code)
        self.settle(f"refused by {peer_id}: {code}")

    def begin_stop(self, node: Node) -> None:
        """Ask the process to end."""
        node.begin_stop()
        if self._stops_by is None:
            self._stops_by = self.checker.now + self.world.plan.raft.outcome_wait_ns

    def call(self, what: str, action: Callable[[Node], None]) -> None:
        """Run the action of a client, an operator or a fault on the node, then carry out the effects of the node."""
        assert self.node is not None
        if self.scheduler.postpones(self.call, what, action):
            return
        self._tick()
        action(self.node)
        self.settle(what)

    def serve(self, life: int, what: str, action: Callable[[Service], object], content: bytes = b"") -> None:
        """Let the service of process `life` handle an event of a connection, then carry out the effects."""
        if life != self.life or self.scheduler.postpones(self.serve, life, what, action, content):
            return
        if self.service is not None:
            self._tick()
            action(self.service)
            self.settle(what, content)

    def _expire_later(self) -> None:
        """Schedule the next check for expired sessions and leases.

        The host of a real service also checks regularly, so that a leader without writes ends expired sessions and
        leases.
        """
        self.world.queue.at(self.clock.due(self.now() + EXPIRY_NS), self._expire, self.life)

    def _expire(self, life: int) -> None:
        if life == self.life and not self.scheduler.postpones(self._expire, life):
            self._expire_later()
            self.serve(life, "expiry", Service.expire_sessions)

    def _check_password(self, check: PasswordCheck) -> None:
        """Check a password, and report the result later, as the thread of a real host does.

        For a user that does not exist, the check is left out. Its result is known, and it would be slow, because the
        cheap parameters of the simulator's verifiers do not apply to it.
        """
        if check.verifier:
            check.compute()
        self.world.queue.after(PASSWORD_NS, self.serve, self.life, "password", partial(_report, check))

    def _tick(self) -> None:
        assert self.node is not None
        now = self.now()
        self.node.tick(now)
        self.checker.ticked(self.node.core, now)

    def _on_timer(self, life: int, time_ns: int) -> None:
        if life != self.life or self.node is None or self._timer_at != time_ns:
            return
        if self.scheduler.postpones(self._on_timer, life, time_ns):
            return
        self._timer_at = None
        if self.node.next_deadline <= self.now():
            self._tick()
            self.settle("tick")
        else:
            self._arm()

    def _arm(self) -> None:
        assert self.node is not None
        world = self.world
        due = self.clock.due(self.node.next_deadline)
        if due <= world.queue.now:  # More entries wait to be applied: the next slice runs after one turn.
            due = world.queue.now + world.plan.turn_ns
        if self._timer_at is not None and self._timer_at <= due:
            return
        progress = (world.queue.now, self.node.core.last_applied)  # Applied entries count as progress too.
        self._ticks_in_place = self._ticks_in_place + 1 if due == progress[0] and progress == self._progress else 0
        self._progress = progress
        require(self._ticks_in_place < TICKS_IN_PLACE_MAX, "timers let time pass", self.node_id)
        self._timer_at = due
        world.queue.at(due, self._on_timer, self.life, due)

    # -- after each event

    def settle(self, what: str, content: bytes = b"", message: object = None) -> None:
        """Take the node's effects, check everything that may have changed, and carry out the effects."""
        try:
            self._settle(what, content, message)
        except UnsupportedFeatureLevel as error:
            self.world.level_unknown(self, error)

    def _settle(self, what: str, content: bytes, message: object) -> None:
        node, world = self.node, self.world
        if node is None:
            return
        effects = node.take_effects()
        self.checker.check(node)
        self.checker.voted(node.core, message)
        world.note(self, node, what, content, message, effects)
        self.checker.told(effects)
        self._check_failure(effects)
        if effects.peers_changed:
            self.connections.want(node)
        for peer_id, sent in effects.send:
            self.checker.sends(node, peer_id, sent)
            if self.connections.lead_to(peer_id):
                world.network.send(self.node_id, peer_id, encode_message(0, sent))
        node.begin_sync()
        world.on_flush(self, effects)
        if any(event.name == "snapshot_installed" and not event.fields["kept_log"] for event in effects.events):
            world.install_began(self)
        if self._stops_by is not None:
            self._check_stop(node)
        if self.node is node and effects.failure is None:
            if node.is_stopped and node.failure is None:
                world.process_stopped(self)
            else:  # The node may have failed after its effects were taken. The next effects then report this failure.
                self._arm()

    def _check_stop(self, node: Node) -> None:
        """Check a node that was asked to stop: after the time for open requests, the node may wait only for its disk.

        See docs/reference/specification.md#96-end-of-a-proposal.
        """
        assert self._stops_by is not None
        waits_for_disk = node.is_syncing or self._log.is_disk_full
        require(
            self.checker.now < self._stops_by or node.is_stopped or waits_for_disk,
            "a member that is asked to stop stops",
            self.node_id,
        )

    def _check_failure(self, effects: Effects) -> None:
        """Check that a node stops by itself after a failed sync or a read of rotten bytes, and then sends nothing more.

        Only three other events may make a node stop by itself: a failed read; a failed sync of deletions or of the
        ballast, on which nothing relies; or the refusal of peers that know another data folder under its member id.

        See docs/reference/specification.md#37-failed-sync.
        """
        assert self.files is not None
        if effects.failure is None:
            require(not self.files.has_failed, "a node stops after a failed sync", self.node_id)
            require(not self.has_read_damage, "a node stops after it has read rotten data", self.node_id)
            return
        require(not effects.send, "after a failure no promise leaves", self.node_id, effects.send)
        if self.has_read_damage:
            # The process ends after the present event, because this event must still report the failure.
            self.world.queue.after(0, self._lose_process, self.life, str(effects.failure))
            return
        if isinstance(effects.failure.__cause__, IncarnationReplaced):
            self.world.folder_forgotten(self)
            return
        if not self.files.has_erred:
            raise Violation("a node does not stop by itself", f"{self.node_id}: {effects.failure}")
        self.world.cover("a node stopped after a failed " + ("sync" if self.files.has_failed else "read"))
        self.world.disk_failed(self)


def _report(check: PasswordCheck, service: Service) -> None:
    service.password_checked(check)
