"""Moods: ways in which half of the seeds are bent, each towards a corner that independent draws seldom reach.

A draw of each bound by itself seldom makes short elections *and* a log that forgets *and* a busy load; most bugs of
consensus need such a coincidence. A mood is a few traits put one upon the other; what a trait leaves open stays as the
seed drew it. Runs in a mood are shorter, as more happens in them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import TYPE_CHECKING

from harness.sim.engine.rng import stream
from harness.sim.plan.plan import MILLISECOND_NS, SECOND_NS, Fault
from kvstore import ClientLimits, StoreLimits
from raft import RaftConfig
from storage import StorageLimits

if TYPE_CHECKING:
    from harness.sim.plan.plan import DiskPlan, Plan

Trait = Callable[["Plan", Random], "Plan"]
Strikes = Callable[[int, int, Random], list[Fault]]

STRIKES = ("cut off", "kill", "pause", "lose power", "cut one way")


ANY = {1: 1, 2: 1, 3: 4, 4: 1, 5: 2}
QUORATE = {3: 6, 4: 1, 5: 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mood:
    """`weight`: how often it is drawn. `members`: the weight of each cluster size. Traits bend in their order."""

    name: str
    weight: int
    members: Mapping[int, int] = field(default_factory=lambda: ANY)
    traits: tuple[Trait, ...] = ()

    def bend(self, plan: Plan) -> Plan:
        """The plan in this mood."""
        random = stream(plan.seed, "plan/bend")
        for trait in self.traits:
            plan = trait(plan, random)
        return plan


def draw_mood(seed: int) -> Mood:
    """The mood of a seed."""
    return stream(seed, "plan/mood").choices(MOODS, weights=[mood.weight for mood in MOODS])[0]


def restless(plan: Plan, random: Random) -> Plan:
    """The leader is struck several times a second, besides what was drawn, and programs read and write all the time.

    With clients of the service, some still talk to the old leader while others have found the new one.
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
            kind=random.choice(STRIKES),
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


def forgetful(plan: Plan, random: Random) -> Plan:
    """A snapshot every few entries, and a log that keeps nothing for slow members; sessions come and go."""
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


def fleeting(plan: Plan, random: Random) -> Plan:
    """Clients soon take an attempt for lost, whose bytes then come late; sessions end while they still try again."""
    lines = replace(
        plan.load.lines,
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
            lines=lines,
        ),
    )


def trickling(plan: Plan, random: Random) -> Plan:
    """The machine is given an entry or two at a time, and is behind."""
    return replace(
        plan,
        turn_ns=random.choice((0, 10, 30)) * MILLISECOND_NS,
        raft=replace(plan.raft, apply_bytes_max=random.choice((50, 200)), batch_bytes_max=random.choice((64, 300))),
    )


def overtaken(plan: Plan, random: Random) -> Plan:
    """One member gets many entries at once, is slow to apply them, and is cut off until only a snapshot helps it."""
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


def without_power(plan: Plan, random: Random) -> Plan:
    """Power fails again and again, on slow disks, amid frames of many sectors."""
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


def stumbling(plan: Plan, random: Random) -> Plan:
    """Whoever dies dies again amid its recovery, on a slow disk: what one death left half done, the next one finds."""
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


def late(plan: Plan, random: Random) -> Plan:
    """Frames that arrive when whole elections have passed, out of order, and some of them twice."""
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


def lone(plan: Plan, random: Random) -> Plan:
    """A single voter whose power fails, often while it starts."""
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


def stock(plan: Plan, _: Random) -> Plan:
    """All bounds as production has them, if nobody sets them."""
    return replace(
        plan,
        raft=RaftConfig(),
        storage=StorageLimits(),
        store=StoreLimits(),
        load=replace(plan.load, client_limits=ClientLimits()),
    )


