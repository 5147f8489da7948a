"""The plan of a run: everything that a seed determines, as plain data that is complete before the run begins.

Each part of the simulated world has its own part of the plan. This file also lists the kinds of faults, family by
family. A fault of the plan states its kind, and the family of the kind determines which code carries out the fault.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random

from harness.sim.engine.rng import stream
from kvstore import ClientLimits, StoreLimits
from raft import RaftConfig
from storage import StorageLimits

SECOND_NS = 1_000_000_000
MILLISECOND_NS = 1_000_000
MICROSECOND_NS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault.

    `target`: a position among the members, as a fraction from 0 to 1, or None for the leader. `shape` (0 to 1)
    determines all other details of the fault.
    """

    at_ns: int
    kind: str  # One of KINDS.
    duration_ns: int
    target: float | None  # None: the member that leads at the time of the fault.
    shape: float


Kinds = dict[str, tuple[float, float]]
"""For each kind of fault: (greatest rate per simulated second, longest duration in seconds). Kinds with rate 0 are not
drawn by `draw_faults` but by other functions.
"""

PROCESS_KINDS: Kinds = {
    "kill": (0.6, 2.0),  # The process is killed; all data that the operating system has accepted survives.
    "lose power": (0.6, 2.0),  # The machine loses power. A draw decides which unsynced data survives.
    "lose power everywhere": (0.2, 1.0),
    "stop": (0.4, 1.0),  # The process is asked to end, as for a rolling restart: a leader hands over first.
    "transfer": (0.4, 1.0),  # A leader is asked to hand over; its process continues.
    "take over": (0.0, 0.0),  # The leader is asked to hand over to this member.
    "pause": (0.3, 1.5),  # The process stops for a while, and does not notice this.
    # The process is starved of processor time, so each event takes some time while the next events wait.
    "slow process": (0.3, 2.0),
}

CLOCK_KINDS: Kinds = {
    # The clock jumps forwards, sometimes by an hour, as on a machine whose clock counts the time that it is suspended.
    "clock jumps": (0.3, 3.0),
    "clock runs wild": (0.3, 3.0),  # The clock runs at half to twice its usual rate.
    "suspend": (0.3, 1.5),  # The machine and its clock stop, so the process cannot know that time has passed.
}

NETWORK_KINDS: Kinds = {
    "cut in two": (0.3, 3.0),
    "cut off": (0.4, 3.0),  # One member is cut off from all others, in both directions.
    "cut one way": (0.4, 3.0),
    "bridge": (0.3, 3.0),  # Two halves cannot reach each other, but one member can reach both halves.
    # Each member reaches only its two neighbours. With five members, each member reaches a different majority.
    "ring": (0.3, 3.0),
    "slow link": (0.4, 3.0),  # Frames in one direction between two members take 20 to 200 ms more.
    "lose connection": (0.5, 0.0),
    # All connections between one member and the others are closed at both ends, as when a proxy restarts.
    "drop connections": (0.4, 0.0),
    # One connection delivers nothing more, and neither end notices this until the fault ends.
    "half-open": (0.4, 4.0),
}

CLIENT_KINDS: Kinds = {
    # One member is cut off from all clients: the clients' requests wait, or the member's answers wait, or both wait.
    "cut clients off": (0.3, 3.0),
    "cut a client off": (0.3, 3.0),  # One client is cut off from all members, in one or both directions.
    # The client connections of one member deliver nothing in one direction, and neither end notices this.
    "clients hang": (0.3, 0.0),
    # A minority of the members, often with the leader, is cut off together with some of the clients.
    "cut in two with clients": (0.4, 3.0),
    # The clock jumps forwards, sometimes by an hour, so that all deadlines of the client pass at once.
    "a client's clock jumps": (0.3, 3.0),
}

