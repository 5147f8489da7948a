"""Raft Figure 8: why a leader cannot determine commitment using log entries from older terms."""

from __future__ import annotations

from dataclasses import replace

from raft.config import RaftConfig
from raft.protocol.messages import AppendEntries
from raft.types import Role
from tests.conformance.cluster import Cluster

ONE_ENTRY_PER_APPEND = RaftConfig(append_bytes_max=1)


def lead(cluster: Cluster, node_id: str) -> None:
    """Win an election, but send no entry for now."""
    cluster.campaign_only(node_id)
    assert cluster[node_id].core.role is Role.LEADER, cluster[node_id].core


def replicate_entry(cluster: Cluster, index: int, to: str) -> None:
    """Let the leader's appends reach one member until this member holds `index`. Deliver nothing after that."""
    leader = cluster[cluster.leader_id]
    for _ in range(10):
        held = [item for item in cluster.hold_back(lambda *_: True) if item[1] == to or item[0] == to]
        for sender, receiver, message in held:
            if isinstance(message, AppendEntries):
                carried = tuple(entry for entry in message.entries if entry.index <= index)
                message = replace(message, entries=carried)
            cluster.deliver((sender, receiver, message))
        cluster[to].persist()
        if len(cluster.log_of(to)) >= index:
            break
        leader.heartbeat()
    for item in cluster.hold_back(lambda sender, *_: sender == to):
        cluster.deliver(item)  # The member's acknowledgement arrives.
    cluster.hold_back(lambda *_: True)
    assert len(cluster.log_of(to)) == index, cluster.log_of(to)


def until_c() -> Cluster:
    """Stages (a) to (c): entry 2 of term 2 is on s1, s2 and s3; s5 has another entry 2, of term 3."""
    cluster = Cluster({f"s{n}": [1] for n in range(1, 6)}, term=1, config=ONE_ENTRY_PER_APPEND)
    lead(cluster, "s1")  # (a) s1 leads term 2 and replicates entry 2 to s2 only.
    replicate_entry(cluster, 2, to="s2")
    cluster.crash("s1")
    lead(cluster, "s5")  # (b) s5 leads term 3 by the votes of s3 and s4, with an entry 2 of its own.
    assert cluster["s5"].log_terms == [1, 3]
    cluster.crash("s5")
    cluster.restart("s1")
    lead(cluster, "s1")  # (c) s1 leads term 4 and goes on to replicate entry 2.
    assert cluster["s1"].log_terms == [1, 2, 4]
    replicate_entry(cluster, 2, to="s3")
    replicate_entry(cluster, 2, to="s2")
    return cluster


def test_an_old_term_entry_on_a_majority_is_not_committed_by_counting_copies() -> None:
    """Stage (c): entry 2 of term 2 is on s1, s2 and s3, and still not committed."""
    cluster = until_c()

    holders = [node_id for node_id in ("s1", "s2", "s3") if cluster[node_id].log_terms[:2] == [1, 2]]

    assert holders == ["s1", "s2", "s3"]
    assert cluster["s1"].core.commit_index == 0
    assert cluster["s1"].applied_indexes == []


def test_the_entry_may_still_be_overwritten_by_s5() -> None:
    """Stage (d): s1 crashes, s5 wins by the votes of s2, s3 and s4, and overwrites entry 2 of term 2."""
    cluster = until_c()
    cluster.crash("s1")
    cluster.restart("s5")

    cluster.elect("s5")
    cluster.restart("s1")
    cluster.beat()
    cluster.beat()

    for node_id, bench in cluster.members.items():
        assert bench.log_terms == [1, 3, bench.core.term], node_id
        assert bench.core.commit_index == 3, node_id


def test_an_entry_of_its_own_term_on_a_majority_commits_all_before_it() -> None:
    """Stage (e): with its entry 3 of term 4 on a majority, s1 has committed entry 2 too, and s5 cannot win."""
    cluster = until_c()
    replicate_entry(cluster, 3, to="s2")
    assert cluster["s1"].core.commit_index == 0
    replicate_entry(cluster, 3, to="s3")
    assert cluster["s1"].core.commit_index == 3

    cluster.crash("s1")
    cluster.restart("s5")
    cluster.campaign("s5")
    assert cluster["s5"].core.role is not Role.LEADER
    cluster.elect("s2")
    cluster.beat()

    for node_id in ("s2", "s3", "s4", "s5"):
        assert cluster[node_id].log_terms[:3] == [1, 2, 4], node_id
