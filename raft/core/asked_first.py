"""Whom a leader asks when one read is alone: as many members as it takes, and the others only if these are silent.

A round of reads needs the answers of a majority, and to ask everybody costs each of the others a turn for nothing, and
the leader one for each of their answers. Whoever is asked, what counts is who has answered: safety has no part in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from raft.core.progress import Progress

SILENCES_PER_MARK_DELAY = 5
"""So many times shorter than a mark may wait for an append is the silence after which the others are asked: 1 ms."""

NEVER = 1 << 62

ROUNDS_MAX = 1_000
"""After so many rounds all are asked again: somebody else may be quicker by now."""


class AskedFirst:
    """Of one leader, for one term. Those who made up the last majority are the ones to ask for the next."""

    def __init__(self, mark_delay_ns: int) -> None:
        """With a `mark_delay_ns` of 0 all are always asked at once."""
        self._patience_ns = mark_delay_ns // SILENCES_PER_MARK_DELAY
        self._quick: tuple[str, ...] = ()
        self._rounds_left = 0
        self._looks_anew = True  # All were asked: it will show who is quick.
        self.over_at = NEVER  # Monotonic ns: when the others are to be asked.

    def of(self, peers: Mapping[str, Progress], now: int, *, is_lone: bool) -> Iterable[str]:
        """Whom to ask in a round that begins now. All of them, if it is not for one read alone."""
        self.over_at = NEVER
        self._looks_anew |= self._rounds_left == 0 or any(peer_id not in peers for peer_id in self._quick)
        if not is_lone or self._looks_anew or not self._patience_ns:
            return tuple(peers)
        self._rounds_left -= 1
        self.over_at = now + self._patience_ns
        return self._quick

    def is_over(self, now: int) -> bool:
        """True if who was asked has been silent for too long."""
        return now >= self.over_at

    def others(self, peers: Mapping[str, Progress], counter: int) -> Iterable[str]:
        """The round `counter` takes too long: who else is to be asked. Not twice who may only have a long way; what was
        lost with a connection is asked again by the next heartbeat."""
        self.over_at, self._looks_anew = NEVER, True
        return tuple([each for each, peer in peers.items() if peer.read_counter < counter and each not in self._quick])

    def confirmed(self, peers: Mapping[str, Progress], counter: int) -> None:
        """The answers up to now were enough for the round `counter`."""
        self.over_at = NEVER
        if self._looks_anew:
            self._looks_anew, self._rounds_left = False, ROUNDS_MAX
            self._quick = tuple([peer_id for peer_id, peer in peers.items() if peer.read_counter >= counter])
