"""Hidden writes in a proposed order: which of them, and what is left open about their revisions. See `slots.py`."""

from dataclasses import dataclass, field, replace

import numpy as np

from spark_audit.columnar.columns import FOREVER, NOTHING, Bools, Int64s
from spark_audit.columnar.order import states
from spark_audit.columnar.proposal import Proposal
from spark_audit.slots import BLIND, HIDDEN, LOOKS, PLACES_AWAY_MAX, STOP, UNTOLD, UNTOLD_PUT, elsewhere
from spark_audit.traces import Stretch


def _none() -> Int64s:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class Placed:
    """Unknown writes in a verified order, by row of the columns: see `traces.py`.

    `told`, `revision`: whose revision a record showed. `slot`, `low`, `high`: whose revision nobody told; in the order
    of their places. `mover`, `first`, `last`: a slot (by its row), and a stretch that it may have instead.
    """

    told: Int64s = field(default_factory=_none)
    revision: Int64s = field(default_factory=_none)
    slot: Int64s = field(default_factory=_none)
    low: Int64s = field(default_factory=_none)
    high: Int64s = field(default_factory=_none)
    mover: Int64s = field(default_factory=_none)
    first: Int64s = field(default_factory=_none)
    last: Int64s = field(default_factory=_none)

    @staticmethod
    def joined(some: "list[Placed]") -> "Placed":
        """All of them."""
        return Placed(*(np.concatenate([getattr(one, name) for one in some]) for name in Placed.__slots__))

    def where(self, told: Bools, slot: Bools) -> "Placed":
        """These of them only."""
        kept = replace(self, told=self.told[told], revision=self.revision[told])
        kept = replace(kept, slot=self.slot[slot], low=self.low[slot], high=self.high[slot])
        return kept._moving(np.isin(self.mover, kept.slot))

    def _moving(self, kept: Bools) -> "Placed":
        return replace(self, mover=self.mover[kept], first=self.first[kept], last=self.last[kept])

    def at(self, rows: Int64s) -> "Placed":
        """With `rows[row]` in the place of each row."""
        return replace(self, told=rows[self.told], slot=rows[self.slot], mover=rows[self.mover])

    def between(self, before: int, last: int) -> "Placed":
        """With slots above the revision `before` only, and no other places behind that of `last`."""
        found = replace(self, low=np.maximum(self.low, before + 1), first=np.maximum(self.first, before + 1))
        found = replace(found, last=np.minimum(self.last, last - 1))
        return found._moving(found.first <= found.last)

    def also(self) -> list[tuple[Stretch, ...]]:
        """Per slot the stretches that it may have instead."""
        found: dict[int, list[Stretch]] = {}
        for row, first, last in zip(self.mover.tolist(), self.first.tolist(), self.last.tolist(), strict=True):
            found.setdefault(row, []).append((first, last))
        return [tuple(found.get(row, ())) for row in self.slot.tolist()]


def refilled(proposal: Proposal, told: Int64s) -> Proposal:
    """Of the puts of each key which nobody can have seen at their places as many as before, but those called first, in
    the order of their calls; and so of its deletions of unknown outcome. Revisions stay at their places.

    `told`: rows whose revision a record showed. They stay.
    """
    given, unknown = proposal.given, proposal.block.unknown.copy()
    unknown[told] = False
    proposal = _puts_for_swaps(proposal, unknown)
    rows = proposal.rows.copy()
    puts = _hidden_puts(proposal) & unknown
    unseen = _nobody_looks(proposal, puts)
    puts[proposal.rows[~unseen]] = False
    for alike in (puts, unknown & (given.writes == given.absence)):
        places = np.flatnonzero(alike[proposal.rows])
        if len(places):
            rows[places] = _first_called(np.flatnonzero(alike), proposal.block.key, proposal.key()[places])
    moved = np.flatnonzero(rows != proposal.rows)
    if not len(moved):
        return proposal
    order = proposal.order
    call, writes = order.call.copy(), order.writes.copy()
    call[moved], writes[moved] = given.call[rows[moved]], given.writes[rows[moved]]
    return replace(proposal, rows=rows, order=replace(order, call=call, writes=writes))


def _puts_for_swaps(proposal: Proposal, unknown: Bools) -> Proposal:
    """With an unused put in place of each compare-and-set which nobody can have seen, if it was called no later: it can
    stand there, and elsewhere too."""
    given, rows, key = proposal.given, proposal.rows, proposal.block.key
    swaps = (given.writes >= 0) & ((given.finds != NOTHING) | (given.expected_revision >= 0)) & (given.revision <= 0)
    swaps &= unknown & _not_found(proposal)
    puts = _hidden_puts(proposal) & unknown
    places = np.flatnonzero(swaps[rows])
    places = places[_nobody_looks(proposal, puts)[places]]
    if not len(places):
        return proposal
    unused = np.flatnonzero(puts & proposal.unused())
    changed, used = rows.copy(), set[int]()
    for place in places[np.argsort(given.call[rows[places]], kind="stable")].tolist():
        mine = key[rows[place]]
        first, end = np.searchsorted(key[unused], (mine, mine + 1)).tolist()
        put = next((row for row in unused[first:end].tolist() if row not in used), None)
        if put is not None and given.call[put] <= given.call[rows[place]]:
            changed[place] = put
            used.add(put)
    return proposal.of_rows(changed)


