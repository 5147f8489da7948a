"""Results of the store, which are plain tuples in the store and on the wire. Callers get dataclasses.

A result is `(code, revision, ...)`. For every code, `revision` is the revision of the store right after the command. If
the code is OK (0), the third item is the body, which begins with the kind of the command:

    put (1,)
    get (2, record)          or, absent, (2, null, deleted_revision, exact)
    delete (3, true)         or, absent, (3, false, deleted_revision, exact)
    range (4, (item, ...), more, count)                 item: (key, value or null, other fields of the record)
    compare_and_set (5, true)  or (5, false, record)  or, absent, (5, false, null, deleted_revision, exact)
    txn (6, succeeded, (body, ...))                     one body per operation of the branch that ran
    register_session (16, session_id, ttl_ns)    close_session (17,)    keep_alive (18,)
    change_limits (19,)    raise_feature_level (20,)

Feature level 2 adds:

    put (1, record or null)                             with `previous`: the old record
    delete_range (7, count)  or, with `previous`, (7, count, (item, ...))          items as in a range
    append (9, key)          add (10, the new number)
    lease_grant (21, lease_id, ttl_ns)                  lease_revoke (22, count of removed keys)
    lease_renew (23, ttl_ns, ...)                       one for each lease; 0 if there is no such lease
    compact (24,)

Feature level 3 adds (kind, auth_revision) for each of the kinds 25 to 36, with the auth revision after the change.

A record is `(value, create_revision, mod_revision, version, lease_id)`. If `exact`, `deleted_revision` is the revision
of the key's last deletion, or 0 if the key never existed. Otherwise `deleted_revision` is a bound: the key was deleted
at or before this revision, or never existed. With any other code than OK, the fields of an error follow
(`kvstore.errors`). Existing snapshots contain these layouts. New items may be added only at the end of an array.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from kvstore.errors import KvError, OutcomeUnknown, StoreError, Unavailable, refusal_of
from kvstore.protocol.commands import ACCESS_KINDS, CommandKind
from kvstore.protocol.messages import Response
from raft import EntryKind, ProtocolError

ResultItem = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Record:
    """The record of a key. If `lease_id` is 0, the key has no lease."""

    value: bytes
    create_revision: int
    mod_revision: int
    version: int
    lease_id: int = 0


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """One item of a range: a record with its key. `value` is None if only keys were requested."""

    key: bytes
    value: bytes | None
    create_revision: int
    mod_revision: int
    version: int
    lease_id: int = 0


@dataclass(frozen=True, slots=True)
class PutResult:
    """The result of a put. `revision` is the revision of this write. `previous`: the old record, if requested."""

    revision: int
    previous: Record | None = None
    acknowledged_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GetResult:
    """The result of a get. If `record` is None, the key is absent. The docstring of the module explains
    `deleted_revision` and `exact`."""

    revision: int
    record: Record | None
    deleted_revision: int = 0
    exact: bool = True

    @property
    def value(self) -> bytes | None:
        """The value of the key; None if the key is absent."""
        return None if self.record is None else self.record.value

    def __bool__(self) -> bool:
        """True if the key exists."""
        return self.record is not None


@dataclass(frozen=True, slots=True)
class DeleteResult:
    """The result of a delete. If `found`, a record was removed at `revision`. Otherwise nothing was changed."""

    revision: int
    found: bool
    deleted_revision: int = 0
    exact: bool = True
    acknowledged_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RangeResult:
    """The result of a range. `more`: further keys follow the last item. `count`: the number of all keys in the range,
    independent of `limit`."""

    revision: int
    items: tuple[KeyRecord, ...]
    more: bool
    count: int


@dataclass(frozen=True, slots=True)
class CompareAndSetResult:
    """The result of a compare-and-set. If not `succeeded`, `record` is the present record of the key; None if the key
    is absent."""

    revision: int
    succeeded: bool
    record: Record | None = None
    deleted_revision: int = 0
    exact: bool = True
    acknowledged_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DeleteRangeResult:
    """The result of a delete_range. `count`: the number of removed records. `previous`: the removed records, if
    requested."""

    revision: int
    count: int
    previous: tuple[KeyRecord, ...] = ()
    acknowledged_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AppendResult:
    """The result of an append: the new key."""

    revision: int
    key: bytes
    acknowledged_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AddResult:
    """The result of an add: the new number."""

    revision: int
    number: int
    acknowledged_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LeaseGranted:
    """The result of a lease_grant."""

    revision: int
    lease_id: int
    ttl_ns: int


@dataclass(frozen=True, slots=True)
class LeaseRevoked:
    """The result of a lease_revoke. `keys`: the number of removed keys."""

    revision: int
    keys: int


@dataclass(frozen=True, slots=True)
class LeasesRenewed:
    """The result of a lease_renew: the time to live of each lease, or 0 if there is no such lease."""

    revision: int
    ttls_ns: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TxnResult:
    """The result of a transaction. `results`: one result per operation of the branch that ran. All of them have this
    `revision`."""

    revision: int
    succeeded: bool
    results: tuple[OperationResult, ...]
    acknowledged_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Accepted:
    """The answer to a write of level LEADER, whose entry is durable on the leader alone. Later, `outcome_of` of the
    client returns whether the entry was committed or lost."""

    index: int
    term: int


WriteResult = PutResult | DeleteResult | CompareAndSetResult | DeleteRangeResult | AppendResult | AddResult | TxnResult
"""The results of writes. `acknowledged_by` contains the ids of the members that hold the write durably at level
IN_SYNC, and is empty at level MAJORITY."""

OperationResult = (
    PutResult | GetResult | DeleteResult | RangeResult | DeleteRangeResult | AppendResult | AddResult | TxnResult
)


@dataclass(frozen=True, slots=True)
class SessionRegistered:
    """The result of register_session. The id of the new session comes from a replicated counter."""

    revision: int
    session_id: int
    ttl_ns: int


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """The result of a command without a return value: close_session, keep_alive, change_limits, raise_feature_level or
    compact."""

    revision: int
    kind: CommandKind


@dataclass(frozen=True, slots=True)
class AccessChanged:
    """The result of a change of users and roles, and the auth revision after the change."""

    revision: int
    auth_revision: int


Result = (
    OperationResult
    | CompareAndSetResult
    | SessionRegistered
    | LeaseGranted
    | LeaseRevoked
    | LeasesRenewed
    | AccessChanged
    | Acknowledged
)


PUT_DONE = (1,)
"""The body of the result of a put without `previous`. All such results share one object, so that kept results need
little memory."""


def refusal_item(error: KvError, revision: int) -> ResultItem:
    """Return the result item of an error. `read_result` raises the error again."""
    return (int(error.code), revision, *error.args)


def read_result(item: Sequence[Any]) -> Result:
    """Read a result item `(code, revision, ...)` from the wire or from the machine.

    If the code is not OK, raises the KvError that the item describes. Raises ValueError if `item` is not a result.
    """
    try:
        if item[0] == 0:
            return read_body(item[2], item[1])
        refusal = refusal_of(item[0], item[2:])
    except (TypeError, IndexError, KeyError) as error:
        raise ValueError(f"not a result of the store: {error}") from error
    raise refusal


def read_body(body: Sequence[Any], revision: int) -> Result:
    """Read the body of a result, or of one operation in a transaction. Raises the same errors as `read_result`."""
    match body[0]:
        case CommandKind.PUT:
            return PutResult(_number(revision), _record(body[1]) if len(body) > 1 and body[1] is not None else None)
        case CommandKind.GET:
            return GetResult(_number(revision), *_seen(body[1:]))
        case CommandKind.DELETE:
            return DeleteResult(_number(revision), _truth(body[1]), *_since(body[2:]))
        case CommandKind.RANGE:
            return RangeResult(_number(revision), tuple(map(_item, body[1])), _truth(body[2]), _number(body[3]))
        case CommandKind.COMPARE_AND_SET:
            return CompareAndSetResult(_number(revision), _truth(body[1]), *(() if body[1] else _seen(body[2:])))
        case CommandKind.TXN:
            results = tuple(read_body(each, revision) for each in body[2])
            return TxnResult(_number(revision), _truth(body[1]), results)  # type: ignore[arg-type]
        case CommandKind.DELETE_RANGE:
            return DeleteRangeResult(
                _number(revision), _number(body[1]), tuple(map(_item, body[2] if len(body) > 2 else ()))
            )
        case CommandKind.APPEND:
            return AppendResult(_number(revision), _bytes(body[1]))
        case CommandKind.ADD:
            return AddResult(_number(revision), _number(body[1]))
        case CommandKind.LEASE_GRANT:
            return LeaseGranted(_number(revision), _number(body[1]), _number(body[2]))
        case CommandKind.LEASE_REVOKE:
            return LeaseRevoked(_number(revision), _number(body[1]))
        case CommandKind.LEASE_RENEW:
            return LeasesRenewed(_number(revision), tuple(map(_number, body[1:])))
        case CommandKind.REGISTER_SESSION:
            return SessionRegistered(_number(revision), _number(body[1]), _number(body[2]))
    if body[0] in ACCESS_KINDS:
        return AccessChanged(_number(revision), _number(body[1]))
    return Acknowledged(_number(revision), CommandKind(body[0]))


def _seen(fields: Sequence[Any]) -> tuple[Any, ...]:
    """Read `(record,)` or `(None, deleted_revision, exact)`: the state of a key in the result of a get or
    compare-and-set."""
    return (_record(fields[0]),) if fields[0] is not None else (None, *_since(fields[1:]))


def _since(fields: Sequence[Any]) -> tuple[Any, ...]:
    """Read `(deleted_revision, exact)`; an empty tuple if there are no fields."""
    return (_number(fields[0]), _truth(fields[1])) if fields else ()


def _record(fields: Sequence[Any]) -> Record:
    record = Record(*fields)
    if type(record.value) is not bytes:
        raise ValueError("a value is not bytes")
    _check_numbers(record)
    return record


def _item(fields: Sequence[Any]) -> KeyRecord:
    item = KeyRecord(*fields)
    if type(item.key) is not bytes or (item.value is not None and type(item.value) is not bytes):
        raise ValueError("a key or value is not bytes")
    _check_numbers(item)
    return item


def _check_numbers(record: Record | KeyRecord) -> None:
    if not (
        type(record.create_revision)
        is type(record.mod_revision)
        is type(record.version)
        is type(record.lease_id)
        is int
    ):
        raise ValueError("a revision, version or lease is not a number")


def _number(value: Any) -> int:
    if type(value) is not int:
        raise ValueError(f"{value!r:.40} is not a number")
    return value


def _bytes(value: Any) -> bytes:
    if type(value) is not bytes:
        raise ValueError(f"{value!r:.40} is not bytes")
    return value


def _truth(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError(f"{value!r:.40} is neither true nor false")
    return value


ResultT = TypeVar("ResultT", covariant=True)
ReadT = TypeVar("ReadT")


def read_answer(response: Response, read: Callable[[Response], ReadT], *, has_effect: bool) -> ReadT:
    """Decode a response whose code is OK with `read`. `has_effect`: the request may change the store.

    If the response cannot be decoded, raises OutcomeUnknown with `has_effect`, and Unavailable otherwise. An error that
    the response describes is raised unchanged.
    """
    try:
        return read(response)
    except StoreError:
        raise
    except Exception as error:
        words = f"{response.node_id} gave an invalid answer ({error}); it may run another build"
        raise (OutcomeUnknown(words) if has_effect else Unavailable(words)) from error


@dataclass(frozen=True, slots=True)
class Answer(Generic[ResultT]):
    """A result, the member that sent the result, and the consistency of the read. If `session_id` is 0, the operation
    had no session.

    `age_ms` is for `bounded` reads: the result includes every write that was acknowledged at least `age_ms` before the
    request.
    """

    result: ResultT
    revision: int
    consistency: str  # linearizable, lease, follower, bounded or local; empty for a command.
    node_id: str
    session_id: int
    age_ms: int | None = None


@dataclass(frozen=True, slots=True)
class LogEntry:
    """A committed entry, as `read_log` returns it. The payload of `commands` is CBOR: `[leader_time, command, …]`."""

    index: int
    term: int
    kind: EntryKind
    payload: bytes


@dataclass(frozen=True, slots=True)
class LogPage:
    """Committed entries in order, and the high-water mark of the member that sent them."""

    entries: tuple[LogEntry, ...]
    commit_index: int


def decode_session_id(response: Response) -> int:
    """Return the session id in the response to register_session. Raises ProtocolError."""
    try:
        result = read_result((response.code, response.revision, *response.fields))
    except (ValueError, KvError) as error:
        raise ProtocolError(f"no session in the answer: {error}") from error
    if not isinstance(result, SessionRegistered) or result.session_id < 1:
        raise ProtocolError("the answer to register_session is of another kind, or names no session")
    return result.session_id
