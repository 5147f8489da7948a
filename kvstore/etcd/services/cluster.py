"""The service Cluster: the members. A member is added with `hwm member add`, because it needs an id and two addresses
before it starts, and etcd's request has only one."""

from __future__ import annotations

from kvstore.etcd.backend import Context, number_of
from kvstore.etcd.errors import MEMBER_NOT_FOUND, unimplemented
from kvstore.etcd.schema import Message, make
from kvstore.protocol.membership import Membership, MemberView
from raft import Member

ADD_REFUSED = (
    "etcdserver: a member is added with `hwm member add ID=PEER/CLIENT --promote` (its peer and client addresses), and "
    "then started with `hwm serve --join`: this request has no id and no client address"
)


async def handle_list(context: Context, _: Message) -> Message:
    """Answer a MemberList."""
    return make("MemberListResponse", header=context.header(), members=await members_of(context))


async def handle_add(_context: Context, _: Message) -> Message:
    """Refuse a MemberAdd."""
    raise unimplemented(ADD_REFUSED)


async def handle_remove(context: Context, asked: Message) -> Message:
    """Answer a MemberRemove."""
    member = await _find(context, asked.ID)
    await context.run(lambda client: client.remove_member(member.node_id))
    return make("MemberRemoveResponse", header=context.header(), members=await members_of(context))


async def handle_promote(context: Context, asked: Message) -> Message:
    """Answer a MemberPromote."""
    member = await _find(context, asked.ID)
    await context.run(lambda client: client.promote_member(member.node_id))
    return make("MemberPromoteResponse", header=context.header(), members=await members_of(context))


async def handle_update(context: Context, asked: Message) -> Message:
    """Answer a MemberUpdate: another peer address."""
    member = await _find(context, asked.ID)
    address = next((url.partition("://")[2] or url for url in asked.peerURLs), member.peer_address)
    changed = Member(member.node_id, address, member.client_address, member.incarnation_id)
    await context.run(lambda client: client.update_member(changed))
    return make("MemberUpdateResponse", header=context.header(), members=await members_of(context))


async def members_of(context: Context) -> list[Message]:
    """The members, as etcd's clients read them."""
    scheme = context.facts.scheme
    return [
        make(
            "Member",
            ID=number_of(context.facts.raft_cluster_id, each.node_id),
            name=each.node_id,
            peerURLs=[f"{scheme}://{each.peer_address}"] if each.peer_address else [],
            clientURLs=[f"{scheme}://{each.client_address}"] if each.client_address else [],
            isLearner=each.part == "learner",
        )
        for each in (await membership_of(context)).members
    ]


async def membership_of(context: Context) -> Membership:
    """Everything about the members."""
    return await context.run(lambda client: client.membership())


async def _find(context: Context, number: int) -> MemberView:
    for each in (await membership_of(context)).members:
        if number_of(context.facts.raft_cluster_id, each.node_id) == number:
            return each
    raise MEMBER_NOT_FOUND
