"""Builds the order that the revisions propose, for all keys at once, and verifies it. A verified order is a proof.

- The completed operations are sorted by (key, revision, writer first, call).
- A write of unknown outcome takes part only if its effect was observed. The write is inserted immediately before its
  first observer: the write never returns, so the latest possible place is the best one. If the observer is an unknown
  compare-and-set, it must have been observed itself (`columnar/observed_unknowns.py`). Reported versions and creation
  revisions show where hidden writes are missing (`columnar/hidden_unknowns.py`).
- The order is verified (`columnar/verify_order.py`). A key whose order is not valid is suspect, not wrong.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spark_audit.columnar.blocks import BLOCK_ROWS, Block, any_of, blocks, not_covered
from spark_audit.columnar.columns import NOTHING, Bools, Columns, Int8s, Int64s, rows_of
from spark_audit.columnar.hidden_unknowns import with_hidden
from spark_audit.columnar.observed_unknowns import with_observed
from spark_audit.columnar.proposed_order import Draft, Proposal, propose
from spark_audit.columnar.unplaced_writes import PlacedWrites, placed_writes, with_earliest_calls
from spark_audit.columnar.verify_order import Order, States, late, states, unexplained

OK, SUSPECT, NOT_COVERED = range(3)

# A hidden deletion may require a hidden put, which may require another deletion in the next round. More rounds than
# this are rarely needed.
ROUNDS_MAX = 4


@dataclass(frozen=True, slots=True)
class Witnessed:
    """The result for each key of the columns.

    `status`: OK, SUSPECT or NOT_COVERED. `guessed`: for a key that is OK, whether the place of an unknown write is a
    guess. `at`: for a suspect key, the first row of the columns that does not fit the order; -1 if an acknowledged
    operation has no revision. `placed`: the unknown writes of the keys that are OK.
    """

    status: Int8s
    guessed: Bools
    at: Int64s
    placed: PlacedWrites


def witness(columns: Columns, rows_max: int = BLOCK_ROWS) -> Witnessed:
    """Verify the operations of each key in the order of their revisions. Takes O(n log n)."""
    first = _pass(columns, rows_max, patient=False)
    again = np.flatnonzero((first.status == SUSPECT) & (first.at >= 0) & _unsure(columns))
    if not len(again):
        return first
    second = _pass(columns.of_keys(again), rows_max, patient=True)
    rows = rows_of(columns, again)
    first.status[again], first.guessed[again] = second.status, second.guessed
    first.at[again] = np.where(second.at >= 0, rows[second.at], NOTHING)
    return Witnessed(first.status, first.guessed, first.at, PlacedWrites.joined([first.placed, second.placed.at(rows)]))


def _unsure(columns: Columns) -> Bools:
    """Return for each key whether it has operations of unknown outcome."""
    return any_of(columns.key_of_row(), columns.unknown, columns.keys)


def _pass(columns: Columns, rows_max: int, patient: bool) -> Witnessed:
    status = np.full(columns.keys, OK, np.int8)
    guessed = np.zeros(columns.keys, np.bool_)
    at = np.full(columns.keys, NOTHING, np.int64)
    placed = [PlacedWrites()]
    for block in blocks(columns, rows_max):
        mine = slice(block.first_key, block.last_key)
        status[mine], guessed[mine], at[mine], some = _decide(block, patient)
        if some is not None:
            placed.append(some)
    return Witnessed(status, guessed, at, PlacedWrites.joined(placed))


def _decide(block: Block, patient: bool) -> tuple[Int8s, Bools, Int64s, PlacedWrites | None]:
    proposal, wrong, placed = attempt(block, patient)
    guessed = proposal.guessed() if block.unknown.any() else np.zeros(block.keys, np.bool_)
    bad = proposal.rows[wrong][::-1]
    at = np.full(block.keys, NOTHING, np.int64)
    # numpy keeps the last of several assignments to one key. The rows are reversed, so the first row is kept.
    at[block.key[bad]] = bad + block.begin
    without_revision = any_of(block.key, (block.part(block.columns.revision) <= 0) & ~block.unknown, block.keys)
    at[without_revision] = NOTHING
    status = np.where(without_revision | (at >= 0), SUSPECT, OK)
    status = np.where(not_covered(block), NOT_COVERED, status).astype(np.int8)
    if placed is not None:
        fine, here = status == OK, np.arange(block.begin, block.end)
        placed = placed.where(fine[block.key[placed.claimed]], fine[block.key[placed.unplaced]]).at(here)
    return status, guessed & (status == OK), at, placed


def attempt(block: Block, patient: bool) -> tuple[Proposal, Bools, PlacedWrites | None]:
    """Return the order that the revisions propose, its wrong places, and the unknown writes inserted into it.

    The inserted writes are given by their rows in the block; they are None if the block has no unknown writes.
    """
    draft = propose(block)
    if block.unknown.any():
        return _with_unknown(draft, patient)
    proposal = draft.in_order()
    return proposal, _wrong(proposal.order, states(proposal.order)), None


def _with_unknown(draft: Draft, patient: bool) -> tuple[Proposal, Bools, PlacedWrites]:
    """Insert unknown writes into the draft; return the proposal, its wrong places, and the inserted writes.

    Rounds are repeated until a round inserts nothing, no place is wrong, or ROUNDS_MAX rounds have run. If `patient` is
    false, rounds also end when the wrong keys have at most a quarter of the block's rows: a separate pass over so few
    rows costs less.
    """
    block = draft.block
    sizes = np.diff(block.starts)
    now = with_observed(draft)
    claimed = np.flatnonzero(block.unknown)
    claimed = claimed[now.given.revision[claimed] > 0]
    revision = now.given.revision[claimed]
    for _ in range(ROUNDS_MAX):
        more = with_hidden(now)
        filled = with_earliest_calls(more, claimed)
        before = states(filled.order)
        wrong = _wrong(filled.order, before) | filled.out_of_turn()
        changed, now = len(more.rows) > len(now.rows), more
        rows_left = int(sizes[filled.keys_of(np.flatnonzero(wrong))].sum())
        if not changed or rows_left == 0 or not (patient or 4 * rows_left > len(block.key)):
            break
    return filled, wrong, placed_writes(filled, before, claimed, revision)


def _wrong(order: Order, before: States) -> Bools:
    return late(order) | unexplained(order, before)
