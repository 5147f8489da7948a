"""Compares the answers of a port for etcd's clients with the replay of the log, and turns them into results.

A response has the revision of the store in its header: the revision of a write, or the revision at which a range was
read. The replay says what the store was at this revision.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from harness.sim.checks.store.leases import FIRST_OWNS, ONE_OWNER, LeaseChecker, Term
from harness.sim.checks.store.replay import MaybeRecord, Record, StoreReplay
from harness.sim.engine.errors import broken, require
from kvstore import DeleteResult, KeyRecord, Put, PutResult, Range, RangeResult, Txn, TxnResult

IS_COMMITTED = "a port tells its clients only what is committed"
IS_WRITTEN = "a write that a port has answered is in the log, at the revision of the answer"
IS_STATE = "a range of a port shows the state as of its revision"
ONLY_ENDED = "a port says that a lease does not exist only after its end"
IS_REFUSED_RIGHTLY = "a port refuses a revision only if it is not kept or not reached"

Message = Any


class EtcdChecker:
    """Checks all answers of a run. `cover` is called with coverage points. `trusts_clocks`: True if the drift of all
    clocks is within its bound."""

    def __init__(
        self, replay: StoreReplay, leases: LeaseChecker, cover: Callable[[str], None], *, trusts_clocks: bool
    ) -> None:
        self._replay, self._leases, self._cover, self._trusts_clocks = replay, leases, cover, trusts_clocks
        self._owners: dict[bytes, list[Term]] = {}  # For each lock, the terms whose programs believe that they own it.

    def put(self, command: Put, response: Message) -> PutResult:
        """Check the answer to a put."""
        revision = self._committed(response)
        self._wrote(command, revision)
        before = next((each.before for each in self._replay.events(revision) if each.key == command.key), None)
        told = _record_of(response.prev_kv) if response.HasField("prev_kv") else None
        if command.previous:
            require(told == before, IS_WRITTEN, command, revision, told, before)
        return PutResult(revision)

    def deleted(self, key: bytes, response: Message) -> DeleteResult:
        """Check the answer to the deletion of one key."""
        revision = self._committed(response)
        if response.deleted:
            events = [each for each in self._replay.events(revision) if each.key == key and each.after is None]
            require(response.deleted == len(events) == 1, IS_WRITTEN, key, revision, response.deleted, events)
        else:
            require(self._replay.record_at(key, revision) is None, IS_WRITTEN, key, revision, "nothing was deleted")
        return DeleteResult(revision, bool(response.deleted), 0, exact=False)

    def ranged(self, command: Range, response: Message) -> RangeResult:
        """Check the answer to a range."""
        revision = self._committed(response)
        require(command.revision <= revision, IS_STATE, command, revision)
        return self._listed(command, response, command.revision or revision, revision)

    def transacted(self, command: Txn, response: Message) -> TxnResult:
        """Check the answer to a transaction of puts and ranges."""
        revision = self._committed(response)
        branch = command.success if response.succeeded else command.failure
        require(len(branch) == len(response.responses), IS_WRITTEN, command, revision, response)
        results: list[PutResult | RangeResult] = []
        for operation, each in zip(branch, response.responses, strict=True):
            if isinstance(operation, Put):
                require(each.HasField("response_put"), IS_WRITTEN, command, revision, response)
                self._wrote(operation, revision)
                results.append(PutResult(revision))
            else:
                assert isinstance(operation, Range), operation
                results.append(self._listed(operation, each.response_range, revision, revision))
        return TxnResult(revision, response.succeeded, tuple(results))

    def refused_revision(self, revision: int, *, is_ahead: bool) -> None:
        """Check a refusal of a read at an old revision."""
        replay = self._replay
        if is_ahead:
            self._cover("a port had not reached a revision")
            return  # Any member may be behind.
        require(revision < replay.compact_revision, IS_REFUSED_RIGHTLY, revision, replay.compact_revision)
        self._cover("a port refused a compacted revision")

    def refused_lease(self, lease_id: int) -> None:
        """Check the refusal of a put or a lock because its lease does not exist."""
        require(self._leases.has_ended(lease_id), ONLY_ENDED, lease_id)

    @staticmethod
    def lock_key(name: bytes, lease_id: int) -> bytes:
        """Return the key of a contender for a lock."""
        return name + b"/%x" % lease_id

    def locked(self, name: bytes, term: Term, response: Message, *, still_wanted: bool) -> None:
        """Check a lock that a program has got: its key is the oldest at the revision of the answer, and no other
        program may still believe that it owns the lock. `still_wanted`: True if the program has kept its lease."""
        revision, key = self._committed(response), self.lock_key(name, term.lease_id)
        line = self._replay.state_at(name + b"/", name + b"0", revision)
        first = min(line, key=lambda row: row[1][1], default=None)
        is_first = first is not None and first[0] == key == response.key and first[1][4] == term.lease_id
        if not is_first:
            broken(FIRST_OWNS, f"{response.key!r} at {revision}, for {key!r}; the line is {line}")
        if not still_wanted:
            return
        owners = self._owners.setdefault(name, [])
        if self._trusts_clocks and term.is_believed:
            for other in owners:
                if other.is_believed:
                    broken(ONE_OWNER, f"{name!r}: {term} at {revision}, while {other} still believes in its own")
        self._cover("an etcd client got a lock")
        owners.append(term)

    def released(self, name: bytes, term: Term) -> None:
        """Note that a program no longer believes that it owns a lock."""
        self._owners[name].remove(term)

    def _committed(self, response: Message) -> int:
        revision = int(response.header.revision)
        require(0 < revision <= self._replay.revision, IS_COMMITTED, revision, self._replay.revision, response)
        return revision

    def _wrote(self, command: Put, revision: int) -> None:
        after: MaybeRecord = self._replay.record_at(command.key, revision)
        is_there = after is not None and (after[0], after[2]) == (command.value, revision)
        if not is_there or after is None or after[4] != command.lease_id:
            broken(IS_WRITTEN, f"{command} was answered at {revision}: {after}")

    def _listed(self, command: Range, response: Message, at: int, revision: int) -> RangeResult:
        rows = self._replay.state_at(command.start, command.end, at)
        shown = rows[: command.limit or None]
        told = [(each.key, _record_of(each)) for each in response.kvs]
        is_right = told == shown and response.count == len(rows) and response.more == (len(shown) < len(rows))
        if not is_right:
            broken(IS_STATE, f"{command} at {at}: {told}, {response.count}, {response.more}; the replay: {rows}")
        self._leases.read(at, [(key, record[4]) for key, record in shown])
        items = tuple(KeyRecord(key, *record) for key, record in told)
        return RangeResult(revision, items, bool(response.more), int(response.count))


def _record_of(pair: Message) -> Record:
    return bytes(pair.value), pair.create_revision, pair.mod_revision, pair.version, pair.lease


def item_of(event: Message, *, with_previous: bool) -> list[Any]:
    """Return an event of etcd in the form of the store's own messages, which `WatchChecker` takes."""
    what: Any = event.kv.mod_revision if event.type == 1 else list(_record_of(event.kv))
    if not with_previous:
        return [event.kv.key, what]
    return [event.kv.key, what, list(_record_of(event.prev_kv)) if event.HasField("prev_kv") else None]
