"""Hidden writes: unknown writes whose values no operation read, but whose effects some response shows.

Such a response reports a creation revision, a version, absence or presence that the other writes do not explain. So an
unknown write must be inserted before a certain place of the order. This place is called a *slot*. The candidates for a
slot are the unknown writes that were not observed and were called early enough; the slot takes the candidate that was
called last. An unknown compare-and-set fills a slot only directly after the write that it expected. A wrong choice
cannot cause a false verdict, because the resulting order is verified like any other.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spark_audit.columnar.blocks import first_places, last_of, so_far
from spark_audit.columnar.columns import NOTHING, PRESENT, Bools, Int64s
from spark_audit.columnar.proposed_order import Proposal
from spark_audit.columnar.verify_order import Order, States, counts, states


def with_hidden(proposal: Proposal) -> Proposal:
    """Insert unknown writes wherever reported creations, versions, absence and presence require them.

    After an insertion, yet another write may be missing. The next call inserts that write.
    """
    unused = np.flatnonzero(proposal.unused())
    if not len(unused):
        return proposal
    replay = _Replay.of(proposal.order)
    proposal, creations = _creations(proposal, replay)
    proposal, named = _named(proposal, replay.before)
    expecting = _expecting(proposal, replay.before.writes, unused)
    swaps, swapped = _named_swaps(proposal, replay, named, expecting)
    deletions, puts = _structural(proposal, replay.before, creations, np.setdiff1d(named, swapped.place))
    more_swaps, counted, put = _versions(proposal, replay, creations, named, expecting)
    fresh = ~np.isin(more_swaps, swaps)
    deletes, creates, is_put = _fillers(proposal.given, np.setdiff1d(unused, np.r_[swaps, more_swaps]))
    wanted = ((deletions, deletes), (_joined(puts, put), is_put), (puts, creates))
    rows = np.r_[swaps, more_swaps[fresh]]
    return _filled(proposal, replay.deadline, wanted, rows, _joined(swapped, _Slots.at(counted[fresh])))


@dataclass(frozen=True, slots=True)
class _Replay:
    """The states along an order, and the deadlines for insertions.

    `before`: the state before each place. `number`, `creation`: see `counts` in columnar/verify_order.py. `deadline`:
    for each place, the latest stamp at which a write that is inserted there may have been called. It equals the least
    return of the operation at the place and of all later operations (stamps as in Block).
    """

    before: States
    number: Int64s
    creation: Int64s
    deadline: Int64s

    @staticmethod
    def of(order: Order) -> _Replay:
        before = states(order)
        return _Replay(before, *counts(order, before), np.minimum.accumulate(order.ret[::-1])[::-1])


def _fillers(given: Order, rows: Int64s) -> tuple[Int64s, Int64s, Int64s]:
    """Return, from these rows, the deletions, the compare-and-sets that expect absence, and the puts."""
    finds, writes, absence = given.finds[rows], given.writes[rows], given.absence[rows]
    makes = (writes >= 0) & (writes != absence)
    blind = (finds == NOTHING) & (given.expected_revision[rows] < 0)
    return rows[writes == absence], rows[(finds == absence) & (writes >= 0)], rows[makes & blind]


_DELETES, _CREATES, _COUNTS = range(3)  # The ranks of slots. Writes inserted at the same place are in this order.


@dataclass(frozen=True, slots=True)
class _Slots:
    """Places before which a write is missing.

    `rank`: the position of the slot among the slots at the same place. `revision`: the revision that the write must
    have; -1 if it is not known.
    """

    place: Int64s
    rank: Int64s
    revision: Int64s

    @staticmethod
    def at(place: Int64s, rank: int = 0, revision: Int64s | None = None) -> _Slots:
        unnamed = np.full(len(place), NOTHING, np.int64)
        return _Slots(place, np.full(len(place), rank, np.int64), unnamed if revision is None else revision)


def _structural(proposal: Proposal, before: States, creations: _Creations, named: Int64s) -> tuple[_Slots, _Slots]:
    """Return the slots that need a deletion, and the slots that need a put.

    A deletion is missing if the state before a response has a record, but the response reports absence or a new
    creation. A put is missing if a response reports a creation that no write in the order made, or if it reports
    presence although the state has no record. `named`: the places of successful compare-and-sets for which no earlier
    write has the expected revision. Before each of these places, a put with the expected revision is missing.
    """
    order = proposal.order
    absent_at = (order.finds == order.absence) & before.present
    absent_at[creations.place[before.present[creations.place]]] = True
    run = np.flatnonzero(absent_at)
    first_of_run = np.ones(len(run), np.bool_)
    first_of_run[1:] = before.writer[run[1:]] != before.writer[run[:-1]]
    created = _Slots.at(creations.place[~creations.known], _CREATES, creations.revision[~creations.known])
    found = np.flatnonzero((order.finds == PRESENT) & ~before.present & (order.writes >= 0))
    others = np.setdiff1d(named, created.place)
    puts = _Slots.at(np.setdiff1d(found, created.place), _CREATES)
    return _Slots.at(run[first_of_run]), _joined(
        created, puts, _Slots.at(others, _CREATES, order.expected_revision[others])
    )


def _named_swaps(
    proposal: Proposal, replay: _Replay, named: Int64s, expecting: tuple[Int64s, Int64s]
) -> tuple[Int64s, _Slots]:
    """Find unknown compare-and-sets that expect the record directly before a place of `named`. Such a compare-and-set
    can be inserted before the place.

    Return these compare-and-sets, and the slot of each.
    """
    order, (swaps, after) = proposal.order, expecting
    at, swap = np.intersect1d(replay.before.writer[named], after, return_indices=True)[1:]
    in_time = proposal.given.call[swaps[swap]] <= replay.deadline[named[at]]
    place = named[at[in_time]]
    return swaps[swap[in_time]], _Slots.at(place, _CREATES, order.expected_revision[place])


def _named(proposal: Proposal, before: States) -> tuple[Proposal, Int64s]:
    """Find compare-and-sets that succeeded although the last write before them does not have the expected revision.

    If that write is an unknown write without a revision, it gets the expected revision. Before each of the other
    compare-and-sets, a write is missing. Their places are returned.
    """
    order = proposal.order
    named = np.flatnonzero((order.expected_revision >= 0) & ~order.failed)
    named = named[order.expected_revision[named] != before.revision[named]]
    unnamed = before.present[named] & (before.revision[named] < 0)
    rows = proposal.rows[before.writer[named[unnamed]]]
    return proposal.revised(rows, order.expected_revision[named[unnamed]]), named[~unnamed]


def _expecting(proposal: Proposal, writes: Int64s, unused: Int64s) -> tuple[Int64s, Int64s]:
    """Return the unused unknown compare-and-sets that expect the result of a write, and the places of these writes."""
    order, given, key = proposal.order, proposal.given, proposal.block.key
    rows = unused[(given.writes[unused] >= 0) & (given.finds[unused] != given.absence[unused])]
    by_token = rows[given.finds[rows] >= 0]
    wrote = first_places(order.writes, given.finds[by_token], proposal.block.tokens)
    by_revision = rows[given.expected_revision[rows] >= 0]
    place, known = _write_of(proposal, writes, key[by_revision], given.expected_revision[by_revision])
    swaps, after = np.r_[by_token, by_revision[known]], np.r_[wrote, place[known]]
    some = after < len(order)
    return swaps[some], after[some]


def _joined(*slots: _Slots) -> _Slots:
    return _Slots(*(np.concatenate(column) for column in zip(*map(_parts, slots), strict=True)))


def _parts(slots: _Slots) -> tuple[Int64s, Int64s, Int64s]:
    return slots.place, slots.rank, slots.revision


@dataclass(frozen=True, slots=True)
class _Creations:
    """The creations that responses report.

    `revision`: the reported revision of the creation. `place`: the place of the key's first write with this or a higher
    revision. `known`: whether this write is the creation. `reader`: the first place whose response reports the
    creation. `of`: for each place of the order, the index of the creation that its response reports; -1 if none.
    """

    place: Int64s
    revision: Int64s
    known: Bools
    reader: Int64s
    of: Int64s


def _creations(proposal: Proposal, replay: _Replay) -> tuple[Proposal, _Creations]:
    """Find the reported creations.

    If no write in the order has the revision of a creation, an unknown write in the order may be this creation. That
    write then gets the revision.
    """
    order, key = proposal.order, proposal.key()
    readers = np.flatnonzero((order.create >= 0) & replay.before.present)
    of = np.full(len(order), NOTHING, np.int64)
    if not len(readers):
        return proposal, _Creations(readers, readers, np.zeros(0, np.bool_), readers, of)
    span = int(order.create.max()) + 1
    codes = key[readers] * span + order.create[readers]
    # Most readers report the same creation as the reader before them. The first reader of each such run is enough.
    run = np.flatnonzero(np.diff(codes, prepend=NOTHING))
    code, first, number = np.unique(codes[run], return_index=True, return_inverse=True)
    place, known = _write_of(proposal, replay.before.writes, code // span, code % span)
    inside = place < len(order)
    renumbered = np.where(inside, np.cumsum(inside) - 1, NOTHING)
    of[readers] = np.repeat(renumbered[number.reshape(-1)], np.diff(run, append=len(readers)))
    made = _Creations(place[inside], (code % span)[inside], known[inside], readers[run[first[inside]]], of)
    return _adopted(proposal, replay, made)


def _write_of(proposal: Proposal, writers: Int64s, key: Int64s, revision: Int64s) -> tuple[Int64s, Bools]:
    """Find for each (key, revision) the key's first write with this or a higher revision.

    Return the place of this write, and whether the write has exactly this revision. If there is no such write, the
    place is the length of the order. `writers`: the places of all writes.
    """
    if not len(key):
        return key, np.zeros(0, np.bool_)
    order, keys = proposal.order, proposal.key()
    none = np.full(len(key), len(order), np.int64)
    span = int(max(order.revision.max(initial=0), revision.max(initial=0))) + 2
    if not len(writers) or span * proposal.block.keys >= 2**62:
        return none, np.zeros(len(key), np.bool_)
    reached = np.maximum.accumulate(keys[writers] * span + np.maximum(order.revision[writers], 0))
    at = np.searchsorted(reached, key * span + revision)
    place = writers[np.minimum(at, len(writers) - 1)]
    inside = (at < len(writers)) & (keys[place] == key)
    return np.where(inside, place, none), inside & (order.revision[place] == revision)


def _adopted(proposal: Proposal, replay: _Replay, made: _Creations) -> tuple[Proposal, _Creations]:
    """For each creation that no known write explains, take the unknown write directly before its place as the creation.

    The write must be able to create a record, and must fit the reported version. If a chain of unknown compare-and-sets
    is directly before the place, the first write of the chain is taken. That write gets the revision of the creation.
    """
    order, number = proposal.order, replay.number
    write = replay.before.writer[made.place]
    unnamed = ~made.known & (write >= 0) & (order.revision[write] < 0) & (order.writes[write] != order.absence[write])
    if not unnamed.any():
        return proposal, made

    def blind(place: Int64s) -> Bools:
        blind: Bools = (order.finds[place] == NOTHING) | (order.finds[place] == order.absence[place])
        return blind

    fits = unnamed & blind(write)
    first = np.where(unnamed & ~fits, replay.creation[write], write)
    version = order.version[made.reader]
    counted = version == number[replay.before.writer[made.reader]] - number[first] + 1
    chained = unnamed & ~fits & counted & (version >= 0) & blind(first) & (order.revision[first] < 0)
    # A creation that is not assigned to a write happened at `made.place` or earlier.
    place = np.where(fits, write, np.where(chained, first, made.place))
    fits = (fits & ((version < 0) | counted)) | chained
    adopted = _Creations(place, made.revision, made.known | fits, made.reader, made.of)
    return proposal.revised(proposal.rows[first[fits]], made.revision[fits]), adopted


def _versions(
    proposal: Proposal, replay: _Replay, creations: _Creations, named: Int64s, expecting: tuple[Int64s, Int64s]
) -> tuple[Int64s, Int64s, _Slots]:
    """Find the unknown writes that the reported versions require.

    Return compare-and-sets, the places before which they are to be inserted, and slots for puts. The version of a
    record is counted from its reported creation, even if that creation is hidden. If no creation was reported, the
    version is counted from the last creation in the order. `named`: places before which a write is inserted for another
    reason.
    """
    order, before, creation = proposal.order, replay.before, replay.creation
    number = replay.number + so_far(named, len(order)) if len(named) else replay.number
    readers = np.flatnonzero((order.version >= 0) & (before.writer >= 0) & before.present)
    # Of adjacent readers that find the record of the same write, only the first is used.
    readers = readers[np.flatnonzero(np.diff(before.writer[readers], prepend=NOTHING))]
    writer = before.writer[readers]
    epoch, base, until = creation[writer], number[creation[writer]] - 1, creation[writer]
    of = creations.of[readers]
    some = np.flatnonzero(of >= 0)
    place, known = creations.place[of[some]], creations.known[of[some]]
    makes = (order.writes[place] >= 0) & (order.writes[place] != order.absence[place])
    epoch[some] = place
    base[some] = number[place] - np.where(known, 1, makes + 1)  # `number` does not count a hidden creation.
    until[some] = np.where(known, place, place - 1)
    excess = order.version[readers] - (number[writer] - base)
    goes_on = np.diff(epoch, prepend=NOTHING) == 0
    before_it = np.where(goes_on, np.r_[NOTHING, writer[:-1]], until) if len(readers) else until
    missing = excess - np.where(goes_on, np.r_[0, excess[:-1]], 0) if len(readers) else excess
    glued = (order.finds >= 0) | (order.expected_revision >= 0)
    place = last_of(before.writes[~glued[before.writes]], len(order))[writer]
    missing = np.clip(missing, 0, len(order)) * (place > before_it)
    gaps = _Gaps(writer, before_it, missing)
    swaps, swapped, missing = _swaps(proposal, replay, gaps, glued, expecting)
    return swaps, swapped, _Slots.at(np.repeat(place, missing), _COUNTS)


@dataclass(frozen=True, slots=True)
class _Gaps:
    """Gaps in the order. `missing` writes must be inserted after `after`, at the latest immediately before `until`."""

    until: Int64s
    after: Int64s
    missing: Int64s


def _swaps(
    proposal: Proposal, replay: _Replay, gaps: _Gaps, glued: Bools, expecting: tuple[Int64s, Int64s]
) -> tuple[Int64s, Int64s, Int64s]:
    """Find unknown compare-and-sets that fit into gaps.

    Return these compare-and-sets, the places before which they are to be inserted, and the number of writes that are
    still missing in each gap.
    """
    order, given, writers = proposal.order, proposal.given, replay.before.writes
    swaps, wrote = expecting
    if not len(swaps):
        return swaps, swaps, gaps.missing
    place = np.append(writers, len(order))[np.searchsorted(writers, wrote, side="right")]  # The next write.
    known = place < len(order)
    swaps, place = swaps[known], place[known]
    gap = np.searchsorted(gaps.until, place)
    fits = gap < len(gaps.until)
    swaps, place, gap = swaps[fits], place[fits], gap[fits]
    fits = (gaps.after[gap] < place) & (gaps.missing[gap] > 0) & ~glued[place]
    fits &= given.call[swaps] <= replay.deadline[place]
    swaps, place, gap = swaps[fits], place[fits], gap[fits]
    _, once = np.unique(place, return_index=True)
    once = once[_numbered(gap[once]) < gaps.missing[gap[once]]]
    swaps, place, gap = swaps[once], place[once], gap[once]
    return swaps, place, gaps.missing - np.bincount(gap, minlength=len(gaps.missing))


def _filled(
    proposal: Proposal, deadline: Int64s, wanted: tuple[tuple[_Slots, Int64s], ...], rows: Int64s, slots: _Slots
) -> Proposal:
    """Insert `rows` at `slots`. Then fill the slots in `wanted`, as long as there are candidates for them."""
    for some, candidates in wanted:
        taken = np.isin(some.place * 4 + some.rank, slots.place * 4 + slots.rank) & (some.rank == _CREATES)
        place, rank, revision = (column[~taken] for column in _parts(some))
        chosen, filler = _last_called(deadline[place], proposal.given.call[candidates], proposal.block.origin)
        rows = np.r_[rows, candidates[filler]]
        slots = _joined(slots, _Slots(place[chosen], rank[chosen], revision[chosen]))
    return proposal.inserted(rows, *_parts(slots))


def _last_called(deadline: Int64s, call: Int64s, origin: Int64s) -> tuple[Int64s, Int64s]:
    """Match slots with fillers; return the slots and the fillers of the pairs.

    The slots are filled in the order of their deadlines. Each slot takes, of the unused fillers that were called before
    its deadline, the one that was called last. So as many slots as possible are filled. The fillers that remain are the
    ones that were called earliest, which fit the most slots. Slots match fillers as closing brackets match opening
    brackets: at the same depth of nesting, a slot comes directly after its filler. `origin`: a stamp for each key; all
    stamps of a key lie above its origin and below the origin of the next key.
    """
    times = np.concatenate((call, deadline))
    # At equal stamps the call is sorted before the deadline, because a call at the deadline is early enough.
    event = np.argsort(times, kind="stable")
    opens = event < len(call)
    key = np.searchsorted(origin, times[event], side="right")
    step = np.where(opens, 1, -1)
    balance = np.cumsum(step)
    if not len(event):
        return event, event
    first = np.flatnonzero(np.diff(key, prepend=NOTHING) != 0)
    balance -= np.repeat(balance[first] - step[first], np.diff(np.r_[first, len(key)]))
    room = 2 * len(event) + 1
    lowest = np.minimum(np.minimum.accumulate(balance - key * room) + key * room, 0)
    before = np.where(np.diff(key, prepend=NOTHING) != 0, 0, np.r_[0, lowest[:-1]])
    alone = ~opens & (lowest < before)  # No unmatched filler was called before this deadline.
    level = balance - lowest + ~opens
    kept = np.flatnonzero(~alone)
    kept = kept[np.lexsort((kept, level[kept], key[kept]))]
    pair = np.flatnonzero(opens[kept[:-1]] & ~opens[kept[1:]])
    same = (level[kept[pair]] == level[kept[pair + 1]]) & (key[kept[pair]] == key[kept[pair + 1]])
    pair = pair[same]
    return event[kept[pair + 1]] - len(call), event[kept[pair]]


def _numbered(key: Int64s) -> Int64s:
    """Return for each place the number of earlier places of its key."""
    here = np.arange(len(key))
    new = np.diff(key, prepend=NOTHING) != 0
    return here - np.maximum.accumulate(np.where(new, here, 0)) if len(key) else here
