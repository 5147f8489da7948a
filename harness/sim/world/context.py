"""Protocols through which the parts of a simulated run use the run, its machines and each other.

The run (`harness.sim.simulation`) makes all parts, and each part calls the run. In addition, a machine, its
connections, its checks and its faults call each other. To avoid import cycles, such parts do not import each other.
They import these protocols, and get the objects as arguments. `checks/context.py` and `faults/context.py` extend
`World` for checks and faults.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Protocol

from harness.sim.engine.clock import Clock
from harness.sim.engine.event_queue import EventQueue
from harness.sim.plan.plan import Plan
from harness.sim.world.damage import ProvenBytes
from harness.sim.world.disk import SimFiles
from harness.sim.world.disk_image import DiskImage
from harness.sim.world.network import SimNetwork
from harness.sim.world.probes import LogWatcher, MachineWatcher, NodeProbe
from harness.sim.world.process import ProcessScheduler
from harness.sim.world.shadow_log import ShadowLog
from kvstore import KvMachine, Service, UnsupportedFeatureLevel
from raft import (
    Configuration,
    Effects,
    HardState,
    Identity,
    LevelRange,
    LogPosition,
    LogStore,
    Message,
    Node,
    RaftCore,
)
from storage import CorruptLog, CorruptMeta, CorruptSnapshot, OpenedStorage


class ShadowLogsView(LogWatcher, Protocol):
    """The log of one machine as an observer outside the machine knows it, in memory and on disk."""

    memory: ShadowLog
    durable: ShadowLog

    def holds_durably(self, index: int, term: int) -> bool:
        """True if the committed entry (index, term) would survive any crash of this machine."""

    def are_all_in(self, log: LogStore, hard_state: HardState, snapshot: LogPosition) -> bool:
        """True if recovery found everything that the machine had promised.

        The arguments are the results of the recovery.
        """


class ProcessChecks(MachineWatcher, Protocol):
    """Checks one process of a machine.

    The machine reports each event to the checks before it carries out the effects of the event.
    """

    level: int  # The feature level in force, as far as the checker has seen.
    term: int

    @property
    def now(self) -> int:
        """The time at the node's last tick (ns, by its own clock)."""

    def begins(self, node: NodeProbe) -> None:
        """Begin to check the node of this process."""

    def ticked(self, core: RaftCore, now: int) -> None:
        """Record that the clock of the node has advanced."""

    def received(self, core: RaftCore, sender: str, message: Message) -> None:
        """Record a message that the node has received."""

    def check(self, node: Node) -> None:
        """Check the state of the node after an event."""

    def voted(self, core: RaftCore, message: object) -> None:
        """Check the node's vote after an event. `message`: the message that arrived in this event, if any."""

    def told(self, effects: Effects) -> None:
        """Check the events that the node reports."""

    def sends(self, node: Node, receiver: str, message: Message) -> None:
        """Check a message that now leaves the node."""

    def dropping(self, index: int) -> None:
        """Check that the log may forget entries below `index`."""

    def sync_ended(self) -> None:
        """Record that the disk has reported the end of a sync of the log."""

    def connections_ended(self, peer_id: str) -> None:
        """Record that both connections with a peer have ended. The node is informed of this only afterwards."""

    def stopped(self, core: RaftCore) -> None:
        """Check the last step of a node that ended in the middle of an event."""


class MachineChecks(Protocol):
    """Checks one machine over all its processes: the state at each start, and the refusal to start after damage."""

    @property
    def logs(self) -> ShadowLogsView:
        """The shadow logs of the machine."""

    def process(self, machine: MachineView, opened: OpenedStorage) -> ProcessChecks:
        """Return new checks for a process that starts now."""

    def refused(self, machine: MachineView, refusal: CorruptLog | CorruptSnapshot | CorruptMeta) -> None:
        """Check a machine that refuses to start because it has found damage."""

    def damage_read(self, machine: MachineView, refusal: CorruptLog) -> None:
        """Check a machine whose running process has read rotten bytes."""

    def is_whole(self, machine: MachineView, opened: OpenedStorage) -> bool:
        """Check a damaged machine that starts. Return False if the machine cannot know what it has lost."""

    def recovered(self, machine: MachineView, opened: OpenedStorage, snapshot: LogPosition) -> None:
        """Check the state that recovery has found on the disk of a machine. `snapshot`: the position of the newest
        snapshot."""


class PeerConnectionsView(Protocol):
    """The interface of a machine's peer connections for other machines and for faults."""

    def waits_for(self, peer_id: str) -> bool:
        """Return True during the pause before the next call to this peer, which has refused the last call."""

    def was_taken_by(self, peer_id: str) -> None:
        """Record that this peer has accepted the machine's hello."""

    def was_refused_by(self, peer_id: str) -> None:
        """Record that this peer has refused the machine's hello. The pause before the next call doubles with each
        refusal.
        """

    def hung_up(self, peer_id: str) -> None:
        """Handle the end of the connection from this peer to the machine."""

    def lose(self, peer_id: str) -> None:
        """End both connections with a peer."""


