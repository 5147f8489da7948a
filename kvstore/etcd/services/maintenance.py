"""The service Maintenance: status, alarms, hashes, the transfer of leadership, and what this store does by itself."""

from __future__ import annotations

import google_crc32c

from kvstore.etcd.backend import Context, number_of
from kvstore.etcd.errors import (
    BAD_TRANSFEREE,
    COMPACTED,
    FUTURE_REVISION,
    NOT_LEADER,
    EtcdError,
    Status,
    unimplemented,
)
from kvstore.etcd.schema import Message, make
from kvstore.etcd.services.cluster import membership_of
from kvstore.etcd.services.kv import read_page
from kvstore.protocol.commands import Range
from kvstore.protocol.messages import Consistency
from kvstore.protocol.status import MemberStatus

VERSION = "3.5.21"
"""The version of etcd's API that this port serves. Clients decide by it what they may ask for."""

CLUSTER_VERSION = "3.5.0"

_NO_SPACE = 1


async def handle_status(context: Context, _: Message) -> Message:
    """Answer a Status: the state of this member."""
    status = await _status(context)
    leader = status.leader_id
    return make(
        "StatusResponse",
        header=context.header(status.revision),
        version=VERSION,
        dbSize=status.stored_bytes + status.log_bytes,
        dbSizeInUse=status.stored_bytes,
        leader=0 if leader is None else number_of(context.facts.raft_cluster_id, leader),
        raftIndex=status.last_index,
        raftAppliedIndex=status.last_applied,
        raftTerm=status.term,
        errors=["no leader"] if leader is None else [],
        isLearner=status.part == "learner",
    )


async def handle_alarm(context: Context, asked: Message) -> Message:
    """Answer an Alarm. The store raises and ends its alarm by itself: it is on while the quota is used up."""
    status = await _status(context)
    response = make("AlarmResponse", header=context.header(status.revision))
    if asked.action == 1:
        raise unimplemented("etcdserver: alarms are raised by the store alone: set quota_bytes with `hwm limits`")
    if status.stored_bytes >= status.quota_bytes and asked.alarm in (0, _NO_SPACE):
        response.alarms.add(memberID=context.facts.member_id, alarm=_NO_SPACE)
    return response


async def handle_defragment(context: Context, _: Message) -> Message:
    """Answer a Defragment. There is nothing to do: the store is in memory, and its files have no gaps."""
    await context.check_root()
    return make("DefragmentResponse", header=context.header())


async def handle_hash(context: Context, _: Message) -> Message:
    """Answer a Hash: the hash of the keys of this member at its present revision."""
    await context.check_root()
    value, _, _ = await _hash(context, 0)
    return make("HashResponse", header=context.header(), hash=value)


async def handle_hash_kv(context: Context, asked: Message) -> Message:
    """Answer a HashKV: the hash of the keys at a revision. Members with the same keys have the same hash."""
    await context.check_root()
    if asked.revision < 0:
        raise EtcdError(Status.OUT_OF_RANGE, COMPACTED)
    value, revision, compact_revision = await _hash(context, asked.revision)
    header = context.header(revision)
    return make("HashKVResponse", header=header, hash=value, compact_revision=compact_revision)


async def handle_move_leader(context: Context, asked: Message) -> Message:
    """Answer a MoveLeader. Only the leader does this, as in etcd."""
    await context.check_root()
    members = (await membership_of(context)).members
    numbers = {number_of(context.facts.raft_cluster_id, each.node_id): each.node_id for each in members}
    leader = context.facts.leader_id
    if leader is None or number_of(context.facts.raft_cluster_id, leader) != context.facts.member_id:
        raise NOT_LEADER
    if asked.targetID not in numbers:
        raise BAD_TRANSFEREE
    await context.run(lambda client: client.transfer_leadership(numbers[asked.targetID]))
    return make("MoveLeaderResponse", header=context.header())


async def handle_downgrade(_context: Context, _: Message) -> Message:
    """Refuse a Downgrade."""
    raise unimplemented("etcdserver: a feature level is never lowered (`hwm upgrade`)")


async def _status(context: Context) -> MemberStatus:
    own = context.facts.own_address
    return await context.run(lambda client: client.status(own))


async def _hash(context: Context, revision: int) -> tuple[int, int, int]:
    """Return the hash of all keys at a revision (0: the present one), this revision, and the compact revision."""
    status = await _status(context)
    revision = revision or status.revision
    if revision > status.revision:
        raise EtcdError(Status.OUT_OF_RANGE, FUTURE_REVISION)
    digest = 0
    start = b""
    while True:
        page = await read_page(context, Range(start, None, revision=revision), Consistency.LOCAL)
        for each in page.items:
            value = each.value or b""
            numbers = (each.create_revision, each.mod_revision, each.version, each.lease_id)
            row = b"%d %d %d %d %d %d " % (len(each.key), len(value), *numbers) + each.key + value
            digest = google_crc32c.extend(digest, row)
        if not page.more:
            return digest, revision, status.compact_revision
        start = page.items[-1].key + b"\0"
