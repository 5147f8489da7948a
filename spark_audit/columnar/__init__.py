"""The columnar kernel: decides all keys of a block at once, in numpy. The kernel shares no code with `key/decide.py`.

`encode` turns rows into columns. A *place* is the index of an operation in an order of operations. `witness` verifies
the order that the revisions propose. `zones` does not use revisions; it decides keys whose written values are unique.
`triage` runs `witness` on all keys, then `zones` on the suspect keys. docs/internals/audit-proofs.md proves that the
methods are correct.
"""

from __future__ import annotations

from spark_audit.columnar.columns import FOREVER, Columns, encode, encode_rows, key_ids
from spark_audit.columnar.triage import BY_WITNESS, BY_ZONES, LEFT, WRONG, Triage, triage
from spark_audit.columnar.weak_reads import doubtful
from spark_audit.columnar.witness import NOT_COVERED, OK, SUSPECT, Witnessed, witness
from spark_audit.columnar.zones import NEEDS_SEARCH, VIOLATION, Zoned, zones

__all__ = [
    "BY_WITNESS",
    "BY_ZONES",
    "FOREVER",
    "LEFT",
    "NEEDS_SEARCH",
    "NOT_COVERED",
    "OK",
    "SUSPECT",
    "VIOLATION",
    "WRONG",
    "Columns",
    "Triage",
    "Witnessed",
    "Zoned",
    "doubtful",
    "encode",
    "encode_rows",
    "key_ids",
    "triage",
    "witness",
    "zones",
]
