"""The services Lock and Election. An owner is the oldest key under a name, and each key belongs to a lease.

The key of a contender is `name/lease id in hex`. A contender waits until no older key is left, and then looks again
whether its own key still exists, because its lease may have ended while it waited.
"""

from __future__ import annotations

from kvstore.client.watches.watch_stream import WatchStream
from kvstore.errors import LeaseNotFound, RevisionCompacted
from kvstore.etcd.backend import Context
from kvstore.etcd.coroutines import Mailbox
from kvstore.etcd.errors import EtcdError, Status, invalid
from kvstore.etcd.schema import Message, make
from kvstore.etcd.services.kv import key_value, read
from kvstore.limits import SECOND_NS
from kvstore.protocol.commands import (
    Compare,
    Comparison,
    DeleteRange,
    Get,
    LeaseGrant,
    Put,
    Range,
    Target,
    Txn,
    prefix_range,
)
from kvstore.protocol.messages import Consistency
from kvstore.protocol.results import GetResult, KeyRecord, LeaseGranted, RangeResult, Result, TxnResult
from kvstore.protocol.watches import WatchFlag, WatchSpec

LEASE_TTL_SECONDS = 60
"""The time to live of the lease of a contender that names none, as in etcd."""

LEASE_MISSING = EtcdError(Status.UNKNOWN, "etcdserver: requested lease not found")
LEADER_MISSING = EtcdError(Status.UNKNOWN, '"leader" field must be provided')
SESSION_EXPIRED = EtcdError(Status.UNKNOWN, "mvcc: session expired")
NO_LEADER_ELECTED = EtcdError(Status.UNKNOWN, "election: no leader")
NOT_ELECTED = EtcdError(Status.UNKNOWN, "election: not leader")


async def handle_lock(context: Context, asked: Message) -> Message:
    """Answer a Lock, once the contender owns the lock."""
    key, revision = await _contend(context, asked.name, asked.lease, b"")
    return make("v3lockpb.LockResponse", header=context.header(revision), key=key)


async def handle_unlock(context: Context, asked: Message) -> Message:
    """Answer an Unlock."""
    if not asked.key:
        raise invalid("key is not provided")
    result = await context.execute(DeleteRange(asked.key, asked.key + b"\0"))
    return make("v3lockpb.UnlockResponse", header=context.header(result.revision))


async def handle_campaign(context: Context, asked: Message) -> Message:
    """Answer a Campaign, once the contender leads."""
    key, revision = await _contend(context, asked.name, asked.lease, asked.value)
    found = await read(context, Get(key), Consistency.LINEARIZABLE)
    assert isinstance(found, GetResult), found
    if found.record is None:
        raise SESSION_EXPIRED
    leader = make(
        "v3electionpb.LeaderKey",
        name=asked.name,
        key=key,
        rev=found.record.create_revision,
        lease=found.record.lease_id,
    )
    return make("v3electionpb.CampaignResponse", header=context.header(revision), leader=leader)


async def handle_proclaim(context: Context, asked: Message) -> Message:
    """Answer a Proclaim: a new value of the leader."""
    if not asked.HasField("leader"):
        raise LEADER_MISSING
    leader = asked.leader
    is_leader = Compare(leader.key, Target.CREATE_REVISION, Comparison.EQUAL, leader.rev)
    result = await context.execute(Txn((is_leader,), (Put(leader.key, asked.value, leader.lease),)))
    assert isinstance(result, TxnResult), result
    if not result.succeeded:
        raise NOT_ELECTED
    return make("v3electionpb.ProclaimResponse", header=context.header(result.revision))


async def handle_leader(context: Context, asked: Message) -> Message:
    """Answer a Leader: the key of the present leader."""
    found, revision = await _oldest(context, asked.name)
    if found is None:
        raise NO_LEADER_ELECTED
    return make("v3electionpb.LeaderResponse", header=context.header(revision), kv=key_value(found.key, found))


async def handle_resign(context: Context, asked: Message) -> Message:
    """Answer a Resign."""
    if not asked.HasField("leader"):
        raise LEADER_MISSING
    leader = asked.leader
    is_leader = Compare(leader.key, Target.CREATE_REVISION, Comparison.EQUAL, leader.rev)
    result = await context.execute(Txn((is_leader,), (DeleteRange(leader.key, leader.key + b"\0"),)))
    return make("v3electionpb.ResignResponse", header=context.header(result.revision))


