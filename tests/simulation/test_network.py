"""The simulated network does what its plan says, and the same for the same seed."""

from __future__ import annotations

from collections import Counter

from harness.sim.fault import Fault
from harness.sim.faults import KINDS, draw_faults
from harness.sim.heap import EventHeap
from harness.sim.network import Network, NetworkPlan
from harness.sim.network_faults import cut_links

Arrival = tuple[int, str, str, bytes]


def arrivals(plan: NetworkPlan, *, frames: int = 400, seed: int = 1, cut: bool = False) -> list[Arrival]:
    heap, seen = EventHeap(), list[Arrival]()
    network = Network(seed, plan, heap, lambda a, b, frame: seen.append((heap.now, a, b, frame)))
    if cut:
        network.cut([("n1", "n2")])
    for number in range(frames):
        heap.at(1_000 * number, network.send, "n1", "n2", b"%d" % number)
        heap.at(1_000 * number, network.send, "n2", "n1", b"%d" % number)
    while len(heap):
        heap.step()
    return seen


def numbers(seen: list[Arrival], sender: str) -> list[int]:
    return [int(frame) for _, a, _, frame in seen if a == sender]


def test_a_quiet_network_delivers_everything_once_and_in_order() -> None:
    """One TCP connection per direction."""
    seen = arrivals(NetworkPlan())

    assert numbers(seen, "n1") == list(range(400))
    assert numbers(seen, "n2") == list(range(400))


def test_frames_are_lost_duplicated_late_and_overtake_each_other_at_the_planned_rates() -> None:
    """Each rate is per frame."""
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
    """Asymmetric partitions are where leaders are deposed in vain (thesis §9.6)."""
    seen = arrivals(NetworkPlan(), cut=True)

    assert numbers(seen, "n1") == []
    assert numbers(seen, "n2") == list(range(400))


def test_taking_a_fault_away_does_not_reshuffle_the_rest() -> None:
    """The same number of draws per frame: without loss, what was not lost arrives at the very same moment."""
    lossy = set(arrivals(NetworkPlan(loss_rate=0.2, in_order=False)))
    whole = set(arrivals(NetworkPlan(loss_rate=0.0, in_order=False)))

    assert lossy < whole


def test_cuts_add_up_and_each_is_mended_alone() -> None:
    """Two partitions may overlap in time."""
    network = Network(1, NetworkPlan(), EventHeap(), lambda *_: None)
    network.cut([("n1", "n2")])
    network.cut([("n1", "n2")])

    network.mend([("n1", "n2")])
    assert network.is_cut("n1", "n2")
    network.mend([("n1", "n2")])
    assert not network.is_cut("n1", "n2")
    network.mend([("n1", "n2")])  # After a heal the mend of an old cut comes too late, and does nothing.
    assert not network.is_cut("n1", "n2")


def test_partitions_cut_what_their_names_say() -> None:
    """cut off: both ways around one member; one way: half of that; in two: everything between the sides."""
    members = ["n1", "n2", "n3"]

    def links(kind: str) -> set[tuple[str, str]]:
        fault = Fault(at_ns=0, kind=kind, duration_ns=1, target=0.0, shape=0.25)
        return set(cut_links(fault, "n1", members))

    assert links("cut off") == {("n1", "n2"), ("n2", "n1"), ("n1", "n3"), ("n3", "n1")}
    assert links("cut one way") == {("n1", "n2"), ("n1", "n3")}
    assert all((b, a) in links("cut in two") for a, b in links("cut in two"))


def test_the_fault_plans_of_some_seeds_have_every_kind_in_them_and_some_none() -> None:
    """Swarm testing: whole kinds are on or off."""
    plans = [draw_faults(seed, 10**10) for seed in range(200)]

    assert {fault.kind for plan in plans for fault in plan} == set(KINDS)
    assert min(len({fault.kind for fault in plan}) for plan in plans) <= 2
    assert all(0 <= fault.at_ns < 10**10 and fault.duration_ns >= 0 for plan in plans for fault in plan)
