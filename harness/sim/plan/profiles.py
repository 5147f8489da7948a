"""Profiles: changes of about half of the plans, for combinations of settings that independent draws seldom produce.

Most bugs of consensus need a combination, such as short elections *and* early compaction *and* a busy load, which
independent draws seldom give. A profile is a list of traits, which are applied in order. Each trait changes one aspect
of the plan, and does not change the rest. Many runs with a profile are shorter, because more happens in them.

Seeds without a profile may get a coincidence instead: a trait that provokes one rare situation of disks, logs or
sessions. Coincidences use separate random streams, so a new coincidence does not change the seeds without a
coincidence. Some names of streams occur nowhere else in the code. They must stay as they are, because other names would
change the plans of all seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from random import Random

from harness.sim.engine.rng import stream
from harness.sim.plan.plan import (
    MILLISECOND_NS,
    NO_EXTRAS,
    SECOND_NS,
    DiskPlan,
    Fault,
    Plan,
    cuts_both_ways,
)
from kvstore import ClientLimits, StoreLimits
from raft import MIB, RaftConfig
from storage import StorageLimits

Trait = Callable[["Plan", Random], "Plan"]
FaultGroup = Callable[[int, int, Random], list[Fault]]

AS_DRAWN = "as drawn"

LEADER_FAULTS = ("cut off", "kill", "pause", "lose power", "cut one way")


ANY = {1: 1, 2: 1, 3: 4, 4: 1, 5: 2}
QUORATE = {3: 6, 4: 1, 5: 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A named list of traits. `weight`: how often the profile is drawn, relative to the other profiles.

    `members`: the weight of each cluster size. The `traits` are applied in order.
    """

    name: str
    weight: int
    members: Mapping[int, int] = field(default_factory=lambda: ANY)
    traits: tuple[Trait, ...] = ()

    def bend(self, plan: Plan) -> Plan:
        """Apply the traits to a plan."""
        random = stream(plan.seed, "plan/bend")
        for trait in self.traits:
            plan = trait(plan, random)
        return plan


def draw_profile(seed: int) -> Profile:
    """Draw the profile of a seed."""
    return stream(seed, "plan/mood").choices(PROFILES, weights=[profile.weight for profile in PROFILES])[0]


def frequent_elections(plan: Plan, random: Random) -> Plan:
    """Further faults hit the leader several times a second, while programs read and write all the time.

    If the programs are clients of the service, some still use the old leader after others have found the new leader.
    """
    until_ns = int((1.5 + 2 * random.random()) * SECOND_NS)
    load = plan.load
    if load.with_service:
        until_ns *= 2
        load = replace(
            load,
            clients=4,
            workers=2,
            keys=random.randrange(1, 5),
            think_ns=load.think_ns // 4,
            client_limits=replace(
                load.client_limits,
                attempt_timeout_ns=random.choice((100, 300)) * MILLISECOND_NS,
                pause_max_ns=50 * MILLISECOND_NS,
            ),
        )
    else:
        load = replace(load, clients=8, think_ns=random.choice((3, 10)) * MILLISECOND_NS, read_share=0.6)
    every_ns = random.choice((150, 250, 350)) * MILLISECOND_NS
    strikes = [
        Fault(
            at_ns=at_ns,
            kind=random.choice(LEADER_FAULTS),
            duration_ns=int((50 + 400 * random.random()) * MILLISECOND_NS),
            target=None if random.random() < 0.8 else random.random(),
            shape=random.random(),
        )
        for at_ns in range(every_ns, until_ns, every_ns)
    ]
    drawn = plan.faults if random.random() < 0.5 else ()
    return replace(
        plan,
        until_ns=until_ns,
        raft=replace(
            plan.raft,
            heartbeat_interval_ns=20 * MILLISECOND_NS,
            election_timeout_min_ns=60 * MILLISECOND_NS,
            election_timeout_max_ns=120 * MILLISECOND_NS,
            append_bytes_max=random.choice((60, 100, plan.raft.append_bytes_max)),
            window_messages_max=random.choice((1, 2, plan.raft.window_messages_max)),
        ),
        network=replace(
            plan.network,
            delay_ns=int((1 + 4 * random.random()) * MILLISECOND_NS),
            jitter_ns=int(10 * random.random() * MILLISECOND_NS),
            loss_rate=random.choice((0.0, 0.02)),
        ),
        disks=syncing_in(random.choice((1, 1, 5)) * MILLISECOND_NS, plan),
        store=StoreLimits() if random.random() < 0.7 else plan.store,
        load=load,
        faults=in_order([*strikes, *(fault for fault in drawn if fault.at_ns < until_ns)]),
    )


