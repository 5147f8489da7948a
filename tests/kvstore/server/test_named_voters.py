"""A machine waited to be added and then lost its folder. Meanwhile some members met the first folder while there was no
leader.

The entry that makes a learner a voter names the learner's folder. From then on, all members refuse every other folder
of that id. A majority of the earlier voters committed this entry, so promises of another folder do not count.

See docs/reference/specification.md#13-incarnations-and-pins.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from kvstore import Client, Member, open_node
from kvstore.errors import ChangeRefused
from kvstore.member.joining import JoinConfig, JoinRefused, check_may_join, make_joining_folder
from kvstore.protocol.commands import Put
from kvstore.protocol.membership import change_request, decode_membership, membership_request
from kvstore.store.machine import initial_header
from raft import Identity, MembershipChange, PeerRefused
from storage import InlineFiles, create_data_folder, open_data_folder
from storage.ballast import Ballast
from storage.folder.metadata import PinFile
from tests.kvstore.server.test_joining import new_members
from tests.kvstore.support.in_memory_cluster import Cluster, Host

pytestmark = pytest.mark.timeout(60)

S4 = Member("s4", "s4:2", "s4:1")
FIRST, SECOND = b"the first folder", b"the second one.."


def three_and_a_follower_who_has_met_the_first_s4(folder: Path) -> tuple[Cluster, Host]:
    """The follower met s4 while the follower was cut off from its leader. So s4 might have been a member that the
    follower did not know. The follower has restarted since then, so it can no longer tell that s4 was not a member at
    that time."""
    cluster = Cluster(folder, 3)
    leader = cluster.leader()
    follower = next(host for node_id, host in cluster.hosts.items() if node_id != leader)
    cluster.cut = {follower.identity.node_id}
    cluster.wait(2)
    follower.node.peer_hello("s4", FIRST)
    cluster.settle()
    follower_id = follower.identity.node_id
    cluster.kill(follower_id)
    cluster.start(follower_id)
    cluster.cut = set()
    cluster.wait(2)
    return cluster, cluster.hosts[follower_id]


def come_as_the_second_s4(folder: Path, cluster: Cluster, follower: Host) -> None:
    """Start s4 with a new folder after s4 was added. All members except the follower accept the new folder."""
    configuration, cluster_id = follower.node.core.configuration, follower.identity.cluster_id
    identity = Identity(cluster_id=cluster_id, group_id=0, node_id="s4", incarnation_id=SECOND)
    founders = type(configuration)(configuration.voters)
    create_data_folder(folder / "s4", identity=identity, configuration=founders, machine_header=initial_header())
    cluster.identities["s4"] = identity
    away = cluster.hosts.pop(follower.identity.node_id)
    cluster.start("s4")
    cluster.hosts[away.identity.node_id] = away
    cluster.hosts["s4"].node.peer_hello(away.identity.node_id, away.identity.incarnation_id)
    cluster.wait(1)


def test_who_becomes_a_voter_is_heard_by_those_who_have_met_an_earlier_folder_of_its_id(tmp_path: Path) -> None:
    cluster, follower = three_and_a_follower_who_has_met_the_first_s4(tmp_path)
    client = cluster.client()
    client.ask(change_request(MembershipChange(add=(S4,))))
    come_as_the_second_s4(tmp_path, cluster, follower)
    # The follower does not know yet which folder the entry names.
    with pytest.raises(PeerRefused, match="forgotten its votes"):
        follower.node.peer_hello("s4", SECOND)

    client.ask(change_request(MembershipChange(promote=("s4",))))
    cluster.wait(1)

    for node_id, host in cluster.hosts.items():
        named = host.node.core.committed_configuration.member("s4")
        assert named is not None
        assert named.incarnation_id == SECOND
        if node_id != "s4":
            host.node.peer_hello("s4", SECOND)
            with pytest.raises(PeerRefused, match="forgotten its votes"):
                host.node.peer_hello("s4", FIRST)
    client.do(Put(b"by", b"four"))
    assert follower.node.core.committed_configuration.is_voter("s4")
    assert [m.incarnation_id for m in follower.node.core.committed_configuration.members if m != named] == [b""] * 3


def test_who_moves_as_it_becomes_a_voter_is_named_with_its_new_address(tmp_path: Path) -> None:
    """One change may contain both the promotion and the move. A change that updates a member twice is refused."""
    cluster, follower = three_and_a_follower_who_has_met_the_first_s4(tmp_path)
    client, moved = cluster.client(), Member("s4", "s4:3", "s4:1")
    client.ask(change_request(MembershipChange(add=(S4,))))
    come_as_the_second_s4(tmp_path, cluster, follower)

    with pytest.raises(ChangeRefused, match="s4 is updated twice"):
        client.ask(change_request(MembershipChange(promote=("s4",), update=(moved, S4))))
    client.ask(change_request(MembershipChange(promote=("s4",), update=(moved,))))

    named = cluster.hosts[cluster.leader()].node.core.committed_configuration.member("s4")
    assert named == Member("s4", "s4:3", "s4:1", SECOND)


def test_who_was_never_heard_by_the_leader_becomes_no_voter_and_is_not_named(tmp_path: Path) -> None:
    cluster, _ = three_and_a_follower_who_has_met_the_first_s4(tmp_path)
    client = cluster.client()
    client.ask(change_request(MembershipChange(add=(S4,))))

    with pytest.raises(ChangeRefused, match="is silent"):
        client.ask(change_request(MembershipChange(promote=("s4",))))

    assert S4 in cluster.hosts[cluster.leader()].node.core.configuration.learners


def test_a_member_says_what_folder_it_has_met_under_an_id_that_is_no_members(tmp_path: Path) -> None:
    cluster, follower = three_and_a_follower_who_has_met_the_first_s4(tmp_path)
    client, address = cluster.client(), f"{follower.identity.node_id}:1"

    asked = [decode_membership(client.ask(membership_request(address, about=each))) for each in ("s4", "s5", "")]
    of_leader = decode_membership(client.ask(membership_request(of_leader=True, about="s4")))

    assert [found.incarnation_id for found in asked] == [FIRST, b"", b""]
    assert of_leader.incarnation_id == b""
    assert "s4" not in [each.node_id for each in of_leader.members]
    check_may_join(JoinConfig(own=S4, endpoints=(address,)), of_leader)


async def test_who_was_made_anew_and_would_be_refused_by_the_leader_for_ever_is_told_before_it_begins(
    tmp_path: Path,
) -> None:
    """Such a member would become a learner whose messages every member refuses. With another id, the machine is
    accepted."""
    s1, s2, s3 = new_members("s1", "s2", "s3")
    async with open_node(tmp_path / "s1", node_id="s1", members=[s1], bootstrap=True) as store:
        await store.put("key", "value")
    pin(tmp_path / "s1", "s2", FIRST)

    with trio.fail_after(30):
        async with open_node(tmp_path / "s1") as store, Client([s1.client_address]) as client:
            with pytest.raises(JoinRefused, match="the leader, s1, knows s2 with another data folder") as refused:
                await make_joining_folder(tmp_path / "s2", JoinConfig(own=s2, endpoints=(s1.client_address,)))
            assert "another id" in refused.value.hint
            assert not (tmp_path / "s2").exists()
            async with open_node(tmp_path / "s3", node_id="s3", members=[s3], join=(s1.client_address,)):
                now = await client.add_member(s3, promote=True)
                named = now.member("s3")
                assert named is not None
                assert named.part == "voter"


def pin(folder: Path, node_id: str, incarnation_id: bytes) -> None:
    """Pin a folder in the way in which the member itself pins a folder at a hello."""
    held, files, ends = open_data_folder(folder), InlineFiles(folder), list[BaseException | None]()
    PinFile(files, held.identity, Ballast(files, 0)).pin(node_id, incarnation_id, ends.append)
    files.run()
    files.close()
    held.close()
    assert ends == [None]
