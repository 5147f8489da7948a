"""Leases: keys that are removed unless their owner keeps a lease alive. Replicated state.

A lease expires when an entry is applied whose leader time is at or above the lease's deadline, before the commands of
that entry. Renewals go through the log too, so a renewal that arrives after the expiry is answered with 0. No clock but
leader time counts. It stands still while nobody leads and never runs faster than true time, so a lease never ends
earlier than its owner may believe, who counts from when the last answered renewal was sent.

After an election no lease expires until a grace has passed (`hold_until`), so that owners can reach the new leader.

See docs/reference/specification.md#815-leases.
"""

from __future__ import annotations

import heapq

FIRST_LEASE_ID = 1
"""Lease id 0 means "no lease"."""

EXPIRED_KEYS_PER_ENTRY = 512
"""A constant of the protocol: after this many keys and leases, an entry expires no further lease. Removing one key
takes about 7 µs, so this takes about 4 ms, unless a single lease has more keys. The other leases expire with the next
entry, which the leader proposes at once."""


class GrantedLease:
    """One lease. It expires once leader time reaches `deadline` (ns). `keys`: those attached to it."""

    __slots__ = ("deadline", "keys", "lease_id", "ttl_ns")

    def __init__(self, lease_id: int, ttl_ns: int, deadline: int) -> None:
        self.lease_id = lease_id
        self.ttl_ns = ttl_ns
        self.deadline = deadline
        self.keys: set[bytes] = set()


class Leases:
    """All leases by id, with their deadlines in a heap that is corrected lazily, like that of `Sessions`."""

    __slots__ = ("_heap", "by_id", "hold_until", "next_id")

    def __init__(self) -> None:
        self.by_id: dict[int, GrantedLease] = {}
        self.next_id = FIRST_LEASE_ID
        self.hold_until = 0  # In ns of leader time: no lease expires earlier.
        self._heap: list[tuple[int, int]] = []

    def grant(self, lease_id: int, ttl_ns: int, leader_time: int) -> GrantedLease:
        """Add a lease. `lease_id` 0: the next free id. The caller has checked that the id is free, and the bound."""
        if lease_id == 0:
            while self.next_id in self.by_id:
                self.next_id += 1
            lease_id = self.next_id
            self.next_id += 1
        lease = self.by_id[lease_id] = GrantedLease(lease_id, ttl_ns, leader_time + ttl_ns)
        heapq.heappush(self._heap, (lease.deadline, lease_id))
        return lease

    def renew(self, lease_id: int, leader_time: int) -> int:
        """Postpone the deadline; returns the time to live in ns, or 0 if there is no such lease. Cost: O(1)."""
        lease = self.by_id.get(lease_id)
        if lease is None:
            return 0
        lease.deadline = leader_time + lease.ttl_ns  # Leader time never goes back.
        return lease.ttl_ns

    def remove(self, lease: GrantedLease) -> None:
        """Forget a lease that has no keys any more."""
        assert not lease.keys, lease.lease_id
        del self.by_id[lease.lease_id]
        if len(self._heap) > 2 * len(self.by_id) + 64:
            self.rebuild_heap()

    def move_key(self, key: bytes, old_id: int, new_id: int) -> None:
        """A record of `key` was written or removed: it was attached to the lease `old_id`, and is now to `new_id`."""
        if old_id:
            self.by_id[old_id].keys.discard(key)
        if new_id:
            self.by_id[new_id].keys.add(key)

    def next_deadline(self) -> int | None:
        """When the next lease expires unless it is renewed, in ns of leader time; None if there is none."""
        heap = self._heap
        while heap:
            deadline, lease_id = heap[0]
            lease = self.by_id.get(lease_id)
            if lease is None:
                heapq.heappop(heap)
            elif lease.deadline > deadline:
                heapq.heapreplace(heap, (lease.deadline, lease_id))
            else:
                return max(deadline, self.hold_until)
        return None

    def due(self, leader_time: int) -> GrantedLease | None:
        """The lease that is first to expire at `leader_time`, ordered by (deadline, id); None if none is due."""
        deadline = self.next_deadline()
        if deadline is None or deadline > leader_time:
            return None
        return self.by_id[self._heap[0][1]]

    def rebuild_heap(self) -> None:
        """Rebuild the heap from the leases. Cost: O(n)."""
        self._heap = [(lease.deadline, lease.lease_id) for lease in self.by_id.values()]
        heapq.heapify(self._heap)

    def check(self, attached: dict[bytes, int]) -> None:
        """Verify every internal invariant; `attached`: the lease of each record that has one. Cost: O(n)."""
        assert attached == {key: lease.lease_id for lease in self.by_id.values() for key in lease.keys}
        for lease_id, lease in self.by_id.items():
            assert FIRST_LEASE_ID <= lease_id == lease.lease_id, lease_id
        entries = [(lease_id, deadline) for deadline, lease_id in self._heap if lease_id in self.by_id]
        assert {lease_id for lease_id, _ in entries} == self.by_id.keys()
        assert all(
            min(deadline for each, deadline in entries if each == lease_id) <= lease.deadline
            for lease_id, lease in self.by_id.items()
        )
