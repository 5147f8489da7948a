"""Decides keys without a search: first all keys by the witness, then the suspect keys by zones.

Keys that neither method decides are left to the search.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spark_audit.columnar.blocks import BLOCK_ROWS
from spark_audit.columnar.columns import NOTHING, Bools, Columns, Int8s, Int64s, rows_of
from spark_audit.columnar.conflicts import CORE_MAX
from spark_audit.columnar.unplaced_writes import PlacedWrites
from spark_audit.columnar.witness import NOT_COVERED, SUSPECT, witness
from spark_audit.columnar.zones import NEEDS_SEARCH, VIOLATION, zones

BY_WITNESS, BY_ZONES, WRONG, LEFT = range(4)


@dataclass(frozen=True, slots=True)
class Triage:
    """The decision for each key.

    `verdict`: BY_WITNESS or BY_ZONES if that method proves that the key is linearizable; WRONG if the key has a
    violation; LEFT if the search must decide. `guessed`: for a key proven BY_WITNESS, whether the place of an unknown
    write is a guess; True for a key proven BY_ZONES. `at`: the row of the columns at which the witness failed; -1 if
    the witness did not fail, or if the row is not known. `core`, `reason`: for a WRONG key, its violation (see
    `Zoned`). `placed`: the unknown writes of the keys proven BY_WITNESS.
    """

    verdict: Int8s
    guessed: Bools
    at: Int64s
    core: Int64s
    reason: Int8s
    placed: PlacedWrites


def triage(columns: Columns, rows_max: int = BLOCK_ROWS) -> Triage:
    """Decide all keys that can be decided without a search. Takes O(n log n)."""
    seen = witness(columns, rows_max)
    verdict = np.full(columns.keys, BY_WITNESS, np.int8)
    guessed = seen.guessed.copy()
    core = np.full((columns.keys, CORE_MAX), NOTHING, np.int64)
    reason = np.full(columns.keys, NOTHING, np.int8)
    verdict[seen.status == NOT_COVERED] = LEFT
    suspect = np.flatnonzero(seen.status == SUSPECT)
    if len(suspect):
        zoned = zones(columns.of_keys(suspect), rows_max)
        named = np.where(zoned.status == VIOLATION, WRONG, np.where(zoned.status == NEEDS_SEARCH, LEFT, BY_ZONES))
        verdict[suspect], guessed[suspect], reason[suspect] = named, named == BY_ZONES, zoned.reason
        # An entry -1 of `zoned.core` selects the last entry, which is the -1 appended here. So the entry stays -1.
        rows = np.append(rows_of(columns, suspect), NOTHING)
        core[suspect] = rows[zoned.core]
    return Triage(verdict, guessed, seen.at, core, reason, seen.placed)
