"""Generates seeded histories with watches, leases, locks, appends, reads at a revision, and a consumer group.

The histories are sound by construction.

The store and the clock are simulated. Each client, watch, lease owner and lock owner is a process that waits between
its steps. An operation takes effect at an instant between its call and its return. An unknown operation takes effect at
some time after its call, or never.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random
from typing import Any

from spark_audit.history.operation import as_bytes
from spark_audit.history.services import appended_key

Row = dict[str, Any]
Steps = Iterator[int]  # A process. At each step, it yields how long it waits before its next step (ns).

_MS = 1_000_000
_LOG, _DONE = "kq/", "kr/"  # Prefixes: of the records that the group consumes, and of those that its consumers append.
_NULLS: Row = dict.fromkeys(
    [
        *("session", "key", "value", "expected", "expected_mod_revision", "request", "output", "error"),
        *("return_ns", "revision", "consistency", "node"),
    ]
)
_WEIGHTS = {"put": 40, "get": 20, "delete": 10, "cas": 10, "txn": 6, "delete_range": 4, "historic": 10, "append": 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceShape:
    """The parameters of a history. `parts`: the maximum number of parts of a watch."""

    operations: int = 300
    clients: int = 4
    keys: int = 8
    watches: int = 4
    parts: int = 3
    lease_owners: int = 2
    lock_owners: int = 3
    consumers: int = 2
    unknown_share: float = 0.03


@dataclass(slots=True)
class _Record:
    value: str
    create: int
    mod: int
    version: int
    lease_id: int = 0

    def told(self) -> list[Any]:
        return [self.value, self.create, self.mod, self.version, self.lease_id]


@dataclass(slots=True)
class _Event:
    revision: int
    kind: str
    key: str
    record: _Record | None
    before: _Record | None

    def told(self, previous: bool) -> list[Any]:
        record = self.record
        numbers = [record.create, record.version, record.lease_id] if record is not None else [0, 0, 0]
        before = self.before.told() if previous and self.before is not None else None
        return [self.revision, self.kind, self.key, record.value if record is not None else None, *numbers, before]


@dataclass(slots=True)
class _Lease:
    ttl_ns: int
    deadline_ns: int
    keys: set[str] = field(default_factory=set)


class _Store:
    """The simulated store: its records, all events so far, and its leases. `at` must be called before each use."""

    def __init__(self) -> None:
        self.revision = 1
        self.records: dict[str, _Record] = {}
        self.events: list[_Event] = []
        self.leases: dict[int, _Lease] = {}
        self.now_ns = 0

    def at(self, now_ns: int) -> None:
        """Set the time, and expire the leases that are due."""
        self.now_ns = now_ns
        for lease_id, lease in sorted(self.leases.items(), key=lambda item: (item[1].deadline_ns, item[0])):
            if lease.deadline_ns <= now_ns:
                self.end(lease_id)

    def end(self, lease_id: int) -> bool:
        lease = self.leases.pop(lease_id, None)
        if lease is None:
            return False
        self.change([(key, None, 0) for key in sorted(lease.keys)])
        return True

    def change(self, steps: list[tuple[str, str | None, int]]) -> list[bool]:
        """Apply puts (key, value, lease_id) and deletions (key, None, 0) as one change.

        Return for each put and deletion whether it changed anything. There is a new revision only if at least one of
        them changed something.
        """
        did = [value is not None or key in self.records for key, value, _ in steps]
        if not any(did):
            return did
        self.revision += 1
        for (key, value, lease_id), changes in zip(steps, did, strict=True):
            if changes:
                self._one(key, value, lease_id)
        return did

    def _one(self, key: str, value: str | None, lease_id: int) -> None:
        before = self.records.pop(key, None)
        if before is not None and before.lease_id in self.leases:
            self.leases[before.lease_id].keys.discard(key)
        made = None
        if value is not None:
            create, version = (before.create, before.version + 1) if before else (self.revision, 1)
            made = self.records[key] = _Record(value, create, self.revision, version, lease_id)
            if lease_id:
                self.leases[lease_id].keys.add(key)
        self.events.append(_Event(self.revision, "put" if made else "delete", key, made, before))

    def seen(self, key: str, at: int | None = None) -> Row:
        record = self.records.get(key)
        if at is not None:
            past = [event for event in self.events if event.key == key and event.revision <= at]
            record = past[-1].record if past else None
        if record is None:
            return {"found": False}
        numbers = {"create_revision": record.create, "mod_revision": record.mod, "version": record.version}
        return {"found": True, "value": record.value, **numbers}


def generate_services(shape: ServiceShape, seed: int, run_id: str = "") -> list[Row]:
    """Return the rows of one run, sorted by call. The same shape and seed give the same rows.

    `run_id`: if it is empty, a name is made from the seed.
    """
    return _Simulation(shape, Random(seed), run_id or f"services-{seed}").rows()


class _Simulation:
    def __init__(self, shape: ServiceShape, random: Random, run_id: str) -> None:
        self.shape, self.random, self.run_id = shape, random, run_id
        self.store = _Store()
        self.made: list[Row] = []
        self.now = 0
        self.left = shape.operations
        self.waiting: list[tuple[int, int, Steps]] = []
        self.numbers = iter(range(10**9))
        self.lives = iter(range(10**9))
        self.appended: list[tuple[Row, str]] = []  # The row and the key of each append that took effect.
        self.owner: dict[str, int] = {}  # Name of a lock → the lease of its owner.
        self.position = self.fence = 1  # The position of the group, and the fence of its active consumer.

    def rows(self) -> list[Row]:
        for number in range(self.shape.clients):
            self._start(self._client(number))
        for number in range(self.shape.watches):
            self._start(self._watch(number), self._wait(30 if number % 3 == 2 else 1))
        for number in range(self.shape.lease_owners):
            self._start(self._lease_owner(number))
        for number in range(self.shape.lock_owners):
            self._start(self._lock_owner(number))
        for number in range(self.shape.consumers):
            self._start(self._consumer(number))
        while self.waiting:
            self.now, _, steps = heappop(self.waiting)
            self.store.at(self.now)
            if (wait := next(steps, None)) is not None:
                self._start(steps, wait)
        for row, key in self.appended:
            row["key"] = key if row["status"] == "ok" else row["key"]
        return sorted(self.made, key=lambda row: (row["call_ns"], row["op_id"]))

    def _start(self, steps: Steps, wait: int | None = None) -> None:
        wait = self.random.randrange(1, _MS) if wait is None else wait
        heappush(self.waiting, (self.now + wait, next(self.numbers), steps))

    def _wait(self, most_ms: float = 2.0) -> int:
        return self.random.randrange(1, int(most_ms * _MS))

    def _call(self, client: str, op: str, **fields: Any) -> Row:
        request = fields.pop("request", None)
        row = {**_NULLS, "run_id": self.run_id, "op_id": len(self.made), "client": client, "op": op, **fields}
        row |= {"call_ns": self.now, "clock_id": "simulated", "status": "unknown", "error": "Timeout"}
        row["request"] = None if request is None else _canonical(request)
        self.made.append(row)
        return row

    def _return(self, row: Row, output: Row, revision: int | None = None) -> None:
        revision = self.store.revision if revision is None else revision
        row |= {"status": "ok", "error": None, "return_ns": self.now, "output": output, "revision": revision or None}

    def _perform(self, row: Row, effect: Callable[[], Row]) -> Steps:
        """Let an operation take effect and return, or end with unknown outcome.

        `effect` is called at the instant of the effect, and returns the output.
        """
        if self.random.random() < self.shape.unknown_share:
            if self.random.random() < 0.6:
                self._start(self._later(effect), self._wait(20))
            yield self._wait()
            return
        yield self._wait()
        output = effect()
        revision = self.store.revision
        yield self._wait()
        self._return(row, output, revision)

    def _later(self, effect: Callable[[], Row]) -> Steps:
        """A process whose only step lets an operation take effect."""
        effect()
        yield from ()

    # -- clients

    def _client(self, number: int) -> Steps:
        life = 0
        while self.left > 0:
            self.left -= 1
            client = f"c{number}.{life}"
            op = self.random.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
            row, effect = getattr(self, f"_{op}")(client)
            yield from self._perform(row, effect)
            life += row["status"] == "unknown"
            yield self._wait(0.3)

    def _key(self) -> str:
        return f"k{self.random.randrange(self.shape.keys):03d}"

    def _value(self) -> str:
        return f"v{len(self.made)}"

    def _changed(self, *steps: tuple[str, str | None, int]) -> list[bool]:
        return self.store.change(list(steps))

    def _put(self, client: str) -> tuple[Row, Callable[[], Row]]:
        key, value = self._key(), self._value()
        row = self._call(client, "put", key=key, value=value)
        return row, lambda: {"succeeded": self._changed((key, value, 0))[0]}

    def _get(self, client: str) -> tuple[Row, Callable[[], Row]]:
        key = self._key()
        if self.appended and self.random.random() < 0.2:
            _, key = self.random.choice(self.appended)
        row = self._call(client, "get", key=key, consistency="linearizable")
        return row, lambda: self.store.seen(key)

    def _delete(self, client: str) -> tuple[Row, Callable[[], Row]]:
        key = self._key()
        row = self._call(client, "delete", key=key)
        return row, lambda: {"found": self._changed((key, None, 0))[0]}

    def _append(self, client: str) -> tuple[Row, Callable[[], Row]]:
        """A put under a key that the store makes. The row gets the key only once the put has taken effect."""
        value = self._value()
        row = self._call(client, "put", key=_LOG, value=value, request={"prefix": _LOG})

        def effect() -> Row:
            self._appended(row, _LOG, value)
            return {"succeeded": True}

        return row, effect

    def _appended(self, row: Row, prefix: str, value: str) -> None:
        key = appended_key(prefix.encode(), self.store.revision + 1)
        self._changed((key, value, 0))
        self.appended.append((row, key))

    def _cas(self, client: str) -> tuple[Row, Callable[[], Row]]:
        key, value = self._key(), self._value()
        expected = self.store.seen(key).get("value")
        row = self._call(client, "cas", key=key, value=value, expected=expected)

        def effect() -> Row:
            seen = self.store.seen(key)
            if seen.get("value") != expected:
                return {"succeeded": False, **seen}
            return {"succeeded": self._changed((key, value, 0))[0]}

        return row, effect

    def _txn(self, client: str) -> tuple[Row, Callable[[], Row]]:
        """A transaction that puts one or two keys, or puts one key and deletes another key.

        The transaction may compare the value of a key. If the comparison fails, the transaction puts only this key.
        """
        one, other, value = self._key(), self._key(), self._value()
        steps: list[Row] = [{"op": "put", "key": one, "value": value}]
        if other != one:
            second: Row = {"op": "put", "value": f"{value}b"} if self.random.random() < 0.6 else {"op": "delete"}
            steps.insert(self.random.randrange(2), {**second, "key": other})
        expected = self.store.seen(one).get("value")
        compares: list[Row] = []
        if expected is not None and self.random.random() < 0.5:
            compares.append({"key": one, "target": "value", "op": "=", "value": expected})
        failure = [{"op": "put", "key": one, "value": value}] if compares else []
        row = self._call(client, "txn", request={"compares": compares, "success": steps, "failure": failure})

        def effect() -> Row:
            succeeded = not compares or self.store.seen(one).get("value") == expected
            mine = steps if succeeded else failure
            did = self._changed(*((step["key"], step.get("value"), 0) for step in mine))
            results = [
                {"op": "put", "succeeded": True} if step["op"] == "put" else {"op": "delete", "found": changed}
                for step, changed in zip(mine, did, strict=True)
            ]
            return {"succeeded": succeeded, "results": results}

        return row, effect

    def _delete_range(self, client: str) -> tuple[Row, Callable[[], Row]]:
        low, high = sorted((self._key(), self._key()))
        every = [f"k{number:03d}" for number in range(self.shape.keys)]
        mine = [key for key in every if low <= key < high]
        row = self._call(client, "delete_range", request={"start": low, "end": high, "keys": mine})

        def effect() -> Row:
            there = [key for key in mine if key in self.store.records]
            items = [{"key": key, **self.store.seen(key)} for key in there]
            self._changed(*((key, None, 0) for key in there))
            return {"items": [{name: item[name] for name in item if name != "found"} for item in items]}

        return row, effect

    def _historic(self, client: str) -> tuple[Row, Callable[[], Row]]:
        key, at = self._key(), self.random.randrange(1, self.store.revision + 1)
        row = self._call(client, "get", key=key, consistency="linearizable", request={"revision": at})
        return row, lambda: self.store.seen(key, at)

    # -- watches

    def _watch(self, number: int) -> Steps:
        """A watch, in parts, on all keys, a prefix, one key, or all keys from one key on.

        The watch may ask for only one kind of events.
        """
        request: Row = {"previous": self.random.random() < 0.6}
        if number:
            request["only"] = self.random.choice((None, None, "put", "delete"))
            prefix, key = {"prefix": self.random.choice(("k", "k0", "l"))}, self._key()
            request |= self.random.choice((prefix, {"start": key, "end": f"{key}\0"}, {"start": key}))
        begin = self.random.choice((0, 0, self.random.randrange(1, self.store.revision + 3)))
        resumes: int | None = None
        for part in range(self.random.randrange(1, self.shape.parts + 1)):
            mine = {**request, "from_revision": begin, "resumes": resumes}
            row = self._call(f"w{number}.{next(self.lives)}", "watch", request=mine)
            created = self.store.revision
            first = delivered = (begin or created + 1) - 1
            messages: list[Any] = []
            rounds = 0
            while rounds < 3 + 40 * (part + 1) or self.left > 0:
                rounds += 1
                yield self._wait(3)
                due = [event for event in self.store.events if event.revision > delivered and _covers(mine, event)]
                revisions = sorted({event.revision for event in due})[: self.random.randrange(1, 4)]
                if revisions:
                    delivered = revisions[-1]
                    told = [event.told(mine["previous"]) for event in due if event.revision <= delivered]
                    messages.append([self.now, delivered, told])
                elif self.random.random() < 0.3 and self.store.revision > delivered:
                    delivered = self.store.revision
                    messages.append([self.now, delivered, []])
                if self.random.random() < 0.02 and part + 1 < self.shape.parts:
                    break
                if self.left <= 0 and rounds > 60:
                    break
            end = self.random.choice(("broken", "cancelled"))
            answer = {"created_revision": created, "messages": messages, "end": end}
            self._return(row, {"answer": _canonical(answer)}, 0)
            resumes, begin = row["op_id"], max(first, delivered) + 1
            yield self._wait(1)

    # -- leases and locks

    def _lease_owner(self, number: int) -> Steps:
        """A process that owns one lease after the other. Each lease gets one or two keys and is renewed a few times.

        Then the process revokes the lease or lets it expire.
        """
        while self.left > 0:
            client = f"l{number}.{next(self.lives)}"
            lease_id, ttl_ns = next(self.lives) + 1, self.random.choice((5, 20)) * _MS
            row = self._call(client, "lease_grant", request={"ttl_ns": ttl_ns})
            yield self._wait(1)
            self.store.leases[lease_id] = _Lease(ttl_ns, self.now + ttl_ns)
            yield self._wait(1)
            self._answer(row, {"lease_id": lease_id, "ttl_ns": ttl_ns})
            for place in range(self.random.randrange(1, 3)):
                key, value = f"l{number}-{place}", self._value()
                row = self._call(client, "put", key=key, value=value, request={"lease_id": lease_id})
                yield self._wait(1)
                if lease_id not in self.store.leases:
                    row |= {"status": "fail", "error": "LeaseNotFound", "return_ns": self.now}
                    continue
                self._changed((key, value, lease_id))
                revision = self.store.revision
                yield self._wait(1)
                self._return(row, {"succeeded": True}, revision)
            for _ in range(self.random.randrange(4)):
                yield self._wait(4)
                row = self._call(client, "lease_renew", request={"lease_id": lease_id})
                yield self._wait(1)
                lease = self.store.leases.get(lease_id)
                if lease is not None:
                    lease.deadline_ns = self.now + ttl_ns
                yield self._wait(1)
                self._answer(row, {"ttl_ns": ttl_ns if lease is not None else 0})
            if self.random.random() < 0.5:
                row = self._call(client, "lease_revoke", request={"lease_id": lease_id})
                yield self._wait(1)
                found = self.store.end(lease_id)
                yield self._wait(1)
                self._answer(row, {"found": found})
            yield self._wait(10)
            yield from self._read(client, f"l{number}-0")

    def _read(self, client: str, key: str) -> Steps:
        row = self._call(client, "get", key=key, consistency="linearizable")
        yield self._wait(1)
        output, revision = self.store.seen(key), self.store.revision
        yield self._wait(1)
        self._return(row, output, revision)

    def _answer(self, row: Row, answer: Row) -> None:
        self._return(row, {"answer": _canonical(answer)}, 0)

    def _lock_owner(self, number: int) -> Steps:
        """A process that obtains and releases one of two locks, repeatedly.

        The fence is the revision of the lock's key.
        """
        while self.left > 0:
            name = self.random.choice(("one", "two"))
            client = f"o{number}.{next(self.lives)}"
            row = self._call(client, "lock", request={"name": name})
            yield self._wait(1)
            while name in self.owner:
                yield self._wait(1)
            lease_id = next(self.lives) + 1
            self.owner[name] = lease_id
            self.store.leases[lease_id] = _Lease(10**18, 10**18)
            key = f"\x01lock/{name}/{lease_id:016x}"
            self._changed((key, "", lease_id))
            fence = self.store.revision
            yield self._wait(1)
            self._answer(row, {"key": key, "fence": fence, "lease_id": lease_id})
            yield self._wait(4)
            row = self._call(client, "unlock", request={"name": name, "key": key})
            yield self._wait(1)
            self.store.end(lease_id)
            del self.owner[name]
            yield self._wait(1)
            self._return(row, {"succeeded": True}, 0)
            yield self._wait(2)

    # -- consumers

    def _consumer(self, number: int) -> Steps:
        """A process that repeatedly becomes the active consumer of the group, and commits a few records.

        If there is no record, the process appends one.
        """
        while self.left > 0:
            client = f"g{number}.{next(self.lives)}"
            yield self._wait(3)
            fence = self.fence = max(self.store.revision, self.fence + 1)
            for _ in range(self.random.randrange(1, 8)):
                record = next((each.revision for each in self.store.events if self._is_next(each)), None)
                if record is None:
                    row, effect = self._append(client)
                    yield from self._perform(row, effect)
                else:
                    row = self._call(client, "consume", key=_DONE, value=self._value(), request=_request_of(record))
                    yield from self._commit(row, record, fence)
                if row["status"] != "ok":
                    break
                yield self._wait()

    def _is_next(self, event: _Event) -> bool:
        return event.revision > self.position and as_bytes(event.key).startswith(_LOG.encode())

    def _commit(self, row: Row, record: int, fence: int) -> Steps:
        """Commit a record if the consumer is still the active consumer, and the record is still the next record of the
        group."""

        def effect() -> Row:
            if self.fence != fence or self.position >= record:
                return {}
            self.position = record
            self._appended(row, _DONE, row["value"])
            return {"answer": _canonical({"fence": fence})}

        yield from self._perform(row, effect)
        if row["status"] == "ok" and not row["output"]:
            row |= {"status": "fail", "error": "LockLost", "output": None, "revision": None}


def _request_of(record: int) -> Row:
    return {"group": "g", "log": _LOG, "from_revision": 1, "position": record, "prefix": _DONE}


def _covers(request: Row, event: _Event) -> bool:
    if request.get("only") not in (None, event.kind):
        return False
    key = as_bytes(event.key)
    if request.get("prefix") is not None:
        return key.startswith(as_bytes(request["prefix"]))
    start, end = request.get("start"), request.get("end")
    return (start is None or key >= as_bytes(start)) and (end is None or key < as_bytes(end))


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
