"""Validation of the form of a command, at admission and when the command is applied. Admission also checks the bounds
of the admitting member.

When a command is applied, the replicated feature level decides which forms are valid, independent of the build of the
member. All members, even members with newer builds, treat a form that is not part of the level as invalid. The
functions `validate_*` return the reason why a decoded CBOR item is invalid, or None if it is valid. The functions
`admit_*` raise InvalidRequest.

See docs/reference/specification.md#713-feature-levels.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import Any

from kvstore.errors import InvalidRequest, Reason
from kvstore.limits import (
    FEATURE_LEVEL_MAX,
    LEVEL_1_LIMITS,
    TIME_NS_MAX,
    TXN_DEPTH_MAX,
    AdmissionLimits,
    StoreLimits,
    limit_max,
    limit_min,
)
from kvstore.protocol.access_commands import ACCESS_VALIDATORS
from kvstore.protocol.commands import CommandKind, PutFlag, Target
from raft import INT64_MAX, INT64_MIN

_ARRAYS = (list, tuple)
APPENDED_BYTES = 8
"""The length of the revision at the end of a key that an append makes."""

HEADER_ITEMS = 3
"""The number of items before the body of a command: session_id, request_no, acknowledged_up_to."""


def is_count(item: object) -> bool:
    """Return True for an int (not a bool) from 0 to 2**63 - 1."""
    return type(item) is int and 0 <= item <= INT64_MAX


def validate_header(item: object) -> Reason | None:
    """Validate the header of a command: an array that begins with three counts, followed by at least a kind."""
    if not isinstance(item, _ARRAYS) or len(item) <= HEADER_ITEMS:
        return Reason.MALFORMED
    session_id, request_no, acknowledged_up_to = item[0], item[1], item[2]
    if not (type(session_id) is type(request_no) is type(acknowledged_up_to) is int):
        return Reason.MALFORMED
    if 0 <= session_id <= INT64_MAX and 0 <= request_no <= INT64_MAX and 0 <= acknowledged_up_to <= INT64_MAX:
        return None  # Faster than `is_count`, because every command is validated twice.
    return Reason.OUT_OF_RANGE


def validate_body(body: Sequence[Any], level: int = FEATURE_LEVEL_MAX) -> Reason | None:
    """Validate a non-empty body `(kind, ...)` at a feature level."""
    kind = body[0]
    validate = _VALIDATORS.get(level, _NEWEST_VALIDATORS).get(kind) if type(kind) is int else None
    return validate(body) if validate is not None else Reason.UNKNOWN_KIND


def validate_command(item: Sequence[Any], level: int) -> Reason | None:
    """Validate a command whose header is valid: its body, and whether this kind may be sent under its session."""
    body = item[HEADER_ITEMS:]
    flaw = validate_body(body, level)
    if flaw is not None:
        return flaw
    if body[0] in (CommandKind.CLOSE_SESSION, CommandKind.KEEP_ALIVE):
        return None if item[0] != 0 else Reason.SESSION_REQUIRED
    if body[0] == CommandKind.REGISTER_SESSION:
        return None if item[0] == 0 else Reason.OUT_OF_RANGE
    return None


def _validate_key(key: object) -> Reason | None:
    if type(key) is not bytes:
        return Reason.MALFORMED
    return None if key else Reason.KEY_EMPTY


def _validate_put(body: Sequence[Any]) -> Reason | None:
    if len(body) != 3 or type(body[2]) is not bytes:
        return Reason.MALFORMED
    return _validate_key(body[1])


def _validate_key_only(body: Sequence[Any]) -> Reason | None:
    return _validate_key(body[1]) if len(body) == 2 else Reason.MALFORMED


def _validate_range(body: Sequence[Any]) -> Reason | None:
    if len(body) != 9:
        return Reason.MALFORMED
    _, start, end, limit, reverse, keys_only, count_only, revision, bytes_max = body
    if type(start) is not bytes or not (end is None or type(end) is bytes):
        return Reason.MALFORMED
    if not (type(reverse) is type(keys_only) is type(count_only) is bool):
        return Reason.MALFORMED
    return None if is_count(limit) and is_count(revision) and is_count(bytes_max) else Reason.OUT_OF_RANGE


def _validate_compare_and_set(body: Sequence[Any]) -> Reason | None:
    if len(body) != 4 or type(body[2]) is not bytes:
        return Reason.MALFORMED
    expected = body[3]
    if type(expected) is int:
        if not is_count(expected):
            return Reason.OUT_OF_RANGE
    elif type(expected) is not bytes:
        return Reason.MALFORMED
    return _validate_key(body[1])


def _validate_compare(compare: object) -> Reason | None:
    if not isinstance(compare, _ARRAYS) or len(compare) != 4:
        return Reason.MALFORMED
    target, comparison, key, operand = compare
    if type(target) is not int or type(comparison) is not int:
        return Reason.MALFORMED
    if not 1 <= target <= 4 or not 1 <= comparison <= 4:
        return Reason.OUT_OF_RANGE
    if target == 4:
        if type(operand) is not bytes:
            return Reason.MALFORMED
    elif type(operand) is not int:
        return Reason.MALFORMED
    elif not is_count(operand):
        return Reason.OUT_OF_RANGE
    return _validate_key(key)


def _validate_branch(branch: object) -> Reason | None:
    if not isinstance(branch, _ARRAYS):
        return Reason.MALFORMED
    written: set[bytes] = set()
    for operation in branch:
        if not isinstance(operation, _ARRAYS) or not operation or type(operation[0]) is not int:
            return Reason.MALFORMED
        validate = _OPERATION_VALIDATORS.get(operation[0])
        flaw = validate(operation) if validate is not None else Reason.UNKNOWN_KIND
        if flaw is not None:
            return flaw
        if operation[0] in (CommandKind.PUT, CommandKind.DELETE):
            if operation[1] in written:
                return Reason.KEY_WRITTEN_TWICE
            written.add(operation[1])
    return None


def _validate_txn(body: Sequence[Any]) -> Reason | None:
    if len(body) != 4 or not isinstance(body[1], _ARRAYS):
        return Reason.MALFORMED
    for compare in body[1]:
        flaw = _validate_compare(compare)
        if flaw is not None:
            return flaw
    return _validate_branch(body[2]) or _validate_branch(body[3])


def _validate_register(body: Sequence[Any]) -> Reason | None:
    if len(body) != 2 or type(body[1]) is not int:
        return Reason.MALFORMED
    return None if 1 <= body[1] <= TIME_NS_MAX else Reason.OUT_OF_RANGE


def _validate_bare(body: Sequence[Any]) -> Reason | None:
    return None if len(body) == 1 else Reason.MALFORMED


def _validate_limits(body: Sequence[Any]) -> Reason | None:
    values = body[1:]
    if len(values) != LEVEL_1_LIMITS or not all(value is None or type(value) is int for value in values):
        return Reason.MALFORMED
    return None if all(value is None or 1 <= value <= INT64_MAX for value in values) else Reason.OUT_OF_RANGE


def _validate_level_2_limits(body: Sequence[Any]) -> Reason | None:
    values, names = body[1:], StoreLimits.names()
    if len(values) not in (LEVEL_1_LIMITS, len(names)):
        return Reason.MALFORMED
    if not all(value is None or type(value) is int for value in values):
        return Reason.MALFORMED
    are_valid = [
        value is None or limit_min(name) <= value <= limit_max(name) for name, value in zip(names, values, strict=False)
    ]
    return None if all(are_valid) else Reason.OUT_OF_RANGE


def _validate_level(body: Sequence[Any]) -> Reason | None:
    if len(body) != 2 or type(body[1]) is not int:
        return Reason.MALFORMED
    return None if 1 <= body[1] <= INT64_MAX else Reason.OUT_OF_RANGE


def _validate_numbers(numbers: Sequence[object]) -> Reason | None:
    if not all(type(number) is int for number in numbers):
        return Reason.MALFORMED
    return None if all(map(is_count, numbers)) else Reason.OUT_OF_RANGE


_FLAGS_MAX = sum(PutFlag)


def _validate_level_2_put(body: Sequence[Any]) -> Reason | None:
    if len(body) == 3:
        return _validate_put(body)
    if len(body) != 5 or type(body[2]) is not bytes or not type(body[3]) is type(body[4]) is int:
        return Reason.MALFORMED
    lease_id, flags = body[3], body[4]
    if not is_count(lease_id) or not 0 <= flags <= _FLAGS_MAX:
        return Reason.OUT_OF_RANGE
    if (flags & PutFlag.KEEP_VALUE and body[2]) or (flags & PutFlag.KEEP_LEASE and lease_id):
        return Reason.MALFORMED
    return _validate_key(body[1])


def _validate_level_2_get(body: Sequence[Any]) -> Reason | None:
    if len(body) not in (2, 3):
        return Reason.MALFORMED
    return _validate_numbers(body[2:]) or _validate_key(body[1])


def _validate_delete_range(body: Sequence[Any]) -> Reason | None:
    if len(body) != 4 or type(body[1]) is not bytes or type(body[3]) is not bool:
        return Reason.MALFORMED
    return None if body[2] is None or type(body[2]) is bytes else Reason.MALFORMED


def _validate_append(body: Sequence[Any]) -> Reason | None:
    if len(body) != 4 or type(body[1]) is not bytes or type(body[2]) is not bytes:
        return Reason.MALFORMED
    return _validate_numbers(body[3:])


def _validate_add(body: Sequence[Any]) -> Reason | None:
    if len(body) != 3 or type(body[2]) is not int:
        return Reason.MALFORMED
    return _validate_key(body[1]) if INT64_MIN <= body[2] <= INT64_MAX else Reason.OUT_OF_RANGE


def _validate_level_2_compare(compare: object) -> Reason | None:
    if not isinstance(compare, _ARRAYS) or len(compare) not in (4, 5):
        return Reason.MALFORMED
    end = compare[4] if len(compare) == 5 else b""
    if not (end is None or type(end) is bytes):
        return Reason.MALFORMED
    if compare[0] == Target.LEASE and type(compare[0]) is int:  # LEASE has a number as operand, like VERSION.
        return _validate_compare((int(Target.VERSION), *compare[1:4]))
    return _validate_compare(compare[:4])


def _validate_level_2_txn(body: Sequence[Any]) -> Reason | None:
    """Validate a transaction and the transactions within it."""
    return _validate_txn_at(body, 1) or _validate_writes(body)


def _validate_txn_at(body: Sequence[Any], depth: int) -> Reason | None:
    if len(body) != 4 or not all(isinstance(part, _ARRAYS) for part in body[1:]):
        return Reason.MALFORMED
    if depth > TXN_DEPTH_MAX:
        return Reason.NESTED_TOO_DEEP
    for compare in body[1]:
        flaw = _validate_level_2_compare(compare)
        if flaw is not None:
            return flaw
    for operation in (*body[2], *body[3]):
        if not isinstance(operation, _ARRAYS) or not operation or type(operation[0]) is not int:
            return Reason.MALFORMED
        if operation[0] == CommandKind.TXN:
            flaw = _validate_txn_at(operation, depth + 1)
        else:
            validate = _LEVEL_2_OPERATION_VALIDATORS.get(operation[0])
            flaw = validate(operation) if validate is not None else Reason.UNKNOWN_KIND
        if flaw is not None:
            return flaw
    return None


def _validate_writes(body: Sequence[Any]) -> Reason | None:
    """Check that no path through a valid transaction writes a key twice, or writes a key in a range that the path
    deletes.

    The new key of an append is not known yet, and is checked when the append is carried out.
    """
    return Reason.KEY_WRITTEN_TWICE if any(_writes_of(branch) is None for branch in (body[2], body[3])) else None


class _Writes:
    """The keys and ranges that a branch may write, each with the place (index) of its operation in the branch.

    Several deletions of one key are allowed. Only one branch of an inner transaction runs, so the writes of both
    branches have the place of the inner transaction, and do not collide with each other.
    """

    __slots__ = ("deleted", "keys", "ranges")

    def __init__(self) -> None:
        self.keys: list[tuple[bytes, int]] = []
        self.deleted: list[tuple[bytes, int]] = []
        self.ranges: list[tuple[bytes, bytes | None, int]] = []

    def include(self, inner: _Writes, place: int) -> None:
        """Add the writes of a branch of the inner transaction at `place`."""
        self.keys += [(key, place) for key, _ in inner.keys]
        self.deleted += [(key, place) for key, _ in inner.deleted]
        self.ranges += [(start, end, place) for start, end, _ in inner.ranges]

    def collide(self) -> bool:
        """Return True if two operations at different places write the same key, or one of them writes a key that the
        other deletes. Cost: O(n log n)."""
        writers: dict[bytes, int] = {}
        for key, place in self.keys:
            if writers.setdefault(key, place) != place:
                return True
        if any(writers.get(key, place) != place for key, place in self.deleted):
            return True
        ordered = sorted(writers)
        places = [writers[key] for key in ordered]
        changes = [index for index in range(1, len(places)) if places[index] != places[index - 1]]
        for start, end, place in self.ranges:
            low = bisect_left(ordered, start)
            high = len(ordered) if end is None else bisect_left(ordered, end)
            # Unless all keys in the range have the place of the deletion, another operation writes a key there. So
            # compare the place of the first key, and look for neighbouring keys with different places.
            if low < high and (places[low] != place or bisect_left(changes, high) > bisect_right(changes, low)):
                return True
        return False


def _writes_of(branch: Sequence[Any]) -> _Writes | None:
    """Return the writes of a branch with valid operations; None if two writes collide."""
    writes = _Writes()
    for place, operation in enumerate(branch):
        kind = operation[0]
        if kind == CommandKind.TXN:
            for inner in (_writes_of(operation[2]), _writes_of(operation[3])):
                if inner is None:
                    return None
                writes.include(inner, place)
        elif kind in (CommandKind.PUT, CommandKind.ADD):
            writes.keys.append((operation[1], place))
        elif kind == CommandKind.DELETE:
            writes.deleted.append((operation[1], place))
        elif kind == CommandKind.DELETE_RANGE:
            writes.ranges.append((operation[1], operation[2], place))
    return None if writes.collide() else writes


def _validate_grant(body: Sequence[Any]) -> Reason | None:
    if len(body) != 3:
        return Reason.MALFORMED
    return _validate_numbers(body[1:]) or (None if 1 <= body[2] <= TIME_NS_MAX else Reason.OUT_OF_RANGE)


def _validate_one_number(body: Sequence[Any]) -> Reason | None:
    return _validate_numbers(body[1:]) if len(body) == 2 else Reason.MALFORMED


def _validate_renew(body: Sequence[Any]) -> Reason | None:
    return _validate_numbers(body[1:]) if len(body) > 1 else Reason.MALFORMED


_Validator = Callable[[Sequence[Any]], Reason | None]

_OPERATION_VALIDATORS: dict[int, _Validator] = {
    CommandKind.PUT: _validate_put,
    CommandKind.GET: _validate_key_only,
    CommandKind.DELETE: _validate_key_only,
    CommandKind.RANGE: _validate_range,
}

_LEVEL_2_OPERATION_VALIDATORS: dict[int, _Validator] = {
    CommandKind.PUT: _validate_level_2_put,
    CommandKind.GET: _validate_level_2_get,
    CommandKind.DELETE: _validate_key_only,
    CommandKind.RANGE: _validate_range,
    CommandKind.DELETE_RANGE: _validate_delete_range,
    CommandKind.APPEND: _validate_append,
    CommandKind.ADD: _validate_add,
}

_VALIDATORS: dict[int, dict[int, _Validator]] = {
    1: {
        **_OPERATION_VALIDATORS,
        CommandKind.COMPARE_AND_SET: _validate_compare_and_set,
        CommandKind.TXN: _validate_txn,
        CommandKind.REGISTER_SESSION: _validate_register,
        CommandKind.CLOSE_SESSION: _validate_bare,
        CommandKind.KEEP_ALIVE: _validate_bare,
        CommandKind.CHANGE_LIMITS: _validate_limits,
        CommandKind.RAISE_FEATURE_LEVEL: _validate_level,
    },
    2: {
        **_LEVEL_2_OPERATION_VALIDATORS,
        CommandKind.COMPARE_AND_SET: _validate_compare_and_set,
        CommandKind.TXN: _validate_level_2_txn,
        CommandKind.REGISTER_SESSION: _validate_register,
        CommandKind.CLOSE_SESSION: _validate_bare,
        CommandKind.KEEP_ALIVE: _validate_bare,
        CommandKind.CHANGE_LIMITS: _validate_level_2_limits,
        CommandKind.RAISE_FEATURE_LEVEL: _validate_level,
        CommandKind.LEASE_GRANT: _validate_grant,
        CommandKind.LEASE_REVOKE: _validate_one_number,
        CommandKind.LEASE_RENEW: _validate_renew,
        CommandKind.COMPACT: _validate_one_number,
    },
}
_VALIDATORS[3] = {**_VALIDATORS[2], **ACCESS_VALIDATORS}
"""The valid kinds of each feature level, with their validators. A level that is missing in this dict has the kinds of
its newest level."""

_NEWEST_VALIDATORS = _VALIDATORS[max(_VALIDATORS)]


def only_reads(body: Sequence[Any]) -> bool:
    """Return True if a valid body writes nothing in any state, that is, for a get, a range, or a transaction of such
    operations in all branches. Such a body needs no entry in the log.

    Cost: O(operations).
    """
    if body[0] == CommandKind.TXN:
        return all(map(only_reads, (*body[2], *body[3])))
    return body[0] in (CommandKind.GET, CommandKind.RANGE)


def admit_command(item: object, limits: AdmissionLimits, level: int = FEATURE_LEVEL_MAX) -> None:
    """Admit a decoded command `[session_id, request_no, acknowledged_up_to, kind, ...]`.

    `level` is the feature level in force (`KvMachine.feature_level`). Raises InvalidRequest, after which the command
    has certainly had no effect.
    """
    flaw = validate_header(item)
    if flaw is not None:
        raise InvalidRequest(flaw)
    assert isinstance(item, _ARRAYS)
    flaw = validate_command(item, level)
    if flaw is not None:
        raise InvalidRequest(flaw)
    session_id, request_no, acknowledged_up_to, kind = item[: HEADER_ITEMS + 1]
    _bound_body(item[HEADER_ITEMS:], limits)
    is_numbered = session_id != 0 and kind not in (CommandKind.CLOSE_SESSION, CommandKind.KEEP_ALIVE)
    if is_numbered and not acknowledged_up_to < request_no:
        raise InvalidRequest(Reason.OUT_OF_RANGE)  # The request would acknowledge its own result.


def admit_body(body: Sequence[Any], limits: AdmissionLimits, level: int = FEATURE_LEVEL_MAX) -> None:
    """Admit the body `[kind, ...]` of a command or of a read. Raises InvalidRequest."""
    flaw = validate_body(body, level) if body else Reason.MALFORMED
    if flaw is not None:
        raise InvalidRequest(flaw)
    _bound_body(body, limits)


def _bound_body(body: Sequence[Any], limits: AdmissionLimits) -> None:
    """Check a valid body against the bounds of one member. Raises InvalidRequest."""
    kind = body[0]
    if kind == CommandKind.TXN:
        _bound_txn(body, limits)
    elif kind < CommandKind.REGISTER_SESSION:
        _bound_operation(body, limits)
    elif kind == CommandKind.REGISTER_SESSION:
        _bound_number(body[1], limits.session_ttl_ns_min, limits.session_ttl_ns_max)
    elif kind == CommandKind.LEASE_GRANT:
        _bound_number(body[2], limits.lease_ttl_ns_min, limits.lease_ttl_ns_max)
    elif kind == CommandKind.LEASE_RENEW and len(body) - 1 > limits.lease_renewals_max:
        raise InvalidRequest(Reason.TOO_MANY_OPERATIONS, len(body) - 1, limits.lease_renewals_max)


_RANGES = (CommandKind.RANGE, CommandKind.DELETE_RANGE)


def _bound_operation(body: Sequence[Any], limits: AdmissionLimits) -> int:
    """Check the keys and values of one operation against the bounds. Return their total size in bytes."""
    is_range = body[0] in _RANGES
    size = _bound(body[1], limits.key_bytes_max + is_range, Reason.KEY_TOO_LONG)
    if is_range:  # The ends of a range may be one byte longer than a key, so that a range can start right after a key.
        return size + (_bound(body[2], limits.key_bytes_max + 1, Reason.KEY_TOO_LONG) if body[2] is not None else 0)
    if body[0] == CommandKind.APPEND:  # The bound is for the key that the append makes.
        size += _bound(body[1] + bytes(APPENDED_BYTES), limits.key_bytes_max, Reason.KEY_TOO_LONG) - len(body[1])
    for value in body[2:]:  # put: the value; compare_and_set: also the expected value.
        if type(value) is bytes:
            size += _bound(value, limits.value_bytes_max, Reason.VALUE_TOO_LONG)
    return size


def _bound_txn(body: Sequence[Any], limits: AdmissionLimits) -> None:
    count, size = _size_of_txn(body, limits)
    if count > limits.txn_operations_max:
        raise InvalidRequest(Reason.TOO_MANY_OPERATIONS, count, limits.txn_operations_max)
    if size > limits.txn_bytes_max:
        raise InvalidRequest(Reason.TRANSACTION_TOO_LARGE, size, limits.txn_bytes_max)


def _size_of_txn(body: Sequence[Any], limits: AdmissionLimits) -> tuple[int, int]:
    """Return the number of comparisons and operations, and the bytes of their keys, values and operands, including
    inner transactions."""
    _, compares, success, failure = body
    count, size = len(compares) + len(success) + len(failure), 0
    if count > limits.txn_operations_max:
        return count, size
    for target, _, key, operand, *end in compares:
        size += _bound(key, limits.key_bytes_max, Reason.KEY_TOO_LONG)
        if target == Target.VALUE:
            size += _bound(operand, limits.value_bytes_max, Reason.VALUE_TOO_LONG)
        if end and end[0]:
            size += _bound(end[0], limits.key_bytes_max + 1, Reason.KEY_TOO_LONG)
    for branch in (success, failure):
        for operation in branch:
            if operation[0] == CommandKind.TXN:
                inner_count, inner_size = _size_of_txn(operation, limits)
                count, size = count + inner_count, size + inner_size
            else:
                size += _bound_operation(operation, limits)
    return count, size


def _bound_number(number: int, least: int, greatest: int) -> None:
    if not least <= number <= greatest:
        raise InvalidRequest(Reason.OUT_OF_RANGE, number, greatest)


def _bound(data: bytes, bytes_max: int, reason: Reason) -> int:
    if len(data) > bytes_max:
        raise InvalidRequest(reason, len(data), bytes_max)
    return len(data)
