"""Membership changes that clients request: the time of the answer, the name of every refusal, and the recipients of the
answer."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import trio
import trio.testing

from kvstore.client.membership import MemberCalls
from kvstore.errors import ChangeRefused, OperationFailed, OutcomeUnknown, Unavailable
from kvstore.event_loop import TRIO_LOOP
from kvstore.protocol.commands import Get, Put
from kvstore.protocol.membership import (
    Membership,
    MemberView,
    change_request,
    decode_membership,
    membership_request,
    read_change,
)
from kvstore.protocol.messages import Request, RequestKind, Response
from kvstore.server.status import part_of
from raft import ChangeRefusal, Configuration, Member, MembershipChange, ProtocolError, decode_item, encode_item
from raft import ChangeRefused as RefusedByRaft
from raft.membership.change import begin_change, leave_joint
from tests.kvstore.support.in_memory_cluster import SECOND, Cluster, SimClient


def new(node_id: str) -> Member:
    return Member(node_id, f"{node_id}:2", f"{node_id}:1")


def listing(client: SimClient) -> Membership:
    return decode_membership(client.ask(membership_request(of_leader=True)))


def refusal(client: SimClient, change: MembershipChange) -> ChangeRefused:
    with pytest.raises(ChangeRefused) as caught:
        client.ask(change_request(change))
    return caught.value


def a_pair(folder: Path) -> tuple[Cluster, SimClient]:
    cluster = Cluster(folder, 3)
    cluster.leader()
    client = cluster.client()
    client.do(Put(b"a", b"1"))
    return cluster, client


def test_the_leader_says_who_the_members_are_and_how_far_they_lag(tmp_path: Path) -> None:
    """A client may also ask another member, but that member knows only the content of its own log."""
    cluster, client = a_pair(tmp_path)
    leader = cluster.leader()

    now = listing(client)

    assert (now.node_id, now.leader_id, now.is_changing, now.removed) == (leader, leader, False, ())
    assert [(each.node_id, each.part, each.peer_address, each.client_address) for each in now.members] == [
        (node_id, "voter", f"{node_id}:2", f"{node_id}:1") for node_id in ("s1", "s2", "s3")
    ]
    assert {each.incarnation_id for each in now.members} == {
        identity.incarnation_id for identity in cluster.identities.values()
    }
    assert [each.is_heard for each in now.members] == [True] * 3
    assert all(each.lag is not None for each in now.members)

    follower = next(node_id for node_id in cluster.hosts if node_id != leader)
    by_follower = decode_membership(client.ask(membership_request(f"{follower}:1")))
    assert (by_follower.node_id, by_follower.cluster_id) == (follower, now.cluster_id)
    assert [each.lag for each in by_follower.members] == [None] * 3


def test_a_change_is_answered_when_all_of_it_is_committed(tmp_path: Path) -> None:
    """The joint configuration comes first, and then the configuration without the removed member. The answer waits
    until the second configuration is committed."""
    cluster, client = a_pair(tmp_path)
    leader = cluster.hosts[cluster.leader()]
    gone = next(node_id for node_id in cluster.hosts if node_id != leader.node.identity.node_id)
    last_index = leader.node.core.last_index

    response = client.ask(change_request(MembershipChange(remove=(gone,))))

    assert response.fields == (last_index + 2,)
    assert not leader.node.core.committed_configuration.is_joint
    now = listing(client)
    assert (now.removed, now.member(gone), len(now.members)) == ((gone,), None, 2)


def test_a_learner_is_listed_and_its_client_address_reaches_clients(tmp_path: Path) -> None:
    """Clients learn of the learner from the list of members, with which every connection begins."""
    cluster, client = a_pair(tmp_path)

    client.ask(change_request(MembershipChange(add=(new("s4"),))))

    s4 = listing(client).member("s4")
    assert s4 is not None
    assert (s4.part, s4.incarnation_id) == ("learner", b"")
    late = cluster.client()
    late.do(Get(b"a"))
    assert "s4:1" in late.core.addresses


def test_every_refusal_has_its_word(tmp_path: Path) -> None:
    """No refused change has any effect."""
    cluster, client = a_pair(tmp_path)
    client.ask(change_request(MembershipChange(add=(new("s4"),))))
    client.ask(change_request(MembershipChange(remove=("s4",))))
    client.ask(change_request(MembershipChange(add=(new("s5"),))))
    before = listing(client)
    wanted = {
        "duplicate": MembershipChange(add=(Member("s1", "x:1", "x:2"),)),
        "used_id": MembershipChange(add=(new("s4"),)),
        "unknown_member": MembershipChange(remove=("s9",)),
        "last_voter": MembershipChange(remove=("s1", "s2", "s3")),
        "too_many": MembershipChange(add=tuple(new(f"n{number}") for number in range(6))),
        "nothing": MembershipChange(),
        "behind": MembershipChange(promote=("s5",)),
        "invalid": MembershipChange(add=(Member("s6", "s6:0", "s6:1"),)),
    }

    found = {reason: refusal(client, change) for reason, change in wanted.items()}

    assert {reason: refused.reason for reason, refused in found.items()} == {reason: reason for reason in wanted}
    leader = cluster.hosts[cluster.leader()].node.core
    assert found["behind"].lag == leader.last_index
    assert {reason for reason, refused in found.items() if refused.is_passing} == {"behind"}
    assert "s1, s2, s3, s5" in str(found["unknown_member"])
    assert listing(client) == before


def test_a_second_change_waits_for_the_first(tmp_path: Path) -> None:
    """Only one change may be open at a time. While two absent members delay the first change, the second change is
    refused as `pending`."""
    cluster, client = a_pair(tmp_path)
    leader = cluster.leader()
    others = [node_id for node_id in cluster.hosts if node_id != leader]
    cluster.cut = set(others)
    first = client.submit(change_request(MembershipChange(add=(new("s4"),))))

    second = refusal(client, MembershipChange(add=(new("s5"),)))
    cluster.cut = set()

    assert (second.reason, second.is_passing) == ("pending", True)
    cluster.wait(0.2)
    assert client.ended[first].response is not None


def test_of_the_future_voters_a_majority_must_have_been_heard(tmp_path: Path) -> None:
    """A change that could not be committed is not begun, because an open change blocks all other changes."""
    cluster, client = a_pair(tmp_path)
    leader = cluster.leader()
    cluster.kill(next(node_id for node_id in cluster.hosts if node_id != leader))
    cluster.wait(1.0)
    alive = next(node_id for node_id in cluster.hosts if node_id != cluster.leader())

    assert refusal(client, MembershipChange(remove=(alive,))).reason == "no_quorum"


def test_a_lost_answer_leaves_the_outcome_unknown_and_is_not_sent_again(tmp_path: Path) -> None:
    """A change belongs to no session. The leader dies while the change is in its log, so the outcome is unknown."""
    cluster, client = a_pair(tmp_path)
    leader = cluster.leader()
    cluster.cut = {node_id for node_id in cluster.hosts if node_id != leader}
    ticket = client.submit(change_request(MembershipChange(add=(new("s4"),))))

    cluster.kill(leader)
    cluster.cut = set()

    assert isinstance(client.ended[ticket].error, OutcomeUnknown)
    cluster.leader()
    assert listing(client).member("s4") is None


def test_a_change_goes_to_whoever_leads(tmp_path: Path) -> None:
    """A member that does not lead names the leader. As for a write, the member has certainly done nothing."""
    cluster, client = a_pair(tmp_path)
    cluster.kill(cluster.leader())

    client.ask(change_request(MembershipChange(add=(new("s4"),))), seconds=10)

    assert listing(client).member("s4") is not None


def test_a_removed_leader_answers_and_another_one_leads(tmp_path: Path) -> None:
    """The leader leads until its removal is committed. Then the client continues with the next leader."""
    cluster, client = a_pair(tmp_path)
    old = cluster.leader()

    client.ask(change_request(MembershipChange(remove=(old,))))
    assert cluster.hosts[old].node.is_removed
    cluster.kill(old)
    cluster.wait(2.0)
    client.do(Put(b"b", b"2"), seconds=10)

    assert cluster.leader() != old
    assert listing(client).removed == (old,)


def test_a_store_of_one_that_nobody_can_reach_adds_no_member(tmp_path: Path) -> None:
    """The store has neither an address nor a port for peers, and must get them first. The next change then adds the
    store's address to the list of members."""
    cluster, client = a_pair(tmp_path)
    leader = cluster.hosts[cluster.leader()]
    own_id = leader.node.identity.node_id
    leader.node.propose_change(MembershipChange(update=(Member(own_id, "", f"{own_id}:1"),)), 10_000)
    cluster.settle()

    refused = refusal(client, MembershipChange(add=(new("s4"),)))
    assert (refused.reason, "--listen-peer" in str(refused)) == ("unreachable", True)

    leader.service.cluster.own_peer_address = "10.0.0.1:7001"
    client.ask(change_request(MembershipChange(add=(new("s4"),))))
    own = listing(client).member(own_id)
    assert own is not None
    assert own.peer_address == "10.0.0.1:7001"


