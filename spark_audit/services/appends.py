"""Judges appends: puts under a key that the store makes, from a prefix and the revision of the put.

The key of an append of unknown outcome is not known. But an event or a read may show a record that has the value and
the prefix of the append, and whose key names the record's own revision. Such a record comes from the append.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from spark_audit.history.operation import as_bytes
from spark_audit.history.services import appended_key, is_service, parse_service
from spark_audit.services.key_facts import Sighting, prefix_and_revision
from spark_audit.services.naming import Finding, RowName, change_words, finding
from spark_audit.services.settle import Row, batch_row

APPENDS, SOURCE = "appends", "watch_source"


class Append(NamedTuple):
    """An append. `key`: None if the outcome of the append is unknown."""

    prefix: bytes
    key: str | None
    value: str
    name: RowName


def append_of(row: Mapping[str, Any]) -> Append | None:
    """Return the append that a well-formed row records; None for a failed append or another operation.

    A commit of a consumer carries out an append, too.
    """
    if row["op"] not in ("put", "consume") or row["status"] == "fail" or not is_service(row):
        return None
    prefix = parse_service(row)["prefix"]
    if prefix is None:
        return None
    key = row["key"] if row["status"] == "ok" else None
    return Append(as_bytes(prefix), key, row["value"], RowName.of(row))


def key_findings(appends: Iterable[Append]) -> list[Finding]:
    """Return the acknowledged appends whose key does not consist of the prefix and the revision."""
    found: list[Finding] = []
    for append in appends:
        revision = append.name.revision
        if append.key is not None and revision is not None and append.key != appended_key(append.prefix, revision):
            words = f"made the key {append.key} at revision {revision}"
            found.append(finding(APPENDS, append.key, f"{append.name.words} {words}", append.name.shown(words)))
    return found


def assign(appends: Iterable[Append], sightings: Iterable[Sighting]) -> tuple[dict[int, Row], list[Finding]]:
    """Find the keys of the appends of unknown outcome whose records were seen.

    Appends of the same value are exchangeable, so the append that was called first gets the lowest revision. If only
    the key of a record was seen, all remaining appends to the prefix of this key are exchangeable. `sightings`: the
    sightings of records that no acknowledged operation made. Return op_id → the row that replaces the row of the
    append, and a finding for each event that no append explains.
    """
    by_key: dict[str, list[Sighting]] = {}
    for one in sorted(sightings, key=lambda one: (as_bytes(one.key), one.seen_ns, one.name.op_id)):
        by_key.setdefault(one.key, []).append(one)
    waiting: dict[tuple[bytes, str], deque[Append]] = {}
    for append in sorted(appends, key=_by_call):
        if append.key is None:
            waiting.setdefault((append.prefix, append.value), deque()).append(append)
    rows: dict[int, Row] = {}
    found: list[Finding] = []
    without_value: list[str] = []
    for key, seen in by_key.items():
        value = next((one.value for one in seen if one.value is not None), None)
        if value is None:
            without_value.append(key)
            continue
        mine = waiting.get((prefix_and_revision(key)[0], value))
        events = [one for one in seen if one.watch is not None]
        if mine and not (events and _is_late(mine[0], events[0])):
            append = mine.popleft()
            rows[append.name.op_id] = _row(append, key, events)
        elif events:
            found.append(_made_up(events[0]))
    left: dict[bytes, deque[Append]] = {}
    for append in sorted((append for mine in waiting.values() for append in mine), key=_by_call):
        left.setdefault(append.prefix, deque()).append(append)
    for key in without_value:
        if rest := left.get(prefix_and_revision(key)[0]):
            append = rest.popleft()
            rows[append.name.op_id] = _row(append, key, ())
    return rows, found


def _by_call(append: Append) -> tuple[int, int]:
    return append.name.call_ns, append.name.op_id


def _is_late(append: Append, event: Sighting) -> bool:
    return append.name.clock == event.name.clock and event.seen_ns < append.name.call_ns


def _made_up(event: Sighting) -> Finding:
    told = f"delivered the {change_words('put', event.value, event.revision or 0)} of {event.key}"
    text = f"{event.name.words} {told}, which no operation of the run can have made"
    return finding(SOURCE, event.key, text, event.name.shown(told))


def _row(append: Append, key: str, events: Iterable[Sighting]) -> Row:
    """Return the row of a put under this key.

    The put is acknowledged if an event with a stamp of the append's clock shows it.
    """
    name, revision = append.name, prefix_and_revision(key)[1]
    arrivals = [one.seen_ns for one in events if one.name.clock == name.clock]
    row = batch_row(name.op_id, name, [("put", key, append.value)], revision, min(arrivals, default=0))
    if not arrivals:
        row |= {"status": "unknown", "return_ns": None, "output": None, "revision": None}
    return row