DISK_KINDS: Kinds = {
    "slow disk": (0.3, 2.0),
    "hanging disk": (0.2, 6.0),  # For a while, writes and syncs do not end, but reads work.
    "leader's disk hangs": (0.3, 0.0),  # The leader's disk hangs for so long that the leader must hand over.
    "fail a sync": (0.4, 2.0),  # The next sync of some files or of a folder fails; the process must stop.
    "fail a read": (0.2, 1.0),
    "short reads": (0.3, 3.0),  # For a while, each read returns only half of the requested bytes.
    "full disk": (0.3, 3.0),  # For a while, the disk has no space, or space for only a few bytes.
    # A bit changes during a power loss, and the next start must notice the change; or a bit of a snapshot in use
    # changes.
    "bit rot": (0.4, 1.0),
    "rotting log": (0.3, 2.0),  # Just before a frame is read back, its bytes change, or another frame replaces it.
    # All files are lost. Only `with_losses` draws this fault, together with machines for new members.
    "lose a disk": (0.0, 0.5),
    # A write of the log is lost or misdirected although its sync succeeds; later the machine loses power.
    "lying disk": (0.3, 3.0),
}

KINDS: Kinds = {**PROCESS_KINDS, **CLOCK_KINDS, **NETWORK_KINDS, **CLIENT_KINDS, **DISK_KINDS}
"""All kinds of all families."""

WAYS = (0, 1, 2)
"""The directions of a cut: towards the member, towards the client, both."""

BOTH_WAYS = 2


def cuts_both_ways(shape: float, clients: int) -> bool:
    """Return True if a fault of this shape cuts off one of `clients` clients in both directions."""
    random = Random(int(shape * 2**53))
    random.choice(range(clients))
    return random.choice(WAYS) == BOTH_WAYS


LOSS = "lose a disk"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockPlan:
    """The inaccuracy of clocks. Each clock has a different constant rate, from 1 / spread to spread.

    `at_edges`: True if each member's clock runs at the lowest or the highest of these rates. `grain_ns`: clocks show
    only multiples of this number. If the number is large, times and deadlines are often equal.
    """

    spread: float = 1.01
    client_spread: float = 1.01
    at_edges: bool = False
    grain_ns: int = 1


GOOD_CLOCKS = ClockPlan()


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkPlan:
    """The behaviour of every link of a seed. Rates are per frame; a frame takes `delay_ns` plus up to `jitter_ns`."""

    delay_ns: int = 500_000
    jitter_ns: int = 1_000_000
    # The share of the frames that take up to `late_ns` more, which may be longer than an election.
    late_rate: float = 0.0
    late_ns: int = 1_000_000_000
    loss_rate: float = 0.0
    duplicate_rate: float = 0.0
    # If True, frames arrive in order, as on one TCP connection. If False, each frame has an independent delay.
    in_order: bool = True
    # The share of the links whose frames always take up to `slow_ns` more, like a link to a distant member.
    slow_rate: float = 0.0
    slow_ns: int = 0


CALM = NetworkPlan()


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskPlan:
    """The speed of the disks of a seed. A sync takes `sync_ns` to `2 * sync_ns`, and now and then `stall_ns` more."""

    sync_ns: int = 500 * MICROSECOND_NS
    stall_ns: int = 50 * MILLISECOND_NS
    stall_rate: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionsPlan:
    """The behaviour of connections of clients. Rates are per piece of data.

    With `in_pieces`, a quarter of the pieces arrive in two parts. Late data takes up to `late_ns` more, and all later
    data on the connection waits for it, as during the growing pauses between retransmissions of TCP. When late data
    arrives, the client may have given up, or may have received an answer on another connection.
    """

    delay_ns: int = 500_000
    jitter_ns: int = 1_000_000
    break_rate: float = 0.0
    late_rate: float = 0.0
    late_ns: int = 1_000_000_000
    in_pieces: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtraPlan:
    """The shares of extra operations (`load/extra_operations.py`) among all operations of a worker."""

    failing_share: float = 0.0
    listing_share: float = 0.0


