"""The driver flushes in one of three places: in the task that brings input, in the next turn of the loop, or at a
deadline."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
import trio
import trio.testing

from raft import CompletionBatch, Node, NodeStopped, RaftConfig, Role, TraceEvent
from raft.runtime import CompletionQueue, Driver
from raft.runtime.driver import MUTED_EVENTS, ROUNDS_MAX, ROUNDS_NS_MAX, SECOND_NS
from tests.raft.support.machines import Machine, until

pytestmark = pytest.mark.timeout(30)


class Started:
    """Files that call a function when their waiting operations are started."""

    def __init__(self, start: Callable[[], bool]) -> None:
        self.start = start
        self.has_waiting = True


def alone() -> AbstractAsyncContextManager[Machine]:
    """A single member that leads and is idle until the block ends."""

    @asynccontextmanager
    async def running() -> AsyncIterator[Machine]:
        machine = Machine("s1", ["s1"])
        driver = Driver(machine.node, completions=machine.completions, application=machine.recorder)
        machine.driver = driver
        async with trio.open_nursery() as nursery:
            await nursery.start(driver.run)
            await until(lambda: machine.node.core.role is Role.LEADER and machine.node.core.commit_index > 0)
            await trio.testing.wait_all_tasks_blocked()
            yield machine
            nursery.cancel_scope.cancel()

    return running()


async def test_a_flush_happens_in_the_task_that_asks_for_it_and_a_wake_in_the_next_turn() -> None:
    with trio.fail_after(20):
        async with alone() as machine:
            last_index = machine.node.core.last_index
            machine.node.propose(b"\x01", 1)
            machine.driver.flush()
            assert machine.node.core.last_index == last_index + 1

            await machine.recorder.wait_for(lambda: len(machine.recorder.applied) == 1)
            await trio.testing.wait_all_tasks_blocked()
            machine.node.propose(b"\x02", 2)
            machine.driver.wake()
            assert machine.node.core.last_index == last_index + 1
            await machine.recorder.wait_for(lambda: len(machine.recorder.applied) == 2)


async def test_whoever_comes_while_a_flush_is_due_is_part_of_that_flush() -> None:
    """When several readers bring input in one turn, one flush handles the input of all."""
    with trio.fail_after(20):
        async with alone() as machine:
            last_index = machine.node.core.last_index
            machine.node.propose(b"\x01", 1)
            machine.driver.wake()
            machine.node.propose(b"\x02", 2)
            machine.driver.flush()
            assert machine.node.core.last_index == last_index
            await machine.recorder.wait_for(lambda: len(machine.recorder.applied) == 2)
            assert machine.node.core.last_index == last_index + 1  # One entry.


async def test_an_application_that_asks_for_a_flush_within_a_flush_gets_the_next_one() -> None:
    with trio.fail_after(20):
        async with alone() as machine:
            depth, depths = 0, []
            tell = machine.recorder.complete

            def complete(completions: Sequence[CompletionBatch], events: Sequence[TraceEvent]) -> None:
                nonlocal depth
                depth += 1
                depths.append(depth)
                tell(completions, events)
                if len(machine.recorder.applied) == 1 and 2 not in proposed:
                    proposed.append(2)
                    machine.node.propose(b"\x02", 2)
                    machine.driver.flush()
                depth -= 1

            proposed = [1]
            machine.recorder.complete = complete  # type: ignore[method-assign]
            machine.node.propose(b"\x01", 1)
            machine.driver.flush()
            await machine.recorder.wait_for(lambda: len(machine.recorder.applied) == 2)

            assert set(depths) == {1}


async def test_a_node_that_ends_in_a_flush_of_another_task_ends_the_run() -> None:
    with trio.fail_after(20):
        machine = Machine("s1", ["s1"])
        driver = Driver(machine.node, completions=machine.completions, application=machine.recorder)
        with pytest.RaisesGroup(NodeStopped):
            async with trio.open_nursery() as nursery:
                await nursery.start(driver.run)
                await until(lambda: machine.node.core.role is Role.LEADER and machine.node.core.commit_index > 0)
                await trio.testing.wait_all_tasks_blocked()
                machine.disk.error = OSError(5, "Input/output error")
                machine.node.propose(b"\x01", 1)
                driver.flush()  # The disk answers before this call returns, and the next flush handles this answer.
                driver.flush()
                assert machine.node.failure is not None
                driver.flush()  # The node has stopped, so this call has no effect.


async def test_an_unexpected_error_in_a_flush_of_another_task_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that contains its own errors must not keep a node alive whose invariants are broken."""

    def fails(*_: object) -> None:
        raise ZeroDivisionError

    with trio.fail_after(20), pytest.RaisesGroup(ZeroDivisionError, flatten_subgroups=True):
        async with alone() as machine:
            monkeypatch.setattr(machine.recorder, "complete", fails)
            machine.driver.tells_each_flush = True
            with pytest.raises(ZeroDivisionError):
                machine.driver.flush()
            await trio.sleep_forever()


