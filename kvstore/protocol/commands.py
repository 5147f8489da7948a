"""The commands of the store as plain values, and their wire form.

In a log payload `[leader_time, command, ...]` a command is `[session_id, request_no, acknowledged_up_to, kind, ...]`.
The items from `kind` on are the *body* of the command. Inside a transaction, an operation consists of its body alone:

    put [1, key, value]        get [2, key]        delete [3, key]
    range [4, start, end, limit, reverse, keys_only, count_only, revision, bytes_max]
    compare_and_set [5, key, value, expected]      expected: bytes = the value; int = the mod_revision, 0 = absent
    txn [6, [[target, comparison, key, operand], ...], [operation, ...], [operation, ...]]
    register_session [16, ttl_ns]    close_session [17]    keep_alive [18]
    change_limits [19, quota_bytes, sessions_max, ...]     the fields of StoreLimits in order; null: unchanged
    raise_feature_level [20, level]

These numbers are on disks already: new kinds may be added, but no number may change. Arrays grow only at their end, and
only with a new feature level. At the present level, a longer array is malformed
(docs/reference/specification.md#73-growth).

See docs/reference/specification.md#82-commands.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import cbor2

from kvstore.limits import TIME_NS_MAX
from kvstore.protocol.cbor_heads import SEPARATOR, bytes_head, uint_head
from raft import ProtocolError, decode_joined, decode_stored

PAYLOAD_DEPTH_MAX = 64
"""The greatest depth of nested arrays in a payload. Valid payloads have 4; admission refuses deeper ones."""


class CommandKind(enum.IntEnum):
    """The kind of a command: the first item of its body, and of the body of its result."""

    PUT = 1
    GET = 2
    DELETE = 3
    RANGE = 4
    COMPARE_AND_SET = 5
    TXN = 6
    REGISTER_SESSION = 16
    CLOSE_SESSION = 17
    KEEP_ALIVE = 18
    CHANGE_LIMITS = 19
    RAISE_FEATURE_LEVEL = 20


class Target(enum.IntEnum):
    """The field that a comparison reads. For an absent key the numbers are 0, and a comparison with VALUE is false."""

    VERSION = 1
    CREATE_REVISION = 2
    MOD_REVISION = 3
    VALUE = 4


class Comparison(enum.IntEnum):
    """The operator of a comparison: `record's target  OP  operand`."""

    EQUAL = 1
    NOT_EQUAL = 2
    LESS = 3
    GREATER = 4


@dataclass(frozen=True, slots=True)
class Put:
    """Write a value. This always counts as a change, even if the value is the same."""

    key: bytes
    value: bytes


@dataclass(frozen=True, slots=True)
class Get:
    """Read one record."""

    key: bytes


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove one record; if the key is absent, nothing changes."""

    key: bytes


@dataclass(frozen=True, slots=True)
class Range:
    """Read the records with start ≤ key < end, in byte order. With `end` None, read up to the last key.

    The defaults of `start` and `end` select all keys. `limit` 0: no limit. `revision` 0: the present revision; later
    pages of a listing name the revision of its first page. `bytes_max` 0: the page bound of the store; greater values
    count as this bound.

    See docs/reference/specification.md#88-pages-of-one-revision.
    """

    start: bytes = b""
    end: bytes | None = None
    limit: int = 0
    reverse: bool = False
    keys_only: bool = False
    count_only: bool = False
    revision: int = 0
    bytes_max: int = 0


@dataclass(frozen=True, slots=True)
class CompareAndSet:
    """Write `value` if the key is as expected: bytes = its value, int = its mod_revision (0 = the key is absent)."""

    key: bytes
    value: bytes
    expected: bytes | int


@dataclass(frozen=True, slots=True)
class Compare:
    """One condition of a transaction: the key's `target`, compared with `operand` (bytes for VALUE, else int)."""

    key: bytes
    target: Target
    comparison: Comparison
    operand: bytes | int


Operation = Put | Get | Delete | Range


@dataclass(frozen=True, slots=True)
class Txn:
    """If all comparisons hold, run `success`, else `failure`: in order, as one change, all or nothing."""

    compares: tuple[Compare, ...] = ()
    success: tuple[Operation, ...] = ()
    failure: tuple[Operation, ...] = ()


@dataclass(frozen=True, slots=True)
class RegisterSession:
    """Open a session, which expires if nothing is applied for it for `ttl_ns` of leader time. Sent under session 0."""

    ttl_ns: int


@dataclass(frozen=True, slots=True)
class CloseSession:
    """Close the session under which this command is sent, and forget its results."""