class MachineView(Protocol):
    """A simulated machine.

    The number `life` grows at each start or end of a process. Events of earlier lives are dropped.
    """

    node_id: str
    identity: Identity
    says_it_is: Identity
    stand_in: MachineView | None
    image: DiskImage
    proven: ProvenBytes
    logs: ShadowLogsView
    clock: Clock
    scheduler: ProcessScheduler
    life: int
    node: Node | None
    machine: KvMachine | None
    service: Service | None
    files: SimFiles | None
    checker: ProcessChecks
    levels: LevelRange
    applied_max: int
    is_damaged: bool
    has_read_damage: bool
    is_lost: bool
    is_blank: bool

    @property
    def connections(self) -> PeerConnectionsView:
        """The connections of this machine with other machines."""

    @property
    def is_up(self) -> bool:
        """True if a node runs on this machine."""

    @property
    def is_paused(self) -> bool:
        """True while the process is paused."""

    @property
    def current_term(self) -> int:
        """The term of the node on this machine, or the last known term if no node runs."""

    def state_words(self) -> str:
        """Return role, term and indexes as one aligned line."""

    def now(self) -> int:
        """Return the time of the machine's monotonic clock, in ns."""

    def initialize(self) -> None:
        """Make the data folder."""

    def boot(self) -> None:
        """Start a process."""

    def crash(self, *, power: bool) -> None:
        """Kill the process. With `power`, the machine loses power too, and a draw decides which un-synced data
        survives.
        """

    def lose_disk(self) -> None:
        """Remove all files. The machine must be down."""

    def rot(self, random: Random) -> None:
        """Change one bit of the machine's files. The machine must be down."""

    def clock_changed(self) -> None:
        """Handle a jump of the machine's clock, or a change of its rate."""

    def deliver(self, sender: str, frame: bytes) -> None:
        """Receive a frame from a peer."""

    def lose_connection(self, peer_id: str) -> None:
        """Break the connection to a peer."""

    def refused(self, life: int, peer_id: str, code: str) -> None:
        """Inform process `life` that a peer has refused its hello."""

    def begin_stop(self, node: Node) -> None:
        """Ask the process to end."""

    def call(self, what: str, action: Callable[[Node], None]) -> None:
        """Run an action on the node, then carry out the effects."""

    def serve(self, life: int, what: str, action: Callable[[Service], object], content: bytes = b"") -> None:
        """Let the service of process `life` handle an event of a client's connection."""


class World(Protocol):
    """The interface of a run for its machines and their connections."""

    plan: Plan
    queue: EventQueue
    network: SimNetwork
    configuration: Configuration

    @property
    def members(self) -> Mapping[str, MachineView]:
        """All machines by name, whether they are members yet or not."""

    # What is recorded.

    def cover(self, name: str) -> None:
        """Record that the run has reached a coverage point."""

    def note(
        self, member: MachineView, node: Node, what: str, content: bytes, message: object, effects: Effects
    ) -> None:
        """Record one event on one machine."""

    def note_client(self, name: str, content: bytes) -> None:
        """Record that a client was answered."""

    def note_world(self, what: str) -> None:
        """Record a fault, or another change of the simulated world."""

    # Machines report to the methods below, and other parts handle the reports.

    def process_starts(self, member: MachineView) -> LevelRange:
        """Handle the start of a process. Returns the feature levels that the build of this process knows."""

    def on_up(self, member: MachineView) -> None:
        """Handle the start of a machine's node."""

    def on_flush(self, member: MachineView, effects: Effects) -> None:
        """Handle the effects of a node: parts of the run take the results of their own requests."""

    def disk_failed(self, member: MachineView) -> None:
        """Handle a process that ends because a sync or a read has failed."""

    def install_began(self, member: MachineView) -> None:
        """Handle the moment of an install at which the received snapshot is durable, but the new log is not yet
        durable.
        """

    def process_stopped(self, member: MachineView) -> None:
        """Handle the end of a process that was asked to stop."""

    def level_unknown(self, member: MachineView, error: UnsupportedFeatureLevel) -> None:
        """Handle a process that ends because its build does not know the feature level in force."""

    def folder_forgotten(self, member: MachineView) -> None:
        """Handle a process that ends because other members know another data folder under its member id."""

    # Connections between machines.

    def connect(self, caller: MachineView, called: MachineView) -> None:
        """Connect one machine to another.

        Each machine receives the hello of the other machine. Raises PeerRefused if one refuses a hello.
        """

    def may_refuse(self, code: str, sender: str, *, by: str) -> bool:
        """Return True if `by` has a reason to refuse the hello of `sender` with this code."""

    def connection_lost(self, member: MachineView, peer_id: str) -> None:
        """Handle the end of a connection, of which the node of `member` has been informed."""

    def send_refusal(self, caller: MachineView, peer_id: str, code: str) -> None:
        """Handle a refusal by `peer_id` of the hello of `caller`. The caller learns of the refusal a little later."""

    def refusal_read(self, member: MachineView, node: Node, peer_id: str, code: str) -> None:
        """Handle a refusal by `peer_id` that the node of `member` has received."""

    def deliver_to_stand_in(self, stand_in: MachineView, sender: str, frame: bytes) -> None:
        """Deliver a frame to the process that runs in place of a machine that has lost its disk."""