async def test_a_member_whose_folder_was_made_anew_ends_in_the_turn_in_which_it_is_told() -> None:
    """The member does not wait for the next alarm, which may be far away."""
    hour_ns = 3600 * SECOND_NS
    config = RaftConfig(election_timeout_min_ns=hour_ns, election_timeout_max_ns=2 * hour_ns)
    with trio.fail_after(20):
        machine = Machine("s1", ["s1", "s2"], config=config)
        with pytest.RaisesGroup(NodeStopped):
            async with trio.open_nursery() as nursery:
                await nursery.start(machine.driver.run)
                await trio.testing.wait_all_tasks_blocked()
                machine.driver.peer_refused("s2", "wrong_incarnation", "it has forgotten its votes")


async def test_a_deadline_that_a_flush_of_another_task_brought_nearer_is_kept() -> None:
    """The driver sleeps during the flush. So the task that flushed must set the driver's alarm."""
    with trio.fail_after(20):
        async with alone() as machine:
            scope = machine.driver._scope
            assert scope is not None
            scope.deadline = math.inf
            machine.driver.flush()
            assert scope.deadline == (machine.node.next_alarm + 1) / SECOND_NS
            machine.node.propose(b"\x01", 1)
            machine.driver.flush()
            await until(lambda: bool(machine.recorder.applied) and not machine.node._log.has_unproven_batch)


async def test_an_alarm_that_is_due_no_more_is_moved_before_it_goes_off() -> None:
    """An alarm that is too early would cause a turn without work."""
    with trio.fail_after(20):
        async with alone() as machine:
            scope = machine.driver._scope
            assert scope is not None
            scope.deadline = trio.current_time()
            machine.driver.flush()
            assert scope.deadline == (machine.node.next_alarm + 1) / SECOND_NS > trio.current_time()


async def test_the_node_is_due_when_its_alarm_goes_off_even_if_the_clock_stands_still_meanwhile() -> None:
    """Seconds are rounded to a float. If the alarm went off a nanosecond early, a virtual clock would stay there."""
    with trio.fail_after(20):
        async with alone() as machine:
            scope = machine.driver._scope
            assert scope is not None
            scope.deadline = math.inf
            for alarm in range(1_000_000_000, 1_000_000_100):
                machine.driver._next_alarm = alarm
                machine.driver._set_alarm(scope)
                assert int(scope.deadline * SECOND_NS) >= alarm
                scope.deadline = math.inf


async def test_what_the_disk_does_at_once_needs_no_turn_of_the_loop() -> None:
    """The driver starts the disk last. So a put is synced, committed, applied and answered before `flush` returns."""
    with trio.fail_after(20):
        async with alone() as machine:
            told: list[str] = []
            submitted: list[Callable[[BaseException | None], None]] = []

            def start() -> bool:
                told.append(f"the disk starts {len(submitted)}")
                ended = [done(None) for done in submitted]
                submitted.clear()
                files.has_waiting = False
                return bool(ended)

            def submit(name: str, done: Callable[[BaseException | None], None]) -> None:
                del name
                submitted.append(done)
                files.has_waiting = True

            files = Started(start)
            machine.disk.submit = submit  # type: ignore[method-assign]
            machine.driver._files = files
            machine.node.propose(b"\x01", 1)
            machine.driver.flush()

            assert told == ["the disk starts 1"]
            assert len(machine.recorder.applied) == 1


