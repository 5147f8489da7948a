"""A membership change: the request, the configurations that it leads to, and the reasons to refuse it (thesis §4).

Every change of voters, whether of one voter or of many, goes through a joint configuration. So only one procedure needs
a proof of safety. Adding or removing learners and changing addresses need only one step, because they do not change
which sets of voters are majorities.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from raft.errors import ChangeRefusal, ChangeRefused
from raft.membership.configuration import MEMBERS_MAX, REMOVED_IDS_MAX, Configuration, Member


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipChange:
    """One request, whose parts take effect together. To replace a voter, first add the new member. Once the new member
    has caught up, request `MembershipChange(promote=("new",), remove=("old",))`."""

    add: tuple[Member, ...] = ()
    """New members, which begin as learners: a member must have the log before it gets a vote (thesis §4.2.1)."""
    promote: tuple[str, ...] = ()
    """Learners that become voters."""
    remove: tuple[str, ...] = ()
    """Voters or learners that are removed. Their ids are never used again."""
    update: tuple[Member, ...] = ()
    """Members whose addresses change, or members whose incarnation is not in the configuration yet."""


def begin_change(configuration: Configuration, change: MembershipChange) -> Configuration:
    """The first configuration of `change`: joint if the voters change, otherwise final. Raises ChangeRefused.

    `configuration` must not be joint.
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
        raise ChangeRefused(ChangeRefusal.LAST_VOTER, "a cluster needs a voter, and this change would leave none")
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
    """Return `change` with the incarnation of each new voter, taken from the leader's pins.

    The entry that makes a member a voter then also names its incarnation. Once this entry is in the log, only the data
    folder with this incarnation counts as the member, even if another folder used the same id before. Until the entry
    is committed, each decision also needs a majority of the earlier voters, so votes and acknowledgements from another
    folder cannot decide anything alone. The leader refuses the change unless the pinned folder has acknowledged nearly
    all entries. `incarnation_of` is `Node.pinned_incarnation` of the leader.
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
    """The configuration that follows a joint one. Outgoing voters that are not voters in the new configuration are
    removed."""
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
                ChangeRefusal.UNKNOWN_MEMBER, f"{node_id} is not a member; the members are: {', '.join(members)}"
            )
    for node_id in change.promote:
        if node_id in configuration.voter_ids:
            raise ChangeRefused(ChangeRefusal.DUPLICATE, f"{node_id} is a voter already")
    now = {member.node_id: member.incarnation_id for member in configuration.members}
    for member in change.update:
        if now.get(member.node_id) and member.incarnation_id not in (b"", now[member.node_id]):
            raise ChangeRefused(
                ChangeRefusal.USED_ID,
                f"{member.node_id} is known with another data folder, so it has forgotten its votes: replace it by a "
                "new member with a new node id",
            )
    _check_named_once([*added, *change.promote, *change.remove], "is named twice")
    _check_named_once([member.node_id for member in change.update], "is updated twice")
    if len(members) + len(added) > MEMBERS_MAX:
        raise ChangeRefused(
            ChangeRefusal.TOO_MANY,
            f"that would be {len(members) + len(added)} members at once; the bound is {MEMBERS_MAX}: remove some first",
        )
    updated = [member.node_id for member in change.update]
    # Removed voters stay in the joint configuration, but removed learners are gone with the first entry.
    gone = {*change.remove}.intersection(configuration.learner_ids)
    others = [member for member in configuration.members if member.node_id not in (*updated, *gone)]
    together = (*others, *change.update, *change.add)
    for addresses in ([m.peer_address for m in together], [m.client_address for m in together]):
        _check_named_once(filter(None, addresses), "would be the address of two members")


def _updated(configuration: Configuration, member: Member) -> Member:
    """Return `member`, with the incarnation from the configuration if `member` has none."""
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