@pytest.mark.parametrize(
    "items",
    [
        (),
        ([], [], []),
        ([], [], [], 7),
        ([["s4", "a:1", "b:1"]], [], [], []),
        ([["s4", "a:1", 5, b""]], [], [], []),
        ([], ["s1", 5], [], []),
        ([], "s1", [], []),
        ([["s4", "a:1", "b:1", "text"]], [], [], []),
    ],
)
def test_a_change_of_another_shape_makes_no_sense(items: tuple[object, ...]) -> None:
    """A malformed change closes its connection, but a change with an impossible id or address is refused by name."""
    with pytest.raises((ProtocolError, RefusedByRaft)):
        read_change(items)


@pytest.mark.parametrize("address", ["a:0", "0.0.0.0:7001", "[::]:7001", "a", "a:70000", "a..b:7104"])
def test_an_address_at_which_nobody_would_find_the_member_is_refused_by_name(address: str) -> None:
    for places in ((address, "b:1"), ("b:1", address)):
        with pytest.raises(RefusedByRaft, match=re.escape(address)) as refused:
            read_change(([["s4", *places, b""]], [], [], []))
        assert refused.value.reason is ChangeRefusal.INVALID


def test_a_listing_of_a_newer_member_may_tell_more(tmp_path: Path) -> None:
    """A listing consists of maps with names as keys. This build ignores unknown names."""
    _, client = a_pair(tmp_path)
    response = client.ask(membership_request())
    fields = dict(response.fields[0])
    fields["members"] = [{**each, "mood": "good"} for each in fields["members"]]

    assert decode_membership(response._replace(fields=({**fields, "weather": 1},))) == decode_membership(response)
    with pytest.raises(ProtocolError, match="members"):
        decode_membership(response._replace(fields=({},)))