NO_EXTRAS = ExtraPlan()


DELETE_KEYS_MAX = StoreLimits().delete_keys_max
"""The default of the limit on the keys that one command deletes, and on the keys of one lease."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinationPlan:
    """A load that needs feature level 2 and runs beside the ordinary load: leases, locks, watches, and old revisions.

    The programs on the `clients` are `owners` of leases, `contenders` for locks, and `writers`. Each of the `watchers`
    is a separate client. All these fields are numbers. `lease_grace_ns`, `history_bytes_max`, `history_events_max` and
    `delete_keys_max` are limits of the store. `window_bytes`: the window of each watch. `stay_ns`: the average time
    until a client's process is restarted; 0 means never. `death_share`: for this share of the leases that their owners
    stop renewing, a fault hits the leader near the end of the lease. `put_share`: among the actions of writers, the
    share of plain puts of keys that other programs attach to leases. If this share is not 0, writers pause only
    briefly. `hub`: bounds of the members' watch hubs, by name; all other bounds have their values in production.
    """

    clients: int = 0
    owners: int = 0
    contenders: int = 0
    writers: int = 0
    watchers: int = 0
    think_ns: int = 50 * MILLISECOND_NS
    lease_ttl_ns: int = SECOND_NS
    lease_grace_ns: int = 300 * MILLISECOND_NS
    history_bytes_max: int = 1_000_000
    history_events_max: int = 1_000
    delete_keys_max: int = DELETE_KEYS_MAX
    window_bytes: int = 100_000
    stay_ns: int = 0
    death_share: float = 0.0
    put_share: float = 0.0
    hub: dict[str, int] = field(default_factory=dict)

    @property
    def is_on(self) -> bool:
        """True if the plan has a coordination load."""
        return self.clients > 0

    @property
    def bounds_keys(self) -> bool:
        """True if `delete_keys_max` is so small that programs reach it."""
        return self.delete_keys_max < DELETE_KEYS_MAX


NO_COORDINATION = CoordinationPlan()


@dataclass(frozen=True, slots=True, kw_only=True)
class AcknowledgementPlan:
    """The acknowledgement levels of a load.

    `level_share`: the share of the writes that draw one of all levels; all other writes have the level MAJORITY.

    `outcome_share`: among the accepted writes, the share whose outcome a client asks for. The question waits for at
    most `wait_ms_max`. `min_in_sync_max`: an operator sets `min_in_sync` to numbers from 1 to this maximum; 0: the
    operator never sets it.
    """

    level_share: float = 0.0
    outcome_share: float = 0.0
    wait_ms_max: int = 0
    min_in_sync_max: int = 0

    @property
    def is_on(self) -> bool:
        """True if writes draw their levels."""
        return self.level_share > 0


USUAL_LEVELS = AcknowledgementPlan()


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessPlan:
    """A load that needs feature level 3 and runs beside the ordinary load: users whose rights change.

    Each of the `users` has a program that reads and writes with its rights. `watchers`: the number of programs that
    watch keys, each as one of the users at a time. `think_ns`: the average pause of a program between two operations.
    `change_ns`: the average pause of the operator between two changes of users and roles.
    """

    users: int = 0
    watchers: int = 0
    think_ns: int = 50 * MILLISECOND_NS
    change_ns: int = 200 * MILLISECOND_NS

    @property
    def is_on(self) -> bool:
        """True if the plan has users."""
        return self.users > 0


NO_ACCESS = AccessPlan()


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcdPlan:
    """A load of clients that speak etcd's API. The load needs feature level 2 and runs beside the ordinary load.

    Each of the `clients` has `workers` callers on one connection, which read and write the keys of the ordinary load.
    `keepers`: the number of programs that keep keys under a lease. `lockers`: the number of programs that take one of
    two locks. `watchers`: the number of programs that watch. `think_ns`: the average pause of a program between two
    calls. `patience_ns`: the time-out of a call. `compact_share`: the share of the reads at an old revision after which
    a program compacts the history up to it.
    """

    clients: int = 0
    workers: int = 1
    keepers: int = 0
    lockers: int = 0
    watchers: int = 0
    think_ns: int = 50 * MILLISECOND_NS
    patience_ns: int = 2 * SECOND_NS
    compact_share: float = 0.0

    @property
    def is_on(self) -> bool:
        """True if the plan has clients of etcd."""
        return self.clients > 0


NO_ETCD = EtcdPlan()


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """The behaviour of clients. Each worker of a client waits `think_ns` on average between two operations.

    If `with_service` is True, clients use connections to the service, with retries and sessions. Otherwise clients call
    the node of a member directly.
    """

    with_service: bool
    clients: int
    workers: int
    think_ns: int
    keys: int
    read_share: float
    value_bytes_max: int
    patience_ns: int
    session_ttl_ns: int
    client_limits: ClientLimits
    connections: ConnectionsPlan
    read_modes: bool = False  # True if clients use every read mode, including lease, follower and bounded.
    loyal: int = 0  # Without service: the number of clients that call only their own member, whether it leads or not.
    extras: ExtraPlan = NO_EXTRAS  # Used only if `with_service` is True.
    burst: int = 0  # With service: the number of burst callers of each client, whose puts leave together.
    # With service: the average time until a client's program is restarted, in ns; 0 means never.
    stay_ns: int = 0


DEAD_KINDS = ("kill", "lose power", "cut off", "pause")
"""The ways in which a member can stay dead: killed (its un-synced data survives), without power (its un-synced data may
be lost), running but cut off, or paused.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dead:
    """A member that stays dead. `kind`: one of DEAD_KINDS.

    `target`: a position among the members, as a fraction from 0 to 1, or None for the leader.
    """

    kind: str
    target: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HealPlan:
    """The members that stay dead when all other members are healed.

    The dead members, together with the members that are lost for other reasons, are at most a minority. `dead`: the
    dead members, in the order in which they are chosen. `returns`: True if the dead members come back after the quorum
    has made progress.
    """

    dead: tuple[Dead, ...] = ()
    returns: bool = False