def aggressive_compaction(plan: Plan, random: Random) -> Plan:
    """Members build a snapshot every few entries, and keep almost no log for slow peers.

    Sessions are opened and closed.
    """
    silences = [
        Fault(
            at_ns=int(plan.until_ns * random.random()),
            kind="cut a client off",
            duration_ns=int((1 + random.random()) * SECOND_NS),
            target=random.random(),
            shape=random.random(),
        )
        for _ in range(random.randrange(4))
    ]
    return replace(
        plan,
        faults=in_order([*plan.faults, *silences]),
        raft=replace(
            plan.raft,
            snapshot_log_bytes=random.choice((200, 600)),
            retention_bytes_max=100,
            snapshot_chunk_bytes=random.choice((100, 1_000, 4_096)),
            outcome_wait_ns=random.choice((plan.raft.outcome_wait_ns, 2 * SECOND_NS)),
        ),
        storage=StorageLimits(segment_bytes_max=300, ballast_bytes=0),
        load=replace(plan.load, session_ttl_ns=random.choice((SECOND_NS, SECOND_NS, 60 * SECOND_NS))),
        install_death_rate=random.choice((0.0, 0.5)),
    )


def short_sessions(plan: Plan, random: Random) -> Plan:
    """Clients give up an attempt early, and the bytes of the attempt arrive late. Sessions end while clients still
    retry.
    """
    connections = replace(
        plan.load.connections,
        break_rate=random.choice((0.0, 0.03)),
        late_rate=random.choice((0.01, 0.04)),
        late_ns=random.choice((300, 1_000)) * MILLISECOND_NS,
        delay_ns=MILLISECOND_NS,
    )
    longest_ms = {"cut off": 300, "kill": 300, "pause": 300, "clients hang": 0, "cut a client off": 2_500}
    until_ns, every_ns = 4 * SECOND_NS, random.choice((300, 600)) * MILLISECOND_NS
    faults = [
        Fault(
            at_ns=at_ns,
            kind=kind,
            duration_ns=int(longest_ms[kind] * random.random() * MILLISECOND_NS),
            target=None,
            shape=random.random(),
        )
        for at_ns in range(every_ns, until_ns, every_ns)
        for kind in (random.choice(list(longest_ms)), "cut a client off")
    ]
    limits = ClientLimits(
        attempt_timeout_ns=random.choice((60, 150)) * MILLISECOND_NS,
        pause_min_ns=5 * MILLISECOND_NS,
        pause_max_ns=50 * MILLISECOND_NS,
        open_numbers_max=random.choice((8, 1_024)),
    )
    return replace(
        plan,
        until_ns=until_ns,
        faults=tuple(faults),
        raft=RaftConfig(
            heartbeat_interval_ns=20 * MILLISECOND_NS,
            election_timeout_min_ns=60 * MILLISECOND_NS,
            election_timeout_max_ns=120 * MILLISECOND_NS,
            proposals_pending_max=random.choice((1, 4, 100_000)),
        ),
        network=replace(plan.network, delay_ns=MILLISECOND_NS, jitter_ns=MILLISECOND_NS, late_rate=0.0, loss_rate=0.0),
        disks=syncing_in(MILLISECOND_NS, plan),
        store=StoreLimits(
            quota_bytes=random.choice((200, 600, StoreLimits().quota_bytes)),
            results_per_session_max=random.choice((1, 2, StoreLimits().results_per_session_max)),
        ),
        load=replace(
            plan.load,
            with_service=True,
            clients=3,
            workers=3,
            keys=random.randrange(1, 5),
            think_ns=10 * MILLISECOND_NS,
            patience_ns=4 * SECOND_NS,
            read_share=0.2,
            session_ttl_ns=random.choice((1, 1, 60)) * SECOND_NS,
            client_limits=limits,
            connections=connections,
        ),
    )


def slow_apply(plan: Plan, random: Random) -> Plan:
    """The state machine gets an entry or two at a time and lags behind the log."""
    return replace(
        plan,
        turn_ns=random.choice((0, 10, 30)) * MILLISECOND_NS,
        raft=replace(plan.raft, apply_bytes_max=random.choice((50, 200)), batch_bytes_max=random.choice((64, 300))),
    )


