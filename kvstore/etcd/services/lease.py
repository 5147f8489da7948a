"""The service Lease. Renewals that wait at the same time are sent as one command."""

from __future__ import annotations

from functools import partial

from kvstore.etcd.backend import Context
from kvstore.etcd.coroutines import Wait
from kvstore.etcd.errors import LEASE_TTL_TOO_LARGE, EtcdError, Status
from kvstore.etcd.schema import Message, make
from kvstore.limits import SECOND_NS
from kvstore.protocol.commands import LeaseGrant, LeaseRevoke
from kvstore.protocol.lease_requests import (
    PAGE_LEASE_KEYS_MAX,
    PAGE_LEASES_MAX,
    decode_lease,
    decode_leases,
    lease_request,
    leases_request,
)
from kvstore.protocol.results import LeaseGranted, LeaseRevoked, read_answer

TTL_SECONDS_MIN = 2
"""A shorter time to live is raised to this one, as in etcd with its defaults."""

TTL_SECONDS_MAX = 9_000_000_000
"""A longer time to live is refused, as in etcd."""


async def handle_grant(context: Context, asked: Message) -> Message:
    """Answer a LeaseGrant."""
    if asked.TTL > TTL_SECONDS_MAX:
        raise LEASE_TTL_TOO_LARGE
    ttl_seconds = max(asked.TTL, TTL_SECONDS_MIN)
    result = await context.execute(LeaseGrant(asked.ID, ttl_seconds * SECOND_NS))
    assert isinstance(result, LeaseGranted), result
    header = context.header(result.revision)
    return make("LeaseGrantResponse", header=header, ID=result.lease_id, TTL=result.ttl_ns // SECOND_NS)


async def handle_revoke(context: Context, asked: Message) -> Message:
    """Answer a LeaseRevoke."""
    if asked.ID <= 0:
        raise EtcdError(Status.NOT_FOUND, "etcdserver: requested lease not found")
    result = await context.execute(LeaseRevoke(asked.ID))
    assert isinstance(result, LeaseRevoked), result
    return make("LeaseRevokeResponse", header=context.header(result.revision))


async def handle_time_to_live(context: Context, asked: Message) -> Message:
    """Answer a LeaseTimeToLive. A lease that does not exist has the time to live -1."""
    keys: list[bytes] = []
    while asked.ID > 0:
        response = await context.ask(lease_request(asked.ID, keys[-1] if keys else b"", PAGE_LEASE_KEYS_MAX))
        found, more = read_answer(response, partial(decode_lease, lease_id=asked.ID), has_effect=False)
        if found is None:
            break
        keys += found.keys
        if more and asked.keys:
            continue
        return make(
            "LeaseTimeToLiveResponse",
            header=context.header(response.revision),
            ID=asked.ID,
            TTL=found.remaining_ns // SECOND_NS,
            grantedTTL=found.ttl_ns // SECOND_NS,
            keys=keys if asked.keys else (),
        )
    return make("LeaseTimeToLiveResponse", header=context.header(), ID=asked.ID, TTL=-1)


async def handle_leases(context: Context, _: Message) -> Message:
    """Answer a LeaseLeases."""
    ids: list[int] = []
    while True:
        response = await context.ask(leases_request(ids[-1] if ids else 0, PAGE_LEASES_MAX))
        page = read_answer(response, decode_leases, has_effect=False)
        ids += [each.lease_id for each in page.items]
        if not page.more:
            leases = [make("LeaseStatus", ID=each) for each in ids]
            return make("LeaseLeasesResponse", header=context.header(response.revision), leases=leases)


async def handle_keep_alive(context: Context) -> None:
    """Serve a LeaseKeepAlive stream: one response for each request, in order."""
    call = context.call
    while (asked := await call.inbox.get()) is not None:
        await call.room()
        revision = context.facts.revision  # Before the renewal, as etcd's clients expect.
        ttl_ns = await renew(context, asked.ID) if asked.ID > 0 else 0
        header = context.header(revision)
        call.send(make("LeaseKeepAliveResponse", header=header, ID=asked.ID, TTL=ttl_ns // SECOND_NS))


def renew(context: Context, lease_id: int) -> Wait[int]:
    """Renew a lease. The wait ends with its time to live in ns; 0 if there is no such lease."""
    return Wait(partial(context.backend.renewer.renew, lease_id))
