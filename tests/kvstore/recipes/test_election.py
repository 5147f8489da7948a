"""Elections: one leader at a time, in order, and every observer sees every leader."""

from __future__ import annotations

from contextlib import suppress

import pytest
import trio
import trio.testing

from kvstore.errors import LeadershipLost, LeaseLost, LockTimeout, OutcomeUnknown, WrongContext
from kvstore.protocol.commands import Compact
from tests.kvstore.support.simulated_store import SimulatedClient, SimulatedStore


async def test_candidates_lead_one_after_the_other_and_observers_see_each(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with SimulatedStore() as store, trio.open_nursery() as nursery:
        leading, led, seen = 0, list[str](), list[tuple[bytes | None, int]]()

        async def stand(name: str) -> None:
            nonlocal leading
            async with store.client().election("boss") as election:
                await election.campaign(name)
                leading += 1
                assert leading == 1
                led.append(name)
                await election.proclaim(f"{name} at work")
                await trio.sleep(10)
                leading -= 1
                await election.resign()

        async def observe() -> None:
            async with store.client().election("boss").observe() as leaders:
                async for leader in leaders:
                    seen.append((leader.value, leader.create_revision))

        nursery.start_soon(observe)
        for name in ("a", "b", "c"):
            nursery.start_soon(stand, name)
            await trio.sleep(1)
        await trio.sleep(60)
        nursery.cancel_scope.cancel()

    assert led == ["a", "b", "c"]
    assert [value for value, _ in seen] == [b"a", b"a at work", b"b", b"b at work", b"c", b"c at work"]
    fences = [fence for _, fence in seen]
    assert fences == sorted(fences)
    assert len(set(fences)) == 3


async def test_a_candidate_may_stand_again_with_a_new_fence(autojump_clock: trio.testing.MockClock) -> None:
    async with SimulatedStore() as store, store.client().election("boss") as election:
        first = await election.campaign("x")
        await election.resign()
        assert await election.leader() is None
        second = await election.campaign("y")
        assert second.fence > first.fence
        assert second.key == first.key
        with pytest.raises(LeadershipLost):
            await first.guarded().put("a", "1").commit()
        await second.guarded().put("a", "1").commit()


async def test_a_candidate_that_gives_up_leaves_the_line(autojump_clock: trio.testing.MockClock) -> None:
    async with SimulatedStore() as store, store.client().election("boss") as leader:
        await leader.campaign("first")
        async with store.client().election("boss") as election:
            with pytest.raises(LockTimeout):
                await election.campaign("second", wait_seconds=3)
            assert (await store.client().range(prefix="boss/")).count == 1
            await leader.resign()
            await election.campaign("second", wait_seconds=0)
            found = await election.leader()
            assert found is not None
            assert found.value == b"second"


async def test_a_lost_leadership_ends_the_block_and_proclaims_nothing(autojump_clock: trio.testing.MockClock) -> None:
    async with SimulatedStore() as store:
        refused = False

        async def lead() -> None:
            nonlocal refused
            async with store.client().election("boss", ttl_seconds=3) as election:
                leadership = await election.campaign("x")
                await store.client().lease_revoke(leadership.lease.id)
                try:
                    await election.proclaim("y")
                except LeadershipLost:
                    refused = True
                await trio.sleep_forever()

        with pytest.raises(LeaseLost):
            await lead()
        assert refused


async def test_misuse_is_named(autojump_clock: trio.testing.MockClock) -> None:
    async with SimulatedStore() as store:
        election = store.client().election("boss")
        with pytest.raises(WrongContext, match="enter the election first"):
            await election.campaign("x")
        with pytest.raises(WrongContext, match="does not lead"):
            await election.proclaim("x")
        async with election:
            with pytest.raises(WrongContext, match="entered already"):
                await election.__aenter__()
            await election.campaign("x")
            with pytest.raises(WrongContext, match="is the leader already"):
                await election.campaign("y")


@pytest.mark.parametrize("seed", range(30))
async def test_no_two_leaders_believe_at_once(seed: int, autojump_clock: trio.testing.MockClock) -> None:
    """Programs stop and continue at random. A leader believes that it leads until its block is cancelled. So a program
    that continues after a stop first calls `check`."""
    async with SimulatedStore(seed, delay_seconds=0.2) as store:
        random, terms, believing = store.random, 0, set[int]()

        async def lead(number: int, client: SimulatedClient) -> None:
            nonlocal terms
            for _ in range(5):
                with suppress(LeaseLost, OutcomeUnknown):  # A pause may delay the answer to the grant of the lease.
                    async with client.election("boss", ttl_seconds=4) as election:
                        leadership = await election.campaign(str(number))
                        leadership.check()
                        believing.add(number)
                        try:
                            assert believing == {number}
                            terms += 1
                            if random.random() < 0.3:
                                client.pause(random.uniform(0, 10))
                            await trio.sleep(random.uniform(0, 8))
                        finally:
                            believing.discard(number)

        async with trio.open_nursery() as nursery:
            for number in range(4):
                nursery.start_soon(lead, number, store.client())
        assert terms >= 10


async def test_an_observer_that_was_overtaken_by_a_compaction_goes_on_with_the_present_leader(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with SimulatedStore() as store, trio.open_nursery() as nursery:
        client, seen = store.client(), list[bytes | None]()

        async def observe(observer: SimulatedClient) -> None:
            async with observer.election("boss").observe() as leaders:
                async for leader in leaders:
                    seen.append(leader.value)

        async with client.election("boss") as election:
            await election.campaign("first")
            observer = store.client()
            nursery.start_soon(observe, observer)
            await trio.sleep(1)
            observer.pause(2)
            await election.proclaim("second")
            await trio.sleep(1)
            await election.proclaim("third")
            await trio.sleep(0.5)
            store.carry_out(Compact(store.machine.revision))
            await trio.sleep(10)
        nursery.cancel_scope.cancel()
    assert seen[0] == b"first"
    assert seen[-1] == b"third"


async def test_a_leader_whose_key_was_removed_ends_its_term_though_its_lease_lives(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with SimulatedStore() as store, store.client().election("boss") as election:
        leadership = await election.campaign("x")
        began, ended = trio.current_time(), False

        async def lead() -> None:
            nonlocal ended
            async with leadership.term() as term:
                assert term is leadership
                try:
                    await trio.sleep_forever()
                finally:
                    ended = True

        async def remove() -> None:
            await trio.sleep(5)
            await store.client().delete(leadership.key)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(remove)
            with pytest.raises(LeadershipLost):
                await lead()
        assert ended
        assert trio.current_time() - began < 5.1
        leadership.lease.check()  # Only the key is lost. The leader still holds the lease.


async def test_a_term_that_is_not_lost_ends_as_its_block_does(autojump_clock: trio.testing.MockClock) -> None:
    """An error of the block itself is raised unchanged, and a cancellation from outside does not count as a loss of the
    leadership."""
    async with SimulatedStore() as store, store.client().election("boss") as election:
        leadership = await election.campaign("x")
        async with leadership.term():
            await trio.sleep(1)
        with pytest.raises(KeyError, match="mine"):
            async with leadership.term():
                raise KeyError("mine")
        with trio.move_on_after(1) as scope:
            async with leadership.term():
                await trio.sleep_forever()
        assert scope.cancelled_caught
        await election.proclaim("still leads")


async def test_a_term_ends_by_its_lease_when_the_store_is_not_heard(autojump_clock: trio.testing.MockClock) -> None:
    async with SimulatedStore() as store:

        async def lead() -> None:
            client = store.client()
            async with client.election("boss", ttl_seconds=3) as election:
                leadership = await election.campaign("x")
                client.pause(100)
                async with leadership.term():
                    await trio.sleep_forever()

        with pytest.raises(LeaseLost):
            await lead()
        assert trio.current_time() < 4


@pytest.mark.parametrize("is_removed", [False, True])
async def test_a_term_survives_a_compaction_and_not_a_removal_that_it_has_hidden(
    is_removed: bool, autojump_clock: trio.testing.MockClock
) -> None:
    """The watch of the key cannot continue from its revision, so the client reads the key itself."""
    async with SimulatedStore() as store, trio.open_nursery() as nursery:
        client = store.client()
        async with client.election("boss", ttl_seconds=60) as election:
            leadership, lost = await election.campaign("x"), trio.Event()

            async def wait() -> None:
                await leadership.wait_until_lost()
                lost.set()

            await store.client().put("other", "1")
            if is_removed:
                await store.client().delete(leadership.key)
            store.carry_out(Compact(store.machine.revision))
            nursery.start_soon(wait)
            await trio.sleep(10)
            assert lost.is_set() == is_removed
            await store.client().delete(leadership.key)
            await lost.wait()


async def test_observers_are_told_of_vacancies_if_they_ask_for_them(autojump_clock: trio.testing.MockClock) -> None:
    async with SimulatedStore() as store, trio.open_nursery() as nursery:
        seen: list[bytes | None] = []

        async def observe() -> None:
            async with store.client().election("boss").observe(vacancies=True) as leaders:
                async for leader in leaders:
                    seen.append(leader.value if leader is not None else None)

        nursery.start_soon(observe)
        await trio.sleep(1)
        for name in ("a", "b"):
            async with store.client().election("boss") as election:
                await election.campaign(name)
                await trio.sleep(1)
            await trio.sleep(1)
        nursery.cancel_scope.cancel()

    assert seen == [None, b"a", None, b"b", None]
