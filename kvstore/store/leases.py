"""Leases, which are replicated state. The store removes the keys of a lease when its owner stops renewing the lease.

A lease expires when an entry with a leader time at or above the deadline of the lease is applied, before the commands
of that entry. Renewals go through the log too. The answer to a renewal after the expiry is 0. Leader time is the only
clock. Leader time does not advance while there is no leader, and never runs faster than true time. An owner relies on
its lease for one time to live after sending the last answered renewal, so a lease never expires while its owner relies
on the lease.

After an election, no lease expires until a grace period has passed (`hold_until`), so that owners can reach the new
leader.

See docs/reference/specification.md#815-leases.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvstore.store.deadline_heap import NEVER, DeadlineHeap

FIRST_LEASE_ID = 1
"""Lease id 0 means "no lease"."""

EXPIRED_KEYS_PER_ENTRY = 256
"""A constant of the protocol: once an entry has removed this many expired leases and keys, it expires no further lease.
Ending a lease with one key takes 9 to 17 µs, so an entry takes 2 to 4 ms, or longer if a single lease has more keys (2
µs each). The other due leases expire with the next entry, which the leader proposes at once."""

CORRECTIONS_PART = 2
"""A command that renews n leases corrects up to n / CORRECTIONS_PART early entries of the deadline heap. A client
renews a lease three times within its time to live, so an entry is corrected before its time comes."""


class GrantedLease:
    """One lease, which expires once leader time reaches `deadline` (ns). `keys`: the keys of the lease."""

    __slots__ = ("deadline", "keys", "lease_id", "ttl_ns")

    def __init__(self, lease_id: int, ttl_ns: int, deadline: int) -> None:
        self.lease_id = lease_id
        self.ttl_ns = ttl_ns
        self.deadline = deadline
        self.keys: set[bytes] = set()


class Leases:
    """All leases by id, with their deadlines."""

    __slots__ = ("by_id", "deadlines", "hold_until", "next_id")

    def __init__(self) -> None:
        self.by_id: dict[int, GrantedLease] = {}
        self.deadlines = DeadlineHeap(self.by_id)
        self.next_id = FIRST_LEASE_ID
        self.hold_until = 0  # No lease expires before this leader time (ns).

    def grant(self, lease_id: int, ttl_ns: int, leader_time: int) -> GrantedLease:
        """Add a lease. If `lease_id` is 0, the lease gets the next free id. The caller has checked that `lease_id` is
        free and that `leases_max` is not reached."""
        if lease_id == 0:
            while self.next_id in self.by_id:
                self.next_id += 1
            lease_id = self.next_id
            self.next_id += 1
        lease = self.by_id[lease_id] = GrantedLease(lease_id, ttl_ns, leader_time + ttl_ns)
        self.deadlines.add(lease_id, lease.deadline)
        return lease

    def renew_all(self, lease_ids: Sequence[int], leader_time: int) -> list[int]:
        """Postpone the deadlines of leases. Returns the time to live of each lease in ns; 0 if there is no such lease.

        Cost: 0.5 to 1 µs for each lease. The cost includes corrections of the deadline heap for earlier renewals. They
        are made here so that they do not gather.
        """
        by_id, found = self.by_id, list[int]()
        for lease_id in lease_ids:
            lease = by_id.get(lease_id)
            if lease is None:
                found.append(0)
            else:
                lease.deadline = leader_time + lease.ttl_ns  # Leader time never goes back.
                found.append(lease.ttl_ns)
        self.deadlines.first(leader_time, len(found) // CORRECTIONS_PART)
        return found

    def remove(self, lease: GrantedLease) -> None:
        """Remove a lease without keys."""
        assert not lease.keys, lease.lease_id
        del self.by_id[lease.lease_id]
        self.deadlines.removed()

    def move_key(self, key: bytes, old_id: int, new_id: int) -> None:
        """Move a key, whose record was written or removed, from lease `old_id` to lease `new_id`. An id of 0 means no
        lease."""
        if old_id:
            self.by_id[old_id].keys.discard(key)
        if new_id:
            self.by_id[new_id].keys.add(key)

    def next_deadline(self, time: int = NEVER) -> int | None:
        """Return the leader time (ns) at which the next lease expires unless it is renewed; None if there is no lease.

        If no lease expires at or before `time`, the result is a time after `time`, but not after the next expiry.
        """
        if time < self.hold_until:
            return self.hold_until if self.by_id else None
        first = self.deadlines.first(time)
        return None if first is None else max(first[0], self.hold_until)

    def due(self, leader_time: int) -> GrantedLease | None:
        """Return the first lease by (deadline, id) that is due at `leader_time`; None if no lease is due."""
        if leader_time < self.hold_until or (first := self.deadlines.first(leader_time)) is None:
            return None
        return self.by_id[first[1]] if first[0] <= leader_time else None

    def check(self, attached: dict[bytes, int]) -> None:
        """Verify every internal invariant. `attached`: the lease of each record with a lease. Cost: O(n)."""
        assert attached == {key: lease.lease_id for lease in self.by_id.values() for key in lease.keys}
        for lease_id, lease in self.by_id.items():
            assert FIRST_LEASE_ID <= lease_id == lease.lease_id, lease_id
        self.deadlines.check()