def test_the_numbers_are_on_wires_already() -> None:
    """Other programs rely on the numbers in docs/reference/specification.md#710-client-requests."""
    assert (RequestKind.CHANGE, RequestKind.MEMBERSHIP) == (8, 9)
    change = MembershipChange(add=(new("s4"),), promote=("s5",), remove=("s1",))
    assert change_request(change) == Request(
        RequestKind.CHANGE, None, ((("s4", "s4:2", "s4:1", b""),), ("s5",), ("s1",), ())
    )
    assert Configuration.of([new("s4")]).members[0].peer_address == "s4:2"


def test_a_client_learns_of_new_members_while_nothing_happens_to_its_leader(tmp_path: Path) -> None:
    """The client asks the leader for the members from time to time. Otherwise it could know no living member after the
    leader has gone."""
    cluster, client = a_pair(tmp_path)
    client.ask(change_request(MembershipChange(add=(new("s4"),))))
    assert "s4:1" not in client.core.addresses

    cluster.wait(client.core.limits.members_refresh_ns / SECOND + 1)
    client.do(Get(b"a"))
    client.do(Get(b"a"))

    assert "s4:1" in client.core.addresses


class Answering(MemberCalls):
    """Members that answer each change as the test demands: with an error, with a word such as `done`, or never
    (None)."""

    loop = TRIO_LOOP

    def __init__(self, *answers: Exception | str | None) -> None:
        self._answers = deque(answers)
        self.is_reached = False

    def learn(self, addresses: Sequence[str]) -> None:
        """Nobody is dialled."""

    async def ask(self, request: Request, deadline_seconds: float | None = None) -> Response:
        if request.kind is RequestKind.MEMBERSHIP:
            await trio.sleep(0.001)
            members = (MemberView(**{**asdict(new("s4")), "part": "learner", "lag": 0, "is_heard": True}),)
            return self._response(asdict(membership_with(members if self.is_reached else ())))
        answer = self._answers.popleft() if len(self._answers) > 1 else self._answers[0]
        if answer is None:
            await trio.sleep_forever()
        if isinstance(answer, Exception):
            raise answer
        self.is_reached = answer == "done"
        return self._response(5)

    def _response(self, field: object) -> Response:
        return Response(request_id=1, code=0, node_id="s1", revision=1, consistency=0, fields=(field,))


