"""Checks each weak read against the revision that it carries, for all keys at once.

A weak read promises less than linearizability. `key/weak_reads.py` has the exact rules. Every read that this module
accepts is also accepted by the exact rules. `key/weak_reads.py` decides the other weak reads, which are few in a sound
history. Among these are reads of values that were written twice, and reads of keys with stamps of several clocks.
"""

from __future__ import annotations

import numpy as np

from spark_audit.columnar.blocks import any_of, first_place
from spark_audit.columnar.columns import OTHER, Bools, Columns, Int64s


def doubtful(columns: Columns) -> Bools:
    """Return for each row of `columns.weak` whether the read might contradict the revision that it carries.

    `columns.weak` must not be None.
    """
    reads = columns.weak
    assert reads is not None
    key = reads.key_of_row()
    absence = columns.tokens[key]
    finds_value = (reads.finds >= 0) & (reads.finds != absence)
    has_revisions = (reads.mod >= 0) & (reads.revision > 0)
    wrong: Bools = has_revisions & (reads.mod > reads.revision)
    wrong |= _beyond_columns(columns, reads)[key]
    last, known = _last_acknowledged(columns, key, reads.revision)
    if not len(columns):  # Without writes, a read that found a value is wrong.
        wrong |= finds_value
        return wrong
    deleted = columns.writes[last] == absence
    wrong |= known & has_revisions & (columns.revision[last] > reads.mod)
    wrong |= known & (reads.finds == absence) & ~deleted & ~(_first_unknown_deletion(columns)[key] <= reads.ret)
    wrong |= finds_value & ~_written(columns, reads)
    return wrong


def _last_acknowledged(columns: Columns, key: Int64s, revision: Int64s) -> tuple[Int64s, Bools]:
    """Return for each (key, revision) the row of the key's last acknowledged write at or below that revision.

    The second array is True where there is such a write. Elsewhere, the returned row has no meaning.
    """
    rows = np.flatnonzero((columns.writes >= 0) & (columns.revision > 0))
    if not len(rows):
        return np.zeros(len(key), np.int64), np.zeros(len(key), np.bool_)
    _, rank = np.unique(np.r_[columns.revision[rows], revision], return_inverse=True)
    owner = columns.key_of_row()[rows]
    code = np.r_[owner, key] * (len(rank) + 1) + rank.reshape(-1)
    written, wanted = code[: len(rows)], code[len(rows) :]
    by_code = np.argsort(written, kind="stable")
    place = np.searchsorted(written[by_code], wanted, side="right") - 1
    last = by_code[np.maximum(place, 0)]
    return rows[last], (place >= 0) & (owner[last] == key) & (revision > 0)


def _first_unknown_deletion(columns: Columns) -> Int64s:
    """Return for each key the first call of a deletion of unknown outcome."""
    key = columns.key_of_row()
    rows = np.flatnonzero(columns.unknown & (columns.writes == columns.tokens[key]))
    first = np.full(columns.keys, np.iinfo(np.int64).max, np.int64)
    np.minimum.at(first, key[rows], columns.call[rows])
    return first


def _written(columns: Columns, reads: Columns) -> Bools:
    """Return for each read whether the first write of its value was called in time and may have the reported revision.

    A write of unknown outcome may have any revision.
    """
    row = first_place(columns.writes, int(columns.tokens[-1]))[reads.finds]
    there = row < len(columns)
    row = np.where(there, row, 0)
    same = (reads.mod < 0) | (columns.revision[row] <= 0) | (columns.revision[row] == reads.mod)
    written: Bools = there & (columns.call[row] <= reads.ret) & same
    return written


def _beyond_columns(columns: Columns, reads: Columns) -> Bools:
    """Return for each key whether it has operations that columns cannot express, or stamps of more than one clock."""
    key = np.r_[columns.key_of_row(), reads.key_of_row()]
    clock = np.r_[columns.clock, reads.clock]
    pairs = np.unique(key * (int(clock.max()) + 1) + clock)
    several = np.bincount(pairs // (int(clock.max()) + 1), minlength=columns.keys) > 1
    return several | any_of(key, np.r_[columns.kind, reads.kind] == OTHER, columns.keys)