@dataclass(frozen=True, slots=True)
class KeepAlive:
    """Postpone the expiry of the session under which this command is sent. It also acknowledges results."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeLimits:
    """Change replicated limits (`StoreLimits`, same names). A limit that is None stays as it is."""

    quota_bytes: int | None = None
    sessions_max: int | None = None
    results_per_session_max: int | None = None
    results_bytes_per_session_max: int | None = None
    results_bytes_max: int | None = None
    deletions_max: int | None = None


@dataclass(frozen=True, slots=True)
class RaiseFeatureLevel:
    """Allow everything that a feature level adds, for ever. Accepted only if the build of every member knows the level;
    a member that runs an older build later stops at this entry."""

    level: int


Command = (
    Operation | CompareAndSet | Txn | RegisterSession | CloseSession | KeepAlive | ChangeLimits | RaiseFeatureLevel
)

Body = tuple[Any, ...]

KIND_OF: dict[type[Command], CommandKind] = {
    Put: CommandKind.PUT,
    Get: CommandKind.GET,
    Delete: CommandKind.DELETE,
    Range: CommandKind.RANGE,
    CompareAndSet: CommandKind.COMPARE_AND_SET,
    Txn: CommandKind.TXN,
    RegisterSession: CommandKind.REGISTER_SESSION,
    CloseSession: CommandKind.CLOSE_SESSION,
    KeepAlive: CommandKind.KEEP_ALIVE,
    ChangeLimits: CommandKind.CHANGE_LIMITS,
    RaiseFeatureLevel: CommandKind.RAISE_FEATURE_LEVEL,
}
_CLASS_OF: dict[int, type[Command]] = {int(kind): command for command, kind in KIND_OF.items()}
_FIELDS_OF = {command: tuple(field.name for field in fields(command)) for command in KIND_OF}


def prefix_range(prefix: bytes) -> tuple[bytes, bytes | None]:
    """Return the (start, end) of all keys that begin with `prefix`; an empty prefix means all keys.

    >>> prefix_range(b"user/")
    (b'user/', b'user0')
    """
    stem = prefix.rstrip(b"\xff")
    return prefix, stem[:-1] + bytes([stem[-1] + 1]) if stem else None


def command_body(command: Command) -> Body:
    """The wire body `(kind, ...)` of a command, in tuples and atoms."""
    if isinstance(command, Txn):
        compares = tuple((int(c.target), int(c.comparison), c.key, c.operand) for c in command.compares)
        success, failure = (tuple(map(command_body, branch)) for branch in (command.success, command.failure))
        return (6, compares, success, failure)
    kind = type(command)
    return (int(KIND_OF[kind]), *(getattr(command, name) for name in _FIELDS_OF[kind]))


def command_of(body: Sequence[Any]) -> Command:
    """Read a body that `admit_body` has passed (`kvstore.protocol.validation`)."""
    if body[0] == CommandKind.TXN:
        compares = tuple(Compare(key, Target(t), Comparison(c), operand) for t, c, key, operand in body[1])
        success, failure = (tuple(map(command_of, branch)) for branch in (body[2], body[3]))
        return Txn(compares, success, failure)  # type: ignore[arg-type]
    command = _CLASS_OF[body[0]]
    return command(**dict(zip(_FIELDS_OF[command], body[1:], strict=True)))


def encode_command(command: Command, *, session_id: int = 0, request_no: int = 0, acknowledged_up_to: int = 0) -> bytes:
    """Return the CBOR item for `Node.propose`, not validated. Session 0 means "no session": never retried."""
    if type(command) is Put:  # Encoded by hand in 1.2 µs instead of 4 µs: the same bytes.
        key, value = command.key, command.value
        return b"\x86%b%b%b\x01%b%b%b%b" % (
            uint_head(session_id), uint_head(request_no), uint_head(acknowledged_up_to),
            bytes_head(len(key)), key, bytes_head(len(value)), value,
        )  # fmt: skip
    return cbor2.dumps((session_id, request_no, acknowledged_up_to, *command_body(command)))


def spell_out(command: Operation | CompareAndSet | Txn) -> Txn:
    """Return the transaction that means the same as an operation or compare_and_set.

    See docs/reference/specification.md#84-transactions.
    """
    if isinstance(command, Txn):
        return command
    if isinstance(command, CompareAndSet):
        target = Target.VALUE if isinstance(command.expected, bytes) else Target.MOD_REVISION
        compare = Compare(command.key, target, Comparison.EQUAL, command.expected)
        return Txn((compare,), (Put(command.key, command.value),), (Get(command.key),))
    return Txn(success=(command,))


class UnreadablePayload(Exception):
    """A committed entry has a form that this build does not know. The member stops, since its state would diverge."""

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(index, reason)
        self.index, self.reason = index, reason

    def __str__(self) -> str:
        return (
            f"log entry {self.index} cannot be applied by this build: {self.reason}. "
            "Start this member with the version that the other members run"
        )


def decode_payload(payload: bytes, index: int = 0) -> tuple[int, tuple[Any, ...]]:
    """Split the payload of a `commands` or `no_op` entry into (leader_time in ns, items).

    `items` is the whole array, in tuples: items[0] is the time, the commands follow. All are decoded in one call.
    Raises UnreadablePayload(index) if the payload is not `[leader_time, ...]`. The commands are not checked.
    """
    try:
        items = decode_stored(payload, PAYLOAD_DEPTH_MAX)
    except ProtocolError as error:
        raise UnreadablePayload(index, f"its payload is not CBOR of the profile ({error})") from error
    if type(items) is not tuple or not items:
        raise UnreadablePayload(index, "its payload is not an array that begins with a time")
    leader_time = items[0]
    if type(leader_time) is not int or not 0 <= leader_time <= TIME_NS_MAX:
        raise UnreadablePayload(index, f"its time is {leader_time!r}")
    return leader_time, items


def decode_payloads(payloads: Sequence[bytes]) -> list[tuple[Any, ...]] | None:
    """Return the items of each payload, as `decode_payload` returns them, but from a single decoding.

    None if any payload is unusual, perhaps unreadable: the caller then decodes each of them with `decode_payload`.
    """
    batches, time_max = decode_joined(payloads, SEPARATOR, immutable=True), TIME_NS_MAX
    for items in batches or ():
        if type(items) is not tuple or not items or type(time := items[0]) is not int or not 0 <= time <= time_max:
            return None
    return batches
