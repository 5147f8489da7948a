"""A run of whole keys whose rows fit the cache, and arithmetic on rows that are grouped by key."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from spark_audit.columnar.columns import NOTHING, OTHER, PRESENT, Bools, Columns, Int64s

BLOCK_ROWS = 1 << 16  # About 10 MB of columns and temporaries; measured, see benchmarks/audit.


@dataclass(frozen=True, slots=True)
class Block:
    """Keys `first_key` up to `last_key` of the columns, their rows `begin` up to `end`. Numbers below are relative.

    `key`: of each row. `starts`: as in Columns. `absence`: per key, its token; tokens are in [0, `tokens`).
    `call`, `ret`: on one axis on which every stamp of a key is above all of the keys before it, so that a running
    maximum over the block is one per key. `origin`: per key, below all its stamps and above those before it.
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
        """How many keys it has."""
        return self.last_key - self.first_key

    def part(self, column: Int64s) -> Int64s:
        """The block's rows of a column of all rows."""
        return column[self.begin : self.end]

    def local_tokens(self, column: Int64s) -> Int64s:
        """A column of tokens, counted from the block's first; NOTHING and PRESENT stay."""
        mine = column[self.begin : self.end]
        first = int(self.columns.tokens[self.first_key])
        return mine if first == 0 else mine - first * (mine >= 0)


def blocks(columns: Columns, rows_max: int = BLOCK_ROWS) -> Iterator[Block]:
    """Cut into blocks of at most `rows_max` rows, or one key where that alone has more."""
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
    """Stamps counted from 1, returns cut off just above the last call, and the room that one key needs."""
    if len(call) == 0:
        return call, ret, 2
    low, high = int(call.min()), int(call.max())
    span = high - low + 3
    at_an_end = low == -(2**63) or high >= 2**63 - 2  # Then one below or above is no int64.
    if at_an_end or span * keys >= 2**62:  # Only their order matters: take their ranks.
        stamps, ranks = np.unique(np.concatenate((call, ret)), return_inverse=True)
        ranks = ranks.reshape(-1).astype(np.int64) + 1
        return ranks[: len(call)], ranks[len(call) :], len(stamps) + 3
    return call - (low - 1), np.minimum(ret, high + 1) - (low - 1), span


def not_covered(block: Block) -> Bools:
    """Per key: whether it has operations that columns cannot express, or more than one clock."""
    columns = block.columns
    other = columns.kind[block.begin : block.end] == OTHER
    clock = block.part(columns.clock)
    if len(clock) and (clock != clock[0]).any():
        first = clock[np.minimum(block.starts[:-1], len(clock) - 1)]
        other |= clock != first[block.key]
    return any_of(block.key, other, block.keys)


def any_of(key: Int64s, where: Bools, keys: int) -> Bools:
    """Per key: whether the condition holds for any of its rows."""
    found = np.zeros(keys, np.bool_)
    found[key[np.flatnonzero(where)]] = True
    return found


def first_place(token: Int64s, tokens: int) -> Int64s:
    """Per token the first place with it; `len(token)` if there is none. Negative ones are skipped."""
    place = np.full(tokens, len(token), np.int64)
    known = np.flatnonzero(token >= 0)[::-1]
    place[token[known]] = known  # The last one written stays: the first in order.
    return place


def places_of(column: Int64s, wanted: Int64s, tokens: int) -> Int64s:
    """The places with any of these tokens, in order."""
    is_wanted = np.zeros(tokens - min(NOTHING, PRESENT), np.bool_)  # NOTHING and PRESENT count from the end.
    is_wanted[wanted] = True
    return np.flatnonzero(is_wanted[column])


def first_places(column: Int64s, wanted: Int64s, tokens: int) -> Int64s:
    """Per token of `wanted` the first place with it; `len(column)` if there is none."""
    if not len(wanted):
        return wanted
    places = places_of(column, wanted, tokens)[::-1]
    first = np.full(tokens, len(column), np.int64)
    first[column[places]] = places  # The last one written stays: the first in order.
    return first[wanted]


def last_place(where: Bools) -> Int64s:
    """Per place the last one up to it at which the condition holds; -1 if none."""
    return last_of(np.flatnonzero(where), len(where))


def last_of(places: Int64s, count: int) -> Int64s:
    """Per place of `count` the last of these up to it; -1 if none."""
    last = np.full(count, NOTHING, np.int64)
    last[places] = places
    return np.maximum.accumulate(last, out=last)


def so_far(places: Int64s, count: int) -> Int64s:
    """Per place of `count` how many of these (few; ascending, some perhaps twice) stand up to it."""
    return np.repeat(np.arange(len(places) + 1), np.diff(places, prepend=0, append=count))
