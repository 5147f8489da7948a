"""Facts about single keys, from the rows of a run: changes, writes of unknown outcome, events, and some reads.

Facts are collected only for some keys (`Interest`), such as keys that a watch covers, keys that were attached to a
lease, and keys that were read at a revision. There are facts about single revisions, too, if a revision has several
changes (`revision_order.py`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple, TypeAlias

from spark_audit.history.operation import WEAK, as_bytes
from spark_audit.history.requests import parse_request
from spark_audit.history.services import (
    APPENDED_BYTES,
    Record,
    answer_of,
    is_service,
    messages_of,
    parse_service,
    plain_rows,
)
from spark_audit.services.naming import RowName
from spark_audit.services.revision_order import Listed, Steps
from spark_audit.services.watches import Range

Row: TypeAlias = Mapping[str, Any]


class Change(NamedTuple):
    """An acknowledged change of the key at `revision`. `value`: None for a deletion."""

    revision: int
    kind: str
    value: str | None
    name: RowName


class Candidate(NamedTuple):
    """A write of unknown outcome that may have changed the key.

    `op`: the operation of the plain row (`put`, `cas`, `append`, `delete` or `txn`), or `lease` for the deletion by the
    lease `lease_id`. `plain_id`: the op_id of the plain row (`plain_rows` in history/services.py).
    """

    kind: str
    value: str | None
    op: str
    lease_id: int
    plain_id: int
    name: RowName


class Delivered(NamedTuple):
    """An event that a watch delivered. `watch`: the op_id of the part of a watch that delivered it."""

    revision: int
    kind: str
    value: str | None
    create_revision: int
    version: int
    lease_id: int
    previous: Record | None
    arrival_ns: int
    clock: str
    watch: int


class KeyRead(NamedTuple):
    """A read of the key. `at`: the revision at which it read; 0 for a read of the current state."""

    at: int
    found: bool
    value: str | None
    create_revision: int | None
    mod_revision: int | None
    version: int | None
    name: RowName


class Sighting(NamedTuple):
    """A record of the key that a read or an event showed, if an append of unknown outcome may have made it.

    `value`, `revision`: None if the answer does not include them. `watch`: the op_id of the part of a watch that
    delivered the event; None for a read. `name`: the row of the read or of the watch.
    """

    key: str
    value: str | None
    revision: int | None
    seen_ns: int
    watch: int | None
    name: RowName


KeyFact: TypeAlias = Change | Candidate | Delivered | KeyRead | Sighting
Fact: TypeAlias = KeyFact | Steps | Listed
Subject: TypeAlias = str | int  # The subject of a fact: a key or a revision.


@dataclass(frozen=True, slots=True)
class Interest:
    """The keys about which facts are collected. These are the keys in the ranges of watches, in `keys`, in `leased` and
    in `told`, and the keys that an append of unknown outcome may have made.

    `starts`, `ends`: the merged ranges of watches, ascending. `keys`: keys that were read at a revision. `leased`: keys
    that were attached to a lease. `prefixes`: the prefixes of appends of unknown outcome. `told`: the keys of accepted
    writes whose outcome an answer reports. `lost`: the op_ids of lost writes, which have no facts.
    """

    starts: list[bytes]
    ends: list[bytes | None]
    keys: frozenset[str]
    leased: frozenset[str]
    prefixes: frozenset[bytes]
    told: frozenset[str] = frozenset()
    lost: frozenset[int] = frozenset()
    _known: dict[str, bool] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        ranges: Iterable[Range],
        keys: Collection[str],
        leased: Collection[str],
        prefixes: Collection[bytes],
        *,
        told: Collection[str] = (),
        lost: frozenset[int] = frozenset(),
    ) -> Interest:
        """Return the interest in all keys of these ranges, in `keys`, in `leased`, in appends to `prefixes`, and in
        `told`."""
        starts: list[bytes] = []
        ends: list[bytes | None] = []
        for start, end in sorted(set(ranges), key=lambda one: one[0]):
            last = ends[-1] if ends else b""
            if starts and (last is None or start <= last):
                ends[-1] = None if last is None or end is None else max(last, end)
            else:
                starts.append(start)
                ends.append(end)
        return cls(starts, ends, frozenset(keys), frozenset(leased), frozenset(prefixes), frozenset(told), lost)

    def holds(self, key: str) -> bool:
        """Return whether facts about this key are collected."""
        found = self._known.get(key)
        if found is None:
            named = key in self.keys or key in self.leased or key in self.told
            found = named or self._in_range(as_bytes(key)) or self.appended(key)
            self._known[key] = found
        return found

    def appended(self, key: str) -> bool:
        """Return whether an append of unknown outcome may have made the key."""
        if not self.prefixes:
            return False
        data = as_bytes(key)
        return len(data) >= APPENDED_BYTES and data[:-APPENDED_BYTES] in self.prefixes

    def _in_range(self, key: bytes) -> bool:
        place = bisect_right(self.starts, key) - 1
        if place < 0:
            return False
        end = self.ends[place]
        return end is None or key < end


def prefix_and_revision(key: str) -> tuple[bytes, int]:
    """Split a key that an append made into its prefix and its revision."""
    data = as_bytes(key)
    return data[:-APPENDED_BYTES], int.from_bytes(data[-APPENDED_BYTES:], "big")


def facts_of(row: Row, interest: Interest) -> Iterator[tuple[Subject, Fact]]:
    """Yield (key or revision, fact) for each fact in a well-formed row.

    Events, and reads at a revision, are yielded for all keys. Other facts are yielded only for the keys in `interest`.
    """
    if interest.prefixes and row["status"] == "ok":
        for key, seen_ns, record in _shown(row):
            if interest.appended(key):
                yield key, Sighting(key, *_first_version(key, record), seen_ns, None, RowName.of(row))
    if row["op"] == "watch":
        if row["status"] == "ok":
            yield from _events(row)
        return
    if row["op"] == "get" and is_service(row) and row["status"] == "ok" and (at := parse_service(row)["revision"]):
        yield row["key"], _read(row, at)
        return
    for plain in plain_rows(row) if row["op_id"] not in interest.lost else ():
        if plain["status"] == "fail":
            continue
        if plain["op"] == "get":
            strict = plain["status"] == "ok" and plain.get("consistency") not in WEAK
            if strict and (plain["key"] in interest.leased or plain["key"] in interest.told):
                yield plain["key"], _read(plain, 0)
        elif plain["op"] != "range":
            wanted = [(key, fact) for key, fact in _writes(plain, row) if interest.holds(key)]
            yield from wanted
            keys = [key for key, fact in wanted if isinstance(fact, Change)]
            if row["op"] == "delete_range":
                keys.sort(key=as_bytes)
            if len(keys) > 1:
                yield plain["revision"], Steps(tuple(keys), RowName.of(row))


def _events(row: Row) -> Iterator[tuple[Subject, Fact]]:
    _, messages = messages_of(row)
    for message in messages:
        for revision, events in groupby(message.events, key=lambda event: event.revision):
            told = tuple((event.kind, event.key) for event in events)
            if len(told) > 1:
                yield revision, Listed(revision, told, row["op_id"])
        for event in message.events:
            yield (
                event.key,
                Delivered(
                    event.revision,
                    event.kind,
                    event.value,
                    event.create_revision,
                    event.version,
                    event.lease_id,
                    event.previous,
                    message.return_ns,
                    row["clock_id"],
                    row["op_id"],
                ),
            )


def _shown(row: Row) -> Iterator[tuple[str, int, Row]]:
    """Yield (key, time, record) for each record that an acknowledged row shows. For an event of a watch, only the
    record before the event is included. A deletion shows only that there was a record."""
    output, seen_ns = row["output"], row["return_ns"]
    match row["op"]:
        case "get" | "cas" if output.get("found"):
            yield row["key"], seen_ns, output
        case "delete" if output.get("found"):
            yield row["key"], seen_ns, {}
        case "range" | "delete_range":
            yield from ((item["key"], seen_ns, item) for item in output.get("items") or ())
        case "txn":
            steps = parse_request(row)["success" if output["succeeded"] else "failure"]
            for step, result in zip(steps, output["results"], strict=True):
                if step["op"] == "get" and result["found"]:
                    yield step["key"], seen_ns, result
                elif step["op"] == "delete" and result["found"]:
                    yield step["key"], seen_ns, {}
                elif step["op"] == "range":
                    yield from ((item["key"], seen_ns, item) for item in result.get("items") or ())
        case "watch":
            _, messages = messages_of(row)
            for message in messages:
                for event in message.events:
                    if event.previous is not None:
                        yield event.key, message.return_ns, event.previous._asdict()


def _first_version(key: str, record: Row) -> tuple[str | None, int | None]:
    """Return the value and the revision that an append gave to this key; the value is None after a later put."""
    created, modified = record.get("create_revision"), record.get("mod_revision")
    if created is not None and created != modified and created == prefix_and_revision(key)[1]:
        return None, created
    return record.get("value"), modified


def _read(row: Row, at: int) -> KeyRead:
    seen = row["output"]
    create, revision, version = (seen.get(name) for name in ("create_revision", "mod_revision", "version"))
    return KeyRead(at, bool(seen.get("found")), seen.get("value"), create, revision, version, RowName.of(row))


def _writes(plain: Row, row: Row) -> Iterator[tuple[str, KeyFact]]:
    name = RowName.of(row)
    if plain["op_id"] != row["op_id"]:
        lease_id = answer_of(row)["lease_id"] if row["op"] == "lock" else parse_service(row)["lease_id"]
        yield plain["key"], Candidate("delete", None, "lease", lease_id, plain["op_id"], name)
    elif plain["status"] == "unknown":
        for key, kind, value in _may_write(plain):
            yield key, Candidate(kind, value, plain["op"], 0, plain["op_id"], name)
    else:
        revision = plain.get("revision")
        for key, kind, value in _did_write(plain):
            if revision is None:  # Without a revision, a write has no known place in the order, like an unknown one.
                yield key, Candidate(kind, value, "txn", 0, plain["op_id"], name)
            else:
                yield key, Change(revision, kind, value, name._replace(revision=revision))


def _may_write(plain: Row) -> Iterator[tuple[str, str, str | None]]:
    if plain["op"] != "txn":
        yield plain["key"], "delete" if plain["op"] == "delete" else "put", plain.get("value")
        return
    request = parse_request(plain)
    for step in [*request["success"], *request["failure"]]:
        if step["op"] in ("put", "delete"):
            yield step["key"], step["op"], step["value"]


def _did_write(plain: Row) -> Iterator[tuple[str, str, str | None]]:
    output = plain["output"]
    match plain["op"]:
        case "put" | "append":
            yield plain["key"], "put", plain["value"] if plain["op"] == "put" else None
        case "delete" if output["found"]:
            yield plain["key"], "delete", None
        case "cas" if output["succeeded"]:
            yield plain["key"], "put", plain["value"]
        case "txn":
            steps = parse_request(plain)["success" if output["succeeded"] else "failure"]
            for step, result in zip(steps, output["results"], strict=True):
                if step["op"] == "put" or (step["op"] == "delete" and result["found"]):
                    yield step["key"], step["op"], step["value"]
