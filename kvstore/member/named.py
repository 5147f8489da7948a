"""Members that are started by name: their configuration, and the membership changes by which such a member takes the
place of its name.

A name is not an id. Each data folder gets an id of its own (`raft.membership.names`). The *place* of a name is a vote,
which at most one member of this name has at a time.

See docs/adr/0058-a-name-is-not-an-id.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvstore.access.credentials import Credentials
from kvstore.member.joining import JoinConfig
from kvstore.protocol.membership import LEARNER, VOTER, Membership, MemberView
from kvstore.tls import Tls
from raft import MEMBERS_MAX, InvalidConfiguration, Member, MembershipChange, check_name, name_of


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedConfig:
    """The configuration of a member that is started by name. Raises InvalidConfiguration.

    `peer_address`, `client_address`: the addresses at which peers and clients reach the member of this name, whatever
    its id. `endpoints`: the client addresses of all names that exist or may exist later. Every name is started with the
    same list, and only the first name in the list may begin a cluster. `begin_with`: the number of names (including
    this one) that must be found without data before this member begins a cluster; 0: it never begins a cluster.
    `cluster_id`: the id of the only cluster that the member may join (16 bytes); a member with such an id never begins
    a cluster. Empty: any cluster. `tls`: the certificates for connections to client ports; None: without TLS.
    `credentials`: a user with the role root, if authentication is on.
    """

    name: str
    peer_address: str
    client_address: str
    endpoints: tuple[str, ...]
    begin_with: int = 0
    cluster_id: bytes = b""
    tls: Tls | None = None
    credentials: Credentials | None = None

    def __post_init__(self) -> None:
        check_name(self.name)
        if not self.endpoints:
            raise InvalidConfiguration(f"{self.name} is given the client addresses of all members, itself included")
        if self.begin_with and self.client_address not in self.endpoints:
            raise InvalidConfiguration(
                f"{self.client_address}, the client address of {self.name}, is not in the list "
                f"{', '.join(self.endpoints)}: who may begin a cluster is known by its place in the list"
            )
        if not 0 <= self.begin_with <= min(len(self.endpoints), MEMBERS_MAX):
            raise InvalidConfiguration(
                f"a cluster begins with 1 to {min(len(self.endpoints), MEMBERS_MAX)} members of the list, "
                f"not {self.begin_with}"
            )

    @property
    def others(self) -> tuple[str, ...]:
        """The client addresses of all other names."""
        return tuple(address for address in self.endpoints if address != self.client_address)

    @property
    def may_begin(self) -> bool:
        """True if this name may begin a cluster, provided that there is none."""
        return bool(self.begin_with) and not self.cluster_id and self.endpoints[0] == self.client_address

    def member(self, node_id: str) -> Member:
        """Return the member of this name with the id `node_id`."""
        return Member(node_id, self.peer_address, self.client_address)

    def joining(self, node_id: str, cluster_id: bytes) -> JoinConfig:
        """Return the configuration with which the member `node_id` joins a cluster that was found."""
        return JoinConfig(
            own=self.member(node_id),
            endpoints=self.others,
            cluster_id=cluster_id,
            tls=self.tls,
            credentials=self.credentials,
        )


@dataclass(frozen=True, slots=True)
class Waiting:
    """No change is made now. `reason` is a sentence for the log."""

    reason: str


def next_change(own: Member, now: Membership) -> MembershipChange | Waiting | None:
    """Return the next change towards the goal of a named member: `own` is a voter with these addresses, and no other
    member has its name. None: the goal is reached, or this member was removed.

    `now` is the membership as the leader knows it. If no voter has the name yet, the promotion of `own` adds a voter.
    Every other change keeps the number of voters. A member of the same name that the leader hears is never replaced.
    """
    others = [each for each in now.members if each.node_id != own.node_id and _has_same_name(each, own)]
    voters = [each for each in others if each.part != LEARNER]
    me = now.member(own.node_id)
    if own.node_id in now.removed:
        return None
    if now.is_changing:
        return Waiting("another change of the members is under way")
    alive = next((each for each in others if each.is_heard), None)
    if alive is not None:
        return Waiting(
            f"{alive.node_id} has the same name and answers {now.node_id}, which leads: two processes are started "
            "under one name, so stop one of them"
        )
    is_voter = me is not None and me.part == VOTER
    if len(voters) + is_voter > 1:
        names = ", ".join(each.node_id for each in voters)
        return Waiting(f"{names} has the same name and a vote, too: `hwm member remove` the one that is gone")
    other_ids = tuple(each.node_id for each in others)
    if me is None:
        # Two members never have the same address. So the former voter loses its addresses now, and its vote only when
        # it is replaced.
        without_address = tuple(Member(each.node_id) for each in voters if _addresses(each) != ("", ""))
        learners = tuple(each.node_id for each in others if each.part == LEARNER)
        return MembershipChange(add=(own,), remove=learners, update=without_address)
    update = (own,) if _addresses(me) != (own.peer_address, own.client_address) else ()
    if is_voter and not other_ids and not update:
        return None
    return MembershipChange(promote=() if is_voter else (own.node_id,), remove=other_ids, update=update)


def _has_same_name(view: MemberView, own: Member) -> bool:
    return name_of(view.node_id) == name_of(own.node_id)


def _addresses(view: MemberView) -> tuple[str, str]:
    return view.peer_address, view.client_address