ALL_HEALED = HealPlan()

ADD, PROMOTE, REMOVE, REPLACE = "add", "promote", "remove", "replace"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeStep:
    """One membership change that an operator tries. `shape` determines the members that it affects.

    `cut_off_ns`: how long the leader is cut off after it has begun the change. During this time a new leader may
    replace entries of the leader that is cut off.
    """

    at_ns: int
    what: str
    shape: float
    cut_off_ns: int = 0


NAMED_SHARE = 0.5
"""Share of the seeds in which a membership change names the data folders of the new voters, as the service of the store
does.
"""


def names_new_voters(seed: int) -> bool:
    """Return True if membership changes contain the data folders of new voters in this seed."""
    return stream(seed, "changes/named").random() < NAMED_SHARE


ROLL, RAISE, BACK = "roll", "raise", "back"


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradeStep:
    """One step of an operator: `roll` out a build that knows one more level, `raise` the level, or take one member
    `back` to an older build.

    `shape` determines the speed of the roll-out, the new level, or the member with the older build.
    """

    at_ns: int
    what: str
    shape: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The plan of a whole run. `until_ns`: the time at which the faults end and the healing begins.

    `turn_ns`: how long a member waits before it applies the next slice of a backlog, unless another event wakes it.
    `install_death_rate`: among the snapshot installs that drop a log, the share in which the member crashes.
    `silenced_rate`: the share of removed members that are cut off until leaders no longer report the removal to them.
    `former_folders`: the machines that got a new data folder before they were added, each with the members that know
    its former folder.
    """

    seed: int
    profile: str  # The name of one of `profiles.PROFILES`, followed by the name of the coincidence, if there is one.
    members: tuple[str, ...]
    until_ns: int
    raft: RaftConfig
    storage: StorageLimits
    network: NetworkPlan
    disks: dict[str, DiskPlan]
    store: StoreLimits
    load: LoadPlan
    faults: tuple[Fault, ...]
    turn_ns: int = 0
    install_death_rate: float = 0.0
    silenced_rate: float = 0.0
    clocks: ClockPlan = GOOD_CLOCKS
    heal: HealPlan = ALL_HEALED
    # The election priority of each member; 0 for members that are not listed.
    priorities: dict[str, int] = field(default_factory=dict)
    # The factor by which the election time-outs of a member exceed the time-outs in `raft`.
    patience: dict[str, int] = field(default_factory=dict)
    # The members that do not read by lease when they lead, even if `raft` allows lease reads.
    leaseless: tuple[str, ...] = ()
    founders: int = 0  # The number of machines that are voters in the first configuration; 0 means all machines.
    changes: tuple[ChangeStep, ...] = ()
    upgrades: tuple[UpgradeStep, ...] = ()
    former_folders: dict[str, tuple[str, ...]] = field(default_factory=dict)
    coordination: CoordinationPlan = NO_COORDINATION  # Used only if the load has a service.
    acknowledgements: AcknowledgementPlan = USUAL_LEVELS
    access: AccessPlan = NO_ACCESS  # Used only if the load has a service.
    etcd: EtcdPlan = NO_ETCD  # Used only if the load has a service.
    first_build: int = 1  # The highest feature level that the first builds know.

    @property
    def trusts_clocks(self) -> bool:
        """True if all clocks are within the bounds on which leases and the ages of bounded reads rely."""
        drift, spread = self.raft.clock_drift_ppm_max / 1_000_000, self.clocks.spread
        is_bounded = spread <= 1 + drift and 1 / spread >= 1 - drift and self.clocks.grain_ns == 1
        return is_bounded and not any(fault.kind in CLOCK_KINDS for fault in self.faults)

    def raft_of(self, node_id: str) -> RaftConfig:
        """Return the settings of one member."""
        times = self.patience.get(node_id, 1)
        return replace(
            self.raft,
            election_timeout_min_ns=times * self.raft.election_timeout_min_ns,
            election_timeout_max_ns=times * self.raft.election_timeout_max_ns,
            lease_reads=self.raft.lease_reads and node_id not in self.leaseless,
            election_priority=self.priorities.get(node_id, 0),
        )

    @property
    def election_timeout_max_ns(self) -> int:
        """The longest election time-out of any member, in ns."""
        return max(self.patience.values(), default=1) * self.raft.election_timeout_max_ns

    @property
    def voters(self) -> tuple[str, ...]:
        """The voters of the first configuration."""
        return self.members[: self.founders] if self.founders else self.members

    def words(self) -> str:
        """Return the plan as one line, for the head of a trace."""
        counts: dict[str, int] = {}
        for fault in self.faults:
            counts[fault.kind] = counts.get(fault.kind, 0) + 1
        faults = ", ".join(f"{count} x {kind}" for kind, count in sorted(counts.items())) or "no faults"
        seconds = self.until_ns / SECOND_NS
        words = f"seed {self.seed}, {self.profile}: {len(self.voters)} members, {seconds:.1f} s, {faults}"
        words += f", {len(self.changes)} changes of the members" if self.changes else ""
        words += f", coordination by {self.coordination.clients} clients" if self.coordination.is_on else ""
        words += ", mixed acknowledgement levels" if self.acknowledgements.is_on else ""
        words += f", {self.access.users} users whose rights change" if self.access.is_on else ""
        words += f", {self.etcd.clients} clients of etcd" if self.etcd.is_on else ""
        return f"{words}, {len(self.upgrades)} steps of upgrades" if self.upgrades else words
