"""The voters in sync are chosen by their lag in time, with hysteresis.

See docs/reference/specification.md#67-members-in-sync.
"""

from __future__ import annotations

import pytest

from raft import MILLISECOND_NS as MS
from raft import InvalidConfiguration, RaftConfig
from raft.core.in_sync import Copies, InSyncChange, InSyncPeers
from raft.core.progress import Progress

CONFIG = RaftConfig(heartbeat_interval_ns=50 * MS, in_sync_lag_ns_max=1_000 * MS)
INTERVAL_NS, LAG_NS = CONFIG.heartbeat_interval_ns, CONFIG.in_sync_lag_ns_max


class Measured:
    """A leader's log that grows by one entry each ms, and one peer that lags behind it."""

    def __init__(self, *, is_new_leader: bool = True) -> None:
        self.now = 1_000 * MS
        self.peer = Progress(CONFIG, next_index=1, now=self.now)
        self.in_sync = InSyncPeers(["b"] if is_new_leader else [], CONFIG, self.now, last_index=1_000)
        self.changes: list[InSyncChange] = []

    def run(self, milliseconds: int, *, lag_ms: int | None, is_idle: bool = False) -> None:
        """Let time pass. The peer is `lag_ms` behind; if None, the peer sends nothing."""
        for _ in range(milliseconds * MS // INTERVAL_NS):
            self.now += INTERVAL_NS
            last_index = 1_000 if is_idle else self.now // MS
            if lag_ms is not None:
                match_index = max(self.peer.match_index, last_index - lag_ms)
                self.peer.match_index, self.peer.heard_at = max(0, match_index), self.now
            self.changes += self.in_sync.heartbeat(self.now, last_index, {"b": self.peer})

    @property
    def names(self) -> list[str]:
        return ["joined" if change.has_joined else "left" for change in self.changes]


def test_a_peer_that_always_lags_a_little_stays_in_sync() -> None:
    """Under load, a peer rarely has all entries, so its position is compared with earlier ends of the log."""
    measured = Measured()
    measured.run(10_000, lag_ms=900)
    assert measured.in_sync.is_in_sync("b")
    assert 900 * MS <= measured.in_sync.lag_ns("b", measured.now) <= LAG_NS


def test_a_peer_that_lags_by_more_than_the_bound_leaves() -> None:
    measured = Measured()
    measured.run(10_000, lag_ms=1_100)
    assert measured.names == ["left"]
    assert not measured.in_sync.is_in_sync("b")


@pytest.mark.parametrize("is_idle", [False, True])
def test_a_silent_peer_leaves_after_the_bound_and_not_before(is_idle: bool) -> None:
    """A dead peer of an idle leader lacks no entry, but it is not in sync."""
    measured = Measured()
    measured.run(500, lag_ms=0, is_idle=is_idle)
    measured.run(1_000, lag_ms=None, is_idle=is_idle)
    assert measured.names == []
    measured.run(200, lag_ms=None, is_idle=is_idle)
    assert measured.names == ["left"]


def test_a_peer_joins_again_after_two_heartbeats_with_half_the_lag() -> None:
    measured = Measured()
    measured.run(2_000, lag_ms=None)
    measured.run(50, lag_ms=10)
    assert measured.names == ["left"]
    measured.run(50, lag_ms=10)
    assert measured.names == ["left", "joined"]


def test_the_set_does_not_flap_with_a_lag_near_the_bound() -> None:
    """Hysteresis: a peer that has left joins again only when its lag is at most half of the bound."""
    measured = Measured()
    for _ in range(20):
        measured.run(500, lag_ms=1_200)
        measured.run(500, lag_ms=800)
    assert measured.names == ["left"]
    measured.run(500, lag_ms=300)
    assert measured.names == ["left", "joined"]


def test_a_new_leader_counts_everybody_until_the_bound_has_passed() -> None:
    measured = Measured()
    assert measured.in_sync.is_in_sync("b")
    measured.run(1_000, lag_ms=None)
    assert measured.in_sync.is_in_sync("b")
    measured.run(100, lag_ms=None)
    assert not measured.in_sync.is_in_sync("b")


def test_a_peer_that_is_added_later_must_first_catch_up() -> None:
    measured = Measured(is_new_leader=False)
    measured.run(2_000, lag_ms=None)
    assert not measured.in_sync.is_in_sync("b")
    measured.run(100, lag_ms=0)
    assert measured.names == ["joined"]


def test_a_pause_of_the_leader_counts_as_lag_of_nobody() -> None:
    """If a pause counted, all peers would leave the set after each pause, and join it again."""
    measured = Measured()
    measured.run(1_000, lag_ms=20)
    measured.now += 10_000 * MS
    measured.run(1_000, lag_ms=20)
    assert measured.names == []


def test_a_silent_peer_leaves_even_if_each_tick_comes_late() -> None:
    """The host's clock may have a coarse grain. In this case every interval between two heartbeats looks like a
    pause."""
    measured = Measured()
    ends = measured.now + LAG_NS + 6 * INTERVAL_NS  # Only the first late tick may count as a pause.
    while measured.now < ends:
        measured.now += 3 * INTERVAL_NS
        measured.changes += measured.in_sync.heartbeat(measured.now, 1_000, {"b": measured.peer})
    assert measured.names == ["left"]


def test_a_peer_that_answers_but_stores_nothing_leaves_even_if_each_tick_comes_late() -> None:
    measured = Measured()
    measured.run(100, lag_ms=0)
    ends = measured.now + LAG_NS + 6 * INTERVAL_NS
    while measured.now < ends:
        measured.now += 3 * INTERVAL_NS
        measured.peer.heard_at = measured.now
        measured.changes += measured.in_sync.heartbeat(measured.now, measured.now // MS, {"b": measured.peer})
    assert measured.names == ["left"]


def test_a_healthy_peer_stays_in_sync_if_each_tick_comes_late() -> None:
    measured = Measured()
    for _ in range(100):
        measured.now += 3 * INTERVAL_NS
        measured.changes += measured.in_sync.heartbeat(measured.now, measured.now // MS, {"b": measured.peer})
        measured.peer.match_index, measured.peer.heard_at = measured.now // MS, measured.now
    assert measured.names == []


def test_a_peer_that_is_no_member_any_more_is_forgotten() -> None:
    measured = Measured()
    measured.in_sync.heartbeat(measured.now + INTERVAL_NS, 1_000, {})
    assert not measured.in_sync.is_in_sync("b")


def test_the_notes_are_bounded_by_the_lag() -> None:
    measured = Measured()
    measured.run(20_000, lag_ms=0)
    assert len(measured.in_sync._ends) <= LAG_NS // INTERVAL_NS + 2


def test_an_index_is_in_sync_once_all_members_in_sync_hold_it() -> None:
    copies = Copies((("a", 9), ("b", 7), ("c", 2)), ("a", "b"))
    assert copies.in_sync_index == 7
    assert copies.holders(7) == ("a", "b")
    assert copies.holders(2) == ("a", "b", "c")
    assert copies.holders(8) == ("a",)
    assert [copies.is_held(index) for index in (7, 8)] == [True, False]
    assert Copies((("a", 9),), ()).in_sync_index == 0
    assert Copies((("a", 9),), ()).is_held(10)  # Nobody is in sync, so the leader waits for nobody.


def test_a_bound_below_four_heartbeats_is_refused() -> None:
    """Even a healthy peer has a measured lag of up to two heartbeats."""
    with pytest.raises(InvalidConfiguration, match="in_sync_lag_ns_max"):
        RaftConfig(heartbeat_interval_ns=50 * MS, in_sync_lag_ns_max=199 * MS)
