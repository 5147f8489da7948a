"""Raft Figure 7: when the leader at the top comes to power, followers may be in any of the states (a)-(f)."""

from __future__ import annotations

import pytest

from tests.conformance.cluster import Cluster

LEADER = [1, 1, 1, 4, 4, 5, 5, 6, 6, 6]
FOLLOWERS = {
    "a": [1, 1, 1, 4, 4, 5, 5, 6, 6],
    "b": [1, 1, 1, 4],
    "c": [1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 6],
    "d": [1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 7, 7],
    "e": [1, 1, 1, 4, 4, 4, 4],
    "f": [1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3],
}


def the_figure() -> Cluster:
    """The leader has won term 8 by the votes of a, b, e and f. The members c and d refused, because their logs are
    newer than the leader's."""
    cluster = Cluster({"leader": LEADER, **FOLLOWERS}, term=7)
    cluster.elect("leader")
    return cluster


def test_every_follower_of_figure_7_converges() -> None:
    """Raft §5.3: the leader forces the followers' logs to duplicate its own."""
    cluster = the_figure()

    cluster.settle()
    cluster.beat()

    for node_id, bench in cluster.members.items():
        assert bench.log_terms == [*LEADER, 8], node_id
        assert bench.core.commit_index == 11, node_id
        assert bench.applied_indexes == list(range(1, 12)), node_id


def test_the_members_which_have_seen_more_refuse_their_votes() -> None:
    """Raft §5.4.1: c has a longer log with the same last term; d has a later last term."""
    cluster = the_figure()

    refusals = {node_id: cluster[node_id].event_names().count("vote_refused") for node_id in FOLLOWERS}

    assert {node_id for node_id, count in refusals.items() if count} == {"c", "d"}


@pytest.mark.parametrize(("node_id", "rounds_max"), [("a", 1), ("b", 1), ("c", 0), ("d", 0), ("e", 1), ("f", 1)])
def test_backing_up_takes_one_round_per_conflicting_term_at_most(node_id: str, rounds_max: int) -> None:
    """Raft §5.3: "one AppendEntries RPC will be required for each term with conflicting entries". The log of f has two
    such terms."""
    cluster = the_figure()

    cluster.settle()

    assert [sender for sender, _ in cluster.rejections].count(node_id) <= rounds_max
