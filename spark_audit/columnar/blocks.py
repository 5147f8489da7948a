"""Blocks of consecutive keys whose rows fit in the CPU cache, and computations on rows that are grouped by key."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from spark_audit.columnar.columns import NOTHING, OTHER, PRESENT, Bools, Columns, Int64s

# This many rows take about 10 MB of columns and temporary arrays. This size was chosen by measurements
# (benchmarks/audit).
BLOCK_ROWS = 1 << 16


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive keys of the columns, [`first_key`, `last_key`), with their rows [`begin`, `end`).

    In the other fields, keys, rows and tokens are numbered from the start of the block. `key`: the key of each row.
    `starts`: as in Columns. `absence`: for each key, the token that stands for its absence. `tokens`: the number of
    tokens. `call`, `ret`: time stamps, shifted so that every stamp of a key is greater than all stamps of the keys
    before it. So a running maximum over the block is a running maximum within each key. `origin`: for each key, a stamp
    below all stamps of this key and above all stamps of the keys before it.
    """

    columns: Columns
    first_key: int
    last_key: int
    begin: int
    end: int
    key: Int64s
    starts: Int64s
    absence: Int64s
    tokens: int
    call: Int64s
    ret: Int64s
    origin: Int64s
    unknown: Bools

    @property
    def keys(self) -> int:
        """The number of keys in the block."""
        return self.last_key - self.first_key

    def part(self, column: Int64s) -> Int64s:
        """Return the block's part of a column that covers all rows."""
        return column[self.begin : self.end]

    def local_tokens(self, column: Int64s) -> Int64s:
        """Return the block's part of a column of tokens, counted from the block's first token.

        NOTHING and PRESENT are not changed.
        """
        mine = column[self.begin : self.end]
        first = int(self.columns.tokens[self.first_key])
        return mine if first == 0 else mine - first * (mine >= 0)


def blocks(columns: Columns, rows_max: int = BLOCK_ROWS) -> Iterator[Block]:
    """Cut the columns into blocks of at most `rows_max` rows. A key with more rows is a block of its own."""
    key = 0
    while key < columns.keys:
        reach = int(np.searchsorted(columns.starts, columns.starts[key] + rows_max, side="right")) - 1
        last = max(key + 1, min(reach, columns.keys))
        yield _block(columns, key, last)
        key = last


def _block(columns: Columns, first: int, last: int) -> Block:
    begin, end = int(columns.starts[first]), int(columns.starts[last])
    starts = columns.starts[first : last + 1] - begin
    key = np.repeat(np.arange(last - first), np.diff(starts))
    call, ret = columns.call[begin:end], columns.ret[begin:end]
    call, ret, span = _on_one_axis(call, ret, last - first)
    origin = np.arange(last - first) * span
    return Block(
        columns=columns,
        first_key=first,
        last_key=last,
        begin=begin,
        end=end,
        key=key,
        starts=starts,
        absence=columns.tokens[first:last] - columns.tokens[first],
        tokens=int(columns.tokens[last] - columns.tokens[first]),
        call=call + origin[key],
        ret=ret + origin[key],
        origin=origin,
        unknown=columns.unknown[begin:end],
    )


def _on_one_axis(call: Int64s, ret: Int64s, keys: int) -> tuple[Int64s, Int64s, int]:
    """Return the calls, the returns, and the number of stamps to reserve for each key. All stamps are shifted, so that
    the least stamp is 1.

    A return that is later than the last call may be replaced by the stamp directly after the last call. This does not
    change which operations precede which.
    """
    if len(call) == 0:
        return call, ret, 2
    low, high = int(call.min()), int(call.max())
    span = high - low + 3
    # For a stamp at either end of the int64 range, the arithmetic below would overflow.
    at_an_end = low == -(2**63) or high >= 2**63 - 2
    if at_an_end or span * keys >= 2**62:  # Only the order of the stamps matters, so ranks can replace them.
        stamps, ranks = np.unique(np.concatenate((call, ret)), return_inverse=True)
        ranks = ranks.reshape(-1).astype(np.int64) + 1
        return ranks[: len(call)], ranks[len(call) :], len(stamps) + 3
    return call - (low - 1), np.minimum(ret, high + 1) - (low - 1), span


def not_covered(block: Block) -> Bools:
    """Return for each key whether it has operations that columns cannot express, or stamps of more than one clock."""
    columns = block.columns
    other = columns.kind[block.begin : block.end] == OTHER
    clock = block.part(columns.clock)
    if len(clock) and (clock != clock[0]).any():
        first = clock[np.minimum(block.starts[:-1], len(clock) - 1)]
        other |= clock != first[block.key]
    return any_of(block.key, other, block.keys)


def any_of(key: Int64s, where: Bools, keys: int) -> Bools:
    """Return for each key whether the condition holds for any of its rows."""
    found = np.zeros(keys, np.bool_)
    found[key[np.flatnonzero(where)]] = True
    return found


def first_place(token: Int64s, tokens: int) -> Int64s:
    """Return for each token the first place that holds it, or `len(token)` if none does. Negative tokens are skipped.

    `token`: the token at each place.
    """
    place = np.full(tokens, len(token), np.int64)
    known = np.flatnonzero(token >= 0)[::-1]
    # numpy keeps the last of several assignments to one index. The places are reversed, so the first place is kept.
    place[token[known]] = known
    return place


def places_of(column: Int64s, wanted: Int64s, tokens: int) -> Int64s:
    """Return the places at which `column` has any token of `wanted`, in ascending order."""
    # NOTHING and PRESENT are negative, so they index the two extra entries at the end, which stay False.
    is_wanted = np.zeros(tokens - min(NOTHING, PRESENT), np.bool_)
    is_wanted[wanted] = True
    return np.flatnonzero(is_wanted[column])


def first_places(column: Int64s, wanted: Int64s, tokens: int) -> Int64s:
    """Return for each token of `wanted` the first place of `column` that holds it, or `len(column)` if none does."""
    if not len(wanted):
        return wanted
    places = places_of(column, wanted, tokens)[::-1]
    first = np.full(tokens, len(column), np.int64)
    # numpy keeps the last of several assignments to one index. The places are reversed, so the first place is kept.
    first[column[places]] = places
    return first[wanted]


def last_place(where: Bools) -> Int64s:
    """Return for each place the last place at or before it where the condition holds; -1 if there is none."""
    return last_of(np.flatnonzero(where), len(where))


def last_of(places: Int64s, count: int) -> Int64s:
    """Return for each of `count` places the last of `places` that is at or before it; -1 if there is none."""
    last = np.full(count, NOTHING, np.int64)
    last[places] = places
    return np.maximum.accumulate(last, out=last)


def so_far(places: Int64s, count: int) -> Int64s:
    """Return for each of `count` places how many of `places` are at or before it.

    `places` is ascending, and a place may occur more than once.
    """
    return np.repeat(np.arange(len(places) + 1), np.diff(places, prepend=0, append=count))
