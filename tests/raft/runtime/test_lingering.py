"""What a lone client or a leader wants next is taken between two turns of the loop: once, and not for long."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable

import pytest
import trio
import trio.testing

from raft import RaftConfig, ReadReady, ReadWay, Role, encode_item
from raft.runtime import Driver, Lingerer, lingering
from raft.runtime.driver import SECOND_NS
from raft.runtime.lingering import ARRIVALS_MAX, WAITS_SPARED
from tests.raft.support.machines import Machine, until

pytestmark = pytest.mark.timeout(30)


def a_pair() -> tuple[trio.SocketStream, socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    return trio.SocketStream(trio.socket.from_stdlib_socket(ours)), theirs


def always() -> bool:
    return True


def nobodys(data: bytes) -> None:
    raise AssertionError(data)


class CountingEpoll:
    """Stands for `select.epoll()`: nothing is ever ready."""

    def __init__(self) -> None:
        self.waits = 0

    def register(self, number: int, events: int) -> None: ...

    def unregister(self, number: int) -> None: ...

    def poll(self, timeout: float, arrivals_max: int) -> list[tuple[int, int]]:
        assert (timeout, arrivals_max) == (lingering.WAIT_MS / 1000, ARRIVALS_MAX)
        self.waits += 1
        return []


async def test_what_comes_is_taken_and_its_reader_sees_only_what_comes_later() -> None:
    lingerer, taken = Lingerer(), list[bytes]()
    ours, theirs = a_pair()
    async with ours:
        with theirs, lingerer.watched(ours, taken.append, always):
            theirs.send(b"first")
            assert lingerer.wait()
            theirs.send(b"second")
            with trio.fail_after(10):
                assert await ours.receive_some() == b"second"
    assert taken == [b"first"]
    lingerer.close()


async def test_what_may_not_be_taken_now_is_left_to_its_reader() -> None:
    """It has something in hand that came before."""
    lingerer = Lingerer()
    ours, theirs = a_pair()
    async with ours:
        with theirs, lingerer.watched(ours, nobodys, lambda: False):
            theirs.send(b"later")
            assert not lingerer.wait()
            with trio.fail_after(10):
                assert await ours.receive_some() == b"later"
    lingerer.close()


async def test_the_end_of_a_connection_is_left_to_its_reader() -> None:
    lingerer = Lingerer()
    ours, theirs = a_pair()
    async with ours:
        with lingerer.watched(ours, nobodys, always):
            theirs.close()
            assert not lingerer.wait()
            with trio.fail_after(10):
                assert await ours.receive_some() == b""
    lingerer.close()


async def test_nothing_is_taken_once_the_reader_is_gone_or_all_is_closed() -> None:
    lingerer = Lingerer()
    ours, theirs = a_pair()
    async with ours:
        with theirs:
            with lingerer.watched(ours, nobodys, always):
                pass
            theirs.send(b"late")
            assert not lingerer.wait()
            with lingerer.watched(ours, nobodys, always):
                lingerer.close()
                assert not lingerer.wait()


async def test_a_stream_that_is_no_socket_is_left_alone() -> None:
    lingerer = Lingerer()
    _, theirs = trio.testing.memory_stream_pair()
    with lingerer.watched(theirs, nobodys, always):
        assert not lingerer.wait()
    lingerer.close()


async def test_of_a_crowd_a_few_are_taken_and_then_the_loop_has_its_turn() -> None:
    """Each may bring RECEIVE_BYTES. In their turn all are taken: nobody is passed over."""
    lingerer, taken = Lingerer(), list[int]()
    with contextlib.ExitStack() as stack:
        pairs = [a_pair() for _ in range(3 * ARRIVALS_MAX)]
        for place, (ours, theirs) in enumerate(pairs):
            stack.callback(ours.socket.close)
            stack.enter_context(theirs)
            stack.enter_context(lingerer.watched(ours, lambda _, place=place: taken.append(place), always))  # type: ignore[misc]
            theirs.send(b"!")
        for waits in range(1, 4):
            assert lingerer.wait()
            assert len(taken) == waits * ARRIVALS_MAX
    assert sorted(taken) == list(range(3 * ARRIVALS_MAX))
    lingerer.close()


async def test_after_a_wait_in_vain_many_are_spared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is seldom asked for anything hardly ever holds up the loop for it."""
    epoll = CountingEpoll()
    monkeypatch.setattr("select.epoll", lambda: epoll)
    lingerer = Lingerer()
    ours, theirs = a_pair()
    async with ours:
        with theirs, lingerer.watched(ours, nobodys, always):
            for _ in range(2 * (WAITS_SPARED + 1)):
                assert not lingerer.wait()
    assert epoll.waits == 2


class Script:
    """Stands for a lingerer: each wait does what is next, if anything is left."""

    def __init__(self) -> None:
        self.next: list[Callable[[], object]] = []
        self.waits = self.spared = 0

    def wait(self) -> bool:
        self.waits += 1
        if not self.next:
            return False
        self.next.pop(0)()
        return True

    def spare(self) -> None:
        self.spared += 1