def membership_with(members: tuple[MemberView, ...]) -> Membership:
    return Membership(
        node_id="s1", cluster_id=b"", leader_id="s1", term=1, is_changing=False, members=members, removed=()
    )


PENDING, USED, LOST = ChangeRefused("pending", "another"), ChangeRefused("used_id", "s4"), OutcomeUnknown("lost")


@pytest.mark.parametrize(
    ("answers", "ends_with"),
    [
        ((PENDING,), ChangeRefused),
        ((USED,), ChangeRefused),
        ((Unavailable("nobody leads"),), Unavailable),
        ((None,), OutcomeUnknown),
        ((LOST, PENDING), OutcomeUnknown),
        ((LOST, USED), OutcomeUnknown),
        ((LOST, Unavailable("nobody leads")), OutcomeUnknown),
        ((LOST, PENDING, "done"), Membership),
        ((PENDING, "done"), Membership),
    ],
)
async def test_a_goal_says_that_nothing_has_changed_only_if_that_is_certain(
    answers: tuple[Exception | str | None, ...], ends_with: type[object], autojump_clock: trio.testing.MockClock
) -> None:
    """A later change may be refused because an earlier change was carried out, although it was not answered.

    See docs/reference/specification.md#98-changes-of-members.
    """
    ended: object
    try:
        ended = await Answering(*answers).add_member(new("s4"), wait_seconds=2)
    except (OperationFailed, OutcomeUnknown) as error:
        ended = error

    assert type(ended) is ends_with, ended


class Agreed(MemberCalls):
    """Members that agree immediately on every change."""

    loop = TRIO_LOOP

    def __init__(self, configuration: Configuration) -> None:
        self.configuration = configuration

    def learn(self, addresses: Sequence[str]) -> None:
        """Nobody is dialled."""

    async def ask(self, request: Request, deadline_seconds: float | None = None) -> Response:
        field: object = 5
        if request.kind is RequestKind.CHANGE:
            made = begin_change(self.configuration, read_change(decode_item(encode_item(list(request.items)))))
            self.configuration = leave_joint(made) if made.is_joint else made
        else:
            now = self.configuration
            parts = {each: part_of(now, each.node_id) for each in now.members}
            views = (MemberView(**asdict(each), part=part, lag=0, is_heard=True) for each, part in parts.items())
            field = asdict(replace(membership_with(tuple(views)), removed=now.removed))
        return Response(request_id=1, code=0, node_id="s1", revision=1, consistency=0, fields=(field,))


