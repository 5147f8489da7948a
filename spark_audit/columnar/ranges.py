"""The witness for one key that has too many operations to handle at once. The operations are split into ranges.

The result of the earlier ranges is passed on as a `Carry`: the record after them, the greatest call, and the greatest
revision. The order of a range begins with the write of the carried record. If the record was written more than once, an
artificial creation is inserted before that write. Only a prefix of the order of each range is taken. The operations
after this prefix are left to the next range, because more of the later operations are known there.
docs/internals/audit-proofs.md, section 10, proves that the prefixes of all ranges together form one valid order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from spark_audit.columnar.blocks import blocks, last_place, not_covered
from spark_audit.columnar.columns import FOREVER, NOTHING, PUT, Bools, Columns, Int64s
from spark_audit.columnar.proposed_order import Proposal
from spark_audit.columnar.unplaced_writes import PlacedWrites
from spark_audit.columnar.verify_order import Order, counts, states
from spark_audit.columnar.weak_reads import doubtful
from spark_audit.columnar.witness import attempt

_EARLIEST = -(2**63)
_NEVER = 2**62  # A version that no record has.


@dataclass(frozen=True, slots=True)
class Carry:
    """The result of the earlier ranges, from which the next range continues.

    `version`: the version of the record; 0 if there is no record. `revision`, `create`: the revision of the record, and
    the revision of its creation. If there is a record, row 0 of the table from which the columns are made is the write
    of this record. Row 0 is a put at the record's revision, without any observation. `call`, `last`: the greatest call
    and the greatest revision so far. `unsure`: whether there is no record because of a deletion of unknown outcome.
    """

    version: int = 0
    revision: int = 0
    create: int = NOTHING
    call: int = _EARLIEST
    last: int = 0
    unsure: bool = False


@dataclass(frozen=True, slots=True)
class Advanced:
    """A verified prefix. Rows are given by their numbers in the table from which the columns were made.

    `writer`: the write of the record in the new carry, -1 if there is no record. `used`: the rows of unknown outcome in
    the prefix. `placed`: the same rows with their possible revisions. `left`: the completed rows after the prefix.
    """

    carry: Carry
    writer: int
    used: Int64s
    left: Int64s
    placed: PlacedWrites


def advance(columns: Columns, carry: Carry, *, ahead: int, last: bool) -> Advanced | None:
    """Choose a prefix of the order of these operations and verify it; return None if the verification fails.

    `columns`: the operations of one key in one range; `columns.weak` is ignored. `last`: whether this is the last
    range. Before the last range, at least `ahead` places at the end of the order are left to the next range.
    """
    begun = 0 if carry.version == 0 else 1 + (carry.version > 1)
    made = _with_creation(columns, carry)
    if made is None or len(made) == 0:
        return None
    block = next(blocks(made, len(made)))
    if not_covered(block).any() or ((made.revision <= 0) & ~made.unknown).any():
        return None
    proposal, wrong, placed = attempt(block, patient=True)
    order = proposal.order
    wrong = wrong | proposal.out_of_turn() | _before_its_time(made, proposal, carry)
    wrong[:begun] = proposal.rows[:begun] != _places_of_carry(made, begun)
    ends = _Ends.of(order)
    end = _cut(ends.clean, begun, ahead, last)
    if wrong[: end + 1].any():
        return None
    return _advanced(made, proposal, ends, carry, end, placed or PlacedWrites())


def weak_reads_fit(columns: Columns, carry: Carry) -> bool:
    """Return whether every weak read fits the revision that it carries (`columnar/weak_reads.py`).

    `columns` must have all acknowledged writes of the key at the revisions of the range, including those left over from
    earlier ranges.
    """
    weak = columns.weak
    if weak is None:
        return True
    if carry.unsure and (weak.finds == 0).any():
        return False
    return not doubtful(columns).any()


def _with_creation(columns: Columns, carry: Carry) -> Columns | None:
    """Insert a creation before the write of the carried record, if that write is not the creation itself.

    The writes between the creation and that write are left out, so every reported version of the record is reduced by
    their number. If a row reports a version without a creation revision, the version may belong to a later record of
    the key. In this case the result is None.
    """
    if carry.version <= 1:
        return columns
    fewer = carry.version - 2
    counted = columns.version >= 0
    if fewer and (counted & (columns.create < 0)).any():
        return None
    mine = counted & (columns.create == carry.create)
    version = np.where(mine, np.where(columns.version >= fewer, columns.version - fewer, _NEVER), columns.version)
    tokens = int(columns.tokens[-1])
    first: dict[str, int] = {
        "row": NOTHING, "op_id": NOTHING, "kind": PUT, "unknown": 0, "failed": 0, "call": int(columns.call.min()),
        "ret": FOREVER, "clock": int(columns.clock[0]), "revision": carry.create, "writes": tokens,
    }  # fmt: skip
    rest = {name: getattr(columns, name) for name in Columns.__slots__ if name not in _OF_KEYS}
    rest["version"] = version
    grown: dict[str, Any] = {
        name: np.concatenate((np.array([first.get(name, NOTHING)]).astype(column.dtype), column))
        for name, column in rest.items()
    }
    one_more = np.array((0, 1))
    return Columns(columns.names, columns.starts + one_more, columns.tokens + one_more, **grown)


_OF_KEYS = ("names", "starts", "tokens", "weak")


def _places_of_carry(columns: Columns, begun: int) -> Int64s:
    """Return the rows of the columns that stand for the carry: the creation, then the write of the record."""
    write = np.flatnonzero(columns.row == 0)
    return np.concatenate((np.zeros(begun - 1, np.int64), write)) if begun else write[:0]


def _before_its_time(columns: Columns, proposal: Proposal, carry: Carry) -> Bools:
    """Find the operations that returned too early, or have too low a revision, to follow the earlier ranges."""
    order = proposal.order
    late: Bools = columns.ret[proposal.rows] < carry.call
    late |= (order.revision > 0) & (order.revision < carry.last)
    late |= (order.revision > 0) & (order.revision == carry.last) & (order.writes >= 0)
    return late


def _cut(clean: Bools, begun: int, ahead: int, last: bool) -> int:
    """Return the last place of the prefix; `begun - 1` if the prefix is empty."""
    if last:
        return len(clean) - 1
    taken = np.flatnonzero(clean[begun : max(begun, len(clean) - ahead)])
    return begun + int(taken[-1]) if len(taken) else begun - 1


@dataclass(frozen=True, slots=True)
class _Ends:
    """The state after each place.

    `writer`: the place of the last write, -1 if none. `present`, `create`, `version`: the record that this write left.
    `creation`: the place of the record's creation. `clean`: whether the operation at the place has a revision, and the
    revision and the creation revision of the record are known. `version` counts only the writes in the columns.
    """

    writer: Int64s
    present: Bools
    create: Int64s
    version: Int64s
    creation: Int64s
    clean: Bools

    @staticmethod
    def of(order: Order) -> _Ends:
        writes = order.writes >= 0
        writer = last_place(writes)
        some = np.maximum(writer, 0)
        present = (writer >= 0) & (order.writes[some] != order.absence)
        number, creations = counts(order, states(order))
        creation = np.maximum(creations[some], 0)
        create, version = order.revision[creation], number[some] - number[creation] + 1
        clean = ~present | ((order.revision[some] > 0) & (create > 0))
        # The operation at the place must have a revision, because then no operation before it has a higher one.
        clean &= order.revision > 0
        return _Ends(writer, present, create, version, creation, clean)


def _advanced(
    columns: Columns, proposal: Proposal, ends: _Ends, carry: Carry, end: int, placed: PlacedWrites
) -> Advanced:
    taken, left = proposal.rows[: end + 1], proposal.rows[end + 1 :]
    unknown = columns.unknown
    used = columns.row[taken[unknown[taken]]]
    left = columns.row[left[~unknown[left]]]
    if end < 0:
        return Advanced(carry, NOTHING, used, left, PlacedWrites())
    order, place = proposal.order, int(ends.writer[end])
    revisions = order.revision[: end + 1]
    mine = taken[columns.row[taken] >= 0]  # The artificial creation has no recorded call.
    after = Carry(
        call=max(carry.call, int(columns.call[mine].max(initial=_EARLIEST))), last=max(carry.last, int(revisions.max()))
    )
    there = np.zeros(len(columns), np.bool_)
    there[taken] = True
    placed = placed.where(there[placed.claimed], there[placed.unplaced]).at(columns.row)
    placed = placed.between(carry.last, after.last)
    if not ends.present[end]:
        unsure = carry.unsure if place < 0 else bool(unknown[taken[place]])
        return Advanced(replace(after, unsure=unsure), NOTHING, used, left, placed)
    version = int(ends.version[end])
    if carry.version > 1 and ends.creation[end] == 0:
        version += carry.version - 2
    after = replace(after, version=version, revision=int(revisions[place]), create=int(ends.create[end]))
    return Advanced(after, int(columns.row[taken[place]]), used, left, placed)
