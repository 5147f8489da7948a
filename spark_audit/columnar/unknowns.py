"""Where writes of unknown outcome go whose value was observed: immediately before the first observer."""

from dataclasses import dataclass

import numpy as np

from spark_audit.columnar.blocks import first_place
from spark_audit.columnar.columns import NOTHING, Int64s
from spark_audit.columnar.jump import depths, least_of_descendants
from spark_audit.columnar.proposal import Proposal


def with_observed(proposal: Proposal) -> Proposal:
    """With every unknown put and compare-and-set that an observer needs, and those that these need in turn."""
    block, given, order = proposal.block, proposal.given, proposal.order
    rows = np.flatnonzero(block.unknown & (given.writes >= 0) & (given.writes != given.absence))
    owner = np.full(block.tokens, NOTHING, np.int64)
    owner[given.writes[rows[::-1]]] = np.arange(len(rows))[::-1]  # Of several, the one called first.
    owner[order.writes[order.writes >= 0]] = NOTHING  # What an acknowledged write wrote needs nobody else.
    rows_find, places_find, told = _finds(proposal, owner)
    mine = owner[given.writes[rows]] == np.arange(len(rows))
    first = first_place(places_find, block.tokens)[given.writes[rows]]
    none = len(proposal.rows)
    wanted = rows_find[rows]
    parent = np.where((wanted >= 0) & mine, owner[wanted], NOTHING)
    place = least_of_descendants(parent, np.where(mine, first, none))
    _, depth, cyclic = depths(parent)
    used = (place < none) & ~cyclic
    return proposal.inserted(rows[used], place[used], depth[used], told[given.writes[rows[used]]])


def _finds(proposal: Proposal, owner: Int64s) -> tuple[Int64s, Int64s, Int64s]:
    """`finds` of rows and of places, comparisons of revisions put into tokens; per token its revision, as told or -1.

    Comparisons only with what an unknown write may have written (`owner`): any other has a revision of its own.
    """
    given, order = proposal.given, proposal.order
    told = np.full(proposal.block.tokens, NOTHING, np.int64)
    tells = np.flatnonzero((order.finds >= 0) & (order.mod >= 0))[::-1]
    told[order.finds[tells]] = order.mod[tells]  # The last one written stays: the first in order.
    if given.expected_revision.max(initial=NOTHING) < 0:
        return given.finds, order.finds, told
    tells = tells[owner[order.finds[tells]] >= 0]
    known = _Revisions(proposal.block.key[proposal.rows[tells]], order.mod[tells], order.finds[tells])
    rows_find = given.finds.copy()
    asking = np.flatnonzero((given.expected_revision >= 0) & ~given.failed)
    rows_find[asking] = known.tokens(proposal.block.key[asking], given.expected_revision[asking])
    return rows_find, rows_find[proposal.rows], told


@dataclass(frozen=True, slots=True)
class _Revisions:
    """Which token a revision of a key wrote."""

    key: Int64s
    revision: Int64s
    token: Int64s

    def tokens(self, key: Int64s, revision: Int64s) -> Int64s:
        """Per (key, revision) the token; NOTHING if not known."""
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
