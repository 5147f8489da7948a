"""Unknown writes in a proposed order. If no response can tell some unknown writes apart, this module decides which of
them stand in the order, and finds their revisions.

`key/unplaced_writes.py` explains the rules, and does the same for a single key.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from spark_audit.columnar.blocks import places_of
from spark_audit.columnar.columns import FOREVER, NOTHING, Bools, Int64s
from spark_audit.columnar.proposed_order import Proposal
from spark_audit.columnar.verify_order import Order, States
from spark_audit.key.unplaced_writes import (
    BLIND,
    HIDDEN,
    LOOKS,
    PLACES_AWAY_MAX,
    STOP,
    UNNAMED,
    UNNAMED_PUT,
    alternative_ranges,
)
from spark_audit.store.revision_claims import RevisionRange


def _none() -> Int64s:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class PlacedWrites:
    """The claimed and the unplaced writes in a verified order (`store/revision_claims.py`), each given by its row.

    `claimed`, `revision`: the writes whose revision is known from a reported record, and the revision of each.
    `unplaced`, `low`, `high`: the other unknown writes, in the order of their places, and the range in which the
    revision of each lies. `mover`, `first`, `last`: the alternative ranges. For each range, `mover` has the row of the
    unplaced write, `first` and `last` have the ends of the range.
    """

    claimed: Int64s = field(default_factory=_none)
    revision: Int64s = field(default_factory=_none)
    unplaced: Int64s = field(default_factory=_none)
    low: Int64s = field(default_factory=_none)
    high: Int64s = field(default_factory=_none)
    mover: Int64s = field(default_factory=_none)
    first: Int64s = field(default_factory=_none)
    last: Int64s = field(default_factory=_none)

    @staticmethod
    def joined(some: list[PlacedWrites]) -> PlacedWrites:
        """Concatenate these objects into one."""
        return PlacedWrites(*(np.concatenate([getattr(one, name) for one in some]) for name in PlacedWrites.__slots__))

    def where(self, claimed: Bools, unplaced: Bools) -> PlacedWrites:
        """Keep these claimed and these unplaced writes only."""
        kept = replace(self, claimed=self.claimed[claimed], revision=self.revision[claimed])
        kept = replace(kept, unplaced=self.unplaced[unplaced], low=self.low[unplaced], high=self.high[unplaced])
        return kept._moving(np.isin(self.mover, kept.unplaced))

    def _moving(self, kept: Bools) -> PlacedWrites:
        return replace(self, mover=self.mover[kept], first=self.first[kept], last=self.last[kept])

    def at(self, rows: Int64s) -> PlacedWrites:
        """Replace each row by `rows[row]`."""
        return replace(self, claimed=rows[self.claimed], unplaced=rows[self.unplaced], mover=rows[self.mover])

    def between(self, before: int, last: int) -> PlacedWrites:
        """Remove the revisions up to `before` from all ranges, and the revisions from `last` on from the alternative
        ranges.
        """
        found = replace(self, low=np.maximum(self.low, before + 1), first=np.maximum(self.first, before + 1))
        found = replace(found, last=np.minimum(self.last, last - 1))
        return found._moving(found.first <= found.last)

    def also(self) -> list[tuple[RevisionRange, ...]]:
        """Return for each unplaced write its alternative ranges."""
        found: dict[int, list[RevisionRange]] = {}
        for row, first, last in zip(self.mover.tolist(), self.first.tolist(), self.last.tolist(), strict=True):
            found.setdefault(row, []).append((first, last))
        return [tuple(found.get(row, ())) for row in self.unplaced.tolist()]


def with_earliest_calls(proposal: Proposal, claimed: Int64s) -> Proposal:
    """Some places have an unknown put that no operation can have seen. Choose the put for each of these places again.

    The candidates are all unknown puts of the key whose values no operation in the order finds. The candidates that
    were called first are used, in the order of their calls. Deletions of unknown outcome are treated in the same way.
    Revisions stay at their places. `claimed`: rows whose revision is known from a reported record; these rows are not
    exchanged.
    """
    given, key = proposal.given, proposal.block.key
    unknown = proposal.block.unknown.copy()
    unknown[claimed] = False
    places = _unknown_places(proposal)
    proposal = _puts_for_swaps(proposal, unknown, places)
    rows = proposal.rows.copy()
    puts = _where(unknown, _hidden_puts(proposal))
    there = places[_among(rows[places], puts, len(key))]
    seen = there[~_is_unobserved(proposal, there, there)]
    deletions = np.flatnonzero(unknown)
    deletions = deletions[given.writes[deletions] == given.absence[deletions]]
    for alike in (np.setdiff1d(puts, rows[seen]), deletions):
        there = places[_among(proposal.rows[places], alike, len(key))]
        rows[there] = _first_called(alike, key, key[rows[there]])
    moved = places[rows[places] != proposal.rows[places]]
    if not len(moved):
        return proposal
    order = proposal.order
    call, writes = order.call.copy(), order.writes.copy()
    call[moved], writes[moved] = given.call[rows[moved]], given.writes[rows[moved]]
    return replace(proposal, rows=rows, order=replace(order, call=call, writes=writes))


def _puts_for_swaps(proposal: Proposal, unknown: Bools, places: Int64s) -> Proposal:
    """Replace unknown compare-and-sets that no operation can have seen. Each is replaced by an unused put that was not
    called later.

    The put fits at the place of the compare-and-set. Unlike the compare-and-set, the put also fits at other places.
    `places`: the places of unknown writes.
    """
    given, key = proposal.given, proposal.block.key
    puts = _where(unknown, _hidden_puts(proposal))
    of_put = _among(proposal.rows[places], puts, len(key))
    row = proposal.rows[places]
    swaps = (given.writes[row] >= 0) & ((given.finds[row] != NOTHING) | (given.expected_revision[row] >= 0))
    swaps &= (given.revision[row] <= 0) & unknown[row]
    at = places[swaps]
    at = at[~_found(proposal, given.writes[proposal.rows[at]])]
    at = at[_is_unobserved(proposal, at, places[of_put])]
    if not len(at):
        return proposal
    at = at[np.argsort(given.call[proposal.rows[at]], kind="stable")]
    unused = puts[proposal.unused()[puts]]
    swap = proposal.rows[at]
    taken, chosen = _taken_in_turn(key[unused], given.call[unused], key[swap], given.call[swap])
    return proposal.with_row(at[taken], unused[chosen]) if len(chosen) else proposal


def _unknown_places(proposal: Proposal) -> Int64s:
    """Return the places of unknown writes."""
    return np.flatnonzero(proposal.block.unknown[proposal.rows])


def _where(condition: Bools, rows: Int64s) -> Int64s:
    return rows[condition[rows]]


def _among(rows: Int64s, some: Int64s, count: int) -> Bools:
    """Return for each of `rows` whether it is among `some`. `count`: the number of all rows."""
    chosen = np.zeros(count, np.bool_)
    chosen[some] = True
    among: Bools = chosen[rows]
    return among


def _found(proposal: Proposal, tokens: Int64s) -> Bools:
    """Return for each token whether an operation in the order finds it."""
    finds = proposal.order.finds
    found = np.zeros(proposal.block.tokens, np.bool_)
    found[finds[places_of(finds, tokens, len(found))]] = True
    has_finder: Bools = found[tokens]
    return has_finder


def _hidden_puts(proposal: Proposal) -> Int64s:
    """Return the rows, ascending, of puts of unknown outcome whose value no operation in the order finds."""
    given = proposal.given
    rows = np.flatnonzero(proposal.block.unknown)
    puts = (given.writes[rows] >= 0) & (given.writes[rows] != given.absence[rows])
    puts &= (given.finds[rows] == NOTHING) & (given.expected_revision[rows] < 0)
    rows = rows[puts]
    hidden: Int64s = rows[~_found(proposal, given.writes[rows])]
    return hidden


def _is_unobserved(proposal: Proposal, places: Int64s, puts: Int64s) -> Bools:
    """Return for each place whether the next operation is independent of the value that is written there. It is
    independent if neither its response nor its effect depends on this value.

    To find the next operation, operations at the places `puts` (ascending) are skipped. A deletion is independent.
    """
    order = proposal.order
    ends = np.append(np.flatnonzero(np.diff(puts) != 1), len(puts) - 1)  # The last places of runs of adjacent places.
    end = puts[ends][np.searchsorted(ends, np.arange(len(puts)))] if len(puts) else puts
    at = np.searchsorted(puts, places + 1)
    left_out = np.append(puts, NOTHING)[at] == places + 1
    following = np.where(left_out, np.append(end, NOTHING)[at], places) + 1
    inside = following < len(order)
    following = np.minimum(following, len(order) - 1)
    blind = (order.writes[following] >= 0) & (order.finds[following] == NOTHING)
    blind &= order.expected_revision[following] < 0
    blind |= order.writes[following] == order.absence[following]
    unseen: Bools = ~inside | blind | (order.begins[following] != order.begins[places])
    return unseen


def _taken_in_turn(key: Int64s, call: Int64s, slot_key: Int64s, slot_call: Int64s) -> tuple[Int64s, Int64s]:
    """Match slots with puts; return the slots and the puts of the pairs.

    Here a slot is the place of a compare-and-set, and `slot_call` is the call of this compare-and-set. Each slot in
    turn takes the first unused put of its key, unless this put was called later than `slot_call`. Slots and puts must
    be sorted by (key, call).
    """
    begins, ends = np.searchsorted(key, slot_key), np.searchsorted(key, slot_key, side="right")
    in_time = np.minimum(np.searchsorted(call, slot_call, side="right"), ends) - begins
    slots: list[int] = []
    puts: list[int] = []
    now, used = NOTHING, 0
    for slot, (mine, begin, some) in enumerate(zip(slot_key.tolist(), begins.tolist(), in_time.tolist(), strict=True)):
        used = used if mine == now else 0
        now = mine
        if used < some:
            slots.append(slot)
            puts.append(begin + used)
            used += 1
    return np.array(slots, np.int64), np.array(puts, np.int64)


def _first_called(candidates: Int64s, key: Int64s, wanted: Int64s) -> Int64s:
    """For each key in `wanted`, return the first candidate of this key that is not yet returned for an earlier entry.

    `wanted`: keys, ascending. `candidates`: sorted by (key, call).
    """
    begins = np.searchsorted(key[candidates], wanted)
    number = np.arange(len(wanted)) - np.searchsorted(wanted, wanted)
    return candidates[begins + number]


def placed_writes(proposal: Proposal, replayed: States, claimed: Int64s, revision: Int64s) -> PlacedWrites:
    """Return the unknown writes of a verified proposal. `replayed`: the states of the proposal.

    `claimed`, `revision`: see `PlacedWrites`. Every other unknown write is unplaced. Its revision lies between the
    known revisions that are nearest in the order of its key. If a reported creation or a comparison determines its
    revision, both bounds are equal to this revision.
    """
    order, begins = proposal.order, proposal.order.begins
    mine = _unknown_places(proposal)
    mine = mine[~np.isin(proposal.rows[mine], claimed)] if len(claimed) else mine
    known = np.flatnonzero(order.revision > 0)
    rows, own = proposal.rows[mine], order.revision[mine]
    if not len(mine) or not len(known):
        return PlacedWrites(claimed, revision, rows, np.full(len(mine), 2), np.full(len(mine), FOREVER))
    at = np.searchsorted(known, mine)
    behind = np.searchsorted(known, mine, side="right")
    before, after = known[np.maximum(at - 1, 0)], known[np.minimum(behind, len(known) - 1)]
    bounded = (at > 0) & (begins[before] == begins[mine])
    ends = (behind < len(known)) & (begins[after] == begins[mine])
    low = np.where(bounded, order.revision[before] + 1, 2)
    high = np.where(ends, order.revision[after] - (order.writes[after] >= 0), FOREVER)
    low, high = np.where(own > 0, own, low), np.where(own > 0, own, high)
    return PlacedWrites(claimed, revision, rows, low, high, *_alternatives(proposal, replayed, known, mine))


def _alternatives(proposal: Proposal, replayed: States, known: Int64s, mine: Int64s) -> tuple[Int64s, Int64s, Int64s]:
    """Return the alternative ranges of the hidden puts at these places as (row, first, last)."""
    order = proposal.order
    hidden = np.zeros(len(proposal.block.key), np.bool_)
    hidden[_hidden_puts(proposal)] = True
    stops = ~replayed.present | (order.version >= 0) | (order.writes == order.absence)
    moving = mine[hidden[proposal.rows[mine]] & (order.revision[mine] <= 0) & ~stops[mine]]
    begins, ends = _around(np.flatnonzero(stops), known, moving, len(order))
    near = _within(begins, ends)
    kinds = _kinds(order, near, hidden[proposal.rows[near]], stops[near]).tolist()
    revision, call = order.revision[near].tolist(), order.call[near].tolist()
    windows = zip(np.searchsorted(near, begins).tolist(), (ends - begins).tolist(), strict=True)
    own = (moving - begins).tolist()
    found: list[tuple[int, int, int]] = []
    for number, (begin, size) in enumerate(windows):
        window = slice(begin, begin + size)
        ranges = alternative_ranges(kinds[window], revision[window], call[window], own[number])
        found += [(number, first, last) for first, last in ranges]
    mover, first, last = np.array(found, np.int64).reshape(-1, 3).T
    return proposal.rows[moving[mover]], first, last


def _around(stops: Int64s, known: Int64s, places: Int64s, count: int) -> tuple[Int64s, Int64s]:
    """Return for each place (ascending) the begin and the end of the window that `alternative_ranges` needs.

    The window begins at the last stop before the place. The window ends with the first place in `known` that is not
    before the next stop. The first place of a key is a stop, because no record is present there.
    """
    begin = np.append(stops, 0)[np.searchsorted(stops, places) - 1]
    stop = np.append(stops, count)[np.searchsorted(stops, places)]
    end = np.append(known, count)[np.searchsorted(known, stop)] + 1
    begin, end = np.maximum(begin, places - PLACES_AWAY_MAX), np.minimum(end, places + PLACES_AWAY_MAX)
    return begin, np.minimum(end, count)


def _within(begins: Int64s, ends: Int64s) -> Int64s:
    """Return all places of these intervals, each once. Both the begins and the ends are ascending."""
    fresh = np.maximum(begins, np.append(0, ends[:-1]))
    sizes = ends - fresh
    skipped = fresh - (np.cumsum(sizes) - sizes)
    within: Int64s = np.arange(int(sizes.sum())) + np.repeat(skipped, sizes)
    return within


def _kinds(order: Order, places: Int64s, hidden: Bools, stops: Bools) -> Int64s:
    """Return the kinds of these places (`key/unplaced_writes.py`), given the hidden puts and the stops among them."""
    claimed = order.revision[places] > 0
    blind = (order.writes[places] >= 0) & (order.finds[places] == NOTHING) & (order.expected_revision[places] < 0)
    kinds = np.where(claimed, np.where(blind, BLIND, LOOKS), np.where(blind, UNNAMED_PUT, UNNAMED))
    kinds[hidden & ~claimed] = HIDDEN
    return np.where(stops, STOP, kinds)
