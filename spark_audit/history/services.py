"""Rows of services: watches, leases, locks, deletions of ranges, compactions, puts with a lease, reads at a revision,
appends, and commits of consumers. An append is a put under a key that the store makes.

Each of these rows has its request as JSON text in `request`. Most of these rows have their answer as JSON text in
`output.answer`. The fields are in docs/reference/specification.md#1010-rows-of-services.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from spark_audit.history.operation import as_bytes, as_text
from spark_audit.history.requests import HALF_PAIR, NUMBERS, BadRequest, is_text

Row: TypeAlias = Mapping[str, Any]
Fields: TypeAlias = dict[str, Any]

SERVICE_OPS = (
    "watch",
    "delete_range",
    "lease_grant",
    "lease_renew",
    "lease_revoke",
    "compact",
    "lock",
    "unlock",
    "consume",
    "outcome",
)
# The service operations whose acknowledged rows have `output.answer`.
ANSWERED_OPS = ("watch", "lease_grant", "lease_renew", "lease_revoke", "lock", "consume", "outcome")
# The operations of a single key that may have a `request`. The request of a put names a lease, a prefix or both. The
# request of a get names a revision.
OPTION_OPS = ("put", "get")
ENDS = ("cancelled", "compacted", "broken")
KINDS = ("put", "delete")
# The possible statements of an `outcome` row about the entry that a leader accepted.
OPEN, COMMITTED, LOST, FORGOTTEN = "open", "committed", "lost", "forgotten"
OUTCOMES = (OPEN, COMMITTED, LOST, FORGOTTEN)
DELETED_KEYS_MAX = 10_000  # The maximum number of keys that the request of a deletion of a range may name.

_INT64_MAX = 2**63 - 1
_EVENT_FIELDS, _RECORD_FIELDS = 8, 5


class Record(NamedTuple):
    """A record of the store, as a watch reports it."""

    value: str
    create_revision: int
    mod_revision: int
    version: int
    lease_id: int


class WatchEvent(NamedTuple):
    """An event of a watch. For a deletion, `value` is None, and all numbers but `revision` are 0.

    `previous`: the record before the event; None if there was none, or if the watch did not ask for previous records.
    """

    revision: int
    kind: str
    key: str
    value: str | None
    create_revision: int
    version: int
    lease_id: int
    previous: Record | None


class Message(NamedTuple):
    """A message of a watch. A message without events is a bookmark: all events up to `revision` were delivered."""

    return_ns: int
    revision: int
    events: tuple[WatchEvent, ...]


def is_service(row: Row) -> bool:
    """Return whether this is a row of a service: one of SERVICE_OPS, or one of OPTION_OPS with a request."""
    return row["op"] in SERVICE_OPS or (row["op"] in OPTION_OPS and row.get("request") is not None)


def service_problem(row: Row) -> str | None:
    """Return why the request or the answer of a row of a service is malformed; None if both are well-formed.

    `plain_problem` (`history/rows.py`) must have accepted the row.
    """
    try:
        parse_service(row)
        if row["status"] != "ok":
            return None
        if row["op"] == "watch":
            _check_messages(row)
        elif row["op"] in ANSWERED_OPS:
            answer_of(row)
        elif row["op"] == "delete_range":
            _check_deleted(row["output"])
    except BadRequest as error:
        return str(error)
    return None


def parse_service(row: Row) -> Fields:
    """Return the request of the row, with all defaults filled in. Raises BadRequest."""
    request = _object(row["request"], "request")
    fields = _REQUESTS[row["op"]]
    parsed = {name: request.get(name, field.default) for name, field in fields.items()}
    for name, field in fields.items():
        if not field.fits(parsed[name]):
            raise BadRequest(f"request: {name} is missing or of the wrong type")
        if isinstance(parsed[name], str) and not is_text(parsed[name]):
            raise BadRequest(f"request: {HALF_PAIR}")
    if parsed.get("prefix") is not None and (parsed.get("start") is not None or parsed.get("end") is not None):
        raise BadRequest("request: prefix and start or end exclude each other")
    if row["op"] == "delete_range" and row["status"] == "unknown" and parsed["keys"] is None:
        raise BadRequest("request: keys is missing, though the status is unknown")
    if row["op"] == "consume" and not (row.get("key") and row.get("value") is not None):
        raise BadRequest("key or value is missing from a commit")
    if row["op"] == "consume" and row["status"] == "ok" and row.get("revision") is None:
        raise BadRequest("revision is missing from a commit")
    if row["op"] == "put" and row["status"] == "unknown" and parsed["prefix"] is not None and parsed["lease_id"]:
        raise BadRequest("request: prefix and lease_id exclude each other, because the status is unknown")
    return parsed


def answer_of(row: Row) -> Fields:
    """Return the answer of an acknowledged row, with all defaults filled in. Raises BadRequest."""
    answer = _object(row["output"]["answer"], "output.answer")
    fields = _ANSWERS[row["op"]]
    parsed = {name: answer.get(name, field.default) for name, field in fields.items()}
    for name, field in fields.items():
        if not field.fits(parsed[name]):
            raise BadRequest(f"output.answer: {name} is missing or of the wrong type")
        if isinstance(parsed[name], str) and not is_text(parsed[name]):
            raise BadRequest(f"output.answer: {HALF_PAIR}")
    return parsed


def messages_of(row: Row) -> tuple[Fields, Iterator[Message]]:
    """Return the answer of an acknowledged, well-formed row of a watch, and an iterator over its messages."""
    answer = json.loads(row["output"]["answer"])
    return answer, (Message(when, told, tuple(map(_known_event, events))) for when, told, events in answer["messages"])


def _known_event(given: Sequence[Any]) -> WatchEvent:
    revision, kind, key, value, create, version, lease_id, before = given
    record = None if before is None else Record(*before)
    return WatchEvent(revision, kind, key, value, create, version, lease_id, record)


def _check_messages(row: Row) -> None:
    before = row["call_ns"]
    for given in answer_of(row)["messages"]:
        message = _message(given)
        if not before <= message.return_ns <= row["return_ns"]:
            raise BadRequest("output.answer: the messages are not in the order of their arrival, within the watch")
        before = message.return_ns


def _message(given: object) -> Message:
    if not isinstance(given, list) or len(given) != 3 or not isinstance(given[2], list):
        raise BadRequest("output.answer: a message that is not [return_ns, revision, events]")
    if not _is_number(given[0], least=-(2**63)) or not _is_number(given[1]):
        raise BadRequest("output.answer: a message whose time or revision is not a number")
    return Message(given[0], given[1], tuple(_event(event) for event in given[2]))


def _event(given: object) -> WatchEvent:
    if not isinstance(given, list) or len(given) != _EVENT_FIELDS or given[1] not in KINDS:
        raise BadRequest(
            "output.answer: an event that is not [revision, kind, key, value, create_revision, version, lease_id, "
            "previous]"
        )
    revision, kind, key, value, create, version, lease_id, previous = given
    numbers = (create, version, lease_id)
    if not _is_number(revision, least=1) or not all(map(_is_number, numbers)):
        raise BadRequest("output.answer: an event with a number of the wrong type")
    if not isinstance(key, str) or not key or not is_text(key) or not _is_value(value, kind):
        raise BadRequest("output.answer: an event without a key, or with a value of the wrong type")
    if kind == "delete" and any(numbers):
        raise BadRequest("output.answer: a deletion with numbers of a record")
    before = None if previous is None else _record(previous)
    return WatchEvent(revision, kind, key, value, create, version, lease_id, before)


def _is_value(value: object, kind: str) -> bool:
    return value is None if kind == "delete" else isinstance(value, str) and is_text(value)


def _record(given: object) -> Record:
    if not isinstance(given, list) or len(given) != _RECORD_FIELDS or not isinstance(given[0], str):
        raise BadRequest(
            "output.answer: a previous record that is not [value, create_revision, mod_revision, version, lease_id]"
        )
    if not is_text(given[0]) or not all(map(_is_number, given[1:])):
        raise BadRequest("output.answer: a previous record with a field of the wrong type")
    return Record(*given)


def _check_deleted(output: Row) -> None:
    if output.get("items") is None:
        raise BadRequest("output.items is missing")
    for item in output["items"]:
        if item is None or not item.get("key"):
            raise BadRequest("output.items: an item without key")
        if any((item.get(name) or 0) < 0 for name in NUMBERS):
            raise BadRequest("output.items: a number is below 0")


def _object(text: object, place: str) -> Fields:
    try:
        value = json.loads(text) if isinstance(text, str) else None
    except RecursionError:
        raise BadRequest(f"{place} is not JSON (nested too deep)") from None
    except ValueError as error:
        raise BadRequest(f"{place} is not JSON ({error})") from None
    if not isinstance(value, dict):
        raise BadRequest(f"{place} is not a JSON object")
    return value


def _is_number(value: object, least: int = 0) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= _INT64_MAX


class _Field(NamedTuple):
    fits: Callable[[object], bool]
    default: object = None


def _nullable_text(value: object) -> bool:
    return value is None or isinstance(value, str)


def _text(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _above_zero(value: object) -> bool:
    return _is_number(value, least=1)


def _keys(value: object) -> bool:
    if value is None:
        return True
    return isinstance(value, list) and len(value) <= DELETED_KEYS_MAX and all(_text(k) and is_text(k) for k in value)


_RANGE = {name: _Field(_nullable_text) for name in ("start", "end", "prefix")}
_REQUESTS: dict[str, dict[str, _Field]] = {
    "watch": {
        **_RANGE,
        "from_revision": _Field(_is_number, 0),
        "only": _Field(lambda value: value in (None, *KINDS)),
        "previous": _Field(lambda value: isinstance(value, bool), False),
        "resumes": _Field(lambda value: value is None or _is_number(value)),
    },
    "delete_range": {**_RANGE, "keys": _Field(_keys)},
    "lease_grant": {"ttl_ns": _Field(_above_zero)},
    "lease_renew": {"lease_id": _Field(_above_zero)},
    "lease_revoke": {"lease_id": _Field(_above_zero)},
    "compact": {"revision": _Field(_above_zero)},
    "lock": {"name": _Field(_text), "value": _Field(lambda value: isinstance(value, str), "")},
    "unlock": {"name": _Field(_text), "key": _Field(_text)},
    "put": {"lease_id": _Field(_is_number, 0), "prefix": _Field(_nullable_text)},
    "get": {"revision": _Field(_is_number, 0)},
    "consume": {
        "group": _Field(_text),
        "log": _Field(_text),
        "from_revision": _Field(_above_zero),
        "position": _Field(_above_zero),
        "prefix": _Field(_text),
    },
    "outcome": {"index": _Field(_above_zero), "term": _Field(_above_zero)},
}
_ANSWERS: dict[str, dict[str, _Field]] = {
    "watch": {
        "created_revision": _Field(_is_number),
        "messages": _Field(lambda value: isinstance(value, list)),
        "end": _Field(lambda value: value in ENDS),
    },
    "lease_grant": {"lease_id": _Field(_above_zero), "ttl_ns": _Field(_above_zero)},
    "lease_renew": {"ttl_ns": _Field(_is_number)},
    "lease_revoke": {"found": _Field(lambda value: isinstance(value, bool))},
    "outcome": {"outcome": _Field(lambda value: value in OUTCOMES)},
    "consume": {"fence": _Field(_above_zero)},
    "lock": {"key": _Field(_text), "fence": _Field(_above_zero), "lease_id": _Field(_above_zero)},
}

APPENDED_BYTES = 8  # The key of an append is the prefix, and then the revision in this many bytes (big-endian).


def appended_key(prefix: bytes, revision: int) -> str:
    """Return the key that an append makes at this revision."""
    return as_text(prefix + revision.to_bytes(APPENDED_BYTES, "big"))


LEASE_END_IDS = 2**61
"""The deletion of a key by its lease has no row of its own. Its op_id is this number plus the op_id of the operation
that attached the key.
"""


def number_words(op_id: int) -> str:
    """Return the name of a row in messages: `#7`, or `by the lease of #7` for the deletion of a key by its lease."""
    return f"by the lease of #{op_id - LEASE_END_IDS}" if op_id >= LEASE_END_IDS else f"#{op_id}"


def ended_lease(row: Row) -> str | None:
    """Return the name of the lease by whose end a plain row deletes its keys; None for any other row."""
    return str(row["client"]).partition(" of #")[0] if row["op_id"] >= LEASE_END_IDS else None


def plain_rows(row: Row) -> Iterator[Row]:
    """Yield the plain rows (operations on one key, ranges and transactions) that stand for the row.

    A row that is already plain is yielded unchanged. Watches, compactions, unlocks, reads at a revision, queries of
    outcomes, and the grants, renewals and revocations of leases yield nothing. `services/key_check.py` judges reads at
    a revision.

    If an operation attaches a key to a lease, the lease may delete the key once, at any later time. So the row of this
    operation also yields a deletion of unknown outcome. A deletion of a range becomes a transaction that lists the
    range and deletes each listed key. If the outcome is unknown, the transaction only deletes the keys that the request
    names. A lock becomes a put of its key, at the revision of its fence. An append becomes a put of its key. If the
    outcome of an append is unknown, its key is not known, either. The key of the put is then the key for revision 0,
    which no append can make. A commit of a consumer becomes the append that it carries out.
    """
    if not is_service(row):
        yield row
        return
    match row["op"]:
        case "put":
            request = parse_service(row)
            lease_id, prefix = request["lease_id"], request["prefix"]
            made_key = row["status"] == "unknown" and prefix is not None
            yield {**row, "request": None, "key": appended_key(as_bytes(prefix), 0) if made_key else row["key"]}
            if lease_id and row["status"] != "fail":
                yield _end_of_lease(row, row["key"], lease_id)
        case "consume" if row["status"] != "fail":
            made_key = row["status"] == "unknown"
            key = appended_key(as_bytes(parse_service(row)["prefix"]), 0) if made_key else row["key"]
            output = None if made_key else {"succeeded": True}
            yield {**row, "op": "put", "request": None, "key": key, "output": output}
        case "get":
            if not parse_service(row)["revision"]:
                yield {**row, "request": None}
        case "delete_range" if row["status"] == "ok" or (row["status"] == "unknown" and parse_service(row)["keys"]):
            yield _deletions(row)
        case "lock" if row["status"] == "ok":
            answer = answer_of(row)
            value, key = parse_service(row)["value"], answer["key"]
            written = {"op": "put", "key": key, "value": value, "request": None, "revision": answer["fence"]}
            yield {**row, **written, "output": {"succeeded": True}}
            yield _end_of_lease(row, key, answer["lease_id"])


def _end_of_lease(row: Row, key: str, lease_id: int) -> Row:
    """Return the deletion of a key by its lease, which may take effect at any time after the key was attached."""
    ended = {"op": "delete", "key": key, "value": None, "request": None, "output": None, "status": "unknown"}
    named = {"op_id": LEASE_END_IDS + row["op_id"], "client": f"lease {lease_id} of #{row['op_id']}"}
    return {**row, **ended, **named, "return_ns": None, "revision": None, "consistency": None, "error": None}


def _deletions(row: Row) -> Row:
    request = parse_service(row)
    answered = row["status"] == "ok"
    keys: Sequence[str] = [item["key"] for item in row["output"]["items"]] if answered else request["keys"]
    listing = {"op": "range", "keys_only": True, **{name: request[name] for name in _RANGE}}
    deletes = [{"op": "delete", "key": key} for key in dict.fromkeys(keys)]
    success = [listing, *deletes] if answered else deletes
    output: Fields | None = None
    if answered:
        listed = {"op": "range", "items": [_item(item) for item in row["output"]["items"]]}
        output = {"succeeded": True, "results": [listed, *({"op": "delete", "found": True} for _ in deletes)]}
    request_text = json.dumps({"compares": [], "success": success, "failure": []})
    return {**row, "op": "txn", "request": request_text, "output": output}


def _item(item: Row) -> Fields:
    names = ("key", "value", "create_revision", "mod_revision", "version")
    return {name: item.get(name) for name in names}
