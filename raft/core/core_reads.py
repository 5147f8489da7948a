"""Reads as the core takes them: by the leader itself, or by another member that asks it (`ReadWay`)."""

from __future__ import annotations

from raft.core.core_view import CoreView
from raft.core.follower_reads import Asking
from raft.errors import Busy
from raft.types import ReadWay


class CoreReads(CoreView):
    """The part of `RaftCore` that is asked for reads."""

    _asking: Asking

    def request_read(self, ticket: int, way: ReadWay = ReadWay.ROUND, *, age_ns_max: int = 0) -> None:
        """Ask for a read; the answer comes in `Ready`, as soon as what `way` promises holds.

        `ROUND` and `LEASE` are for leaders; without a lease there is a round. `age_ns_max`: for BOUNDED, how old the
        state may be; a member that cannot prove it asks the leader. Raises NotLeader, Busy.
        """
        match way:
            case ReadWay.ROUND | ReadWay.LEASE:
                self._leading().request_read(ticket, by_lease=way is ReadWay.LEASE)
            case ReadWay.ASKED:
                self._asking.add(ticket, None)
            case ReadWay.BOUNDED:
                self._asking.add(ticket, age_ns_max)

    @property
    def state_age_ns(self) -> int | None:
        """How old the applied state is at most, at the time of the last event; None if nothing is known of it."""
        return self._state.state_age_ns()

    def _serve_asking(self) -> None:
        """Whoever leads asks itself."""
        leadership = self._leadership
        if leadership is None:
            self._asking.feed()
            return
        for ticket, _ in self._asking.take_waiting():
            try:
                leadership.request_read(ticket, by_lease=True)
            except Busy as error:
                self._state.outbox.ready.reads_failed.append((ticket, error))