async def handle_observe(context: Context) -> None:
    """Serve an Observe stream: the key of the leader, at first and after each change."""
    call = context.call
    asked = await call.inbox.get()
    if asked is None:
        raise EtcdError(Status.INTERNAL, "a stream of Observe begins with a request")
    told: tuple[bytes, int] | None = None
    while True:
        found, revision = await _oldest(context, asked.name)
        if found is not None and told != (found.key, found.mod_revision):
            told = (found.key, found.mod_revision)
            await call.room()
            response = make(
                "v3electionpb.LeaderResponse", header=context.header(revision), kv=key_value(found.key, found)
            )
            call.send(response)
        await _next_change(context, *prefix_range(asked.name + b"/"), revision + 1)


async def _contend(context: Context, name: bytes, lease_id: int, value: bytes) -> tuple[bytes, int]:
    """Become the owner of a name. Returns the key of the owner, and the revision at which it was seen to own."""
    if not name:
        raise invalid("key is not provided")
    may_have_put = not lease_id  # A key of a lease that the client has named may be an older one of the client.
    if not lease_id:
        granted = await context.execute(LeaseGrant(0, LEASE_TTL_SECONDS * SECOND_NS))
        assert isinstance(granted, LeaseGranted), granted
        lease_id = granted.lease_id
    prefix = name + b"/"
    key = prefix + b"%x" % lease_id
    is_new = Compare(key, Target.CREATE_REVISION, Comparison.EQUAL, 0)
    is_owner = False
    try:
        try:
            result = await context.execute(Txn((is_new,), (Put(key, value, lease_id),), (Get(key),)))
        except LeaseNotFound:
            raise LEASE_MISSING from None
        may_have_put = True
        own_revision = await _own_revision(context, key, value, lease_id, result)
        revision = await _wait_for_turn(context, prefix, key, own_revision)
        is_owner = True
        return key, revision
    finally:
        if not is_owner and may_have_put:  # Also if the client has abandoned the call, so nothing can wait here.
            context.forget(DeleteRange(key, key + b"\0"))


async def _own_revision(context: Context, key: bytes, value: bytes, lease_id: int, result: Result) -> int:
    """The revision at which the contender came, from the result of its first transaction."""
    assert isinstance(result, TxnResult), result
    if result.succeeded:
        return result.revision
    (found,) = result.results
    assert isinstance(found, GetResult), found
    assert found.record is not None, found
    own_revision = found.record.create_revision
    if found.record.value != value:  # The contender campaigns again with another value.
        is_own = Compare(key, Target.CREATE_REVISION, Comparison.EQUAL, own_revision)
        await context.execute(Txn((is_own,), (Put(key, value, lease_id),)))
    return own_revision


async def _wait_for_turn(context: Context, prefix: bytes, key: bytes, own_revision: int) -> int:
    while True:
        seen = await read(context, Txn((), (Range(*prefix_range(prefix), keys_only=True),)), Consistency.LINEARIZABLE)
        assert isinstance(seen, TxnResult), seen
        (found,) = seen.results
        assert isinstance(found, RangeResult), found
        if not any(each.key == key and each.create_revision == own_revision for each in found.items):
            raise SESSION_EXPIRED
        older = [each for each in found.items if each.create_revision < own_revision]
        if not older:
            return found.revision
        last = max(older, key=lambda each: each.create_revision)
        await _next_change(context, last.key, last.key + b"\0", found.revision + 1, deletions_only=True)


async def _oldest(context: Context, name: bytes) -> tuple[KeyRecord | None, int]:
    found = await read(context, Range(*prefix_range(name + b"/")), Consistency.LINEARIZABLE)
    assert isinstance(found, RangeResult), found
    return min(found.items, key=lambda each: each.create_revision, default=None), found.revision


async def _next_change(
    context: Context, start: bytes, end: bytes | None, from_revision: int, *, deletions_only: bool = False
) -> None:
    """Wait until a key of a range changes. Returns also if changes may have been missed."""
    flags = WatchFlag.NO_PUTS if deletions_only else WatchFlag(0)
    stream = WatchStream(WatchSpec(start, end, from_revision, flags))
    news: Mailbox[None] = Mailbox()
    context.backend.open_watch(stream, lambda: news.put(None))
    try:
        while True:
            await news.get()
            try:
                batch = stream.take()
            except RevisionCompacted:
                return
            if batch is not None and batch.changes:
                return
    finally:
        context.backend.close_watch(stream)
