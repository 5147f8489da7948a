"""A membership change: the request, the configurations it leads to, and the changes that are refused (thesis §4).

Voters always change through a joint configuration, one or many at a time, so there is only one procedure to prove.
Adding or removing learners and changing addresses take one step, because they change no majority.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from raft.errors import ChangeRefusal, ChangeRefused
from raft.membership.configuration import MEMBERS_MAX, REMOVED_IDS_MAX, Configuration, Member


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipChange:
    """One request, with everything that changes at once. To replace a voter, add the new member; when it has caught up,
    request `MembershipChange(promote=("new",), remove=("old",))`."""

    add: tuple[Member, ...] = ()
    """New members, as learners: a member first gets the log, then a vote (thesis §4.2.1)."""
    promote: tuple[str, ...] = ()
    """Learners that become voters."""
    remove: tuple[str, ...] = ()
    """Removed members, voters or learners; their ids are never used again."""
    update: tuple[Member, ...] = ()
    """Members with new addresses, and with their incarnations where the configuration does not name them yet."""


def begin_change(configuration: Configuration, change: MembershipChange) -> Configuration:
    """The first configuration of `change`: joint if the voters change, else final. Raises ChangeRefused.

    `configuration` is not joint.
    """
    assert not configuration.is_joint, configuration
    _check(configuration, change)
    updates = {member.node_id: _updated(configuration, member) for member in change.update}
    voters = [updates.get(member.node_id, member) for member in configuration.voters]
    learners = [updates.get(member.node_id, member) for member in configuration.learners]
    new_voters = sorted(
        [member for member in voters if member.node_id not in change.remove]
        + [member for member in learners if member.node_id in change.promote]
    )
    new_learners = [member for member in learners if member.node_id not in (*change.remove, *change.promote)]
    removed_learners = [member.node_id for member in learners if member.node_id in change.remove]
    if not new_voters:
        raise ChangeRefused(ChangeRefusal.LAST_VOTER, "a cluster needs a voter, and this would leave it none")
    made = Configuration(
        voters=tuple(new_voters),
        outgoing=tuple(voters) if new_voters != voters else (),
        learners=tuple(sorted([*new_learners, *change.add])),
        removed=_remembered(configuration.removed, removed_learners),
        lease_ns=configuration.lease_ns,
    )
    if made == configuration:
        raise ChangeRefused(ChangeRefusal.NOTHING, "it would change nothing")
    return made


def naming_new_voters(
    change: MembershipChange, configuration: Configuration, incarnation_of: Callable[[str], bytes]
) -> MembershipChange:
    """Return `change` with the incarnation of each new voter that the proposer has pinned.

    From then on only the data folder with this incarnation is the member, even if other folders used the id while they
    waited to be added. The entry that makes the member a voter also names its incarnation. Until that entry is
    committed, a majority of the earlier voters must agree, too, so a promise of another folder alone decides nothing.
    `incarnation_of` is `Node.pinned_incarnation` of the leader. The pinned folder has acknowledged entries to the
    leader; otherwise the leader refuses the change.
    """
    named = dict[str, Member]()
    for node_id in change.promote:
        known, incarnation_id = configuration.member(node_id), incarnation_of(node_id)
        if known is not None and not known.incarnation_id and incarnation_id:
            named[node_id] = replace(known, incarnation_id=incarnation_id)
    updates = list[Member]()
    for member in change.update:
        heard = named.pop(member.node_id, member).incarnation_id
        updates.append(replace(member, incarnation_id=member.incarnation_id or heard))
    return replace(change, update=(*updates, *named.values()))


def leave_joint(configuration: Configuration) -> Configuration:
    """The configuration that follows a joint one: outgoing voters that do not stay are removed."""
    assert configuration.is_joint, configuration
    gone = [node_id for node_id in configuration.outgoing_ids if node_id not in configuration.voter_ids]
    return replace(configuration, outgoing=(), removed=_remembered(configuration.removed, gone))


def _check(configuration: Configuration, change: MembershipChange) -> None:
    members = [member.node_id for member in configuration.members]
    added = [member.node_id for member in change.add]
    for node_id in added:
        if node_id in members:
            raise ChangeRefused(ChangeRefusal.DUPLICATE, f"{node_id} is a member already")
        if node_id in configuration.removed:
            raise ChangeRefused(
                ChangeRefusal.USED_ID,
                f"{node_id} was a member and was removed; an id is never used again: give the new member another one",
            )
    for node_id in (*change.promote, *change.remove, *(member.node_id for member in change.update)):
        if node_id not in members:
            raise ChangeRefused(
                ChangeRefusal.UNKNOWN_MEMBER, f"{node_id} is no member; there are: {', '.join(members)}"
            )
    for node_id in change.promote:
        if node_id in configuration.voter_ids:
            raise ChangeRefused(ChangeRefusal.DUPLICATE, f"{node_id} is a voter already")
    now = {member.node_id: member.incarnation_id for member in configuration.members}
    for member in change.update:
        if now.get(member.node_id) and member.incarnation_id not in (b"", now[member.node_id]):
            raise ChangeRefused(
                ChangeRefusal.USED_ID,
                f"{member.node_id} is known with another data folder, and would have forgotten what it said: replace "
                "it as a new member with a new node id",
            )
    _check_named_once([*added, *change.promote, *change.remove], "is named twice")
    _check_named_once([member.node_id for member in change.update], "is updated twice")
    if len(members) + len(added) > MEMBERS_MAX:
        raise ChangeRefused(
            ChangeRefusal.TOO_MANY,
            f"that would be {len(members) + len(added)} members at once; the bound is {MEMBERS_MAX}: remove some first",
        )
    updated = [member.node_id for member in change.update]
    others = [member for member in configuration.members if member.node_id not in updated]
    together = (*others, *change.update, *change.add)
    for addresses in ([m.peer_address for m in together], [m.client_address for m in together]):
        _check_named_once(filter(None, addresses), "would be the address of two members")


def _updated(configuration: Configuration, member: Member) -> Member:
    """A member that moves to another address keeps its incarnation."""
    known = configuration.member(member.node_id)
    return replace(member, incarnation_id=member.incarnation_id or (known.incarnation_id if known else b""))


def _check_named_once(words: Iterable[str], problem: str) -> None:
    seen: set[str] = set()
    for word in words:
        if word in seen:
            raise ChangeRefused(ChangeRefusal.DUPLICATE, f"{word} {problem}")
        seen.add(word)


def _remembered(removed: tuple[str, ...], gone: Iterable[str]) -> tuple[str, ...]:
    return (*removed, *gone)[-REMOVED_IDS_MAX:]
