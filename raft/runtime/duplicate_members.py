"""Duplicate members: two processes that run as one member, because a copy of a data folder or of a machine was started.

Both processes state the same node id and incarnation. So each of them repeatedly takes over the connections of the
other. The hellos of the two processes state different process ids, because each process draws its id at random when it
starts. After a normal restart a new process id appears, and the old one never comes back. If a process id comes back
after another one has taken over, two processes are running. This member only reports duplicates; it closes none of
their connections. Only the operator can know which of the two processes remembers all votes and acknowledgements of the
member.
"""

from __future__ import annotations

from dataclasses import dataclass, field

PROCESSES_MAX = 4
"""The number of a member's latest processes that are remembered. Even if more processes are running, it is enough to
see two of them alternate."""

DUPLICATE_SECONDS = 60.0
"""The time for which a member is reported as duplicate after one of its processes last came back. It is also the
minimum pause between two warnings about this member. While duplicates run, one of the processes comes back at least
once per election time-out."""


@dataclass(slots=True)
class _Processes:
    addresses: dict[bytes, str] = field(default_factory=dict)  # Process id → host. The latest process is last.
    seen_until: float = float("-inf")
    reported_until: float = float("-inf")


class DuplicateMembers:
    """For each other member, the processes that have sent messages to this member. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._members: dict[str, _Processes] = {}

    def took_over(self, peer_id: str, process_id: bytes, address: str, now: float) -> tuple[str, ...]:
        """Note that a process has sent its first message on a new connection, after the hellos.

        If the peer is a duplicate and a warning is due, return the hosts of its remembered processes. Otherwise return
        an empty tuple. `process_id` is empty in hellos of earlier builds.
        """
        if not process_id:
            return ()
        member = self._members.setdefault(peer_id, _Processes())
        known = member.addresses
        came_back = process_id in known and next(reversed(known)) != process_id
        known.pop(process_id, None)
        known[process_id] = address
        while len(known) > PROCESSES_MAX:
            del known[next(iter(known))]
        if not came_back:
            return ()
        member.seen_until = now + DUPLICATE_SECONDS
        if now < member.reported_until:
            return ()
        member.reported_until = now + DUPLICATE_SECONDS
        return tuple(known.values())

    def forget(self, peer_id: str) -> None:
        """Forget a peer that is no longer a member."""
        self._members.pop(peer_id, None)

    def found(self, now: float) -> tuple[str, ...]:
        """Return the members that were duplicates within the last DUPLICATE_SECONDS, in the order of ids."""
        return tuple(sorted(peer_id for peer_id, member in self._members.items() if now < member.seen_until))
