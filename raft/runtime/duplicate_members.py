"""Duplicate members: two processes that run as one member because a copy of a data folder, or of a machine, was
started.

Both state the same node id and incarnation, so each takes over the connections of the other, again and again. A random
id of each process in its hello tells them apart. A restarted member has a new id, and the old id never comes back. If
an id comes back after another id took over, two processes are running. This member closes no connection because of
that: only the operator can know which of the two processes has kept the promises of the member.
"""

from __future__ import annotations

from dataclasses import dataclass, field

PROCESSES_MAX = 4
"""How many of the latest processes of a member are remembered. Two alternating processes are enough to detect
duplicates, even if more are running."""

DUPLICATE_SECONDS = 60.0
"""How long a member is reported as a duplicate after its processes last alternated, and the minimum pause between two
warnings about it. Running duplicates alternate at every election time-out, or more often."""


@dataclass(slots=True)
class _Processes:
    addresses: dict[bytes, str] = field(default_factory=dict)  # Host by process id; the latest process is last.
    seen_until: float = float("-inf")
    reported_until: float = float("-inf")


class DuplicateMembers:
    """The processes of every other member that have sent messages here. Synchronous; times are monotonic seconds."""

    def __init__(self) -> None:
        self._members: dict[str, _Processes] = {}

    def took_over(self, peer_id: str, process_id: bytes, address: str, now: float) -> tuple[str, ...]:
        """Note that a process has sent its first message on a new connection, after the hellos.

        If a duplicate is to be reported now, returns the hosts of all processes that run as `peer_id`; otherwise an
        empty tuple. `process_id` is empty in hellos of earlier builds.
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
        """Forget a peer that is no member any more."""
        self._members.pop(peer_id, None)

    def found(self, now: float) -> tuple[str, ...]:
        """Return the members that were lately seen to run as two processes, in the order of ids."""
        return tuple(sorted(peer_id for peer_id, member in self._members.items() if now < member.seen_until))
