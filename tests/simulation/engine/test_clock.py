"""Simulated clocks count in integers, never go back, and have an exact inverse, so no timer fires too early."""

from __future__ import annotations

from random import Random

from harness.sim.engine.clock import FS_PER_NS, Clock
from harness.sim.engine.event_queue import EventQueue
from harness.sim.world.process import ProcessScheduler

SEEDS = range(100)


def advance(queue: EventQueue, to_ns: int) -> None:
    queue.at(to_ns, lambda: None)
    while queue.now < to_ns:
        queue.step()


def a_clock(*, seed: int = 1, rate: int = FS_PER_NS) -> tuple[EventQueue, Clock]:
    queue = EventQueue()
    clock = Clock(queue, seed, "n1", spread=2.0)
    clock.run_at(rate)
    return queue, clock


def test_a_timer_is_due_at_the_first_moment_at_which_the_clock_shows_its_time() -> None:
    """A timer must not fire a nanosecond early, at any rate of the clock. If it did, a node would wake up and have to
    wait again."""
    for seed in SEEDS:
        random = Random(seed)
        queue, clock = a_clock(seed=seed, rate=random.randrange(FS_PER_NS // 2, 2 * FS_PER_NS))
        for _ in range(20):
            shown_ns = clock.now() + random.randrange(1, 10**9)
            due = clock.due(shown_ns)

            advance(queue, due - 1)
            assert clock.now() < shown_ns
            advance(queue, due)
            assert clock.now() >= shown_ns
            clock.jump(random.randrange(100))


def test_a_coarse_clock_shows_multiples_of_its_grain_and_a_timer_is_due_when_it_does() -> None:
    grain_ns = 10_000_000
    for seed in SEEDS:
        random, queue = Random(seed), EventQueue()
        clock = Clock(queue, seed, "n1", spread=2.0, grain_ns=grain_ns)
        for _ in range(5):
            shown_ns = clock.now() + random.randrange(1, 10**9)
            due = clock.due(shown_ns)

            advance(queue, due - 1)
            assert clock.now() < shown_ns
            advance(queue, due)
            assert clock.now() >= shown_ns
            assert clock.now() % grain_ns == 0


def test_what_is_overdue_is_due_now() -> None:
    """The event heap accepts no event in the past."""
    queue, clock = a_clock()
    advance(queue, 1_000)

    assert clock.due(clock.now() - 500) == queue.now
    assert clock.due(clock.now()) == queue.now


def test_rates_that_change_a_thousand_times_lose_not_one_nanosecond() -> None:
    """The clock keeps its time in femtoseconds, because errors of rounding would add up over many changes."""
    queue, clock = a_clock(rate=FS_PER_NS // 3)
    began = clock.now()
    for number in range(1_000):
        advance(queue, queue.now + 7)
        clock.run_at(FS_PER_NS // 3 + number % 2)

    advance(queue, 3_000_000)

    assert abs(clock.now() - began - 1_000_000) <= 10


def test_a_jump_goes_forwards_and_makes_timers_due_earlier() -> None:
    """The machine was suspended, and its clock counts the missed time."""
    _, clock = a_clock()
    shown_ns = clock.now()
    before = clock.due(shown_ns + 1_000)

    clock.jump(400)

    assert clock.now() == shown_ns + 400
    assert clock.due(shown_ns + 1_000) == before - 400


def test_a_clock_that_stands_still_shows_the_same_until_it_goes_on() -> None:
    """The machine was suspended, and its clock does not count the missed time. So the timers of the machine fire later
    by this time."""
    queue, clock = a_clock()
    shown_ns = clock.now()

    clock.stand_still(500)

    assert clock.due(shown_ns + 100) == 600
    advance(queue, 499)
    assert clock.now() == shown_ns
    advance(queue, 501)
    assert clock.now() == shown_ns + 1


def test_a_clock_never_goes_back_while_its_machine_has_power() -> None:
    """The clock keeps its rules for any faults in any order."""
    for seed in SEEDS:
        random = Random(seed)
        queue, clock = a_clock(seed=seed)
        shown_ns = clock.now()
        for _ in range(50):
            match random.randrange(5):
                case 0:
                    clock.jump(random.randrange(1_000))
                case 1:
                    clock.run_at(random.randrange(FS_PER_NS // 2, 2 * FS_PER_NS))
                case 2:
                    clock.stand_still(queue.now + random.randrange(1_000))
                case 3:
                    clock.go_on()
                case _:
                    advance(queue, queue.now + random.randrange(1, 1_000))
            assert clock.now() >= shown_ns
            shown_ns = clock.now()


def test_two_clocks_of_a_seed_differ_and_each_is_the_same_again() -> None:
    """The offset and the rate of a clock are computed from its name."""

    def drawn(name: str) -> tuple[int, int]:
        clock = Clock(EventQueue(), 1, name, spread=2.0)
        return clock.now(), clock.usual_rate

    assert drawn("n1") == drawn("n1")
    assert drawn("n1")[0] != drawn("n2")[0]
    assert drawn("n1")[1] != drawn("n2")[1]
    assert all(FS_PER_NS / 2 <= Clock(EventQueue(), s, "n1", 2.0).usual_rate <= 2 * FS_PER_NS for s in SEEDS)


def test_clocks_at_the_edges_are_as_wrong_as_a_plan_allows() -> None:
    """Some clocks run at the slowest allowed rate, and others at the fastest. With such clocks, a run tests the margin
    of a lease."""
    rates = {Clock(EventQueue(), seed, "n1", 2.0, at_edges=True).usual_rate for seed in SEEDS}

    assert rates == {FS_PER_NS // 2, 2 * FS_PER_NS}


# The handling of events by a process.


class Process:
    """A process that handles numbers, and notes the time at which it handled each number."""

    def __init__(self) -> None:
        self.queue = EventQueue()
        self.scheduler = ProcessScheduler(self.queue)
        self.dealt_with: list[tuple[int, int]] = []

    def happens(self, number: int) -> None:
        if not self.scheduler.postpones(self.happens, number):
            self.dealt_with.append((self.queue.now, number))

    def run(self) -> list[tuple[int, int]]:
        while len(self.queue):
            self.queue.step()
        return self.dealt_with


def test_a_process_that_nothing_holds_deals_with_everything_at_once() -> None:
    """A process that is neither paused nor slow handles each event immediately, so its queue does not grow."""
    process = Process()
    for number in range(3):
        process.queue.at(10 * number, process.happens, number)

    assert process.run() == [(0, 0), (10, 1), (20, 2)]


def test_a_paused_process_deals_with_all_that_came_at_the_end_of_the_pause_in_order() -> None:
    """The process continues, as after SIGCONT."""
    process = Process()
    process.scheduler.pause(100)
    for number in range(3):
        process.queue.at(10 * number, process.happens, number)
    process.queue.at(100, process.happens, 3)

    assert process.run() == [(100, 0), (100, 1), (100, 2), (100, 3)]


def test_a_slow_process_takes_its_time_for_each_event_and_falls_behind() -> None:
    """Unlike a paused process, a slow process continues to work. If events come faster than it works, their wait
    becomes longer and longer."""
    process = Process()
    process.scheduler.service_ns = 25
    for number in range(4):
        process.queue.at(10 * number, process.happens, number)

    assert process.run() == [(25, 0), (50, 1), (75, 2), (100, 3)]


def test_a_slow_process_that_is_quick_again_catches_up_at_once_and_in_order() -> None:
    """An event that comes later does not overtake the waiting events."""
    process = Process()
    process.scheduler.service_ns = 25
    for number in range(4):
        process.queue.at(10 * number, process.happens, number)
    process.queue.at(30, process.scheduler.quicken)
    process.queue.at(30, process.happens, 4)

    assert process.run() == [(25, 0), (30, 1), (30, 2), (30, 3), (30, 4)]


def test_a_slow_process_that_is_paused_as_well_goes_on_slowly_afterwards() -> None:
    """The pause and the slow phase overlap."""
    process = Process()
    process.scheduler.service_ns = 25
    process.queue.at(0, process.happens, 0)
    process.queue.at(1, process.happens, 1)
    process.queue.at(10, process.scheduler.pause, 200)

    assert process.run() == [(200, 0), (225, 1)]


def test_what_waits_for_a_process_that_dies_is_gone() -> None:
    """The killed process also loses its sockets. The next process has the usual speed."""
    process = Process()
    process.scheduler.pause(100)
    process.queue.at(0, process.happens, 0)
    process.queue.at(50, process.scheduler.forget)
    process.queue.at(60, process.happens, 1)

    assert process.run() == [(60, 1)]
