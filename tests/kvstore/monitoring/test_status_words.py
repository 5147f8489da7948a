"""The words of `hwm status` about the marks: which member holds a mark back, and for which member the log is kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kvstore.cli.cluster.status import of_its_disk, of_its_marks
from kvstore.protocol.status import MemberStatus, PeerView
from kvstore.server.status import status_of
from tests.kvstore.support.in_memory_cluster import Cluster

BACK = "its low-water mark is 10 of 900: held back by "


@pytest.fixture
def held(tmp_path: Path) -> MemberStatus:
    """The status of a leader whose log has the entries 500 to 900. The log is not cut at the snapshot, because one
    member has not applied the log up to the snapshot."""
    host = Cluster(tmp_path, 1).hosts["s1"]
    told = status_of(host.node, host.machine)
    marks = {"first_index": 500, "snapshot_index": 800, "last_applied": 900, "commit_index": 900, "last_index": 900}
    return replace(told, role="leader", low_watermark=10, log_held_by="low_watermark", **marks)  # type: ignore[arg-type]


def holding(held: MemberStatus, *peers: PeerView) -> MemberStatus:
    return replace(held, peers=peers, low_watermark_held_by=tuple(peer.node_id for peer in peers))


def a_peer(node_id: str, state: str, match_index: int) -> PeerView:
    return PeerView(
        node_id=node_id,
        state=state,
        match_index=match_index,
        next_index=match_index + 1,
        last_applied=match_index,
        recent_active=True,
    )


def test_a_log_is_kept_for_those_who_can_go_on_from_it(held: MemberStatus) -> None:
    told = holding(held, a_peer("s2", "replicate", 499), a_peer("s3", "probe", 700))

    assert of_its_marks(told) == [BACK + "s2, s3", "its log, from 500 on, is kept for s2, s3"]


def test_of_those_who_are_sent_a_snapshot_that_is_said(held: MemberStatus) -> None:
    """If a peer is sent a snapshot, the leader's log begins after the last entry of this peer."""
    told = holding(held, a_peer("s2", "snapshot", 10))

    assert of_its_marks(told) == [BACK + "s2", "its log begins at 500, too late for s2: a snapshot is sent instead"]


def test_of_each_that_is_said_which_is_so(held: MemberStatus) -> None:
    """A peer that does not answer probes is not sent a snapshot yet, but will need a snapshot."""
    told = holding(held, a_peer("s2", "probe", 10), a_peer("s3", "replicate", 600), a_peer("s4", "snapshot", 20))

    assert of_its_marks(told) == [
        BACK + "s2, s3, s4",
        "its log, from 500 on, is kept for s3",
        "its log begins at 500, too late for s2, s4: a snapshot is sent instead",
    ]


def test_a_log_that_waits_for_a_snapshot_of_its_own_is_kept_for_nobody(held: MemberStatus) -> None:
    told = replace(holding(held, a_peer("s2", "replicate", 600)), log_held_by="own_snapshot")

    assert of_its_marks(told) == [BACK + "s2"]


def test_what_an_older_member_tells_of_no_peer_is_taken_as_it_is(held: MemberStatus) -> None:
    """The leader itself may hold the low-water mark back, although it is not one of its peers."""
    told = replace(held, low_watermark_held_by=("s1",))

    assert of_its_marks(told) == [BACK + "s1", "its log, from 500 on, is kept for s1"]


@pytest.mark.parametrize(("count", "bound", "is_told"), [(9, 10, False), (10, 10, True), (11, 10, True), (0, 0, False)])
def test_a_member_whose_places_are_all_taken_says_so(held: MemberStatus, count: int, bound: int, is_told: bool) -> None:
    """The status of a member of an older build does not include its bound on clients."""
    told = replace(held, client_connections=count, client_connections_max=bound)

    assert any("places for clients are taken" in word for word in of_its_disk(told)) == is_told
