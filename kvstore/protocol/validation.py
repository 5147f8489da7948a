"""Validation of a command's form: at admission, also against one member's limits, and at apply, without these limits.

At apply the replicated feature level decides, never the build. If a form is not part of the level, all members treat it
as invalid, even those with newer builds. `validate_*` accept any decoded CBOR item without raising: they return the
reason why the item is invalid, or None. `admit_*` raise InvalidRequest.

See docs/reference/specification.md#713-feature-levels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kvstore.errors import InvalidRequest, Reason
from kvstore.limits import FEATURE_LEVEL_MAX, TIME_NS_MAX, AdmissionLimits, StoreLimits
from kvstore.protocol.commands import CommandKind
from raft import INT64_MAX

_ARRAYS = (list, tuple)
HEADER_ITEMS = 3
"""A command begins with session_id, request_no, acknowledged_up_to; its body follows."""


def is_count(item: object) -> bool:
    """True for an int (not a bool) from 0 to 2**63 - 1."""
    return type(item) is int and 0 <= item <= INT64_MAX


def validate_header(item: object) -> Reason | None:
    """Validate the header of a command: an array that begins with three counts, followed by at least a kind."""
    if not isinstance(item, _ARRAYS) or len(item) <= HEADER_ITEMS:
        return Reason.MALFORMED
    session_id, request_no, acknowledged_up_to = item[0], item[1], item[2]
    if not (type(session_id) is type(request_no) is type(acknowledged_up_to) is int):
        return Reason.MALFORMED
    if 0 <= session_id <= INT64_MAX and 0 <= request_no <= INT64_MAX and 0 <= acknowledged_up_to <= INT64_MAX:
        return None  # No calls here, because every command passes twice.
    return Reason.OUT_OF_RANGE


def validate_body(body: Sequence[Any], level: int = FEATURE_LEVEL_MAX) -> Reason | None:
    """Validate a body `(kind, ...)`, which is not empty, at a feature level; None if it can be carried out."""
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
    if len(values) != len(StoreLimits.names()) or not all(value is None or type(value) is int for value in values):
        return Reason.MALFORMED
    return None if all(value is None or 1 <= value <= INT64_MAX for value in values) else Reason.OUT_OF_RANGE


def _validate_level(body: Sequence[Any]) -> Reason | None:
    if len(body) != 2 or type(body[1]) is not int:
        return Reason.MALFORMED
    return None if 1 <= body[1] <= INT64_MAX else Reason.OUT_OF_RANGE


_Validator = Callable[[Sequence[Any]], Reason | None]

_OPERATION_VALIDATORS: dict[int, _Validator] = {
    CommandKind.PUT: _validate_put,
    CommandKind.GET: _validate_key_only,
    CommandKind.DELETE: _validate_key_only,
    CommandKind.RANGE: _validate_range,
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
}
"""The kinds of each feature level, with their validators. A level that is missing here has those of the newest one."""

_NEWEST_VALIDATORS = _VALIDATORS[max(_VALIDATORS)]


def admit_command(item: object, limits: AdmissionLimits, level: int = FEATURE_LEVEL_MAX) -> None:
    """Admit a decoded command `[session_id, request_no, acknowledged_up_to, kind, ...]`.

    `level` is the feature level in force (`KvMachine.feature_level`). Raises InvalidRequest: certainly no effect.
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
        raise InvalidRequest(Reason.OUT_OF_RANGE)  # The request would acknowledge itself.


def admit_body(body: Sequence[Any], limits: AdmissionLimits, level: int = FEATURE_LEVEL_MAX) -> None:
    """Admit the body `[kind, ...]` of a command or of a read. Raises InvalidRequest."""
    flaw = validate_body(body, level) if body else Reason.MALFORMED
    if flaw is not None:
        raise InvalidRequest(flaw)
    _bound_body(body, limits)


def _bound_body(body: Sequence[Any], limits: AdmissionLimits) -> None:
    """Check a valid body against one member's bounds. Raises InvalidRequest."""
    kind = body[0]
    if kind <= CommandKind.COMPARE_AND_SET:
        _bound_operation(body, limits)
    elif kind == CommandKind.TXN:
        _bound_txn(body, limits)
    elif kind == CommandKind.REGISTER_SESSION and not limits.session_ttl_ns_min <= body[1] <= limits.session_ttl_ns_max:
        raise InvalidRequest(Reason.OUT_OF_RANGE, body[1], limits.session_ttl_ns_max)


def _bound_operation(body: Sequence[Any], limits: AdmissionLimits) -> int:
    """Check the keys and values of one operation against the bounds; return their total size in bytes."""
    size = _bound(body[1], limits.key_bytes_max + (body[0] == CommandKind.RANGE), Reason.KEY_TOO_LONG)
    if body[0] == CommandKind.RANGE:  # One byte more than a key: the next page starts right after the last key seen.
        return size + (_bound(body[2], limits.key_bytes_max + 1, Reason.KEY_TOO_LONG) if body[2] is not None else 0)
    for value in body[2:]:  # put: the value; compare_and_set: also the expected value.
        if type(value) is bytes:
            size += _bound(value, limits.value_bytes_max, Reason.VALUE_TOO_LONG)
    return size


def _bound_txn(body: Sequence[Any], limits: AdmissionLimits) -> None:
    _, compares, success, failure = body
    count = len(compares) + len(success) + len(failure)
    if count > limits.txn_operations_max:
        raise InvalidRequest(Reason.TOO_MANY_OPERATIONS, count, limits.txn_operations_max)
    size = 0
    for target, _, key, operand in compares:
        size += _bound(key, limits.key_bytes_max, Reason.KEY_TOO_LONG)
        if target == 4:
            size += _bound(operand, limits.value_bytes_max, Reason.VALUE_TOO_LONG)
    for branch in (success, failure):
        for operation in branch:
            size += _bound_operation(operation, limits)
    if size > limits.txn_bytes_max:
        raise InvalidRequest(Reason.TRANSACTION_TOO_LARGE, size, limits.txn_bytes_max)


def _bound(data: bytes, bytes_max: int, reason: Reason) -> int:
    if len(data) > bytes_max:
        raise InvalidRequest(reason, len(data), bytes_max)
    return len(data)
