"""The fields of responses about leases, from the state that this member has applied."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

from kvstore.protocol.lease_requests import read_lease, read_leases
from kvstore.store.leases import Leases


def leases_fields(leases: Leases, leader_time: int, items: Sequence[Any]) -> tuple[Any, ...]:
    """Return the fields of the response: leader_time, rows, whether there are more. Raises ProtocolError. Cost:
    O(leases)."""
    after_id, count_max = read_leases(items)
    ids = heapq.nsmallest(count_max + 1, [lease_id for lease_id in leases.by_id if lease_id > after_id])
    rows = [
        (each.lease_id, each.ttl_ns, max(each.deadline, leases.hold_until), len(each.keys))
        for each in map(leases.by_id.__getitem__, ids[:count_max])
    ]
    return leader_time, rows, len(ids) > count_max


def lease_fields(leases: Leases, leader_time: int, items: Sequence[Any]) -> tuple[Any, ...]:
    """Return the fields of the response: leader_time, the lease, some of its keys, whether there are more. Without such
    a lease, the fields are leader_time and None. Raises ProtocolError. Cost: O(keys of the lease).
    """
    lease_id, after_key, count_max = read_lease(items)
    lease = leases.by_id.get(lease_id)
    if lease is None:
        return leader_time, None
    keys = heapq.nsmallest(count_max + 1, [key for key in lease.keys if key > after_key])
    deadline = max(lease.deadline, leases.hold_until)
    return leader_time, lease.ttl_ns, deadline, keys[:count_max], len(keys) > count_max
