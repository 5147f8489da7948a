"""One request alone in flight: quick peers are waited for, and its end is told in the flush that began it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
import trio
import trio.testing

from raft import Member, ReadReady, Role, encode_item
from raft.protocol.messages import Message
from raft.runtime import Driver
from raft.runtime.driver import SECOND_NS
from tests.raft.support.machines import Machine, until

pytestmark = pytest.mark.timeout(30)

Take = Callable[[str, Sequence[Message]], None]


@pytest.fixture(autouse=True)
def time_for_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disks of these tests are threads, which take as long as the machine is busy."""
    monkeypatch.setattr("raft.runtime.driver.ROUNDS_NS_MAX", 20 * SECOND_NS)


class Neighbours:
    """The network of one member, at whose other ends nodes answer at once. Answers wait to be taken early, or, with
    `is_slow`, for the loop."""

    def __init__(self, own_id: str, others: Sequence[Machine]) -> None:
        self._own_id, self._others = own_id, {machine.identity.node_id: machine for machine in others}
        self._answers: list[tuple[str, Message]] = []
        self._something = trio.Event()
        self.is_slow = True
        self.is_one_by_one = False
        self.asked: list[bool] = []  # Whether it might wait, each time it was asked for early answers.

    async def listen(self) -> None: ...

    def connect_to(self, peers: Sequence[Member]) -> None:
        assert {peer.node_id for peer in peers} == set(self._others)

    async def run(self, driver: Driver, *, task_status: trio.TaskStatus[int]) -> None:
        for machine in self._others.values():
            driver.peer_hello(machine.identity.node_id, machine.identity.incarnation_id)
            machine.node.peer_hello(self._own_id, self._own_id.encode().ljust(16, b"."))
        task_status.started(0)
        while True:
            await self._something.wait()
            self._something = trio.Event()
            self._hand_over(driver.receive)

    def send(self, messages: Sequence[tuple[str, Message]]) -> None:
        for peer_id, message in messages:
            other = self._others[peer_id]
            other.node.receive(self._own_id, message)
            for _ in range(3):  # What it has to say may wait for its disk.
                self._answers += [(peer_id, answer) for _, answer in other.node.take_effects().send]
                other.node.begin_sync()
                other.completions.run_pending()
        if self.is_slow:
            self._something.set()

    def receive_early(self, take: Take, *, may_wait: bool) -> bool:
        self.asked.append(may_wait)
        return not self.is_slow and self._hand_over(take)

    def _hand_over(self, take: Take) -> bool:
        count = 1 if self.is_one_by_one else len(self._answers)
        answers, self._answers = self._answers[:count], self._answers[count:]
        for peer_id, answer in answers:
            take(peer_id, [answer])
        return bool(answers)


def a_leader() -> AbstractAsyncContextManager[tuple[Machine, Neighbours]]:
    """A leader of three without anything to do, until the block ends."""

    @asynccontextmanager
    async def running() -> AsyncIterator[tuple[Machine, Neighbours]]:
        voters = ["s1", "s2", "s3"]
        machine, *others = [Machine(voter, voters) for voter in voters]
        network = Neighbours("s1", others)
        machine.driver = Driver(
            machine.node,
            completions=machine.completions,
            application=machine.recorder,
            transport=network,  # type: ignore[arg-type]
            start_io=lambda: machine.completions.run_pending() > 0,  # A disk that is waited for.
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(machine.driver.run)
            await until(lambda: machine.node.core.role is Role.LEADER and machine.node.core.commit_index > 0)
            await until(lambda: machine.node.core.durable_index == machine.node.core.last_index)
            await trio.testing.wait_all_tasks_blocked()
            network.asked.clear()
            yield machine, network
            nursery.cancel_scope.cancel()

    return running()


async def test_a_lone_proposal_is_committed_and_applied_in_the_flush_that_began_it() -> None:
    with trio.fail_after(20):
        async with a_leader() as (leader, network):
            network.is_slow = False

            leader.node.propose(encode_item("alone"), 1)
            leader.driver.flush()

            assert [applied.ticket for applied in leader.recorder.applied] == [1]
            assert network.asked[0] is True


async def test_a_lone_read_is_answered_in_the_flush_that_began_it() -> None:
    """Thesis §6.4."""
    with trio.fail_after(20):
        async with a_leader() as (leader, network):
            network.is_slow = False

            leader.node.read(7)
            leader.driver.flush()

            assert ReadReady(7) in leader.recorder.completions
            assert network.asked[0] is True


async def test_when_it_is_decided_nobody_is_waited_for_any_more() -> None:
    """What the slower peers say is taken if it is there, once."""
    with trio.fail_after(20):
        async with a_leader() as (leader, network):
            network.is_slow = False

            leader.node.read(7)
            leader.driver.flush()

            assert network.asked == [True, False]


async def test_the_last_answer_to_a_lone_proposal_is_taken_without_another_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One round proposes, the next one answers; what the slower peer says changes nothing that anybody waits for."""
    with trio.fail_after(20):
        async with a_leader() as (leader, network):
            network.is_slow, network.is_one_by_one = False, True
            now = trio.current_time()  # It stands still: a heartbeat would be a round of its own.
            monkeypatch.setattr(leader.driver, "_seconds", lambda: now)
            turns = leader.driver.turns

            leader.node.propose(encode_item("alone"), 1)
            leader.driver.flush()

            assert leader.driver.turns - turns == 2
            assert [applied.ticket for applied in leader.recorder.applied] == [1]
            last_index = leader.node.core.last_index
            assert [peer.match_index for peer in leader.node.core.peers_status()] == [last_index, last_index]


async def test_an_answer_that_does_not_come_at_once_comes_through_the_loop() -> None:
    with trio.fail_after(20):
        async with a_leader() as (leader, _):
            leader.node.propose(encode_item("alone"), 1)
            leader.driver.flush()
            assert leader.recorder.applied == []

            await leader.recorder.wait_for(lambda: bool(leader.recorder.applied))


@pytest.mark.parametrize("count", [0, 3, 40])
async def test_nobody_is_waited_for_with_nothing_open_or_with_more_to_do(count: int) -> None:
    """Others would wait as long: what comes meanwhile is better gathered by the loop."""
    with trio.fail_after(20):
        async with a_leader() as (leader, network):
            for ticket in range(count):
                leader.node.propose(encode_item(ticket), ticket)
            leader.driver.flush()

            assert True not in network.asked
            await leader.recorder.wait_for(lambda: len(leader.recorder.applied) == count)