async def test_a_node_that_always_has_more_to_do_leaves_the_others_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    with trio.fail_after(20):
        async with alone() as machine:
            rounds = 0

            def start() -> bool:
                nonlocal rounds
                rounds += 1
                return False

            monkeypatch.setattr(Node, "has_more", property(lambda _: rounds < 3 * ROUNDS_MAX))
            machine.driver._files = Started(start)
            machine.driver.flush()
            assert rounds == ROUNDS_MAX
            await until(lambda: rounds >= 3 * ROUNDS_MAX)


async def test_no_second_slice_is_applied_before_the_clock_and_the_peers_had_their_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A slice may take as long as a heartbeat interval, so four slices without a pause would cause an election."""
    with trio.fail_after(20):
        async with alone() as machine:
            rounds, now = 0, machine.node._now

            def start() -> bool:
                nonlocal rounds, now
                rounds, now = rounds + 1, now + ROUNDS_NS_MAX + 1
                return False

            monkeypatch.setattr(machine.driver, "_read_clock", lambda: now)
            monkeypatch.setattr(Node, "has_more", property(lambda _: rounds < 2))
            machine.driver._files = Started(start)
            machine.driver.flush()
            assert rounds == 1
            await until(lambda: rounds == 2)


async def test_marks_that_move_are_told_to_nobody() -> None:
    """The marks move in every turn. So no event reports them, but the status shows them."""
    with trio.fail_after(20):
        async with alone() as machine:
            machine.node.propose(b"\x01", 1)
            machine.driver.flush()
            await machine.recorder.wait_for(lambda: len(machine.recorder.applied) == 1)

            names = {event.name for event in machine.recorder.events}
            assert "became_leader" in names
            assert not names & MUTED_EVENTS


async def test_what_somebody_should_look_after_is_a_warning_and_all_else_is_news(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with trio.fail_after(20):
        async with alone() as machine:
            for level in (logging.WARNING, logging.INFO):
                caplog.set_level(level, "raft.driver")
                machine.driver._log([TraceEvent("disk_full", {}), TraceEvent("disk_has_room", {})])

    told = [(record.levelname, record.args["event"]) for record in caplog.records if isinstance(record.args, dict)]
    assert [each for each in told if each[1].startswith("disk")] == [
        ("WARNING", "disk_full"),
        ("WARNING", "disk_full"),
        ("INFO", "disk_has_room"),
    ]


async def test_what_the_disk_has_done_comes_before_the_time() -> None:
    """The disk answered while the loop was late, so the disk was not silent. A turn reads the clock only once."""
    with trio.fail_after(20):
        async with alone() as machine:
            seen: list[str] = []
            tick = machine.node.tick

            def tell_tick(now: int) -> None:
                seen.append("time")
                tick(now)

            machine.node.tick = tell_tick  # type: ignore[method-assign]
            machine.completions.post(lambda: seen.append("disk"))
            machine.driver.receive("s2", [])

            assert seen == ["disk", "time"]


async def test_completions_come_from_any_thread_in_order() -> None:
    """Threads call `post` before, during and after the loop's wait for completions."""
    with trio.fail_after(20):
        queue, seen = CompletionQueue(), []
        queue.post(lambda: seen.append(-1))

        def post_many() -> None:
            for number in range(1_000):
                queue.post(lambda number=number: seen.append(number))  # type: ignore[misc]

        thread = threading.Thread(target=post_many)
        thread.start()
        await queue.run_until(lambda: len(seen) == 1_001)
        thread.join(5)

    assert seen == list(range(-1, 1_000))


async def test_a_completion_that_somebody_else_has_run_wakes_nobody_twice() -> None:
    with trio.fail_after(20):
        queue, seen = CompletionQueue(), []
        with queue.watched():
            # The pipe could not hold one byte for each completion, but one byte announces any number of completions.
            for number in range(100_000):
                queue.post(lambda number=number: seen.append(number))  # type: ignore[misc]
            assert queue.run_pending() == 100_000
            await queue.wait()
            assert not queue.pending
            with trio.move_on_after(0.01) as scope:
                await queue.wait()
            assert scope.cancelled_caught

            queue.post(lambda: seen.append(-1))
            await queue.wait()
            assert queue.run_pending() == 1

    assert seen == [*range(100_000), -1]


def test_a_completion_after_the_loop_has_ended_only_gathers() -> None:
    """An I/O thread may be slower than the loop."""
    queue, seen = CompletionQueue(), []
    with queue.watched():
        pass
    queue.post(lambda: seen.append(1))

    assert seen == []
    assert queue.run_pending() == 1
