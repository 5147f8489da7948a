"""The simulated network follows its plan. With the same seed it behaves in the same way."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

from harness.sim.engine.event_queue import EventQueue
from harness.sim.faults.network import NetworkFaults, cut_links
from harness.sim.plan.draw import draw_faults, draw_plan
from harness.sim.plan.plan import KINDS, Fault, NetworkPlan
from harness.sim.simulation import Simulation
from harness.sim.world.network import Link, SimNetwork

Arrival = tuple[int, str, str, bytes]


def arrivals(plan: NetworkPlan, *, frames: int = 400, seed: int = 1, cut: bool = False) -> list[Arrival]:
    queue, seen = EventQueue(), list[Arrival]()
    network = SimNetwork(seed, plan, queue, lambda a, b, frame: seen.append((queue.now, a, b, frame)))
    if cut:
        network.cut([("n1", "n2")])
    for number in range(frames):
        queue.at(1_000 * number, network.send, "n1", "n2", b"%d" % number)
        queue.at(1_000 * number, network.send, "n2", "n1", b"%d" % number)
    while len(queue):
        queue.step()
    return seen


def numbers(seen: list[Arrival], sender: str) -> list[int]:
    return [int(frame) for _, a, _, frame in seen if a == sender]


def test_a_quiet_network_delivers_everything_once_and_in_order() -> None:
    """Each direction is one TCP connection."""
    seen = arrivals(NetworkPlan())

    assert numbers(seen, "n1") == list(range(400))
    assert numbers(seen, "n2") == list(range(400))


def test_frames_are_lost_duplicated_late_and_overtake_each_other_at_the_planned_rates() -> None:
    """Each rate is the share of frames that the fault hits."""
    lost = arrivals(NetworkPlan(loss_rate=0.25))
    doubled = Counter(numbers(arrivals(NetworkPlan(duplicate_rate=0.25)), "n1"))
    mixed = numbers(arrivals(NetworkPlan(in_order=False)), "n1")
    late = arrivals(NetworkPlan(late_rate=0.1, in_order=False))

    assert 500 < len(lost) < 700
    assert 50 < sum(count == 2 for count in doubled.values()) < 150
    assert mixed != sorted(mixed)
    assert sorted(mixed) == list(range(400))
    assert max(time_ns for time_ns, *_ in late) > 300_000_000


def test_a_one_way_cut_stops_one_direction_only() -> None:
    """With asymmetric partitions, a leader can be deposed for no reason (thesis §9.6)."""
    seen = arrivals(NetworkPlan(), cut=True)

    assert numbers(seen, "n1") == []
    assert numbers(seen, "n2") == list(range(400))


def test_taking_a_fault_away_does_not_reshuffle_the_rest() -> None:
    """Each frame takes the same number of draws from the random stream. So without loss, the other frames arrive at the
    same times as with loss."""
    lossy = set(arrivals(NetworkPlan(loss_rate=0.2, in_order=False)))
    whole = set(arrivals(NetworkPlan(loss_rate=0.0, in_order=False)))

    assert lossy < whole


def test_cuts_add_up_and_each_is_mended_alone() -> None:
    """Two partitions may overlap in time."""
    network = SimNetwork(1, NetworkPlan(), EventQueue(), lambda *_: None)
    network.cut([("n1", "n2")])
    network.cut([("n1", "n2")])

    network.mend([("n1", "n2")])
    assert network.is_cut("n1", "n2")
    network.mend([("n1", "n2")])
    assert not network.is_cut("n1", "n2")
    network.mend([("n1", "n2")])  # The link is already healed, so mending it again has no effect.
    assert not network.is_cut("n1", "n2")


def test_partitions_cut_what_their_names_say() -> None:
    """Some partitions cut a member off, in both directions or in one direction. "cut in two" cuts all links between two
    sides."""
    members = ["n1", "n2", "n3"]

    def links(kind: str) -> set[tuple[str, str]]:
        fault = Fault(at_ns=0, kind=kind, duration_ns=1, target=0.0, shape=0.25)
        return set(cut_links(fault, "n1", members))

    assert links("cut off") == {("n1", "n2"), ("n2", "n1"), ("n1", "n3"), ("n3", "n1")}
    assert links("cut one way") == {("n1", "n2"), ("n1", "n3")}
    assert all((b, a) in links("cut in two") for a, b in links("cut in two"))


def links_of(kind: str, members: list[str], shape: float = 0.25) -> set[Link]:
    fault = Fault(at_ns=0, kind=kind, duration_ns=1, target=0.0, shape=shape)
    return set(cut_links(fault, members[0], members))


def test_a_bridge_sees_both_halves_which_do_not_see_each_other() -> None:
    """The member between the halves must not be deposed repeatedly, and must not keep a quorum from forming."""
    for count in (3, 4, 5):
        members = [f"n{number}" for number in range(1, count + 1)]
        for shape in (0.1, 0.5, 0.9):
            links = links_of("bridge", members, shape)
            unseen = {a: {b for b in members if (a, b) in links} for a in members}

            assert unseen["n1"] == set()
            assert {len(unseen[a]) for a in members[1:]} == {(count - 1) // 2, count // 2}
            assert all((b, a) in links for a, b in links)
    assert links_of("bridge", ["n1", "n2"]) == set()


def test_in_a_ring_each_sees_a_majority_and_no_two_see_the_same() -> None:
    """Each of the five members hears its two neighbours. A member and its neighbours are a majority, but each member
    has a different majority."""
    members = ["n1", "n2", "n3", "n4", "n5"]
    for shape in (0.1, 0.5, 0.9):
        links = links_of("ring", members, shape)
        seen = {a: frozenset(b for b in members if a == b or (a, b) not in links) for a in members}

        assert {len(who) for who in seen.values()} == {3}
        assert len(set(seen.values())) == 5
        assert all((b, a) in links for a, b in links)
    assert links_of("ring", members[:3]) == set()


def test_a_slow_link_delays_one_direction_and_changes_nothing_else() -> None:
    """The other direction is not affected, and the draws stay the same."""

    def run(extra_ns: int) -> list[Arrival]:
        queue, seen = EventQueue(), list[Arrival]()
        network = SimNetwork(1, NetworkPlan(), queue, lambda a, b, frame: seen.append((queue.now, a, b, frame)))
        network.slow_down(("n1", "n2"), extra_ns)
        for number in range(50):
            queue.at(1_000 * number, network.send, "n1", "n2", b"%d" % number)
            queue.at(1_000 * number, network.send, "n2", "n1", b"%d" % number)
        while len(queue):
            queue.step()
        return seen

    usual, slow = run(0), run(40_000_000)

    assert [arrival for arrival in slow if arrival[1] == "n2"] == [arrival for arrival in usual if arrival[1] == "n2"]
    assert {(t + 40_000_000, a, b, f) for t, a, b, f in usual if a == "n1"} == {x for x in slow if x[1] == "n1"}


def test_a_share_of_the_links_is_slow_for_good_until_all_is_healed() -> None:
    """The slowness of each link is a separate draw of the seed."""
    queue = EventQueue()
    plan = NetworkPlan(slow_rate=0.5, slow_ns=100_000_000)
    network = SimNetwork(1, plan, queue, lambda *_: None)
    links = [(f"n{a}", f"n{b}") for a in range(10) for b in range(10) if a != b]
    arrives_ns = list[int]()
    for a, b in links:
        network.send(a, b, b"")
        arrives_ns.append(queue.next_time() or 0)
        queue.step()

    assert 20 < sum(later - earlier > 2_000_000 for earlier, later in pairwise(arrives_ns)) < 70

    network.heal()
    began = queue.now
    for a, b in links:
        network.send(a, b, b"")
    while len(queue):
        queue.step()
    assert queue.now - began <= NetworkPlan().delay_ns + NetworkPlan().jitter_ns


def test_what_was_on_its_way_on_an_old_connection_never_arrives_on_the_new_one() -> None:
    """A frame of the old connection must not arrive after the hello of the next one."""
    queue, seen = EventQueue(), list[bytes]()
    network = SimNetwork(1, NetworkPlan(), queue, lambda _a, _b, frame: seen.append(frame))
    network.send("n1", "n2", b"old")
    network.send("n2", "n1", b"the other way")

    network.reconnect(("n1", "n2"))
    network.send("n1", "n2", b"new")
    while len(queue):
        queue.step()

    assert sorted(seen) == [b"new", b"the other way"]


def test_after_a_half_open_connection_the_sender_is_told_and_a_hello_comes_first() -> None:
    """Until the end of the fault, neither member knows of the loss. The other direction works all the time."""
    world = Simulation(replace(draw_plan(1), members=("n1", "n2"), network=NetworkPlan(), faults=()))
    told, greeted = list[str](), list[str]()
    n1, n2 = cast(Any, SimpleNamespace()), cast(Any, SimpleNamespace())
    n1.node_id, n1.lose_connection = "n1", told.append
    n2.node_id, n2.connections = "n2", SimpleNamespace(hung_up=greeted.append)
    world.members = {"n1": n1, "n2": n2}
    fault = Fault(at_ns=0, kind="half-open", duration_ns=100, target=0.0, shape=0.0)
    shape = next(
        s / 100
        for s in range(100)
        if NetworkFaults(world)._link_of(replace(fault, shape=s / 100), "n1") == ("n1", "n2")
    )

    NetworkFaults(world).inject(replace(fault, shape=shape), n1)
    assert world.network.is_cut("n1", "n2")
    assert not world.network.is_cut("n2", "n1")
    assert (told, greeted) == ([], [])
    world.queue.step()

    assert (told, greeted) == (["n2"], ["n1"])
    assert not world.network.is_cut("n1", "n2")


def test_the_fault_plans_of_some_seeds_have_every_kind_in_them_and_some_none() -> None:
    """This is swarm testing: a plan either has all faults of a kind, or none."""
    plans = [draw_faults(seed, 10**10) for seed in range(200)]

    drawn_here = {kind for kind, (rate_max, _) in KINDS.items() if rate_max}
    assert {fault.kind for plan in plans for fault in plan} == drawn_here
    assert set(KINDS) - drawn_here == {"lose a disk", "take over"}
    assert min(len({fault.kind for fault in plan}) for plan in plans) <= 2
    assert all(0 <= fault.at_ns < 10**10 and fault.duration_ns >= 0 for plan in plans for fault in plan)
