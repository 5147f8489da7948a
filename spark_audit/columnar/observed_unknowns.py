"""Inserts unknown writes into a proposed order. Each unknown write whose value an operation has found is placed
immediately before the first operation that found it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spark_audit.columnar.blocks import first_places, places_of
from spark_audit.columnar.columns import NOTHING, Int64s
from spark_audit.columnar.pointer_jumping import depths, least_of_descendants
from spark_audit.columnar.proposed_order import Draft, Proposal


def with_observed(draft: Draft) -> Proposal:
    """Insert every unknown put and compare-and-set whose value was found by an operation in the order.

    The operation that found the value is a completed operation, or an unknown compare-and-set that is also inserted.
    `draft` must contain exactly the completed operations.
    """
    block, given = draft.block, draft.given
    rows = np.flatnonzero(block.unknown & (given.writes >= 0) & (given.writes != given.absence))
    written = given.writes[rows]
    owner = np.full(block.tokens, NOTHING, np.int64)
    # If several unknown writes write the token, its owner is the write called first.
    owner[written[::-1]] = np.arange(len(rows))[::-1]
    also = places_of(given.writes, written, block.tokens)
    owner[given.writes[also[~block.unknown[also]]]] = (
        NOTHING  # An acknowledged write wrote these tokens, so no unknown write is needed to explain them.
    )
    rows_find, places_find, revision_of = _finds(draft, owner)
    mine = owner[written] == np.arange(len(rows))
    first = first_places(places_find, written, block.tokens)
    none = len(draft.rows)
    wanted = rows_find[rows]
    parent = np.where((wanted >= 0) & mine, owner[wanted], NOTHING)
    place = least_of_descendants(parent, np.where(mine, first, none))
    _, depth, cyclic = depths(parent)
    used = (place < none) & ~cyclic
    return draft.inserted(rows[used], place[used], depth[used], revision_of[written[used]]).in_order()


def _finds(draft: Draft, owner: Int64s) -> tuple[Int64s, Int64s, Int64s]:
    """Return `finds` of all rows, `finds` of all places, and for each token its reported revision (-1 if none).

    For a compare-and-set that expects a revision, both `finds` have the token that was written at this revision, or
    NOTHING if that token is not known. Only tokens that have an `owner` are looked up, because every acknowledged write
    carries its own revision.
    """
    block, given = draft.block, draft.given
    revision_of = np.full(block.tokens, NOTHING, np.int64)
    places_find = given.finds[draft.rows]
    readers = draft.rows[places_of(places_find, np.flatnonzero(owner >= 0), block.tokens)]
    readers = readers[given.mod[readers] >= 0][::-1]
    # numpy keeps the last of several assignments to one token. The readers are reversed, so the first reader is kept.
    revision_of[given.finds[readers]] = given.mod[readers]
    if given.expected_revision.max(initial=NOTHING) < 0:
        return given.finds, places_find, revision_of
    known = _Revisions(block.key[readers], given.mod[readers], given.finds[readers])
    rows_find = given.finds.copy()
    asking = np.flatnonzero((given.expected_revision >= 0) & ~given.failed)
    rows_find[asking] = known.tokens(block.key[asking], given.expected_revision[asking])
    return rows_find, rows_find[draft.rows], revision_of


@dataclass(frozen=True, slots=True)
class _Revisions:
    """The token that was written at each revision of a key."""

    key: Int64s
    revision: Int64s
    token: Int64s

    def tokens(self, key: Int64s, revision: Int64s) -> Int64s:
        """Return for each (key, revision) the token that was written; NOTHING if the token is not known."""
        both_keys = np.concatenate((self.key, key))
        both = np.concatenate((self.revision, revision))
        by_pair = np.lexsort((both, both_keys))
        new = np.ones(len(by_pair), np.bool_)
        new[1:] = (np.diff(both_keys[by_pair]) != 0) | (np.diff(both[by_pair]) != 0)
        pair = np.empty(len(by_pair), np.int64)
        pair[by_pair] = np.cumsum(new) - 1
        token = np.full(len(by_pair), NOTHING, np.int64)
        token[pair[: len(self.key)]] = self.token
        found: Int64s = token[pair[len(self.key) :]]
        return found
