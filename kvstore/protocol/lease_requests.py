"""Requests about leases, and the responses to these requests, as values and in their wire form.

None of these requests needs a session. The leader answers these requests from its applied state. Leases need feature
level 2. At level 1, no leases exist.

See docs/reference/specification.md#815-leases.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvstore.protocol.messages import Request, RequestKind, Response
from kvstore.protocol.validation import is_count
from raft import ProtocolError

PAGE_LEASES_MAX = 500
"""The greatest number of leases in one response. With 100,000 leases, a response takes the leader 10 ms, because the
leader examines all lease ids."""

PAGE_LEASE_KEYS_MAX = 1_000
"""The greatest number of keys of a lease in one response. 1,000 keys of the greatest length have 1 MiB."""


@dataclass(frozen=True, slots=True)
class LeaseView:
    """One lease. The lease ends at `deadline` (leader time in ns) unless it is renewed before. `keys`: the number of
    its keys."""

    lease_id: int
    ttl_ns: int
    deadline: int
    keys: int


@dataclass(frozen=True, slots=True)
class LeasePage:
    """Leases in the order of their ids, as of `leader_time` (ns) on the leader. `more`: further leases follow on the
    next page."""

    leader_time: int
    items: tuple[LeaseView, ...]
    more: bool

    def remaining_ns(self, lease: LeaseView) -> int:
        """Return the remaining time of `lease`, a lease of this page, without a renewal."""
        return max(0, lease.deadline - self.leader_time)


@dataclass(frozen=True, slots=True)
class LeaseDetails:
    """One lease and its keys in byte order, as of `leader_time` (ns) on the leader."""

    leader_time: int
    lease_id: int
    ttl_ns: int
    deadline: int
    keys: tuple[bytes, ...]

    @property
    def remaining_ns(self) -> int:
        """The remaining time of the lease without a renewal."""
        return max(0, self.deadline - self.leader_time)


def leases_request(after_id: int, count_max: int) -> Request:
    """Request up to `count_max` leases with ids above `after_id`."""
    return Request(kind=RequestKind.LEASES, items=(after_id, count_max))


def lease_request(lease_id: int, after_key: bytes, count_max: int) -> Request:
    """Request one lease, and up to `count_max` of its keys above `after_key`."""
    return Request(kind=RequestKind.LEASE, items=(lease_id, after_key, count_max))


def read_leases(items: Sequence[Any]) -> tuple[int, int]:
    """Read the items of `leases_request`: the id after which the page begins, and the greatest number of leases to
    return. Raises ProtocolError."""
    if len(items) < 2 or not is_count(items[0]) or not is_count(items[1]):
        raise ProtocolError("a leases request is [request_id, 17, after_id, count_max]")
    return items[0], max(1, min(items[1], PAGE_LEASES_MAX))


def read_lease(items: Sequence[Any]) -> tuple[int, bytes, int]:
    """Read the items of `lease_request`: the lease id, the key after which the page begins, and the greatest number of
    keys to return. Raises ProtocolError."""
    if len(items) < 3 or not is_count(items[0]) or type(items[1]) is not bytes or not is_count(items[2]):
        raise ProtocolError("a lease request is [request_id, 18, lease_id, after_key, count_max]")
    return items[0], items[1], max(1, min(items[2], PAGE_LEASE_KEYS_MAX))


def decode_leases(response: Response) -> LeasePage:
    """Decode the response to `leases_request`. Raises ProtocolError."""
    try:
        leader_time, rows, more = response.fields[:3]
        items = tuple(LeaseView(*row[:4]) for row in rows)
    except (ValueError, TypeError) as error:
        raise ProtocolError(f"{response.node_id} gave no list of leases: {error!r}") from error
    numbers = [number for i in items for number in (i.lease_id, i.ttl_ns, i.deadline, i.keys)]
    if type(more) is not bool or not all(map(is_count, (leader_time, *numbers))) or (more and not items):
        raise ProtocolError(f"{response.node_id} gave an invalid list of leases")
    return LeasePage(leader_time, items, more)


def decode_lease(response: Response, lease_id: int) -> tuple[LeaseDetails | None, bool]:
    """Decode the response to `lease_request`: the lease (None if it does not exist), and whether the lease has further
    keys.

    Raises ProtocolError.
    """
    try:
        leader_time, ttl_ns, *rest = response.fields
        if ttl_ns is None:
            return None, False
        deadline, keys, more = rest[:3]
        found = LeaseDetails(leader_time, lease_id, ttl_ns, deadline, tuple(keys))
    except (ValueError, TypeError) as error:
        raise ProtocolError(f"{response.node_id} gave no lease: {error!r}") from error
    is_sound = all(map(is_count, (leader_time, ttl_ns, deadline))) and all(type(key) is bytes for key in found.keys)
    if not is_sound or type(more) is not bool or (more and not found.keys):
        raise ProtocolError(f"{response.node_id} gave an invalid lease")
    return found, more
