"""The keys of a client that works under a prefix: commands get the prefix, and results lose it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

from kvstore.protocol.commands import (
    Add,
    Append,
    Command,
    Compare,
    CompareAndSet,
    Delete,
    DeleteRange,
    Get,
    Put,
    Range,
    Txn,
    prefix_range,
)
from kvstore.protocol.results import AppendResult, DeleteRangeResult, RangeResult, Result, TxnResult
from kvstore.protocol.watches import Change

CommandT = TypeVar("CommandT", bound=Command)
ResultT = TypeVar("ResultT", bound=Result)


def range_under(prefix: bytes, start: bytes, end: bytes | None) -> tuple[bytes, bytes | None]:
    """Return the range of whole keys for a range of keys under a prefix. A range without an upper bound ends with the
    last key under the prefix.

    >>> range_under(b"a/", b"x", None)
    (b'a/x', b'a0')
    """
    return prefix + start, prefix_range(prefix)[1] if end is None else prefix + end


def add_prefix(command: CommandT, prefix: bytes) -> CommandT:
    """Return the command for whole keys that corresponds to a command for keys under a prefix."""
    changed: Any = command
    if isinstance(command, Put | Get | Delete | Add | CompareAndSet):
        changed = replace(command, key=prefix + command.key)
    elif isinstance(command, Range | DeleteRange):
        start, end = range_under(prefix, command.start, command.end)
        changed = replace(command, start=start, end=end)
    elif isinstance(command, Append):
        changed = replace(command, prefix=prefix + command.prefix)
    elif isinstance(command, Txn):
        compares = tuple(_add_to_compare(each, prefix) for each in command.compares)
        success, failure = (
            tuple(add_prefix(each, prefix) for each in branch) for branch in (command.success, command.failure)
        )
        changed = Txn(compares, success, failure)
    result: CommandT = changed
    return result


def _add_to_compare(compare: Compare, prefix: bytes) -> Compare:
    if compare.end == b"":
        return replace(compare, key=prefix + compare.key)
    start, end = range_under(prefix, compare.key, compare.end)
    return replace(compare, key=start, end=end)


def strip_prefix(result: ResultT, prefix: bytes) -> ResultT:
    """Return a result without the prefix in its keys."""
    size = len(prefix)
    changed: Any = result
    if isinstance(result, RangeResult):
        changed = replace(result, items=tuple(replace(item, key=item.key[size:]) for item in result.items))
    elif isinstance(result, DeleteRangeResult):
        changed = replace(result, previous=tuple(replace(item, key=item.key[size:]) for item in result.previous))
    elif isinstance(result, AppendResult):
        changed = replace(result, key=result.key[size:])
    elif isinstance(result, TxnResult):
        changed = replace(result, results=tuple(strip_prefix(each, prefix) for each in result.results))
    stripped: ResultT = changed
    return stripped


def strip_from_change(change: Change, prefix: bytes) -> Change:
    """Return a change without the prefix in its key."""
    return replace(change, key=change.key[len(prefix) :])