async def a_store_of_one(nursery: trio.Nursery, script: Script, config: RaftConfig | None = None) -> Machine:
    machine = Machine("s1", ["s1"], config=config)
    machine.driver = Driver(
        machine.node,
        completions=machine.completions,
        application=machine.recorder,
        start_io=lambda: machine.completions.run_pending() > 0,  # A disk that is waited for.
        lingerer=script,  # type: ignore[arg-type]
    )
    await nursery.start(machine.driver.run)
    await until(lambda: machine.node.core.role is Role.LEADER and machine.node.core.commit_index > 0)
    await trio.testing.wait_all_tasks_blocked()
    script.waits = script.spared = 0
    return machine


@pytest.fixture
def no_clock_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is, a member lingers for as long as something comes."""
    monkeypatch.setattr("raft.runtime.driver.ROUNDS_NS_MAX", 20 * SECOND_NS)
    monkeypatch.setattr("raft.runtime.driver.LINGER_NS_MAX", -20 * SECOND_NS)


@pytest.mark.usefixtures("no_clock_ends_it")
async def test_a_client_that_puts_one_thing_after_the_other_is_answered_in_one_flush() -> None:
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            script = Script()
            machine = await a_store_of_one(nursery, script)

            def bring(ticket: int) -> None:
                machine.node.propose(encode_item(ticket), ticket)
                machine.driver.flush()

            script.next = [lambda: bring(2), lambda: bring(3)]
            bring(1)

            assert [applied.ticket for applied in machine.recorder.applied] == [1, 2, 3]
            assert (script.waits, script.spared) == (3, 0)
            nursery.cancel_scope.cancel()


@pytest.mark.usefixtures("no_clock_ends_it")
async def test_where_others_bring_something_too_it_gathers_for_a_turn_of_the_loop() -> None:
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            script = Script()
            machine = await a_store_of_one(nursery, script)

            def bring_one_of_many() -> None:
                machine.node.propose(encode_item("next"), 2)
                machine.driver.wake()

            script.next = [bring_one_of_many]
            machine.node.propose(encode_item("first"), 1)
            machine.driver.flush()

            assert [applied.ticket for applied in machine.recorder.applied] == [1]
            assert script.spared == 1
            await machine.recorder.wait_for(lambda: len(machine.recorder.applied) == 2)
            nursery.cancel_scope.cancel()


async def test_nobody_lingers_when_an_alarm_is_near(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raft.runtime.driver.LINGER_NS_MAX", 20 * SECOND_NS)
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            script = Script()
            machine = await a_store_of_one(nursery, script)
            machine.node.propose(encode_item("alone"), 1)
            machine.driver.flush()

            assert script.waits == 0
            nursery.cancel_scope.cancel()


@pytest.mark.usefixtures("no_clock_ends_it")
async def test_a_read_by_lease_is_judged_by_a_time_after_it_came_also_behind_what_a_peer_brings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The process stood still between the two, so the lease may be over, and another member may have led since."""
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            script = Script()
            machine = await a_store_of_one(nursery, script, RaftConfig(lease_reads=True))
            driver, node = machine.driver, machine.node
            await until(lambda: reads_by_lease(machine, 1))
            read_clock, stood_still_ns = driver._read_clock, 0
            monkeypatch.setattr(driver, "_read_clock", lambda: read_clock() + stood_still_ns)

            def bring() -> None:
                nonlocal stood_still_ns
                driver.receive("s2", [])
                stood_still_ns = 10 * SECOND_NS
                node.read_all((2,), ReadWay.LEASE)
                driver.flush()

            script.next = [bring]
            driver.flush()

            assert machine.recorder.completions[-1] == ReadReady(2, ReadWay.ROUND)
            nursery.cancel_scope.cancel()


def reads_by_lease(machine: Machine, ticket: int) -> bool:
    machine.node.read_all((ticket,), ReadWay.LEASE)
    machine.driver.flush()
    return machine.recorder.completions[-1] == ReadReady(ticket, ReadWay.LEASE)


async def test_nobody_lingers_while_the_own_disk_is_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its end is told by a turn of the loop, and whoever waits for it would wait for that."""
    monkeypatch.setattr("raft.runtime.driver.LINGER_NS_MAX", -20 * SECOND_NS)
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            script, submitted = Script(), list[Callable[[BaseException | None], None]]()
            machine = await a_store_of_one(nursery, script)
            machine.disk.submit = lambda name, done: submitted.append(done)  # type: ignore[method-assign]  # noqa: ARG005

            machine.node.propose(encode_item("alone"), 1)
            machine.driver.flush()
            assert script.waits == 0

            submitted.pop()(None)
            machine.driver.flush()
            assert [applied.ticket for applied in machine.recorder.applied] == [1]
            assert script.waits == 1
            nursery.cancel_scope.cancel()
