"""One production core with its disk and the messages that the core has sent.

The clock moves only when `tick` is called.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from harness.core_host.disk import Disk
from raft import (
    Configuration,
    Entry,
    EntryKind,
    LogPosition,
    LogWrite,
    Message,
    RaftConfig,
    RaftCore,
    TraceEvent,
    encode_batch,
    encode_item,
)
from raft import Member as Voter


class NoSpread(Random):
    """A random source that always draws the least possible number.

    The drawn length of a time-out does not matter, because in the model checker a time-out is an event that may happen
    at any moment.
    """

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        """Return the least number of the range."""
        return start if stop is None else min(start, stop - step)

    def getrandbits(self, _: int, /) -> int:
        """Return 0, the least number."""
        return 0

    def __reduce__(self) -> tuple[type[NoSpread], tuple[()]]:
        return NoSpread, ()


class CoreHost:
    """Carries out all requests of a core, in the order that `Ready` states.

    An entry counts as applied as soon as the core returns it to be applied. Only `sync` and `sync_oldest` make writes
    durable.
    """

    def __init__(
        self, node_id: str, member_ids: Sequence[str], disk: Disk, *, config: RaftConfig, random: Random, now: int = 0
    ) -> None:
        self.node_id, self.disk, self.now = node_id, disk, now
        self.sent: list[tuple[str, Message]] = []
        self.events: list[TraceEvent] = []
        self.applied: list[Entry] = []
        self.reads_ready: list[int] = []
        self.reads_failed: list[int] = []
        self.core = RaftCore(
            node_id=node_id,
            config=config,
            hard_state=disk.durable.hard_state,
            snapshot=LogPosition(0, 0),
            configuration=Configuration.of([Voter(member_id) for member_id in member_ids]),
            log_store=disk,
            leader_time=0,
            random=random,
            now=now,
        )
        self.flush()

    @property
    def next_deadline(self) -> int:
        """The time (monotonic ns) of the next timer."""
        return self.core.next_deadline

    def step(self, peer_id: str, message: Message) -> None:
        """Pass a message from `peer_id` to the core."""
        self.core.step(peer_id, message)
        self.flush()

    def tick(self, now: int) -> None:
        """Advance the clock of the core to `now` (ns)."""
        self.now = now
        self.core.tick(now)
        self.flush()

    def lose_leader(self) -> None:
        """Report the end of the core's connections with the leader, and advance the clock until the core campaigns."""
        assert self.core.leader_id is not None
        self.core.leader_connection_lost(self.core.leader_id)
        self.flush()
        self.tick(self.core.next_deadline)

    def propose(self, word: str) -> LogPosition:
        """Append a command of one word to the log. Raises NotLeader, Busy."""
        payload = encode_batch(self.core.leader_time_now(), (encode_item(word),))
        position = self.core.propose(EntryKind.COMMANDS, payload)
        self.flush()
        return position

    def read(self, ticket: int) -> None:
        """Request a linearizable read. Raises NotLeader, Busy."""
        self.core.request_read(ticket)
        self.flush()

    def sync_oldest(self) -> None:
        """Make the oldest unsynced write durable, and report this to the core."""
        self.core.persisted(self.disk.sync_oldest())
        self.flush()

    def sync(self) -> None:
        """Make all unsynced writes durable, including the writes that the core adds in response."""
        while self.disk.unsynced:
            self.sync_oldest()

    def flush(self) -> None:
        """Carry out everything that the core has requested."""
        while self.core.has_ready():
            ready = self.core.take_ready()
            if ready.write is not None:
                self._write(ready.write)
            self.sent += ready.send
            self.events += ready.events
            self.reads_ready += ready.reads_ready
            self.reads_failed += [ticket for ticket, _ in ready.reads_failed]
            if ready.apply:
                self.applied += ready.apply
                self.core.applied(ready.apply[-1].index)

    def take_sent(self) -> list[tuple[str, Message]]:
        """Return (receiver, message) for every message that the core has sent since the last call."""
        sent, self.sent = self.sent, []
        return sent

    def _write(self, write: LogWrite) -> None:
        self.disk.append(write)
