"""The copies that a leader knows: how far the voters' durable logs go, and which voters are in sync.

See docs/reference/specification.md#67-members-in-sync.
"""

from __future__ import annotations

from raft.core.in_sync import Copies
from tests.raft.support.core_cluster import Group, adding, promoting, removing
from tests.raft.support.core_fixture import CONFIG


def copies_of(group: Group) -> Copies:
    copies = group.leader.core.copies()
    assert copies is not None
    return copies


def beat(group: Group, milliseconds: int) -> None:
    """Let this much time pass, with a heartbeat at each interval."""
    for _ in range(milliseconds * 1_000_000 // CONFIG.heartbeat_interval_ns):
        group.heartbeat()


def test_only_a_leader_knows_copies() -> None:
    group = Group(["s1", "s2", "s3"])
    assert copies_of(group).in_sync_ids == ("s1", "s2", "s3")
    assert group["s2"].core.copies() is None


def test_the_own_copy_ends_at_the_last_durable_entry() -> None:
    """An entry that the leader has appended but not synced is on no disk."""
    group = Group(["s1", "s2", "s3"])
    group.run()
    durable_index = group.leader.core.durable_index
    group.leader.propose("not synced")
    assert dict(copies_of(group).positions)["s1"] == durable_index < group.leader.core.last_index


def test_a_learner_is_no_copy_until_it_is_a_voter() -> None:
    group = Group(["s1", "s2", "s3"], ["s4"])
    group.change(adding("s4"))
    group.run()
    beat(group, 200)
    assert [node_id for node_id, _ in copies_of(group).positions] == ["s1", "s2", "s3"]

    group.change(promoting("s4"))
    group.run()
    beat(group, 200)
    assert copies_of(group).in_sync_ids == ("s1", "s2", "s3", "s4")


def test_while_the_configuration_is_joint_the_voters_of_both_halves_count() -> None:
    group = Group(["s1", "s2", "s3"], ["s4", "s5"])
    group.change(adding("s4", "s5"))
    group.run()
    beat(group, 200)
    group.silent = {"s4", "s5"}
    group.change(promoting("s4", "s5"))
    assert [node_id for node_id, _ in copies_of(group).positions] == ["s1", "s2", "s3", "s4", "s5"]


def test_a_removed_voter_is_waited_for_no_longer() -> None:
    group = Group(["s1", "s2", "s3"])
    group.silent = {"s3"}
    group.leader.propose("held by two")
    group.run()
    index = group.leader.core.last_index
    assert copies_of(group).in_sync_index < index

    group.change(removing("s3"))
    group.run()
    assert copies_of(group).in_sync_ids == ("s1", "s2")
    assert copies_of(group).in_sync_index >= index


def test_a_new_leader_waits_for_voters_of_which_it_has_not_heard() -> None:
    group = Group(["s1", "s2", "s3"])
    group.silent = {"s3"}
    group.leader.core.transfer_leadership("s2")
    group.leader.flush()
    group.run()
    assert group.leader is group["s2"]
    group.leader.propose("held by two")
    group.run()
    assert copies_of(group).in_sync_ids == ("s1", "s2", "s3")
    assert copies_of(group).in_sync_index < group.leader.core.last_index

    beat(group, 2 * CONFIG.in_sync_lag_ns_max // 1_000_000)
    assert copies_of(group).in_sync_ids == ("s1", "s2")
    assert copies_of(group).in_sync_index == group.leader.core.last_index