def leased(plan: Plan, random: Random) -> Plan:
    """A leader reads by lease, on clocks as bad as it allows for, and is struck as a lease that is not true shows it.

    Frames and syncs take a few milliseconds, promises many times as long: somebody else may lead while a lease goes on.
    """
    promise_ns = random.choice((80, 120)) * MILLISECOND_NS
    drift_ppm = random.choice((10_000, 450_000))
    until_ns = int((2 + random.random()) * SECOND_NS)
    is_quiet = False
    groups: tuple[Strikes, ...] = (_a_follower_forgets, _a_transfer_unheard, _late_answers)
    if drift_ppm > 10_000:  # Leases are short then; what is left out of them is long.
        groups = (_a_cut, _a_cut, _a_transfer_unheard)
    elif random.random() < 0.5:  # Without writes: who misses the leader misses no entry, and can be elected.
        is_quiet, groups = True, (_a_follower_forgets,)
    struck_at = range(3 * promise_ns, until_ns, 3 * promise_ns)
    faults = [fault for at_ns in struck_at for fault in random.choice(groups)(at_ns, promise_ns, random)]
    load = replace(plan.load, read_ways=True, read_share=1.0 if is_quiet else 0.6, patience_ns=SECOND_NS)
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
    """The others elect somebody else, whose writes the leader does not hear of.

    Who has the quickest clock is elected most often; so anybody takes over before, the slowest one, too.
    """
    handover = _strike("take over", at_ns - promise_ns, 0, 0.0, target=random.random())
    return [handover, _strike("cut off", at_ns, promise_ns * 3 // 2, 0.0)]


def _a_transfer_unheard(at_ns: int, promise_ns: int, random: Random) -> list[Fault]:
    """A leader has asked somebody to campaign, and does not hear what became of it."""
    heard_ns = int(10 * MILLISECOND_NS * random.random())
    return [
        _strike("transfer", at_ns, 0, 0.0),
        _strike(random.choice(("cut off", "cut one way")), at_ns + heard_ns, promise_ns, 0.9),
    ]


def _a_follower_forgets(at_ns: int, promise_ns: int, random: Random) -> list[Fault]:
    """A follower misses the leader for most of a time-out; then the leader is cut off, and the other one dies."""
    cut_at, other = at_ns + int(promise_ns * (0.3 + 0.6 * random.random())), random.random()
    return [
        _strike("bridge", at_ns, promise_ns * 3 // 2, 0.0, target=other),
        _strike("cut off", cut_at, promise_ns, 0.0),
        _strike("kill", cut_at, 3 * MILLISECOND_NS, 0.9, target=other),
    ]


def _late_answers(at_ns: int, promise_ns: int, random: Random) -> list[Fault]:
    """Answers that the leader hears may be from before it was last heard itself."""
    slow = [_strike("slow link", at_ns, 3 * promise_ns, random.random()) for _ in range(4)]
    return [*slow, _strike("cut one way", at_ns + promise_ns, 2 * promise_ns, 0.1)]


def _strike(kind: str, at_ns: int, duration_ns: int, shape: float, *, target: float | None = None) -> Fault:
    return Fault(at_ns=at_ns, kind=kind, duration_ns=duration_ns, target=target, shape=shape)


def syncing_in(sync_ns: int, plan: Plan) -> dict[str, DiskPlan]:
    """The same disks, with syncs of this length that never stall."""
    return {member: replace(disk, sync_ns=sync_ns, stall_rate=0.0) for member, disk in plan.disks.items()}


def in_order(faults: Iterable[Fault]) -> tuple[Fault, ...]:
    """As a plan has them."""
    return tuple(sorted(faults, key=lambda fault: fault.at_ns))


MOODS = (
    Mood(name="as drawn", weight=66),
    Mood(name="restless", weight=8, members=QUORATE, traits=(restless,)),
    Mood(name="restless, forgetful", weight=10, members=QUORATE, traits=(restless, forgetful)),
    Mood(name="restless, late", weight=8, members=QUORATE, traits=(restless, late)),
    Mood(name="restless, late, forgetful", weight=5, members=QUORATE, traits=(restless, late, forgetful)),
    Mood(name="restless, trickling", weight=3, members=QUORATE, traits=(restless, trickling)),
    Mood(name="overtaken", weight=4, members=QUORATE, traits=(overtaken,)),
    Mood(name="restless, trickling, forgetful", weight=4, members=QUORATE, traits=(restless, trickling, forgetful)),
    Mood(name="fleeting", weight=6, members=QUORATE, traits=(fleeting,)),
    Mood(name="without power", weight=6, members=QUORATE, traits=(restless, without_power)),
    Mood(name="stumbling", weight=6, members=QUORATE, traits=(restless, forgetful, stumbling)),
    Mood(name="lone", weight=8, members={1: 1}, traits=(lone,)),
    Mood(name="leased", weight=10, members={3: 7, 5: 1}, traits=(leased,)),
    Mood(name="stock", weight=5, traits=(stock,)),
)
