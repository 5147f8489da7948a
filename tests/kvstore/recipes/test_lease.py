"""A lease during a block: the time for which its owner may rely on it, and the way in which the owner learns of a
loss."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from kvstore.errors import LeaseLost
from kvstore.protocol.commands import LeaseRenew
from kvstore.recipes.lease import Lease
from kvstore.recipes.lease_term import DRIFT_SHARE_MAX, LeaseTerm
from tests.kvstore.support.simulated_store import SimulatedStore


def test_a_term_counts_from_when_the_answered_renewal_was_sent_and_never_goes_back() -> None:
    term = LeaseTerm(10, sent_at=100)
    assert term.expires_at == pytest.approx(110 - 10 * DRIFT_SHARE_MAX)
    assert term.renew_at == pytest.approx(100 + 10 / 3)

    term.renewed(10, sent_at=104)
    assert term.expires_at == pytest.approx(114 - 10 * DRIFT_SHARE_MAX)

    term.renewed(10, sent_at=101)
    assert term.expires_at == pytest.approx(114 - 10 * DRIFT_SHARE_MAX)
    assert not term.is_over(term.expires_at - 0.001)
    assert term.is_over(term.expires_at)


async def test_a_lease_lives_as_long_as_its_block_and_its_keys_go_with_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with SimulatedStore() as store:
        client = store.client()
        async with client.lease(10) as lease:
            await client.put("a", "1", lease=lease)
            await trio.sleep(1_000)
            lease.check()
            found = await client.lease_time_to_live(lease.id)
            assert found is not None
            assert found.keys == (b"a",)

        assert (await client.get("a")).record is None
        assert not store.machine.leases.by_id
        renewals = [each for each in store.commands if isinstance(each, LeaseRenew)]
        assert 290 <= len(renewals) <= 310  # The lease of 10 s is renewed three times in its time to live.


@pytest.mark.parametrize("seed", range(20))
async def test_an_owner_learns_of_the_loss_before_the_store_ends_the_lease(
    seed: int, autojump_clock: trio.testing.MockClock
) -> None:
    """From some moment on, no message of this client arrives at the store. For any delays, the client gives up its
    lease before the store ends the lease."""
    async with SimulatedStore(seed, delay_seconds=1.0) as store:
        client, other = store.client(), store.client()
        await trio.sleep(store.random.uniform(0, 5))
        held: list[Lease] = []

        async def hold() -> None:
            async with client.lease(6) as lease:
                held.append(lease)
                await client.put("a", "1", lease=lease)
                await trio.sleep(store.random.uniform(0, 30))
                client.pause(1_000)
                await trio.sleep_forever()

        with pytest.raises(LeaseLost) as lost:
            await hold()

        (lease,) = held
        assert lost.value.lease_id == lease.id
        assert lease.lost.is_set()
        assert lease.id in store.machine.leases.by_id
        client.paused_until = 0
        await trio.sleep(8)
        assert lease.id not in store.machine.leases.by_id
        assert (await other.get("a")).record is None


async def test_a_revoked_lease_is_noticed_at_the_next_renewal(autojump_clock: trio.testing.MockClock) -> None:
    async with SimulatedStore() as store:
        client, other = store.client(), store.client()
        began = trio.current_time()

        async def hold() -> None:
            async with client.lease(9) as lease:
                await other.lease_revoke(lease.id)
                await trio.sleep_forever()

        with pytest.raises(LeaseLost, match="there is no lease 1"):
            await hold()
        assert trio.current_time() - began < 3.1


async def test_the_loss_is_a_plain_exception_also_for_a_block_with_a_nursery(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with SimulatedStore() as store:
        client = store.client()

        async def hold() -> None:
            async with client.lease(3) as lease, trio.open_nursery() as nursery:
                nursery.start_soon(trio.sleep_forever)
                nursery.start_soon(trio.sleep_forever)
                await store.client().lease_revoke(lease.id)

        with pytest.raises(LeaseLost):
            await hold()


async def test_an_error_of_the_block_comes_out_as_it_is_and_the_lease_is_revoked(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with SimulatedStore() as store:
        client = store.client()

        async def hold() -> None:
            async with client.lease(3):
                raise KeyError("mine")

        with pytest.raises(KeyError):
            await hold()
        assert not store.machine.leases.by_id


async def test_a_cancelled_block_still_revokes_its_lease(autojump_clock: trio.testing.MockClock) -> None:
    async with SimulatedStore() as store:
        client = store.client()
        with trio.move_on_after(5) as patience:
            async with client.lease(3):
                await trio.sleep_forever()
        assert patience.cancelled_caught
        assert not store.machine.leases.by_id


async def test_a_block_that_ends_after_the_loss_hears_of_it(autojump_clock: trio.testing.MockClock) -> None:
    """The loss is also raised in a block that never waits, because the last steps of this block were no longer under
    the lease."""
    async with SimulatedStore() as store:
        client = store.client()

        async def hold() -> None:
            async with client.lease(3) as lease:
                with trio.CancelScope(shield=True):
                    await store.client().lease_revoke(lease.id)
                    await lease.lost.wait()

        with pytest.raises(LeaseLost):
            await hold()


async def test_check_tells_of_the_loss_before_any_task_had_a_turn(mock_clock: trio.testing.MockClock) -> None:
    """A program that was stopped for a long time checks its lease before it goes on."""
    async with SimulatedStore(delay_seconds=0) as store:
        client = store.client()
        checks = 0

        async def hold() -> None:
            nonlocal checks
            async with client.lease(3) as lease:
                lease.check()
                checks += 1
                mock_clock.jump(3)
                lease.check()
                checks += 1

        with pytest.raises(LeaseLost, match="no renewal was answered in its time to live of 3 s"):
            await hold()
        assert checks == 1


@pytest.mark.parametrize("seed", range(5))
async def test_lost_answers_cost_no_lease(seed: int, autojump_clock: trio.testing.MockClock) -> None:
    """A fifth of the renewals gets no answer in time, but the next renewal comes early enough."""
    async with SimulatedStore(seed) as store:
        async with store.client().lease(60) as lease:
            store.lost_share = 0.2
            await trio.sleep(600)
            lease.check()
            store.lost_share = 0
        assert not store.machine.leases.by_id


async def test_all_leases_of_a_client_are_renewed_by_one_command(autojump_clock: trio.testing.MockClock) -> None:
    """While one renewal is under way, the other renewals wait, and are then sent together."""
    async with SimulatedStore(delay_seconds=0.2) as store, trio.open_nursery() as nursery:
        client = store.client()

        async def hold() -> None:
            async with client.lease(12):
                await trio.sleep(100)

        for _ in range(100):
            nursery.start_soon(hold)
        await trio.sleep(100)
        renewals = [each for each in store.commands if isinstance(each, LeaseRenew)]
        assert sum(len(each.lease_ids) for each in renewals) > 2_000
        assert len(renewals) < 200
