"""Linearizable reads without a log entry: ReadIndex on the leader (thesis §6.4).

A read is served at the high-water mark at which its round began, once a majority has answered a message sent after
that. The answers prove that no later leader had committed anything when the round began. A round's token is
(term, counter): answers of another term do not count. One round is under way at a time; reads that arrive meanwhile
share the next round. Other members' requests for a read index (`follower_reads`) share the rounds, too. One such
request stands for all reads that wait on its sender.

A round needs the answers of a majority. A message to a peer whose answer is not needed costs that peer a turn, and the
leader another turn for the answer. So the round of a lone read goes to a preferred quorum first, and to the other peers
only if the preferred quorum is silent. Safety does not depend on the choice: only answers count.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from raft.core.progress import Progress
from raft.errors import Busy
from raft.types import ReadMode

SILENCES_PER_MARK_DELAY = 5
"""If a preferred quorum is silent, the other peers are asked after the mark delay divided by this number: usually 1
ms."""

NEVER = 1 << 62

ROUNDS_MAX = 1_000
"""How many rounds use the same preferred quorum. Then one round asks all peers: another peer may be faster by now."""


@dataclass(slots=True)
class Round:
    """Reads that are confirmed together."""

    counter: int
    read_index: int
    began_at: int  # Monotonic ns.
    tickets: list[int]
    requests: dict[str, int]  # Member id → number of its open request for a read index.


class ReadRounds:
    """The reads of one leader, during one term. The caller chooses the tickets."""

    def __init__(self, *, reads_pending_max: int) -> None:
        self.counter = 0
        self._reads_pending_max = reads_pending_max
        self.count = 0  # Open reads: waiting, under way, or confirmed.
        self.waiting: list[int] = []  # Tickets that wait for the next round.
        self.by_lease: list[int] = []  # Tickets that wait for a check of the lease.
        self.requests: dict[str, int] = {}  # Member id → number of its latest request; one at a time.
        self.under_way: deque[Round] = deque()
        self.confirmed: deque[tuple[int, list[int], ReadMode]] = deque()  # (read_index, tickets, how)

    @property
    def is_wanted(self) -> bool:
        """True if a read or a request waits and is not part of a round yet."""
        return bool(self.waiting or self.requests or self.by_lease)

    @property
    def is_lone(self) -> bool:
        """True if a single read, and no request, waits for a round."""
        return len(self.waiting) == 1 and not self.requests

    def add(self, ticket: int, *, by_lease: bool = False) -> None:
        """Take a read. It joins the next round, unless the lease can serve it. Raises Busy at the bound."""
        if self.count >= self._reads_pending_max:
            raise Busy("linearizable reads", self._reads_pending_max)
        self.count += 1
        (self.by_lease if by_lease else self.waiting).append(ticket)

    def begin_round(self, read_index: int, now: int) -> int:
        """Put all waiting reads and requests into one round; every append carries the new counter from now on."""
        self.counter += 1
        self.under_way.append(Round(self.counter, read_index, now, self.waiting, self.requests))
        self.waiting, self.requests = [], {}
        return self.counter

    def confirmed_up_to(self, counter: int) -> list[Round]:
        """A majority has answered this round, and so every earlier one: return these rounds and make their reads ready.

        The caller responds to the requests in them.
        """
        ended = []
        while self.under_way and self.under_way[0].counter <= counter:
            ended.append(self.under_way.popleft())
            if ended[-1].tickets:
                self.confirmed.append((ended[-1].read_index, ended[-1].tickets, ReadMode.READ_INDEX))
        return ended

    def confirm_by_lease(self, read_index: int) -> dict[str, int]:
        """The lease holds: confirm the reads that wait for it; return the requests of other members."""
        if self.by_lease:
            self.confirmed.append((read_index, self.by_lease, ReadMode.LEASE))
        requests, self.by_lease, self.requests = self.requests, [], {}
        return requests

    def without_lease(self) -> None:
        """The lease does not hold: the reads that waited for it join the next round."""
        self.waiting += self.by_lease
        self.by_lease = []

    def take_ready(self, last_applied: int) -> list[tuple[list[int], ReadMode]]:
        """Remove and return the confirmed reads whose read index is applied."""
        ready: list[tuple[list[int], ReadMode]] = []
        while self.confirmed and self.confirmed[0][0] <= last_applied:
            _, tickets, mode = self.confirmed.popleft()
            self.count -= len(tickets)
            ready.append((tickets, mode))
        return ready

    def take_all(self) -> list[int]:
        """Remove and return every open read: the leadership is over."""
        tickets = [ticket for _, group, _ in self.confirmed for ticket in group]
        tickets += [ticket for each in self.under_way for ticket in each.tickets]
        tickets += self.waiting + self.by_lease
        self.confirmed.clear()
        self.under_way.clear()
        self.waiting, self.by_lease, self.requests, self.count = [], [], {}, 0
        return tickets


class PreferredQuorum:
    """The peers of one leader that made up the last majority, for one term: the next lone read asks only them."""

    def __init__(self, mark_delay_ns: int) -> None:
        """With a `mark_delay_ns` of 0 every round asks all peers at once."""
        self._patience_ns = mark_delay_ns // SILENCES_PER_MARK_DELAY
        self._quick: tuple[str, ...] = ()
        self._rounds_left = 0
        self._needs_full_round = True  # True: the round under way, or the next one, asks all peers.
        self.over_at = NEVER  # Monotonic ns: when the other peers are to be asked.

    def of(self, peers: Mapping[str, Progress], now: int, *, is_lone: bool) -> Iterable[str]:
        """The peers to ask in a round that begins now: all of them, unless the round is for one read alone."""
        self.over_at = NEVER
        self._needs_full_round |= self._rounds_left == 0 or any(peer_id not in peers for peer_id in self._quick)
        if not is_lone or self._needs_full_round or not self._patience_ns:
            return tuple(peers)
        self._rounds_left -= 1
        self.over_at = now + self._patience_ns
        return self._quick

    def others(self, peers: Mapping[str, Progress], counter: int) -> Iterable[str]:
        """The remaining peers to ask because the round `counter` takes too long.

        Peers that were asked already are excluded: they may just be slow. The next heartbeat repeats requests that were
        lost with a connection.
        """
        self.over_at, self._needs_full_round = NEVER, True
        return tuple([each for each, peer in peers.items() if peer.read_counter < counter and each not in self._quick])

    def confirmed(self, peers: Mapping[str, Progress], counter: int) -> None:
        """Note which peers answered: a majority has confirmed the round `counter`."""
        self.over_at = NEVER
        if self._needs_full_round:
            self._needs_full_round, self._rounds_left = False, ROUNDS_MAX
            self._quick = tuple([peer_id for peer_id, peer in peers.items() if peer.read_counter >= counter])
