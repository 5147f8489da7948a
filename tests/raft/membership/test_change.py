"""The configurations to which a change leads, forbidden changes, and the encoding of configurations (thesis §4)."""

from __future__ import annotations

import pickle

import pytest

from raft import (
    MEMBERS_MAX,
    ChangeRefusal,
    ChangeRefused,
    Configuration,
    InvalidConfiguration,
    Member,
    MembershipChange,
    derive_cluster_id,
    encode_item,
)
from raft.membership.change import begin_change, leave_joint
from raft.membership.configuration import REMOVED_IDS_MAX
from tests.raft.support.core_cluster import adding, configuration, describe, members, promoting, removing

THREE = configuration(["s1", "s2", "s3"])


# Changes that are made


def test_voters_change_through_a_joint_configuration_always() -> None:
    """Raft §6: one voter and several voters are changed in the same way. The configuration after the joint one has only
    one half."""
    start = configuration(["s1", "s2", "s3"], learners=["s4", "s5"])

    joint = begin_change(start, MembershipChange(promote=("s4",), remove=("s1", "s2")))
    after = leave_joint(joint)

    assert describe(joint) == ("s3 s4", "s1 s2 s3", "s5")
    assert describe(after) == ("s3 s4", "", "s5")
    assert after.removed == ("s1", "s2")


def test_learners_come_and_go_in_one_step() -> None:
    """A change of learners changes no majority."""
    with_two = begin_change(THREE, adding("s5", "s4"))
    with_one = begin_change(with_two, removing("s4"))

    assert describe(with_two) == ("s1 s2 s3", "", "s4 s5")
    assert describe(with_one) == ("s1 s2 s3", "", "s5")
    assert with_one.removed == ("s4",)


def test_a_new_address_needs_no_majority_of_others() -> None:
    """Before a store of one grows, its address becomes one that other members can reach."""
    found = begin_change(configuration(["s1"]), MembershipChange(update=(Member("s1", "a:1", "a:2", b"i" * 16),)))

    assert found == Configuration((Member("s1", "a:1", "a:2", b"i" * 16),))


def test_a_removed_learner_leaves_its_addresses_to_others_at_once_and_a_removed_voter_does_not() -> None:
    """A removed learner is gone with the first entry. A removed voter is a member of the joint configuration."""
    learner = Member("s4", "a:1", "a:2")
    start = Configuration(voters=(Member("s1"), Member("s2", "b:1", "b:2")), learners=(learner,))

    found = begin_change(start, MembershipChange(add=(Member("s5", "a:1", "a:2"),), remove=("s4",)))
    assert (found.learners, found.removed) == ((Member("s5", "a:1", "a:2"),), ("s4",))
    with pytest.raises(ChangeRefused, match="b:1 would be the address of two members"):
        begin_change(start, MembershipChange(add=(Member("s5", "b:1", "b:2"),), remove=("s2",)))


def test_who_moves_keeps_the_incarnation_that_is_known_of_it() -> None:
    """The incarnation in the configuration is binding, also on members that have never met the moved member."""
    start = Configuration((Member("s1", "a:1", "a:2", b"i" * 16),))

    found = begin_change(start, MembershipChange(update=(Member("s1", "b:1", "b:2"),)))

    assert found == Configuration((Member("s1", "b:1", "b:2", b"i" * 16),))


@pytest.mark.parametrize("node_id", ["s2", "s3"])
def test_nobody_comes_back_with_another_data_folder(node_id: str) -> None:
    """With another data folder, a voter has forgotten its votes, and a learner has forgotten its acknowledgements. The
    leader still counts these votes and acknowledgements.

    See docs/reference/specification.md#13-incarnations-and-pins.
    """
    start = Configuration((Member("s1"), Member("s2", "", "", b"a" * 16)), (), (Member("s3", "", "", b"a" * 16),))

    with pytest.raises(ChangeRefused, match="forgotten") as caught:
        begin_change(start, MembershipChange(update=(Member(node_id, "", "", b"b" * 16),)))

    assert caught.value.reason is ChangeRefusal.USED_ID