def _not_found(proposal: Proposal) -> Bools:
    """Per row: whether nothing in the order finds what it writes."""
    finds = proposal.order.finds
    found = np.zeros(proposal.block.tokens, np.bool_)
    found[finds[finds >= 0]] = True
    return ~found[proposal.given.writes]


def _hidden_puts(proposal: Proposal) -> Bools:
    """Per row: a put of unknown outcome whose value nothing in the order finds."""
    given, block = proposal.given, proposal.block
    puts: Bools = block.unknown & (given.writes >= 0) & (given.writes != given.absence)
    puts &= (given.finds == NOTHING) & (given.expected_revision < 0)
    return puts & _not_found(proposal)


def _nobody_looks(proposal: Proposal, puts: Bools) -> Bools:
    """Per place: whether what follows, such puts left out, does not say what is there; a deletion does not either."""
    order = proposal.order
    blind = (order.writes >= 0) & (order.finds == NOTHING) & (order.expected_revision < 0)
    blind |= order.writes == order.absence
    others = np.append(~puts[proposal.rows], True)
    following = np.flatnonzero(others)[np.cumsum(others)[:-1]]
    unseen: Bools = np.append(blind, True)[following] | (np.append(order.begins, NOTHING)[following] != order.begins)
    return unseen


def _first_called(candidates: Int64s, key: Int64s, wanted: Int64s) -> Int64s:
    """For each of `wanted`, keys in ascending order: the next of its key's candidates. These are by (key, call)."""
    begins = np.searchsorted(key[candidates], wanted)
    number = np.arange(len(wanted)) - np.searchsorted(wanted, wanted)
    return candidates[begins + number]


def placed(proposal: Proposal, told: Int64s, revision: Int64s) -> Placed:
    """Of a proposal that is verified. `told`, `revision`: see `Placed`; all else that is unknown has a slot.

    Its bounds: the nearest places of its key that have a revision; or the one that it has, if something other than a
    record named it: a creation, a comparison.
    """
    order, begins = proposal.order, proposal.order.begins
    mine = np.flatnonzero(proposal.block.unknown[proposal.rows])
    mine = mine[~np.isin(proposal.rows[mine], told)] if len(told) else mine
    known = np.flatnonzero(order.revision > 0)
    rows, own = proposal.rows[mine], order.revision[mine]
    if not len(mine) or not len(known):
        return Placed(told, revision, rows, np.full(len(mine), 2), np.full(len(mine), FOREVER))
    at = np.searchsorted(known, mine)
    behind = np.searchsorted(known, mine, side="right")
    before, after = known[np.maximum(at - 1, 0)], known[np.minimum(behind, len(known) - 1)]
    bounded = (at > 0) & (begins[before] == begins[mine])
    ends = (behind < len(known)) & (begins[after] == begins[mine])
    low = np.where(bounded, order.revision[before] + 1, 2)
    high = np.where(ends, order.revision[after] - (order.writes[after] >= 0), FOREVER)
    low, high = np.where(own > 0, own, low), np.where(own > 0, own, high)
    return Placed(told, revision, rows, low, high, *_elsewhere(proposal, mine))


def _elsewhere(proposal: Proposal, mine: Int64s) -> tuple[Int64s, Int64s, Int64s]:
    """(row, first, last) of what the operations at these places may have instead."""
    kinds, order = _kinds(proposal), proposal.order
    moving = mine[kinds[mine] == HIDDEN]
    begins, ends = _around(kinds, order.revision, moving)
    found: list[tuple[int, int, int]] = []
    for place, begin, end in zip(moving.tolist(), begins.tolist(), ends.tolist(), strict=True):
        window = slice(begin, end)
        stretches = elsewhere(
            kinds[window].tolist(), order.revision[window].tolist(), order.call[window].tolist(), place - begin
        )
        found += [(int(proposal.rows[place]), first, last) for first, last in stretches]
    mover, first, last = np.array(found, np.int64).reshape(-1, 3).T
    return mover, first, last


def _around(kinds: Int64s, revision: Int64s, places: Int64s) -> tuple[Int64s, Int64s]:
    """Per place where that begins, and ends, which `elsewhere` looks at: from what stops it to the first place behind
    what stops it whose revision is known. A key begins with what stops: nothing is present."""
    stops, known = np.flatnonzero(kinds == STOP), np.flatnonzero(revision > 0)
    begin = np.append(stops, 0)[np.searchsorted(stops, places) - 1]
    stop = np.append(stops, len(kinds))[np.searchsorted(stops, places)]
    end = np.append(known, len(kinds))[np.searchsorted(known, stop)] + 1
    return np.maximum(begin, places - PLACES_AWAY_MAX), np.minimum(end, places + PLACES_AWAY_MAX)


def _kinds(proposal: Proposal) -> Int64s:
    """Per place; see `slots.py`."""
    order = proposal.order
    writes, told = order.writes >= 0, order.revision > 0
    blind = writes & (order.finds == NOTHING) & (order.expected_revision < 0)
    kinds = np.where(told, np.where(blind, BLIND, LOOKS), np.where(blind, UNTOLD_PUT, UNTOLD))
    kinds[_hidden_puts(proposal)[proposal.rows] & ~told] = HIDDEN
    stops = ~states(order).present | (order.version >= 0) | (order.writes == order.absence)
    return np.where(stops, STOP, kinds)
