"""Linearizable reads without a log entry: ReadIndex on the leader (thesis §6.4).

The read index of a read is the high-water mark at the start of its round. The read may be served once a majority has
answered a message that was sent after the start. These answers prove that no later leader had committed anything when
the round began. A round is identified by (term, counter): answers from another term do not count. Usually one round is
under way at a time, and reads that arrive in the meantime share the next round. Requests for a read index from other
members (`follower_reads`) share the rounds, too. One such request covers all reads that wait on the member that sent
it.

A round needs the answers of a majority only. Each message beyond a majority costs its receiver a turn of the event
loop, and the answer costs the leader a turn. So the round for a single read is first sent to a preferred quorum. The
leader sends the round to the other peers only if the preferred quorum does not answer in time. The choice does not
affect safety, because only the answers of a majority confirm a round.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from raft.core.progress import Progress
from raft.errors import Busy
from raft.types import ReadMode

NEVER = 1 << 62

ROUNDS_MAX = 1_000
"""How many rounds use the same preferred quorum. The next round is sent to all peers, because another peer may be
faster by now."""


@dataclass(slots=True)
class Round:
    """The reads, and the requests of other members, that one round confirms together."""

    counter: int
    read_index: int
    began_at: int  # Monotonic ns.
    tickets: list[int]
    requests: dict[str, int]  # Member id → number of its open request for a read index.


class ReadRounds:
    """The open reads of one leader, during one term. The caller chooses the tickets."""

    def __init__(self, *, reads_pending_max: int) -> None:
        self.counter = 0
        self._reads_pending_max = reads_pending_max
        self.count = 0  # Open reads: waiting, under way, or confirmed.
        self.waiting: list[int] = []  # Tickets that wait for the next round.
        self.by_lease: list[int] = []  # Tickets that wait for a check of the lease.
        self.requests: dict[str, int] = {}  # Member id → number of its latest request that waits for a round.
        self.under_way: deque[Round] = deque()
        self.confirmed: deque[tuple[int, list[int], ReadMode]] = deque()  # (read index, tickets, mode)

    @property
    def is_wanted(self) -> bool:
        """True if a read or a request is not part of a round yet."""
        return bool(self.waiting or self.requests or self.by_lease)

    @property
    def is_lone(self) -> bool:
        """True if exactly one read, and no request from another member, waits for a round."""
        return len(self.waiting) == 1 and not self.requests

    def add(self, ticket: int, *, by_lease: bool = False) -> None:
        """Add a read, which joins the next round unless the lease can serve it. Raises Busy if too many reads are
        open."""
        if self.count >= self._reads_pending_max:
            raise Busy("linearizable reads", self._reads_pending_max)
        self.count += 1
        (self.by_lease if by_lease else self.waiting).append(ticket)

    def begin_round(self, read_index: int, now: int) -> int:
        """Put all waiting reads and requests into one round. From now on, every append states the returned counter."""
        self.counter += 1
        self.under_way.append(Round(self.counter, read_index, now, self.waiting, self.requests))
        self.waiting, self.requests = [], {}
        return self.counter

    def confirmed_up_to(self, counter: int) -> list[Round]:
        """Confirm the round `counter`, which a majority has answered, and all earlier rounds.

        Returns these rounds. The caller must respond to the requests from other members in these rounds.
        """
        ended = []
        while self.under_way and self.under_way[0].counter <= counter:
            ended.append(self.under_way.popleft())
            if ended[-1].tickets:
                self.confirmed.append((ended[-1].read_index, ended[-1].tickets, ReadMode.READ_INDEX))
        return ended

    def confirm_by_lease(self, read_index: int) -> dict[str, int]:
        """Confirm the reads that wait for a check of the lease, because the lease holds. Return the requests from other
        members, to which the caller must respond."""
        if self.by_lease:
            self.confirmed.append((read_index, self.by_lease, ReadMode.LEASE))
        requests, self.by_lease, self.requests = self.requests, [], {}
        return requests

    def without_lease(self) -> None:
        """Move the reads that wait for a check of the lease to the next round, because the lease does not hold."""
        self.waiting += self.by_lease
        self.by_lease = []

    def take_ready(self, last_applied: int) -> list[tuple[list[int], ReadMode]]:
        """Remove and return the confirmed reads whose read index has been applied."""
        ready: list[tuple[list[int], ReadMode]] = []
        while self.confirmed and self.confirmed[0][0] <= last_applied:
            _, tickets, mode = self.confirmed.popleft()
            self.count -= len(tickets)
            ready.append((tickets, mode))
        return ready

    def take_all(self) -> list[int]:
        """Remove and return all open reads, because the leadership is over."""
        tickets = [ticket for _, group, _ in self.confirmed for ticket in group]
        tickets += [ticket for each in self.under_way for ticket in each.tickets]
        tickets += self.waiting + self.by_lease
        self.confirmed.clear()
        self.under_way.clear()
        self.waiting, self.by_lease, self.requests, self.count = [], [], {}, 0
        return tickets


class PreferredQuorum:
    """The peers that made up the majority in the last round that was sent to all peers, for one leader and term. The
    round for a single read is first sent to these peers only."""

    def __init__(self, patience_ns: int) -> None:
        """If the preferred quorum does not answer within `patience_ns`, the leader sends the round to the other peers,
        too. If `patience_ns` is 0, every round is sent to all peers at once.

        With a patience of 1 ms instead of 5 ms, the leader sends every third round for a single read to the other
        peers, too. The rate of such reads then falls by a tenth.
        """
        self._patience_ns = patience_ns
        self._quick: tuple[str, ...] = ()
        self._rounds_left = 0
        self._needs_full_round = True  # True if the current round, or the next one, is sent to all peers.
        self.over_at = NEVER  # The time (monotonic ns) at which the leader sends the round to the other peers, too.

    def of(self, peers: Mapping[str, Progress], now: int, *, is_lone: bool) -> Iterable[str]:
        """The peers to which a round that begins now is sent: the preferred quorum if the round is for a single read,
        or else all peers."""
        self.over_at = NEVER
        self._needs_full_round |= self._rounds_left == 0 or any(peer_id not in peers for peer_id in self._quick)
        if not is_lone or self._needs_full_round or not self._patience_ns:
            return tuple(peers)
        self._rounds_left -= 1
        self.over_at = now + self._patience_ns
        return self._quick

    def others(self, peers: Mapping[str, Progress], counter: int) -> Iterable[str]:
        """The other peers, to which the round `counter` must be sent, because it takes too long.

        The round has already been sent to the preferred quorum, which may just be slow. If messages to the preferred
        quorum were lost with a connection, the next heartbeat repeats them.
        """
        self.over_at, self._needs_full_round = NEVER, True
        return tuple([each for each, peer in peers.items() if peer.read_counter < counter and each not in self._quick])

    def confirmed(self, peers: Mapping[str, Progress], counter: int) -> None:
        """Note that a majority has confirmed the round `counter`. If the round was sent to all peers, those that have
        answered become the new preferred quorum."""
        self.over_at = NEVER
        if self._needs_full_round:
            self._needs_full_round, self._rounds_left = False, ROUNDS_MAX
            self._quick = tuple([peer_id for peer_id, peer in peers.items() if peer.read_counter >= counter])