def snapshot_catch_up(plan: Plan, random: Random) -> Plan:
    """One member has a backlog of entries to apply, and is cut off until it can catch up only by a snapshot."""
    victim, until_ns = random.random(), 2 * SECOND_NS
    cuts = [
        (at_ms + offset_ms, duration_ms + random.randrange(50))
        for at_ms in range(300, 2_000, 800)
        for offset_ms, duration_ms in ((0, 150), (250, 350))
    ]
    faults = [
        Fault(
            at_ns=at_ms * MILLISECOND_NS,
            kind="cut off",
            duration_ns=duration_ms * MILLISECOND_NS,
            target=victim,
            shape=random.random(),
        )
        for at_ms, duration_ms in cuts
    ]
    bounds = RaftConfig()
    return replace(
        plan,
        until_ns=until_ns,
        faults=tuple(faults),
        turn_ns=random.choice((20, 50)) * MILLISECOND_NS,
        raft=replace(
            bounds,
            batch_bytes_max=64,
            apply_bytes_max=50,
            snapshot_log_bytes=random.choice((3_000, 8_000)),
            retention_bytes_max=random.choice((3_000, 8_000)),
        ),
        network=replace(plan.network, delay_ns=MILLISECOND_NS, jitter_ns=MILLISECOND_NS, late_rate=0.0, loss_rate=0.0),
        storage=StorageLimits(segment_bytes_max=1_000, ballast_bytes=0),
        disks=syncing_in(MILLISECOND_NS, plan),
        load=replace(plan.load, with_service=False, clients=8, think_ns=3 * MILLISECOND_NS, read_share=0.2),
    )


def power_failures(plan: Plan, random: Random) -> Plan:
    """Power fails repeatedly, on slow disks, in the middle of frames of many sectors."""
    return replace(
        plan,
        faults=tuple(
            replace(fault, kind="lose power" if random.random() < 0.9 else "lose power everywhere", duration_ns=at_ns)
            for fault, at_ns in ((fault, int(100 * MILLISECOND_NS * random.random())) for fault in plan.faults)
        ),
        disks=syncing_in(10 * MILLISECOND_NS, plan),
        load=replace(plan.load, value_bytes_max=random.choice((1_000, 4_000)), read_share=0.0),
        storage=replace(plan.storage, frame_bytes_max=64 * 1024 * 1024, ballast_bytes=0),
    )


