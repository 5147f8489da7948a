"""Members that are started by name: which of them may begin a cluster, and which changes give a member the place of its
name.

The random runs play the changes on the real configurations of the engine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from random import Random

import pytest

from kvstore.member.named import NamedConfig, Waiting, next_change
from kvstore.member.survey import Begin, Finding, Found, Join, decide
from kvstore.protocol.membership import Membership, MemberView
from kvstore.server.status import part_of
from raft import Configuration, InvalidConfiguration, Member, MembershipChange, name_of
from raft.membership.change import begin_change, leave_joint

HERE, THERE = b"h" * 16, b"t" * 16
NAMES = ("s-0", "s-1", "s-2")
ENDPOINTS = tuple(f"{name}:7101" for name in NAMES)


def named(name: str = "s-0", *, begin_with: int = 3, cluster_id: bytes = b"") -> NamedConfig:
    return NamedConfig(
        name=name,
        peer_address=f"{name}:7001",
        client_address=f"{name}:7101",
        endpoints=ENDPOINTS,
        begin_with=begin_with,
        cluster_id=cluster_id,
    )


def cluster(place: int, cluster_id: bytes = HERE) -> Found:
    return Found(ENDPOINTS[place], Finding.CLUSTER, cluster_id)


def blank(place: int) -> Found:
    return Found(ENDPOINTS[place], Finding.BLANK)


def silent(place: int) -> Found:
    return Found(ENDPOINTS[place], Finding.SILENT)


def absent(place: int) -> Found:
    return Found(ENDPOINTS[place], Finding.ABSENT)


def test_the_first_name_begins_a_cluster_when_enough_others_have_no_data() -> None:
    assert decide(named(), [blank(1), blank(2)]) == Begin()
    assert decide(named(begin_with=2), [blank(1), absent(2)]) == Begin()
    assert decide(named(begin_with=1), [absent(1), absent(2)]) == Begin()


@pytest.mark.parametrize(
    ("who", "found", "words"),
    [
        (named(), [blank(1), absent(2)], "2 of 3 members without data are here"),
        (named(), [blank(1), silent(2)], "s-2:7101 may belong to a cluster"),
        (named(begin_with=1), [absent(1), silent(2)], "s-2:7101 may belong to a cluster"),
        (named("s-1"), [blank(0), blank(2)], "only s-0:7101 may begin one"),
        (named(begin_with=0), [blank(1), blank(2)], "--begin-with is not given"),
        (named(cluster_id=HERE), [blank(1), blank(2)], "--cluster-id allows no other one"),
        (named(cluster_id=HERE), [cluster(1, THERE), blank(2)], "--cluster-id allows no other one"),
        (named(), [cluster(1, HERE), cluster(2, THERE)], "members of the clusters 6868.* and 7474.* answer"),
    ],
)
def test_no_cluster_begins_where_one_may_exist(who: NamedConfig, found: list[Found], words: str) -> None:
    """Silence is not absence: a member that does not answer may have the data of a cluster."""
    decision = decide(who, found)
    assert isinstance(decision, Waiting)
    assert re.search(words, decision.reason), decision.reason


def test_a_cluster_that_one_member_belongs_to_is_joined() -> None:
    assert decide(named(begin_with=1), [cluster(1), silent(2)]) == Join(HERE)
    assert decide(named("s-1"), [blank(0), cluster(2)]) == Join(HERE)
    assert decide(named(cluster_id=THERE), [cluster(1), cluster(2, THERE)]) == Join(THERE)


def test_the_options_of_a_name_are_checked() -> None:
    with pytest.raises(InvalidConfiguration, match="is not in the list"):
        NamedConfig(name="s-9", peer_address="a:1", client_address="a:2", endpoints=ENDPOINTS, begin_with=1)
    with pytest.raises(InvalidConfiguration, match="begins with 1 to 3 members of the list, not 4"):
        named(begin_with=4)
    with pytest.raises(InvalidConfiguration, match="ends like an id"):
        named("s-deadbeef")


def membership(configuration: Configuration, heard: set[str], *, is_changing: bool = False) -> Membership:
    """The membership that a leader would report if it hears the members `heard`."""
    views = [
        MemberView(
            node_id=each.node_id,
            part=part_of(configuration, each.node_id),
            peer_address=each.peer_address,
            client_address=each.client_address,
            incarnation_id=b"",
            lag=0,
            is_heard=each.node_id in heard,
        )
        for each in configuration.members
    ]
    return Membership(
        node_id="s-2-00000000",
        cluster_id=HERE,
        leader_id="s-2-00000000",
        term=1,
        is_changing=is_changing,
        members=tuple(views),
        removed=configuration.removed,
    )


def member(name: str, number: int) -> Member:
    return Member(f"{name}-{number:08x}", f"{name}:7001", f"{name}:7101")


THREE = Configuration.of([member(name, 0) for name in NAMES])


def carried_out(configuration: Configuration, change: MembershipChange) -> Configuration:
    made = begin_change(configuration, change)
    return leave_joint(made) if made.is_joint else made


def test_a_lost_voter_is_replaced_in_two_changes_and_no_vote_is_missing_in_between() -> None:
    own, heard = member("s-1", 1), {"s-0-00000000", "s-2-00000000"}
    first = next_change(own, membership(THREE, heard))
    assert first == MembershipChange(add=(own,), update=(Member("s-1-00000000"),))
    added = carried_out(THREE, first)
    assert (added.voter_ids, added.learner_ids) == (THREE.voter_ids, (own.node_id,))

    second = next_change(own, membership(added, heard | {own.node_id}))
    assert second == MembershipChange(promote=(own.node_id,), remove=("s-1-00000000",))
    replaced = carried_out(added, second)
    assert replaced.voters == (member("s-0", 0), own, member("s-2", 0))
    assert next_change(own, membership(replaced, heard | {own.node_id})) is None


def test_a_new_name_is_added_and_gets_a_vote() -> None:
    own = member("s-3", 7)
    first = next_change(own, membership(THREE, set()))
    assert first == MembershipChange(add=(own,))
    added = carried_out(THREE, first)
    assert next_change(own, membership(added, {own.node_id})) == MembershipChange(promote=(own.node_id,))


def test_a_member_that_the_leader_hears_is_not_replaced_by_a_second_process_of_its_name() -> None:
    waiting = next_change(member("s-1", 1), membership(THREE, {"s-1-00000000"}))
    assert isinstance(waiting, Waiting)
    assert "two processes are started under one name" in waiting.reason


def test_a_second_voter_of_one_name_is_left_to_an_operator() -> None:
    two = Configuration.of([*THREE.voters, Member("s-1-00000001", "other:7001", "other:7101")])
    for own in (member("s-1", 0), member("s-1", 2)):
        waiting = next_change(own, membership(two, set()))
        assert isinstance(waiting, Waiting), own
        assert "`hwm member remove` the one that is gone" in waiting.reason


def test_a_removed_member_changes_nothing_and_a_change_under_way_is_waited_for() -> None:
    own = member("s-1", 1)
    gone = Configuration(voters=THREE.voters, removed=(own.node_id,))
    assert next_change(own, membership(gone, set())) is None
    assert next_change(own, membership(THREE, set(), is_changing=True)) == Waiting(
        "another change of the members is under way"
    )


def test_a_voter_whose_folder_returns_takes_its_addresses_back_from_the_learner_that_was_to_replace_it() -> None:
    """The learner has no vote yet, so the old folder still has its vote."""
    old, new = member("s-1", 0), member("s-1", 1)
    first = next_change(new, membership(THREE, set()))
    assert isinstance(first, MembershipChange)
    halfway = carried_out(THREE, first)

    back = next_change(old, membership(halfway, {old.node_id}))
    assert back == MembershipChange(remove=(new.node_id,), update=(old,))
    after = carried_out(halfway, back)
    assert (after.voters, after.learners, after.removed) == (THREE.voters, (), (new.node_id,))


def stepped(running: Mapping[str, Member], name: str, configuration: Configuration) -> Configuration:
    """Let the process of this name make its next change, if there is one. `running`: the members that run, by name."""
    heard = {each.node_id for each in running.values()}
    change = next_change(running[name], membership(configuration, heard))
    if not isinstance(change, MembershipChange):
        return configuration
    assert not heard & set(change.remove), change
    return carried_out(configuration, change)


def test_whatever_folders_are_lost_and_return_no_name_has_two_votes_and_no_vote_is_lost() -> None:
    """Each name has one process at a time. This process runs on its present folder, on a new folder, or on an older
    folder that has returned. After these random changes, each name has one member, with its vote and its addresses."""
    ends = set[tuple[str, ...]]()
    for seed in range(300):
        random = Random(seed)
        configuration, folders = THREE, {name: [member(name, 0)] for name in NAMES}
        running = {name: folders[name][0] for name in NAMES}

        for _ in range(20):
            name = random.choice(NAMES)
            fate = random.random()
            if fate < 0.2:
                folders[name].append(member(name, len(folders[name])))
                running[name] = folders[name][-1]
            elif fate < 0.3:
                running[name] = random.choice(folders[name])
            configuration = stepped(running, name, configuration)
            assert sorted(map(name_of, configuration.voter_ids)) == list(NAMES), (seed, configuration)
            assert len(configuration.learners) <= len(NAMES)
        for name in NAMES:
            if running[name].node_id in configuration.removed:  # Its process ends: the volume is emptied.
                folders[name].append(member(name, len(folders[name])))
                running[name] = folders[name][-1]
            for _ in range(3):
                configuration = stepped(running, name, configuration)
        assert configuration.voters == tuple(sorted(running.values())), (seed, configuration)
        assert not configuration.learners, (seed, configuration)
        ends.add(configuration.voter_ids)
    assert len(ends) > 20
