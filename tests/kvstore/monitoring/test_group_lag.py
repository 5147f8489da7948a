"""The lag of consumer groups as a member sees it, in revisions and in time."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from kvstore.limits import SECOND_NS
from kvstore.monitoring import group_lag
from kvstore.monitoring.group_lag import MARKS_MAX, GroupLag, GroupLook, RevisionTimes
from kvstore.protocol.commands import Compact
from tests.kvstore.support.simulated_store import SimulatedStore


def test_the_age_of_a_revision_counts_from_the_first_time_at_which_it_was_seen() -> None:
    times = RevisionTimes()
    for second, revision in ((0, 5), (10, 5), (20, 8), (20.5, 9), (30, 12)):
        times.note(int(second * SECOND_NS), revision)
    assert [times.age_ns(revision, 31 * SECOND_NS) // SECOND_NS for revision in (1, 5, 6, 8, 9, 12, 13)] == [
        31, 31, 11, 11, 1, 1, 0,
    ]  # fmt: skip


def test_the_noted_times_are_bounded_and_become_sparser() -> None:
    times = RevisionTimes()
    seconds = 20 * MARKS_MAX
    for second in range(seconds):
        times.note(second * SECOND_NS, second + 1)
    assert len(times._marks) <= MARKS_MAX
    now_ns = seconds * SECOND_NS
    for revision in range(1, seconds, 997):
        true_age = seconds - (revision - 1)
        assert 0 <= true_age - times.age_ns(revision, now_ns) / SECOND_NS <= 64
    assert times.age_ns(1, now_ns) == now_ns


class Looking:
    """A store in which the time of each revision is noted every second."""

    def __init__(self, store: SimulatedStore) -> None:
        self.store, self.times = store, RevisionTimes()

    async def run(self) -> None:
        while True:
            self.times.note(self.store.leader_time(), self.store.machine.revision)
            await trio.sleep(1)

    def lags(self) -> dict[bytes, GroupLag]:
        look = GroupLook(self.store.machine, self.times, self.store.leader_time())
        return {lag.group: lag for lag in look.lags()}


async def test_a_group_is_behind_for_as_long_as_its_oldest_change_waits(autojump_clock: trio.testing.MockClock) -> None:
    async with SimulatedStore() as store, trio.open_nursery() as nursery:
        looking = Looking(store)
        nursery.start_soon(looking.run)
        assert looking.lags() == {}
        async with store.client().consume("log/", group="g") as consumer:
            await trio.sleep(50)
            assert looking.lags()[b"g"].seconds == 0
            await store.client().put("other", "x")
            await trio.sleep(50)
            lag = looking.lags()[b"g"]
            assert (lag.seconds, lag.revisions) == (0, store.machine.revision - consumer.position)
            await store.client().append("log/", "a")
            await trio.sleep(50)
            await store.client().append("log/", "b")
            await trio.sleep(50)
            assert looking.lags()[b"g"].seconds == pytest.approx(100, abs=2)
            await (await anext(consumer)).commit()
            assert looking.lags()[b"g"].seconds == pytest.approx(50, abs=2)
            await (await anext(consumer)).commit()
            assert looking.lags()[b"g"] == GroupLag(b"g", 2, 0.0)  # Both commits are after the second record.
        nursery.cancel_scope.cancel()


async def test_what_a_look_does_not_know_makes_the_lag_greater_and_not_less(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Either the history has forgotten changes, or too many changes would have to be examined."""
    async with SimulatedStore() as store, trio.open_nursery() as nursery:
        looking = Looking(store)
        nursery.start_soon(looking.run)
        async with store.client().consume("log/", group="g"):
            for _ in range(20):
                revision = (await store.client().put("other", "x")).revision
                await trio.sleep(10)
            assert looking.lags()[b"g"].seconds == 0
            monkeypatch.setattr(group_lag, "EVENTS_MAX", 5)
            assert 100 < looking.lags()[b"g"].seconds < 200
            await store.client().execute(Compact(revision))
            assert looking.lags()[b"g"].seconds == pytest.approx(200, abs=3)
        nursery.cancel_scope.cancel()


async def test_the_groups_of_a_look_are_bounded_and_other_keys_are_left_out(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_lag, "GROUPS_MAX", 3)
    async with SimulatedStore() as store:
        for key in ("consumers/a/about", "consumers/a/positions/0000", "consumers/", "consumers/loose"):
            await store.client().put(key, "mine")
        for group in ("b", "c"):
            async with store.client().consume("log/", group=group):
                pass
        look = GroupLook(store.machine, RevisionTimes(), store.leader_time())
        assert [lag.group for lag in look.lags()] == [b"b"]
        assert look.omitted
