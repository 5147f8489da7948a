"""Workers that use the services, in addition to the other load: watches, leases, locks, ranges, appends, consumers.

See docs/reference/specification.md#1010-rows-of-services. All keys that these workers write begin with SERVICE_KEYS.
No watch covers the keys of locks. A client that waits for a lock writes a key, and the history has no row for this
write, so the audit could not explain the event of this write. No watch or listing covers the keys of consumer groups,
for the same reason.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from random import Random
from typing import TypeVar

import trio

from harness.recording.history import Row, RunWriter, canonical_json, to_text
from harness.workload.row_fields import answered
from harness.workload.service_shares import ServiceShares
from harness.workload.tally import Tally, Worker
from harness.workload.watch_recorder import WatchedKeys, WatchRecorder
from kvstore import (
    GROUPS_PREFIX,
    AppendResult,
    Client,
    ConsumedRecord,
    Consumer,
    DeleteRangeResult,
    GetResult,
    LeaseGranted,
    LeaseNotFound,
    LockTimeout,
    OperationFailed,
    OutcomeUnknown,
    PositionMoved,
    PutResult,
    StoreError,
    Tls,
)

SERVICE_KEYS = b"svc/"
_LEASES, _RANGES, _LOCKS = SERVICE_KEYS + b"lease/", SERVICE_KEYS + b"range/", SERVICE_KEYS + b"~lock/"
_APPENDS = SERVICE_KEYS + b"append/"
_LOG, _DONE = SERVICE_KEYS + b"log/", SERVICE_KEYS + b"done/"
_GROUP = b"harness"
GROUP_KEYS_END = GROUPS_PREFIX[:-1] + bytes([GROUPS_PREFIX[-1] + 1])
"""The least key after the keys of all consumer groups."""

_PATIENCE_SECONDS = 5.0
_PAUSE_SECONDS = (0.02, 0.2)  # The pause of a worker between two rounds of operations.
_TTL_SECONDS = (1.0, 3.0)
_LOCK_TTL_SECONDS, _LOCK_WAIT_SECONDS = 3.0, 10.0
_LOCK_NAMES = 3
_KEYS_OF_A_LEASE = 2
_KEYS_OF_A_RANGE = 4
_CONSUMER_TTL_SECONDS = 2.0
_CONSUMER_SECONDS = (1.0, 6.0)  # The time after which a consumer is cancelled, often in the middle of a commit.
_RECORD_SECONDS = (0.01, 0.1)  # The pause between two records of the log.
_WATCH_SECONDS = (0.5, 5.0)  # The time for which a watch uses one client.

ResultT = TypeVar("ResultT")


@dataclass(slots=True, kw_only=True)
class ServiceWorkers:
    """The workers of the services of one run. All choices of a worker depend on (seed, its kind, its number)."""

    writer: RunWriter
    endpoints: Sequence[str]
    seed: int
    keys: Sequence[bytes]
    shares: ServiceShares
    tally: Tally
    tls: Tls | None = None

    async def run(self, until: float) -> None:
        """Work until `until` (trio time)."""
        kinds: tuple[tuple[str, int, Callable[[int, Random, float], Awaitable[None]]], ...] = (
            ("watch", self.shares.watches, self._watch),
            ("lease", self.shares.leases, self._own_leases),
            ("lock", self.shares.locks, self._own_locks),
            ("range", self.shares.ranges, self._use_ranges),
            ("consumer", self.shares.consumers, self._consume),
            ("producer", 1 if self.shares.consumers else 0, self._produce),
        )
        async with trio.open_nursery() as nursery:
            for name, workers, work in kinds:
                for number in range(workers):
                    nursery.start_soon(work, number, Random(f"{name} {self.seed} {number}"), until)

    # -- watches

    async def _watch(self, number: int, random: Random, until: float) -> None:
        """Watch one range of keys. The watch often moves to a new client, which first connects to a random member."""
        first = GROUP_KEYS_END if self.shares.consumers else b""
        recorder = WatchRecorder(self.writer, f"watch-{number}", _watched(number, self.keys, first))
        while trio.current_time() < until:
            member = random.randrange(len(self.endpoints))
            leaves = min(until, trio.current_time() + random.uniform(*_WATCH_SECONDS))
            async with Client([*self.endpoints[member:], *self.endpoints[:member]], tls=self.tls) as store:
                await recorder.follow(store, leaves, _PATIENCE_SECONDS)
            await trio.sleep(random.uniform(*_PAUSE_SECONDS))

    # -- leases

    async def _own_leases(self, number: int, random: Random, until: float) -> None:
        """Repeatedly obtain a lease with some keys, renew it a few times, and revoke it or let it expire."""
        async with Client(self.endpoints, tls=self.tls) as store:
            worker = Worker(store, f"lease-{number}", count())
            while trio.current_time() < until:
                lease_id = await self._grant(worker, random.uniform(*_TTL_SECONDS))
                if lease_id is not None:
                    await self._live(worker, number, lease_id, random)
                await trio.sleep(random.uniform(*_PAUSE_SECONDS))

    async def _grant(self, worker: Worker, ttl_seconds: float) -> int | None:
        granted = await self._perform(
            worker,
            {"op": "lease_grant", "request": canonical_json({"ttl_ns": round(ttl_seconds * 1e9)})},
            partial(worker.store.lease_grant, ttl_seconds, deadline_seconds=_PATIENCE_SECONDS),
            lambda granted: {"answer": canonical_json({"lease_id": granted.lease_id, "ttl_ns": granted.ttl_ns})},
        )
        return granted.lease_id if isinstance(granted, LeaseGranted) else None

    async def _live(self, worker: Worker, number: int, lease_id: int, random: Random) -> None:
        keys = [_LEASES + b"%d/%d" % (number, place) for place in range(random.randint(1, _KEYS_OF_A_LEASE))]
        for place, key in enumerate(keys):
            await self._put(worker, key, b"lease-%d-%d-%d" % (number, lease_id, place), lease_id)
        for _ in range(random.randrange(6)):
            await trio.sleep(random.uniform(0.1, 0.6))
            await self._renew(worker, lease_id)
        if random.random() < 0.5:
            await self._revoke(worker, lease_id)
        else:
            await trio.sleep(random.uniform(0, 2 * _TTL_SECONDS[1]))
            await self._renew(worker, lease_id)
        for key in keys:
            await self._get(worker, key, 0)

    async def _put(self, worker: Worker, key: bytes, value: bytes, lease_id: int = 0) -> PutResult | None:
        row: Row = {"op": "put", "key": to_text(key), "value": to_text(value)}
        if lease_id:
            row["request"] = canonical_json({"lease_id": lease_id})
        put = partial(worker.store.put, key, value, lease=lease_id or None, deadline_seconds=_PATIENCE_SECONDS)
        return await self._perform(worker, row, put, answered)

    async def _get(self, worker: Worker, key: bytes, at_revision: int) -> GetResult | None:
        row: Row = {"op": "get", "key": to_text(key)}
        if at_revision:
            row["request"] = canonical_json({"revision": at_revision})
        get = partial(worker.store.get, key, at_revision=at_revision, deadline_seconds=_PATIENCE_SECONDS)
        return await self._perform(worker, row, get, answered)

    async def _renew(self, worker: Worker, lease_id: int) -> None:
        async def renew() -> float:
            try:
                return await worker.store.lease_renew(lease_id, deadline_seconds=_PATIENCE_SECONDS)
            except LeaseNotFound:
                return 0.0

        row: Row = {"op": "lease_renew", "request": canonical_json({"lease_id": lease_id})}
        await self._perform(worker, row, renew, lambda ttl: {"answer": canonical_json({"ttl_ns": round(ttl * 1e9)})})

    async def _revoke(self, worker: Worker, lease_id: int) -> None:
        async def revoke() -> bool:
            try:
                await worker.store.lease_revoke(lease_id, deadline_seconds=_PATIENCE_SECONDS)
            except LeaseNotFound:
                return False
            return True

        row: Row = {"op": "lease_revoke", "request": canonical_json({"lease_id": lease_id})}
        await self._perform(worker, row, revoke, lambda found: {"answer": canonical_json({"found": found})})

    # -- locks

    async def _own_locks(self, number: int, random: Random, until: float) -> None:
        """Repeatedly obtain a lock for which other workers contend, and hold the lock for a moment."""
        async with Client(self.endpoints, tls=self.tls) as store:
            worker = Worker(store, f"lock-{number}", count())
            while trio.current_time() < until:
                await self._hold(worker, _LOCKS + b"%d" % random.randrange(_LOCK_NAMES), random.uniform(0, 0.3))
                await trio.sleep(random.uniform(*_PAUSE_SECONDS))

    async def _hold(self, worker: Worker, name: bytes, seconds: float) -> None:
        open_: int | None = self._call(worker, {"op": "lock", "request": canonical_json({"name": to_text(name)})})
        now_ns = self.writer.clock.now_ns
        try:
            async with worker.store.lock(name, ttl_seconds=_LOCK_TTL_SECONDS, wait_seconds=_LOCK_WAIT_SECONDS) as lock:
                got = {"key": to_text(lock.key), "fence": lock.fence, "lease_id": lock.lease.id}
                self._end(open_, status="ok", return_ns=now_ns(), output={"answer": canonical_json(got)})
                open_ = None
                await trio.sleep(seconds)
                request = canonical_json({"name": to_text(name), "key": to_text(lock.key)})
                open_ = self._call(worker, {"op": "unlock", "request": request})
        except LockTimeout as error:
            self._end(open_, status="fail", error=error.word, return_ns=now_ns())
        except StoreError as error:
            self._lost(worker, open_, error)
        else:
            self._end(open_, status="ok", return_ns=now_ns(), output={"succeeded": True})

    def _lost(self, worker: Worker, open_: int | None, error: StoreError) -> None:
        if open_ is not None:
            self._end(open_, status="unknown", error=error.word)
            worker.begin_another_life()

    # -- ranges and reads at earlier revisions

    async def _use_ranges(self, number: int, random: Random, until: float) -> None:
        """Repeatedly write some keys, read keys at earlier revisions, and delete all written keys as a range.

        One of the writes is an append.
        """
        async with Client(self.endpoints, tls=self.tls) as store:
            worker = Worker(store, f"range-{number}", count())
            written = count()
            prefix = _RANGES + b"%d/" % number
            keys = [prefix + b"%d" % place for place in range(_KEYS_OF_A_RANGE)]
            revisions: list[int] = []
            while trio.current_time() < until:
                for key in random.sample(keys, random.randrange(1, len(keys))):
                    put = await self._put(worker, key, b"range-%d-%d" % (number, next(written)))
                    revisions += [put.revision] if put is not None else []
                await self._append(worker, _APPENDS + b"%d/" % number, b"append-%d-%d" % (number, next(written)))
                for key in random.choices([*keys, *self.keys], k=3) if revisions else ():
                    await self._get(worker, key, max(1, random.choice(revisions[-20:]) - random.randrange(20)))
                await self._delete_range(worker, prefix, keys)
                await trio.sleep(random.uniform(*_PAUSE_SECONDS))

    async def _append(self, worker: Worker, prefix: bytes, value: bytes) -> None:
        """Put the value under a key that the store generates. After the answer, read and delete the key."""
        made = await self._put_appended(worker, prefix, value)
        if made is not None:
            await self._get(worker, made.key, 0)
            await self._delete(worker, made.key)

    async def _put_appended(self, worker: Worker, prefix: bytes, value: bytes) -> AppendResult | None:
        """Put the value under a key that the store generates.

        Before the answer, the row has the prefix of the key instead of the key.
        """
        row: Row = {"op": "put", "key": to_text(prefix), "value": to_text(value)}
        row["request"] = canonical_json({"prefix": to_text(prefix)})
        append = partial(worker.store.append, prefix, value, deadline_seconds=_PATIENCE_SECONDS)
        return await self._perform(worker, row, append, lambda _: {"succeeded": True})

    async def _delete(self, worker: Worker, key: bytes) -> None:
        delete = partial(worker.store.delete, key, deadline_seconds=_PATIENCE_SECONDS)
        await self._perform(worker, {"op": "delete", "key": to_text(key)}, delete, answered)

    async def _delete_range(self, worker: Worker, prefix: bytes, keys: Sequence[bytes]) -> None:
        request = {"start": None, "end": None, "prefix": to_text(prefix), "keys": [to_text(key) for key in keys]}
        delete = partial(worker.store.delete_range, prefix=prefix, previous=True, deadline_seconds=_PATIENCE_SECONDS)
        await self._perform(worker, {"op": "delete_range", "request": canonical_json(request)}, delete, _deleted)

    # -- consumers

    async def _produce(self, number: int, random: Random, until: float) -> None:
        """Append records to the log of the group."""
        async with Client(self.endpoints, tls=self.tls) as store:
            worker, written = Worker(store, f"producer-{number}", count()), count()
            while trio.current_time() < until:
                await self._put_appended(worker, _LOG, b"record-%d" % next(written))
                await trio.sleep(random.uniform(*_RECORD_SECONDS))

    async def _consume(self, number: int, random: Random, until: float) -> None:
        """Consume the log as a member of the group, and commit each record together with an append of its own.

        After a random time, the consumer is cancelled and begins again.
        """
        async with Client(self.endpoints, tls=self.tls) as store:
            worker = Worker(store, f"consumer-{number}", count())
            while trio.current_time() < until:
                leaves = min(until, trio.current_time() + random.uniform(*_CONSUMER_SECONDS))
                with trio.move_on_at(leaves), suppress(StoreError):
                    async with store.consume(
                        _LOG, group=_GROUP, from_revision=1, only="put", ttl_seconds=_CONSUMER_TTL_SECONDS
                    ) as consumer:
                        await self._commit_records(worker, consumer)
                await trio.sleep(random.uniform(*_PAUSE_SECONDS))

    async def _commit_records(self, worker: Worker, consumer: Consumer) -> None:
        async for record in consumer:
            await self._commit(worker, record, consumer.fence)

    async def _commit(self, worker: Worker, record: ConsumedRecord, fence: int) -> None:
        """Commit a record. If the result of the commit is lost, its outcome is recorded as unknown."""
        value = b"done-%d-%s" % (record.revision, worker.client.encode())
        request = {"group": to_text(_GROUP), "log": to_text(_LOG), "from_revision": 1, "position": record.revision}
        row: Row = {"op": "consume", "key": to_text(_DONE), "value": to_text(value)}
        op_id = self._call(worker, row | {"request": canonical_json(request | {"prefix": to_text(_DONE)})})
        outcome: Row = {"status": "unknown", "error": "NoResult"}
        try:
            moved = await record.transaction().append(_DONE, value).commit()
        except OperationFailed as error:
            outcome = {"status": "fail", "error": error.word, "return_ns": self.writer.clock.now_ns()}
            raise
        except StoreError as error:
            outcome["error"] = error.word
            raise
        except trio.Cancelled:
            outcome["error"] = "Cancelled"
            raise
        else:
            if (key := _appended_key(moved)) is not None:
                output = {"answer": canonical_json({"fence": fence})}
                returned = {"return_ns": self.writer.clock.now_ns(), "revision": moved.revision, "key": to_text(key)}
                outcome = {"status": "ok", "output": output, **returned}
        finally:
            self._end(op_id, **outcome)
            if outcome["status"] == "unknown":
                worker.begin_another_life()

    # -- rows

    async def _perform(
        self,
        worker: Worker,
        row: Row,
        ask: Callable[[], Awaitable[ResultT]],
        output: Callable[[ResultT], Row],
    ) -> ResultT | None:
        """Carry out one operation and record it.

        Returns the result of the operation, or None if it did not end `ok`.
        """
        op_id = self._call(worker, row)
        try:
            result = await ask()
        except OutcomeUnknown as error:
            self._lost(worker, op_id, error)
            return None
        except OperationFailed as error:
            self._end(op_id, status="fail", error=error.word, return_ns=self.writer.clock.now_ns())
            return None
        returned = self.writer.clock.now_ns()
        revision = getattr(result, "revision", None)
        in_order = row["op"] in ("put", "get", "delete", "delete_range")
        outcome: Row = {"output": output(result), "revision": revision if in_order else None}
        if isinstance(result, AppendResult):
            outcome["key"] = to_text(result.key)
        self._end(op_id, status="ok", return_ns=returned, **outcome)
        return result

    def _call(self, worker: Worker, row: Row) -> int:
        return self.writer.call({"client": worker.client, **row, "call_ns": self.writer.clock.now_ns()})

    def _end(self, op_id: int | None, **outcome: object) -> None:
        assert op_id is not None
        row = self.writer.end(op_id, **outcome)
        self.tally.by_status[str(row["status"])] += 1


def _deleted(result: DeleteRangeResult) -> Row:
    items: list[Row] = []
    for record in result.previous:
        item: Row = {"key": to_text(record.key), "mod_revision": record.mod_revision, "version": record.version}
        items.append(item | {"value": to_text(record.value or b""), "create_revision": record.create_revision})
    return {"items": items, "count": result.count}


def _appended_key(moved: PositionMoved) -> bytes | None:
    """Return the key that the append of a commit made; None if the answer to the commit was lost."""
    (appended,) = moved.result.results if moved.result is not None else (None,)
    return appended.key if isinstance(appended, AppendResult) else None


def _watched(number: int, keys: Sequence[bytes], first: bytes) -> WatchedKeys:
    """Return the changes that watch number `number` requests. They are a part of the changes of keys from `first` on,
    without the keys of locks."""
    keys = [key for key in keys if first <= key < SERVICE_KEYS]
    key = keys[number % len(keys)]
    match number % 5:
        case 1:
            return WatchedKeys(start=max(first, key[:-1]), end=_LOCKS, previous=True)
        case 2:
            return WatchedKeys(start=key, end=key + b"\0", previous=True)
        case 3:
            return WatchedKeys(start=first, end=_LOCKS, only="put" if number // 5 % 2 else "delete")
        case 4:
            return WatchedKeys(start=SERVICE_KEYS, end=_LOCKS, previous=True)
    return WatchedKeys(start=first, end=_LOCKS, previous=number % 2 == 0)
