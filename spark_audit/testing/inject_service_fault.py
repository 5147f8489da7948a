"""Injects one fault into a sound history with watches, leases, locks, reads at a revision or a consumer group.

Tests then check that the audit finds the fault. Written values must be unique, as they are in generated and recorded
histories.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from random import Random
from typing import Any

from spark_audit.history.operation import as_bytes
from spark_audit.history.services import appended_key

Row = dict[str, Any]
_Message = list[Any]  # [return_ns, revision, events]
_REVISION, _KIND, _KEY, _VALUE, _CREATE, _VERSION, _LEASE, _PREVIOUS = range(8)


class _Watch:
    """A row of a watch, with its request and messages. A fault may change the request and the messages; `write` then
    updates the row."""

    def __init__(self, row: Row) -> None:
        self.row = row
        self.request = json.loads(row["request"])
        self._answer = json.loads(row["output"]["answer"])
        self.messages: list[_Message] = self._answer["messages"]

    def events(self) -> Iterator[tuple[int, int, list[Any]]]:
        """Yield (number of the message, place of the event in it, event)."""
        for number, message in enumerate(self.messages):
            for place, event in enumerate(message[2]):
                yield number, place, event

    def last(self) -> int:
        """Return the last revision that a message of the row names."""
        return max((message[1] for message in self.messages), default=0)

    def write(self) -> Row:
        self.row["request"] = _canonical(self.request)
        self.row["output"] = {**self.row["output"], "answer": _canonical(self._answer)}
        return self.row


class _History:
    """The rows of one run, and its watches in a random order."""

    def __init__(self, rows: list[Row], random: Random) -> None:
        self.rows, self.random = rows, random
        answered = [row for row in rows if row["op"] == "watch" and row["status"] == "ok"]
        self.watches = [_Watch(row) for row in random.sample(answered, len(answered))]

    def of(self, op: str) -> list[Row]:
        """Return the acknowledged rows of this operation, in a random order."""
        mine = [row for row in self.rows if row["op"] == op and row["status"] == "ok"]
        return self.random.sample(mine, len(mine))


def inject_service(rows: Iterable[Row], fault: str, seed: int) -> tuple[list[Row], Row]:
    """Return a copy of the rows of a run with one fault in it, and a row that shows the fault.

    `fault`: one of SERVICE_FAULTS. Raises ValueError if the fault is not possible in this history.
    """
    copied = [{**row, "output": row["output"] and dict(row["output"])} for row in rows]
    shown = _MADE[fault](_History(copied, Random(seed)))
    if shown is None:
        raise ValueError(f"no row of this history can be given the fault {fault!r}")
    return copied, shown


def _dropped_event(history: _History) -> Row | None:
    """A watch leaves out an event of an acknowledged put."""
    known = {row["revision"] for row in history.of("put")}
    for watch in history.watches:
        for number, place, event in watch.events():
            if event[_REVISION] in known and event[_REVISION] < watch.last() and len(watch.messages[number][2]) > 1:
                return _without(watch, number, place)
    return None


def _merged_changes(history: _History) -> Row | None:
    """A watch leaves out an acknowledged put, and delivers only a later put of the same key."""
    known = {row["revision"] for row in history.of("put")}
    for watch in history.watches:
        later = {(event[_KEY], event[_REVISION]) for _, _, event in watch.events() if event[_KIND] == "put"}
        for number, place, event in watch.events():
            behind = any(key == event[_KEY] and at > event[_REVISION] for key, at in later)
            if event[_REVISION] in known and behind:
                return _without(watch, number, place)
    return None


def _without(watch: _Watch, number: int, place: int) -> Row:
    message = watch.messages[number]
    message[2] = message[2][:place] + message[2][place + 1 :]
    if message[2]:
        message[1] = message[2][-1][_REVISION]
    else:
        watch.messages.pop(number)
    return watch.write()


def _repeated_event(history: _History) -> Row | None:
    """A watch delivers an event twice."""
    for watch in history.watches:
        for number, _, event in watch.events():
            message = watch.messages[number]
            watch.messages.insert(number + 1, [message[0], event[_REVISION], [event]])
            return watch.write()
    return None


def _swapped_events(history: _History) -> Row | None:
    """A watch delivers two events of different revisions in the wrong order."""
    for watch in history.watches:
        every = [(message, place) for message in watch.messages for place in range(len(message[2]))]
        for (one, first), (other, second) in pairwise(every):
            if one[2][first][_REVISION] < other[2][second][_REVISION]:
                one[2][first], other[2][second] = other[2][second], one[2][first]
                return watch.write()
    return None


def _split_revision(history: _History) -> Row | None:
    """A watch delivers the events of one revision in two messages."""
    for watch in history.watches:
        for number, place, event in watch.events():
            when, _, events = watch.messages[number]
            if place and events[place - 1][_REVISION] == event[_REVISION]:
                first = [when, event[_REVISION], events[:place]]
                watch.messages[number : number + 1] = [first, [when, events[-1][_REVISION], events[place:]]]
                return watch.write()
    return None


def _reordered_revision(history: _History) -> Row | None:
    """A watch delivers two events of one acknowledged operation in the wrong order, in one message."""
    known = {row["revision"] for row in [*history.of("txn"), *history.of("delete_range")]}
    for watch in history.watches:
        for message in watch.messages:
            events = message[2]
            for place, (one, other) in enumerate(pairwise(events)):
                if one[_REVISION] == other[_REVISION] and one[_REVISION] in known:
                    events[place : place + 2] = [other, one]
                    return watch.write()
    return None


def _reordered_lease_end(history: _History) -> Row | None:
    """A watch delivers, in one message, deletions that the end of a lease made, but in the wrong order."""
    known = {row["revision"] for row in history.rows}
    for watch in history.watches:
        for message in watch.messages:
            events = message[2]
            for place, (one, other) in enumerate(pairwise(events)):
                leases = {(event[_PREVIOUS] or [0])[-1] for event in (one, other)}
                if one[_REVISION] == other[_REVISION] and one[_REVISION] not in known and len(leases - {0}) == 1:
                    events[place : place + 2] = [other, one]
                    return watch.write()
    return None


def _early_bookmark(history: _History) -> Row | None:
    """A watch delivers a bookmark for a revision before it delivers an event of this revision."""
    for watch in history.watches:
        for number, _, event in watch.events():
            watch.messages.insert(number, [watch.messages[number][0], event[_REVISION], []])
            return watch.write()
    return None


def _wrong_previous(history: _History) -> Row | None:
    """A watch delivers an event with a wrong previous record."""
    for watch in history.watches:
        told = {(event[_KEY], event[_REVISION]) for _, _, event in watch.events()}
        for _, _, event in watch.events():
            before = event[_PREVIOUS]
            if before is not None and (event[_KEY], before[2]) in told:
                before[0] += "-never"
                return watch.write()
    return None


def _phantom_event(history: _History) -> Row | None:
    """A watch delivers a change that no operation made."""
    for watch in history.watches:
        for number, place, event in watch.events():
            if event[_KIND] == "put":
                events = watch.messages[number][2]
                made_up = [event[_REVISION], "put", f"{event[_KEY]}\0", "never", event[_REVISION], 1, 0, None]
                if watch.request.get("start") is None or not watch.request.get("end"):
                    events.insert(place + 1, made_up)
                    return watch.write()
    return None


def _wrong_event(history: _History) -> Row | None:
    """A watch delivers a put with a wrong value."""
    for watch in history.watches:
        for _, _, event in watch.events():
            if event[_KIND] == "put":
                event[_VALUE] += "-never"
                return watch.write()
    return None


def _resumed_late(history: _History) -> Row | None:
    """A watch resumes one revision too late."""
    for watch in history.watches:
        if watch.request.get("resumes") is None:
            continue
        watch.request["from_revision"] += 1
        first = watch.request["from_revision"]
        for message in watch.messages:
            message[2] = [event for event in message[2] if event[_REVISION] >= first]
        watch.messages[:] = [message for message in watch.messages if message[1] >= first]
        return watch.write()
    return None


def _expired_early(history: _History) -> Row | None:
    """A lease ends long before its time to live is over.

    The fault raises the time to live in the answer to the grant.
    """
    revoked = {_request(row)["lease_id"] for row in history.rows if row["op"] == "lease_revoke"}
    attached = {
        (row["key"], row["revision"]): _request(row).get("lease_id")
        for row in history.rows
        if row["op"] == "put" and row["request"] and row["status"] == "ok"
    }
    deleted = {row["revision"] for row in history.rows if row["op"] in ("delete", "delete_range")}
    open_ = {row["key"] for row in history.rows if row["op"] == "delete" and row["status"] == "unknown"}
    for watch in history.watches:
        for _, _, event in watch.events():
            before = event[_PREVIOUS]
            if event[_KIND] != "delete" or before is None or event[_KEY] in open_ or event[_REVISION] in deleted:
                continue
            lease_id = attached.get((event[_KEY], before[2]))
            if lease_id is not None and lease_id not in revoked:
                return _promise(history, lease_id)
    return None


def _promise(history: _History, lease_id: int) -> Row | None:
    for row in history.of("lease_grant"):
        answer = json.loads(row["output"]["answer"])
        if answer["lease_id"] == lease_id:
            row["output"]["answer"] = _canonical({**answer, "ttl_ns": 3_600 * 10**9})
            return row
    return None


def _renewed_after_end(history: _History) -> Row | None:
    """A renewal succeeds, although a revocation of the lease had returned before."""
    ended = {_request(row)["lease_id"]: row for row in history.of("lease_revoke")}
    for row in history.of("lease_renew"):
        end = ended.get(_request(row)["lease_id"])
        if end is not None:
            late = 1 + end["return_ns"]
            later = {**row, "op_id": max(row["op_id"] for row in history.rows) + 1, "client": "late"}
            later |= {"call_ns": late, "return_ns": late + 1, "output": {"answer": _canonical({"ttl_ns": 10**6})}}
            history.rows.append(later)
            return later
    return None


def _repeated_fence(history: _History) -> Row | None:
    """A lock is obtained with the fence of an earlier owner."""
    locks = history.of("lock")
    for one in locks:
        for other in locks:
            same = _request(one)["name"] == _request(other)["name"]
            if same and one["return_ns"] < other["call_ns"]:
                fence = json.loads(one["output"]["answer"])["fence"]
                answer = json.loads(other["output"]["answer"])
                other["output"]["answer"] = _canonical({**answer, "fence": fence})
                return other
    return None


def _wrong_appended_key(history: _History) -> Row | None:
    """An append is answered with the key of the next revision."""
    for row in history.of("put"):
        prefix = _request(row).get("prefix") if row["request"] else None
        if prefix is not None:
            row["key"] = appended_key(as_bytes(prefix), row["revision"] + 1)
            return row
    return None


def _wrong_historic_read(history: _History) -> Row | None:
    """A read at a revision returns a value that was never written."""
    for row in history.of("get"):
        if row["request"] and row["output"]["found"]:
            row["output"]["value"] += "-never"
            return row
    return None


def _missed_historic_read(history: _History) -> Row | None:
    """A read at a revision returns a later record."""
    for row in history.of("get"):
        if row["request"] and row["output"]["found"] and row["output"]["mod_revision"] > 2:
            row["request"] = _canonical({"revision": row["output"]["mod_revision"] - 1})
            return row
    return None


def _commits(history: _History) -> Iterator[tuple[Row, Row]]:
    """Yield pairs of commits: a commit, and the commit before it in the order of their revisions."""
    ordered = sorted(history.of("consume"), key=lambda row: row["revision"])
    pairs = [(later, before) for before, later in pairwise(ordered)]
    yield from history.random.sample(pairs, len(pairs))


def _change_commit(row: Row, **fields: int) -> Row:
    row["request"] = _canonical({**_request(row), **fields})
    return row


def _record_consumed_twice(history: _History) -> Row | None:
    """A consumer commits again the record that the previous commit committed."""
    for row, before in _commits(history):
        return _change_commit(row, position=_request(before)["position"])
    return None


def _group_moved_back(history: _History) -> Row | None:
    """A consumer moves the group to a position before the present one."""
    for row, before in _commits(history):
        if _request(before)["position"] > 1:
            return _change_commit(row, position=_request(before)["position"] - 1)
    return None


def _record_left_out(history: _History) -> Row | None:
    """A consumer moves the group beyond a record that no consumer has committed."""
    known = {row["revision"] for row in history.of("put")}
    open_ = [row for row in history.rows if row["op"] == "consume" and row["status"] == "unknown"]
    known -= {_request(row)["position"] for row in open_}  # Such a commit may have committed the record.
    for row, _ in _commits(history):
        position = _request(row)["position"]
        if position in known and position + 1 < row["revision"]:
            return _change_commit(row, position=position + 1)
    return None


def _record_from_the_future(history: _History) -> Row | None:
    """A consumer commits a record that is newer than the commit."""
    for row, _ in _commits(history):
        return _change_commit(row, position=row["revision"] + 1)
    return None


def _fence_of_a_former_consumer(history: _History) -> Row | None:
    """A consumer commits with a fence below the fence of the previous commit."""
    for row, before in _commits(history):
        fence = json.loads(before["output"]["answer"])["fence"]
        if fence > 1:
            row["output"]["answer"] = _canonical({"fence": fence - 1})
            return row
    return None


_MADE: dict[str, Callable[[_History], Row | None]] = {
    "dropped_event": _dropped_event,
    "merged_changes": _merged_changes,
    "repeated_event": _repeated_event,
    "swapped_events": _swapped_events,
    "split_revision": _split_revision,
    "reordered_revision": _reordered_revision,
    "reordered_lease_end": _reordered_lease_end,
    "early_bookmark": _early_bookmark,
    "wrong_previous": _wrong_previous,
    "phantom_event": _phantom_event,
    "wrong_event": _wrong_event,
    "resumed_late": _resumed_late,
    "expired_early": _expired_early,
    "renewed_after_end": _renewed_after_end,
    "repeated_fence": _repeated_fence,
    "wrong_appended_key": _wrong_appended_key,
    "wrong_historic_read": _wrong_historic_read,
    "missed_historic_read": _missed_historic_read,
    "record_consumed_twice": _record_consumed_twice,
    "group_moved_back": _group_moved_back,
    "record_left_out": _record_left_out,
    "record_from_the_future": _record_from_the_future,
    "fence_of_a_former_consumer": _fence_of_a_former_consumer,
}
SERVICE_FAULTS = tuple(_MADE)

FAULT_PROPERTIES = {
    "dropped_event": "watch_gap",
    "merged_changes": "watch_gap",
    "repeated_event": "watch_once",
    "swapped_events": "watch_once",
    "split_revision": "watch_once",
    "reordered_revision": "watch_once",
    "reordered_lease_end": "watch_once",
    "early_bookmark": "watch_bookmark",
    "wrong_previous": "watch_previous",
    "phantom_event": "watch_source",
    "wrong_event": "watch_source",
    "resumed_late": "watch_resume",
    "expired_early": "leases",
    "renewed_after_end": "leases",
    "repeated_fence": "locks",
    "wrong_appended_key": "appends",
    "wrong_historic_read": "historic",
    "missed_historic_read": "historic",
    "record_consumed_twice": "consumers",
    "group_moved_back": "consumers",
    "record_left_out": "consumers",
    "record_from_the_future": "consumers",
    "fence_of_a_former_consumer": "consumers",
}
"""The property that each fault violates."""


def _request(row: Row) -> Row:
    made: Row = json.loads(row["request"])
    return made


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