def crash_during_recovery(plan: Plan, random: Random) -> Plan:
    """On slow disks, a crashed member crashes again in its recovery, so that a start finds an incomplete recovery."""
    kinds = ("kill", "lose power")
    faults = [
        replace(
            fault,
            at_ns=fault.at_ns + place * (fault.duration_ns + int(25 * MILLISECOND_NS * random.random())),
            kind=random.choice(kinds),
            target=target,
            shape=0.7 * random.random(),
        )
        for fault, target in (
            (replace(fault, duration_ns=fault.duration_ns // 8), random.random()) for fault in plan.faults
        )
        for place in range(3)
    ]
    return replace(plan, faults=in_order(faults), disks=syncing_in(random.choice((1, 5, 10)) * MILLISECOND_NS, plan))


def delayed_frames(plan: Plan, random: Random) -> Plan:
    """Frames arrive out of order, some of them twice, and some only after whole elections have passed."""
    return replace(
        plan,
        network=replace(
            plan.network,
            late_rate=0.02 + 0.1 * random.random(),
            late_ns=int((0.5 + 3 * random.random()) * plan.raft.election_timeout_max_ns),
            duplicate_rate=0.1 * random.random(),
            in_order=False,
        ),
    )


def single_voter(plan: Plan, random: Random) -> Plan:
    """A single voter crashes repeatedly, sometimes during its start."""
    until_ns = SECOND_NS
    faults = [
        Fault(
            at_ns=int(until_ns * random.random()),
            kind=random.choice(("kill", "lose power", "lose power")),
            duration_ns=int(20 * MILLISECOND_NS * random.random()),
            target=0.0,
            shape=random.random(),
        )
        for _ in range(random.randrange(4, 20))
    ]
    return replace(
        plan,
        until_ns=until_ns,
        disks=syncing_in(random.choice((1, 5, 20)) * MILLISECOND_NS, plan),
        faults=in_order(faults),
    )


def production_limits(plan: Plan, _: Random) -> Plan:
    """All bounds have their default values, as in production."""
    return replace(
        plan,
        raft=RaftConfig(),
        storage=StorageLimits(),
        store=StoreLimits(),
        load=replace(plan.load, client_limits=ClientLimits()),
    )


def lease_faults(plan: Plan, random: Random) -> Plan:
    """A leader reads by lease, on the worst clocks that its settings allow, under faults that expose a wrong lease.

    Frames and syncs take a few milliseconds, and promises last many times as long. So if a lease is too long, another
    member has time to lead before this lease ends.
    """
    promise_ns = random.choice((80, 120)) * MILLISECOND_NS
    drift_ppm = random.choice((10_000, 450_000))
    until_ns = int((2 + random.random()) * SECOND_NS)
    is_quiet = False
    groups: tuple[FaultGroup, ...] = (_a_follower_forgets, _a_transfer_unheard, _late_answers)
    if drift_ppm > 10_000:  # With much drift, a lease ends long before the promises on which it relies.
        groups = (_a_cut, _a_cut, _a_transfer_unheard)
    # Without writes, even a member that receives nothing from the leader has all entries, so it can be elected.
    elif random.random() < 0.5:
        is_quiet, groups = True, (_a_follower_forgets,)
    struck_at = range(3 * promise_ns, until_ns, 3 * promise_ns)
    faults = [fault for at_ns in struck_at for fault in random.choice(groups)(at_ns, promise_ns, random)]
    load = replace(plan.load, read_modes=True, read_share=1.0 if is_quiet else 0.6, patience_ns=SECOND_NS)
    if random.random() < 0.3 and not is_quiet:
        limits = replace(load.client_limits, attempt_timeout_ns=promise_ns, pause_max_ns=50 * MILLISECOND_NS)
        load = replace(load, with_service=True, clients=4, workers=2, keys=2, client_limits=limits)
        load = replace(load, think_ns=10 * MILLISECOND_NS)
    else:
        load = replace(load, with_service=False, clients=8, loyal=6, think_ns=3 * MILLISECOND_NS)
    return replace(
        plan,
        until_ns=until_ns,
        clocks=replace(plan.clocks, spread=1 + drift_ppm / 1_000_000, at_edges=drift_ppm > 10_000),
        raft=RaftConfig(
            heartbeat_interval_ns=promise_ns // 6,
            election_timeout_min_ns=promise_ns,
            election_timeout_max_ns=promise_ns * 6 // 5,
            lease_reads=True,
            clock_drift_ppm_max=drift_ppm,
        ),
        network=replace(
            plan.network,
            delay_ns=MILLISECOND_NS,
            jitter_ns=random.choice((1, 5)) * MILLISECOND_NS,
            late_rate=0.0,
            loss_rate=0.0,
            slow_rate=0.0,
        ),
        disks=syncing_in(MILLISECOND_NS, plan),
        store=StoreLimits(),
        load=load,
        faults=in_order(faults),
    )


def _a_cut(at_ns: int, promise_ns: int, random: Random) -> list[Fault]:
    """The leader is cut off, so the others elect a new leader, whose writes the old leader does not receive.

    First, a handover makes a random member the leader. Otherwise the member with the fastest clock would lead most of
    the time, because it is elected most often.
    """
    handover = _fault_ns("take over", at_ns - promise_ns, 0, 0.0, target=random.random())
    return [handover, _fault_ns("cut off", at_ns, promise_ns * 3 // 2, 0.0)]


def _a_transfer_unheard(at_ns: int, promise_ns: int, random: Random) -> list[Fault]:
    """A leader asks a peer to campaign, and does not receive messages about the outcome."""
    heard_ns = int(10 * MILLISECOND_NS * random.random())
    return [
        _fault_ns("transfer", at_ns, 0, 0.0),
        _fault_ns(random.choice(("cut off", "cut one way")), at_ns + heard_ns, promise_ns, 0.9),
    ]


def _a_follower_forgets(at_ns: int, promise_ns: int, random: Random) -> list[Fault]:
    """A follower receives nothing from the leader for most of a time-out.

    Then the leader is cut off, and the other follower crashes and starts again.
    """
    cut_at, other = at_ns + int(promise_ns * (0.3 + 0.6 * random.random())), random.random()
    return [
        _fault_ns("bridge", at_ns, promise_ns * 3 // 2, 0.0, target=other),
        _fault_ns("cut off", cut_at, promise_ns, 0.0),
        _fault_ns("kill", cut_at, 3 * MILLISECOND_NS, 0.9, target=other),
    ]


def _late_answers(at_ns: int, promise_ns: int, random: Random) -> list[Fault]:
    """Responses reach the leader so late that its followers may by then have received later heartbeats."""
    slow = [_fault_ns("slow link", at_ns, 3 * promise_ns, random.random()) for _ in range(4)]
    return [*slow, _fault_ns("cut one way", at_ns + promise_ns, 2 * promise_ns, 0.1)]


def _fault_ns(kind: str, at_ns: int, duration_ns: int, shape: float, *, target: float | None = None) -> Fault:
    return Fault(at_ns=at_ns, kind=kind, duration_ns=duration_ns, target=target, shape=shape)


def syncing_in(sync_ns: int, plan: Plan) -> dict[str, DiskPlan]:
    """Return the disks of the plan, with syncs of this length that never stall."""
    return {member: replace(disk, sync_ns=sync_ns, stall_rate=0.0) for member, disk in plan.disks.items()}


def in_order(faults: Iterable[Fault]) -> tuple[Fault, ...]:
    """Return faults in order of time, as in a plan."""
    return tuple(sorted(faults, key=lambda fault: fault.at_ns))


PROFILES = (
    Profile(name="as drawn", weight=66),
    Profile(name="frequent elections", weight=8, members=QUORATE, traits=(frequent_elections,)),
    Profile(
        name="frequent elections, aggressive compaction",
        weight=10,
        members=QUORATE,
        traits=(frequent_elections, aggressive_compaction),
    ),
    Profile(
        name="frequent elections, delayed frames",
        weight=8,
        members=QUORATE,
        traits=(frequent_elections, delayed_frames),
    ),
    Profile(
        name="frequent elections, delayed frames, aggressive compaction",
        weight=5,
        members=QUORATE,
        traits=(frequent_elections, delayed_frames, aggressive_compaction),
    ),
    Profile(name="frequent elections, slow apply", weight=3, members=QUORATE, traits=(frequent_elections, slow_apply)),
    Profile(name="snapshot catch up", weight=4, members=QUORATE, traits=(snapshot_catch_up,)),
    Profile(
        name="frequent elections, slow apply, aggressive compaction",
        weight=4,
        members=QUORATE,
        traits=(frequent_elections, slow_apply, aggressive_compaction),
    ),
    Profile(name="short sessions", weight=6, members=QUORATE, traits=(short_sessions,)),
    Profile(name="power failures", weight=6, members=QUORATE, traits=(frequent_elections, power_failures)),
    Profile(
        name="crash during recovery",
        weight=6,
        members=QUORATE,
        traits=(frequent_elections, aggressive_compaction, crash_during_recovery),
    ),
    Profile(name="single voter", weight=8, members={1: 1}, traits=(single_voter,)),
    Profile(name="lease faults", weight=10, members={3: 7, 5: 1}, traits=(lease_faults,)),
    Profile(name="production limits", weight=5, traits=(production_limits,)),
)


COINCIDENCE_SHARE = 0.3
"""Share of the seeds without a profile that have a coincidence."""

LEADER_AFTER_SNAPSHOT_SHARE = 0.08
"""Share of the seeds with neither a profile nor a coincidence that get `leader_after_snapshot`."""

QUICK = RaftConfig(
    heartbeat_interval_ns=20 * MILLISECOND_NS,
    election_timeout_min_ns=60 * MILLISECOND_NS,
    election_timeout_max_ns=120 * MILLISECOND_NS,
    room_search_ns=50 * MILLISECOND_NS,
)

FRAME_BYTES_MIN = 1_024


def with_coincidences(plan: Plan, random: Random) -> Plan:
    """Apply a coincidence to the plan if its seed draws one."""
    if plan.profile != AS_DRAWN:
        return plan
    if random.random() >= COINCIDENCE_SHARE:
        return _with_leader_after_snapshot(plan, stream(plan.seed, "plan/successors"))
    name = random.choice(list(COINCIDENCES))
    if len(plan.members) < 3 and name in ("hung disk during partition", "divergent log rewrite"):
        return plan
    return replace(COINCIDENCES[name](plan, random), profile=f"{AS_DRAWN}, {name}")


def _with_leader_after_snapshot(plan: Plan, random: Random) -> Plan:
    if random.random() >= LEADER_AFTER_SNAPSHOT_SHARE or len(plan.members) < 3:
        return plan
    return replace(leader_after_snapshot(plan, random), profile=f"{AS_DRAWN}, leader after snapshot")


def hung_disk_during_partition(plan: Plan, random: Random) -> Plan:
    """The leader's disk hangs while the leader is cut off, and still hangs when the leader learns of its successor.

    So the last entries of the old leader are cut from its log and replaced before the disk reports them as written.
    """
    faults: list[Fault] = []
    until_ns, at_ms = 4 * SECOND_NS, 400
    while at_ms * MILLISECOND_NS < until_ns:
        cut_ms, longer_ms = random.randrange(200, 400), random.randrange(5, 80)
        faults += [
            _aimed_at_leader("cut off", at_ms, cut_ms, random),
            _aimed_at_leader("hanging disk", at_ms + random.randrange(10), cut_ms + longer_ms, random),
        ]
        at_ms += cut_ms + random.randrange(200, 500)
    return replace(busy(plan, random), until_ns=until_ns, faults=in_order(faults))


def disks_full(plan: Plan, random: Random) -> Plan:
    """Several disks are full at the same time, and get space again while their members run.

    Half of the runs have no ballast.
    """
    until_ns = 3 * SECOND_NS
    faults = [
        replace(
            _aimed_at_leader("full disk", at_ms + random.randrange(100), random.randrange(50, 700), random),
            target=random.choice((None, random.random())),
            shape=0.3 * random.random(),
        )
        for at_ms in range(200, until_ns // MILLISECOND_NS, random.choice((150, 300, 600)))
    ]
    handovers = [
        _aimed_at_leader("transfer", at_ms, 0, random) for at_ms in range(300, until_ns // MILLISECOND_NS, 400)
    ]
    storage = StorageLimits(
        ballast_bytes=random.choice((0, 0, 200, 1_000)),
        preallocate_bytes=0,
        segment_bytes_max=random.choice((300, 16_000)),
    )
    plan = replace(plan, until_ns=until_ns, faults=in_order([*faults, *handovers]), storage=storage, raft=QUICK)
    return replace(plan, disks=syncing_in(random.choice((1, 5)) * MILLISECOND_NS, plan))


def divergent_log_rewrite(plan: Plan, random: Random) -> Plan:
    """An old leader has written entries while it was cut off. These entries are replaced in frames of a KiB; then this
    leader crashes."""
    until_ns, place = 4 * SECOND_NS, random.randrange(len(plan.members))
    target = (place + 0.5) / len(plan.members)
    faults: list[Fault] = []
    for at_ms in range(300, until_ns // MILLISECOND_NS, 800):
        cut_ms = random.randrange(250, 450)
        dies_ms = at_ms + 100 + cut_ms + random.randrange(5, 80)
        faults += [
            replace(_aimed_at_leader("take over", at_ms, 0, random), target=target),
            replace(_aimed_at_leader("cut off", at_ms + 100, cut_ms, random), target=target),
            replace(_aimed_at_leader(random.choice(("kill", "lose power")), dies_ms, 20, random), target=target),
        ]
    storage = StorageLimits(frame_bytes_max=FRAME_BYTES_MIN, ballast_bytes=0)
    plan = replace(busy(plan, random), until_ns=until_ns, faults=in_order(faults), storage=storage)
    return replace(plan, load=replace(plan.load, read_share=0.2, value_bytes_max=2_000))


def client_outlives_session(plan: Plan, random: Random) -> Plan:
    """A client is cut off in both directions until after the expiry of its session, and then retries.

    After the expiry of its session the client must not repeat a request, because the outcome of the request can no
    longer be determined.
    """
    until_ns, clients, at_ms = 6 * SECOND_NS, 3, 400
    faults: list[Fault] = []
    while at_ms * MILLISECOND_NS < until_ns:
        silent_ms = random.randrange(1_050, 1_600)
        shape = next(shape for shape in iter(random.random, None) if cuts_both_ways(shape, clients))
        faults.append(replace(_aimed_at_leader("cut a client off", at_ms, silent_ms, random), shape=shape))
        at_ms += random.randrange(200, 500)
    limits = replace(plan.load.client_limits, attempt_timeout_ns=100 * MILLISECOND_NS, pause_max_ns=50 * MILLISECOND_NS)
    load = replace(
        plan.load,
        with_service=True,
        clients=clients,
        workers=3,
        think_ns=10 * MILLISECOND_NS,
        patience_ns=6 * SECOND_NS,
        session_ttl_ns=SECOND_NS,
        client_limits=limits,
        stay_ns=0,
    )
    raft = replace(QUICK, batch_bytes_max=random.choice((64, QUICK.batch_bytes_max)))
    plan = replace(plan, until_ns=until_ns, faults=in_order(faults), raft=raft, store=StoreLimits(), load=load)
    return replace(plan, disks=syncing_in(random.choice((1, 10)) * MILLISECOND_NS, plan))


def leader_after_snapshot(plan: Plan, random: Random) -> Plan:
    """A member that has just installed a snapshot becomes the leader while its log has no entry after the snapshot.

    The member knows the leader time only from the snapshot.

    See docs/reference/specification.md#812-leader-time.
    """
    until_ns, faults = 4 * SECOND_NS, list[Fault]()
    for at_ms in range(300, until_ns // MILLISECOND_NS - 600, 700):
        place, cut_ms = random.randrange(len(plan.members)), random.randrange(250, 400)
        target = (place + 0.5) / len(plan.members)
        faults += [
            replace(_aimed_at_leader("cut off", at_ms, cut_ms, random), target=target),
            replace(
                _aimed_at_leader("take over", at_ms + cut_ms + random.randrange(20, 120), 0, random), target=target
            ),
        ]
    load = replace(
        plan.load,
        with_service=False,
        clients=1,
        loyal=0,
        think_ns=60 * MILLISECOND_NS,
        read_share=0.0,
        value_bytes_max=1_000,
    )
    raft = replace(QUICK, snapshot_log_bytes=100, retention_bytes_max=100)
    network = replace(
        plan.network, delay_ns=MILLISECOND_NS, jitter_ns=MILLISECOND_NS, late_rate=0.0, loss_rate=0.0, slow_rate=0.0
    )
    storage = StorageLimits(segment_bytes_max=300, ballast_bytes=0)
    plan = replace(plan, until_ns=until_ns, faults=in_order(faults), raft=raft, storage=storage, load=load)
    return replace(plan, network=network, disks=syncing_in(MILLISECOND_NS, plan))


def expiry_at_command_time(plan: Plan, random: Random) -> Plan:
    """Sessions expire at exactly the time of a command, while members catch up on entries of one put each.

    Clocks are coarse (`draw.with_coarse_clocks`). Programs come and go, and some of them leave their sessions open.
    """
    until_ns, faults = 5 * SECOND_NS, list[Fault]()
    for at_ms in range(300, until_ns // MILLISECOND_NS, 350):
        kind = random.choice(("cut off", "cut off", "kill", "pause"))
        faults.append(
            replace(_aimed_at_leader(kind, at_ms, random.randrange(100, 300), random), target=random.random())
        )
    load = replace(
        plan.load,
        with_service=True,
        clients=3,
        workers=1,
        keys=random.randrange(1, 5),
        read_share=0.0,
        think_ns=20 * MILLISECOND_NS,
        session_ttl_ns=SECOND_NS,
        stay_ns=600 * MILLISECOND_NS,
        extras=NO_EXTRAS,
    )
    raft = replace(QUICK, batch_bytes_max=random.choice((32, 64)))
    clocks = replace(plan.clocks, grain_ns=10 * MILLISECOND_NS)
    plan = replace(plan, until_ns=until_ns, faults=in_order(faults), raft=raft, store=StoreLimits(), load=load)
    return replace(plan, clocks=clocks, disks=syncing_in(random.choice((1, 5)) * MILLISECOND_NS, plan))


COINCIDENCES: dict[str, Callable[[Plan, Random], Plan]] = {
    "hung disk during partition": hung_disk_during_partition,
    "disks full": disks_full,
    "divergent log rewrite": divergent_log_rewrite,
    "client outlives session": client_outlives_session,
}


def busy(plan: Plan, random: Random) -> Plan:
    """Programs read and write all the time. Most programs call only their own member, whether it leads or not."""
    load = replace(plan.load, with_service=False, clients=8, loyal=6, think_ns=random.choice((3, 10)) * MILLISECOND_NS)
    network = replace(
        plan.network, delay_ns=MILLISECOND_NS, jitter_ns=MILLISECOND_NS, late_rate=0.0, loss_rate=0.0, slow_rate=0.0
    )
    return replace(plan, raft=QUICK, load=load, network=network, disks=syncing_in(MILLISECOND_NS, plan))


def _aimed_at_leader(kind: str, at_ms: int, duration_ms: int, random: Random) -> Fault:
    """Return a fault that hits the leader at this time."""
    at_ns, duration_ns = at_ms * MILLISECOND_NS, duration_ms * MILLISECOND_NS
    return Fault(at_ns=at_ns, kind=kind, duration_ns=duration_ns, target=None, shape=random.random())


ROT_SHARE = 0.15
"""Share of the seeds in which logs rot while members run. In these seeds a member keeps little of its log in memory,
and so reads the rest back from its disk.
"""


def with_log_rot(plan: Plan, random: Random) -> Plan:
    """Let logs rot in ROT_SHARE of the seeds.

    In half of these seeds, a log rots just before a member returns. This is mostly the log of the leader, and otherwise
    the log of the returning member. For the other half, see `_rot_after_rewrite`.
    """
    if random.random() >= ROT_SHARE or plan.profile != AS_DRAWN or plan.founders or len(plan.members) < 3:
        return plan
    if random.random() < 0.5:
        return _rot_after_rewrite(plan, random)
    until_ns, faults = 4 * SECOND_NS, []
    for at_ms in range(500, until_ns // MILLISECOND_NS, 700):
        away_ms, target = random.randrange(200, 500), random.random()
        kind = random.choice(("cut off", "kill", "kill"))
        faults += [
            _fault_ms(kind, at_ms, away_ms, target, random),
            _fault_ms("rotting log", at_ms + away_ms - 20, 400, random.choice((None, None, target)), random),
        ]
    cache_bytes = random.choice((100, 1_000))
    raft = replace(plan.raft, log_cache_bytes_max=cache_bytes, retention_bytes_max=MIB, snapshot_log_bytes=MIB)
    return replace(plan, until_ns=until_ns, faults=in_order(faults), raft=raft)


def _rot_after_rewrite(plan: Plan, random: Random) -> Plan:
    """One member leads, writes while cut off, has its last entries replaced, crashes, and reads its whole log again.

    Entries come one by one, with values of many sizes. So sometimes a new frame is as long as the frame that it
    replaces, although the new frame also has a hard state. Then the rot may put the old frame back at the position of
    the new frame. Entries are applied slowly, so that much of the log is not yet read when it rots.
    """
    until_ns, target = 4 * SECOND_NS, (random.randrange(len(plan.members)) + 0.5) / len(plan.members)
    faults: list[Fault] = []
    for at_ms in range(300, until_ns // MILLISECOND_NS, 1_000):
        cut_ms = random.randrange(250, 400)
        dies_ms = at_ms + 100 + cut_ms + random.randrange(100, 250)
        faults += [
            _fault_ms("take over", at_ms, 0, target, random),
            _fault_ms("cut off", at_ms + 100, cut_ms, target, random),
            _fault_ms("kill", dies_ms, 20, target, random),
        ]
        rots = _fault_ms("rotting log", dies_ms + 10, 400, target, random)
        if at_ms > until_ns // MILLISECOND_NS // 2:  # In the second half of the run, much of the log has been replaced.
            faults.append(rots)
    plan = busy(plan, random)
    raft = replace(
        plan.raft,
        log_cache_bytes_max=100,
        retention_bytes_max=MIB,
        snapshot_log_bytes=MIB,
        apply_bytes_max=100,
        append_entries_max=1,
        window_messages_max=1,
    )
    load = replace(plan.load, read_share=0.2, value_bytes_max=40, think_ns=30 * MILLISECOND_NS)
    plan = replace(plan, until_ns=until_ns, faults=in_order(faults), raft=raft, load=load, storage=StorageLimits())
    return replace(plan, turn_ns=2 * MILLISECOND_NS)


def _fault_ms(kind: str, at_ms: int, duration_ms: int, target: float | None, random: Random) -> Fault:
    at_ns, duration_ns = at_ms * MILLISECOND_NS, duration_ms * MILLISECOND_NS
    return Fault(at_ns=at_ns, kind=kind, duration_ns=duration_ns, target=target, shape=random.random())


PATIENCE_TIMES = (2, 3, 5)
"""The factors by which the patient member's election time-outs may be longer than those of the other members."""

LEASE_FAULTS = "lease faults"


def with_heterogeneous_settings(plan: Plan, random: Random) -> Plan:
    """Give members different settings, as during a rolling change, in half of the seeds with reads by lease.

    One patient member has election time-outs several times as long as the time-outs of the others. Some members do not
    read by lease when they lead, but make the promises that other leaders need for lease reads. In the profile of lease
    faults, the patient member repeatedly becomes the leader, and is cut off for longer than the others wait. A patient
    member that relied on its own settings, and not on the promises of the others, would still answer reads while
    another member leads.
    """
    is_at_odds, place, times = random.random() < 0.5, random.randrange(len(plan.members)), random.choice(PATIENCE_TIMES)
    leaseless = [member for member in plan.members if random.random() < 0.3]
    if not plan.raft.lease_reads or not is_at_odds or len(plan.members) == 1:
        return plan
    patient = plan.members[place]
    plan = replace(plan, patience={patient: times}, leaseless=tuple(each for each in leaseless if each != patient))
    if plan.profile != LEASE_FAULTS:
        return plan
    until_ns = 3 * SECOND_NS
    return replace(plan, until_ns=until_ns, faults=tuple(_patient_leader_faults(plan, place, until_ns)))


def _patient_leader_faults(plan: Plan, place: int, until_ns: int) -> Iterator[Fault]:
    """The patient member becomes the leader, and is cut off until long after the others have elected a new leader."""
    times, wait_ns = plan.patience[plan.members[place]], plan.raft.election_timeout_max_ns
    target = (place + 0.5) / len(plan.members)
    for at_ns in range(3 * wait_ns, until_ns, (times + 5) * wait_ns):
        yield Fault(at_ns=at_ns, kind="take over", duration_ns=0, target=target, shape=0.0)
        cut_at_ns = at_ns + 2 * wait_ns
        yield Fault(at_ns=cut_at_ns, kind="cut off", duration_ns=times * wait_ns, target=target, shape=0.0)