async def test_a_learner_that_has_replaced_another_stays_one_however_often_it_is_asked_for() -> None:
    """A voter can also be replaced by another voter. Each call can be repeated, because its answer may have been
    lost."""
    members = Agreed(Configuration((new("s1"), new("s2")), (), (new("s3"),)))

    for _ in range(2):
        await members.replace_member("s3", new("s4"))
        assert (members.configuration.voter_ids, members.configuration.learner_ids) == (("s1", "s2"), ("s4",))
    for _ in range(2):
        await members.replace_member("s2", new("s5"))
        assert (members.configuration.voter_ids, members.configuration.learner_ids) == (("s1", "s5"), ("s4",))


@pytest.mark.parametrize(
    ("taker", "words"),
    [(new("s2"), "s2 cannot take its own place"), (Member("s3", "x:1", "x:2"), "s3 is a voter already")],
)
async def test_who_cannot_take_a_place_leaves_it_to_who_has_it(taker: Member, words: str) -> None:
    """s2 cannot replace itself, because a removed id can never be used again. s3 with other addresses cannot replace
    s2, because s3 is already a voter."""
    members = Agreed(Configuration((new("s1"), new("s2"), new("s3"))))

    with pytest.raises((ChangeRefused, RefusedByRaft), match=words):
        await members.replace_member("s2", taker, wait_seconds=1.0)

    assert members.configuration.voter_ids == ("s1", "s2", "s3")


async def test_a_voter_does_not_take_a_second_place() -> None:
    """Such a replacement would only remove a member, so four of five voters would be left. An operator who wants this
    result removes the member."""
    voters = tuple(new(f"s{number}") for number in range(1, 6))
    members = Agreed(Configuration(voters))

    with pytest.raises(ChangeRefused) as caught:
        await members.replace_member("s4", new("s5"))

    assert caught.value.reason == "duplicate"
    assert "`hwm member remove s4`" in caught.value.hint
    assert members.configuration == Configuration(voters)


class Interrupted(Exception):
    """This error interrupts the caller of a change."""


class Interrupting(Agreed):
    """A cluster whose caller ends before it gets the answer to its change number `at`. If `is_lost` is true, this
    change never arrives; otherwise it is carried out."""

    def __init__(self, configuration: Configuration, at: int, *, is_lost: bool) -> None:
        super().__init__(configuration)
        self._left, self._is_lost = at, is_lost

    async def ask(self, request: Request, deadline_seconds: float | None = None) -> Response:
        if request.kind is not RequestKind.CHANGE:
            return await super().ask(request, deadline_seconds)
        self._left -= 1
        if self._left != 0:
            return await super().ask(request, deadline_seconds)
        if not self._is_lost:
            await super().ask(request, deadline_seconds)
        raise Interrupted


@pytest.mark.parametrize("is_lost", [True, False])
@pytest.mark.parametrize("at", [1, 2])
@pytest.mark.parametrize("old_id", ["s2", "s3"])
async def test_a_replacement_that_was_interrupted_anywhere_is_finished_by_the_same_call(
    old_id: str, at: int, is_lost: bool
) -> None:
    """The replaced member is a voter (s2) or a learner (s3)."""
    members = Interrupting(Configuration((new("s1"), new("s2")), (), (new("s3"),)), at, is_lost=is_lost)

    with pytest.raises(Interrupted):
        await members.replace_member(old_id, new("s4"))
    await members.replace_member(old_id, new("s4"))

    found = members.configuration
    voter_ids, learner_ids = (("s1", "s4"), ("s3",)) if old_id == "s2" else (("s1", "s2"), ("s4",))
    assert (found.voter_ids, found.learner_ids, found.removed) == (voter_ids, learner_ids, (old_id,))
