"""A program that uses all kinds of writes of feature level 2, reads old revisions, and compacts the history."""

from __future__ import annotations

from harness.sim.load.coordination_program import PREFIX, SHARED_KEYS, SequentialProgram
from harness.sim.plan.plan import MILLISECOND_NS
from kvstore import (
    Add,
    Append,
    CallEnded,
    Command,
    Compact,
    Compare,
    Comparison,
    Consistency,
    Delete,
    DeleteRange,
    Get,
    Operation,
    Put,
    Range,
    Result,
    StoreError,
    Target,
    Txn,
    command_request,
)

DATA_KEYS = [PREFIX + b"data/%d" % number for number in range(6)]
LOG_PREFIX, LOG_END = PREFIX + b"log/", PREFIX + b"log0"

REVISIONS_BACK_MAX = 40
"""How far back programs read and compact at most, in revisions."""

LARGE_VALUE_BYTES = 600

QUICK_NS = 4 * MILLISECOND_NS
"""The average pause between puts in quick succession. A member that catches up applies several such puts together."""

_WEIGHTS = {
    "put": 8,
    "append": 3,
    "add": 3,
    "delete": 2,
    "delete range": 2,
    "nested": 5,
    "old get": 5,
    "old range": 4,
    "old read in a transaction": 2,
    "compact": 1,
}

_WEIGHTS_OF_BOUNDED_KEYS = _WEIGHTS | {"delete two ranges": 4}
"""The weights in plans with a small limit on keys: the two ranges may exceed the limit only together."""

BURST_SHARE, BURST_PUTS = 0.1, 15
"""After this share of the plain puts, this many further puts are sent together."""

READ_WAYS = (Consistency.LINEARIZABLE, Consistency.LOCAL, Consistency.FOLLOWER)


class StoreWriter(SequentialProgram):
    """One program that writes."""

    def restart(self) -> None:
        """Do nothing, because a writer has no state that ends with its process."""

    def act(self) -> None:
        """Begin the next operation."""
        if self.parts.plan.put_share and self.random.random() < self.parts.plan.put_share:
            self.ask(Put(self.random.choice(SHARED_KEYS), self.value()), self._done)
            if self.random.random() < BURST_SHARE:
                self._write_together()
            return
        weights = _WEIGHTS_OF_BOUNDED_KEYS if self.parts.plan.bounds_keys else _WEIGHTS
        what = self.random.choices(list(weights), list(weights.values()))[0]
        if what == "old get":
            self.read(Get(self._key(), self._old_revision()), self.random.choice(READ_WAYS), self._read)
        elif what == "old range":
            read = Range(PREFIX + b"data/", PREFIX + b"log0", revision=self._old_revision())
            self.read(read, self.random.choice(READ_WAYS), self._read)
        else:
            self.ask(self._command(what), self._done)

    def _write_together(self) -> None:
        """Send several puts at once.

        Members apply such puts together, in one entry or in adjacent entries, so that watch hubs lag behind.
        """
        for _ in range(BURST_PUTS):
            if not self.client.is_full:
                request = command_request(Put(self.random.choice(DATA_KEYS), self.value()))
                self.client.take(request, self.parts.world.queue.now + MILLISECOND_NS * 500, _unheard)
        self.client.flush()

    def rest(self, pause_ns: int | None = None) -> None:
        """Act again after a pause. The pause is short if the plan requires puts in quick succession."""
        if pause_ns is None and self.parts.plan.put_share:
            pause_ns = 1 + int(self.random.expovariate(1) * QUICK_NS)
        super().rest(pause_ns)

    def _command(self, what: str) -> Command:
        key = self._key()
        match what:
            case "put":
                return Put(key, self._padded(), previous=self.random.random() < 0.5)
            case "append":
                return Append(LOG_PREFIX, self._padded())
            case "add":
                return Add(PREFIX + b"count", self.random.randint(-3, 5))
            case "delete":
                return Delete(key)
            case "delete range":
                low, high = sorted(self.random.sample(DATA_KEYS, 2))
                start, end = self.random.choice(((LOG_PREFIX, LOG_END), (low, high)))
                return DeleteRange(start, end, previous=self.random.random() < 0.5)
            case "delete two ranges":
                low, middle, high = sorted(self.random.sample(DATA_KEYS, 3))
                ranges = (DeleteRange(low, middle), DeleteRange(middle, high))
                return Txn((), (Put(SHARED_KEYS[0], self.value()), *ranges))
            case "nested":
                return self._nested()
            case "old read in a transaction":
                reads = (Put(key, self.value()), Get(key, self._old_revision()))
                return Txn((), (*reads, Range(LOG_PREFIX, LOG_END, revision=self._old_revision())))
        return Compact(max(1, self.parts.replay.revision - self.random.randrange(REVISIONS_BACK_MAX)))

    def _nested(self) -> Txn:
        """Return a transaction with an inner transaction. The comparisons of both are evaluated before any write."""
        first, second = self.random.sample(DATA_KEYS, 2)
        absent = Compare(first, Target.VERSION, Comparison.EQUAL, 0)
        unleased = Compare(SHARED_KEYS[0], Target.LEASE, Comparison.EQUAL, 0, SHARED_KEYS[-1] + b"\0")
        inner = Txn((absent,), (Put(first, self.value()),), (Delete(first),))
        last: Operation = self.random.choice((Get(first), DeleteRange(LOG_PREFIX, LOG_END), Append(LOG_PREFIX, b"n")))
        return Txn((unleased,), (Put(second, self._padded()), inner, last), (Get(first), inner))

    def _key(self) -> bytes:
        return self.random.choice(SHARED_KEYS if self.random.random() < 0.2 else DATA_KEYS)

    def _padded(self) -> bytes:
        return self.value() + bytes(self.random.choice((0, 0, 0, LARGE_VALUE_BYTES)))

    def _old_revision(self) -> int:
        replay = self.parts.replay
        low = max(1, replay.compact_revision - 1, replay.revision - REVISIONS_BACK_MAX)
        return self.random.randint(min(low, replay.revision), replay.revision)

    def _read(self, result: Result | None, _: StoreError | None) -> None:
        if result is not None:
            self.parts.cover("a client read an old revision")

    def _done(self, result: Result | None, _: StoreError | None) -> None:
        """Do nothing, because the result was compared with the replay when the command was applied."""


def _unheard(_: CallEnded) -> None:
    """Do nothing when a call has ended, because the log shows its effect."""
