"""Clusters: a cluster is a write together with the operations that read the value of this write.

Some responses do not identify the write that they read from. The observation in such a response is ignored. If a key
has deletions, a read of its absence does not show which deletion it read from, so each such read is a cluster of its
own. These two rules allow more orders than the history itself allows. So every violation that is found is real, but if
none is found, linearizability is not proven. A key to which one of the rules applies is `vague`. A key with a reported
version or creation revision is also `vague`, because clusters ignore these numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spark_audit.columnar.blocks import Block, any_of, first_place
from spark_audit.columnar.columns import NOTHING, PRESENT, Bools, Int64s
from spark_audit.columnar.pointer_jumping import least_of_descendants
from spark_audit.columnar.verify_order import Order


@dataclass(frozen=True, slots=True)
class Clusters:
    """The clusters of one block of keys.

    The number of a cluster is the row of its write, or of its read if it has no write. The initial absence of key k is
    the cluster `rows + k`, where `rows` is the number of rows. `of`: for each row its cluster, -1 if the row belongs
    to no cluster. `before`: for the cluster of a compare-and-set, the cluster of the value that it expected; -1 for
    other clusters. `observer`: for an unknown write, the row that shows that the write took effect; -1 for other rows.
    `unwritten`: whether the row found a value that no operation wrote. `vague`: for each key, whether its clusters
    allow more orders than the history (see the docstring of this module).
    """

    of: Int64s
    before: Int64s
    observer: Int64s
    unwritten: Bools
    vague: Bools


def clusters(block: Block, given: Order) -> Clusters:
    """Return the clusters of a block. `given`: the columns of the block's rows, sorted by (key, call)."""
    rows = len(given)
    place = np.arange(rows)
    deletes = given.writes == given.absence
    writes_value = (given.writes >= 0) & ~deletes
    writer, repeated = _writers(given, writes_value, block.tokens)
    finds, unsaid = _named(given, repeated)
    finds_absence = finds == given.absence
    deletable = any_of(block.key, deletes, block.keys)
    lost = finds_absence & deletable[block.key]
    source = np.where(finds >= 0, writer[finds], NOTHING)
    source = np.where(finds_absence, np.where(lost, NOTHING, rows + block.key), source)
    kept, observer = _kept(block, source, writes_value, deletes)
    unwritten = kept & (finds >= 0) & ~finds_absence & (source < 0)
    vague = any_of(block.key, kept & (unsaid | lost | deletes), block.keys)
    changes = writes_value | deletes
    reads = (finds >= 0) & ~unwritten
    of = np.where(changes, place, np.where(reads, np.where(source >= 0, source, place), NOTHING))
    of[~kept] = NOTHING
    before = np.full(rows + block.keys, NOTHING, np.int64)
    links = kept & writes_value & (source >= 0)
    before[:rows][links] = source[links]
    return Clusters(of, before, observer, unwritten, vague)


def _writers(given: Order, writes_value: Bools, tokens: int) -> tuple[Int64s, Bools]:
    """Return for each token the first row that writes it (-1 if none), and whether several rows write it."""
    token = np.where(writes_value, given.writes, NOTHING)
    writer = first_place(token, tokens)
    writer[writer == len(token)] = NOTHING
    return writer, np.bincount(given.writes[writes_value], minlength=tokens) > 1


def _named(given: Order, repeated: Bools) -> tuple[Int64s, Bools]:
    """Return `finds` without PRESENT and without tokens that several rows wrote; each such entry becomes NOTHING.

    Also return for each row whether its operation requires more of the state before it than the returned entry says.
    """
    by_value = given.finds >= 0
    ambiguous = np.zeros(len(given), np.bool_)
    ambiguous[by_value] = repeated[given.finds[by_value]]
    finds = np.where(ambiguous | (given.finds == PRESENT), NOTHING, given.finds)
    unsaid = ambiguous | (given.finds == PRESENT) | (given.expected_revision >= 0)
    unsaid |= (given.version >= 0) | (given.create >= 0)
    return finds, unsaid


def _kept(block: Block, source: Int64s, writes_value: Bools, deletes: Bools) -> tuple[Bools, Int64s]:
    """Return whether each row is kept, and, for each kept unknown write, the row that observed it (-1 for other rows).

    All completed operations are kept. An unknown write is kept if and only if a response or a kept unknown
    compare-and-set observed it. No response identifies an unknown deletion, so unknown deletions are not kept.
    """
    rows = len(source)
    kept = ~block.unknown
    observer = np.full(rows, NOTHING, np.int64)
    if not block.unknown.any():
        return kept, observer
    asks = kept & (source >= 0) & (source < rows)
    seen_at = first_place(np.where(asks, source, NOTHING), rows)
    unsure = block.unknown & writes_value
    parent = np.where(unsure & (source >= 0) & (source < rows), source, NOTHING)
    parent[(parent >= 0) & ~unsure[parent]] = NOTHING
    seen_at = least_of_descendants(parent, seen_at)
    observed = unsure & (seen_at < rows) & ~deletes
    observer[observed] = seen_at[observed]
    return kept | observed, observer