# Changes that are refused


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (adding("s2"), ChangeRefusal.DUPLICATE),
        (adding("s4"), ChangeRefusal.DUPLICATE),
        (adding("s5", "s5"), ChangeRefusal.DUPLICATE),
        (promoting("s1"), ChangeRefusal.DUPLICATE),
        (MembershipChange(promote=("s4",), remove=("s4",)), ChangeRefusal.DUPLICATE),
        (MembershipChange(add=(Member("s5", "host:1"),)), ChangeRefusal.DUPLICATE),
        (MembershipChange(update=(Member("s1", "host:1"),)), ChangeRefusal.DUPLICATE),
        (adding("s0"), ChangeRefusal.USED_ID),
        (promoting("s9"), ChangeRefusal.UNKNOWN_MEMBER),
        (removing("s9"), ChangeRefusal.UNKNOWN_MEMBER),
        (removing("s1", "s2", "s3"), ChangeRefusal.LAST_VOTER),
        (adding(*(f"new-{n}" for n in range(MEMBERS_MAX - 3))), ChangeRefusal.TOO_MANY),
        (MembershipChange(), ChangeRefusal.NOTHING),
    ],
)
def test_a_change_that_no_cluster_may_make_is_refused_with_its_reason(
    change: MembershipChange, reason: ChangeRefusal
) -> None:
    """Each refusal has a word for programs and a sentence for people. Both survive pickling."""
    start = Configuration(members("s1", "s2", "s3"), (), (Member("s4", "host:1"),), ("s0",))

    with pytest.raises(ChangeRefused) as caught:
        begin_change(start, change)

    assert caught.value.reason is reason
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_voters_may_go_and_others_take_their_place_at_once() -> None:
    """The last voter may be removed if another member becomes a voter in the same change."""
    start = configuration(["s1"], learners=["s2"])

    assert describe(begin_change(start, MembershipChange(promote=("s2",), remove=("s1",)))) == ("s2", "s1", "")


def test_so_many_removed_ids_are_remembered_and_no_more() -> None:
    """The latest REMOVED_IDS_MAX ids are kept."""
    many = [f"old-{n}" for n in range(REMOVED_IDS_MAX)]

    found = begin_change(configuration(["s1"], learners=["s2"], removed=many), removing("s2"))

    assert (found.removed[0], found.removed[-1], len(found.removed)) == ("old-1", "s2", REMOVED_IDS_MAX)


# The encoding of a configuration


def test_voters_alone_are_written_as_ever() -> None:
    """Snapshots on disks contain the bytes of such a configuration, and the cluster's id is computed from these
    bytes."""
    of_old = encode_item([["s1", "a:1", "a:2"], ["s2", "b:1", "b:2"]])
    found = Configuration.decode(of_old)

    assert found == Configuration((Member("s1", "a:1", "a:2"), Member("s2", "b:1", "b:2")))
    assert found.encode() == of_old
    assert derive_cluster_id("token", found).hex() == "99718df73de6a8c08b2c7ad9d9e74ee4"


@pytest.mark.parametrize(
    "found",
    [
        configuration(["s1", "s2"], outgoing=["s2", "s3"], learners=["s4"], removed=["s9", "s0"]),
        configuration(["s1"], learners=["s2"]),
        configuration(["s1"], removed=["s2"]),
        Configuration((Member("s1", "a:1", "a:2", bytes(range(16))),)),
    ],
)
def test_a_configuration_is_read_as_it_was_written(found: Configuration) -> None:
    """Every part of a configuration has one canonical form."""
    assert Configuration.decode(found.encode()) == found


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80",
        encode_item(7),
        encode_item([2]),
        encode_item([3, [["s1", "", "", b"", 1]], []]),
        encode_item([2, [["s1", "", "", b"", 1]], []]),  # This form is not canonical, because a shorter form exists.
        encode_item([2, [["s1", "", "", b"", 5]], []]),
        encode_item([2, [["s1", "", "", b"", 4]], []]),
        encode_item([2, [["s1", "", "", b"", 1], ["s2", "", "", b"", 0]], []]),
        encode_item([2, [["s1", "", "", b"short", 1]], []]),
        encode_item([2, [["s2", "", "", b"", 1], ["s1", "", "", b"", 4]], []]),
        encode_item([2, [["s1", "", "", b"", 1]], ["s1"]]),
        encode_item([2, [["s1", "", "", b"", 1]], ["no id"]]),
        encode_item([2, [["s1", "", "", b"", 1]], [["s1"]]]),
        encode_item([["s1", 1, ""]]),
        encode_item([[f"s{n}", "", ""] for n in range(10)]),
    ],
)
def test_what_is_no_configuration_is_refused(data: bytes) -> None:
    """The whole configuration is refused, no matter which program wrote it."""
    with pytest.raises(InvalidConfiguration):
        Configuration.decode(data)
