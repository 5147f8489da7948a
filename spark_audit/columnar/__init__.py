"""The columnar kernel: proofs over all keys of a block at once, in numpy. It shares no code with `kernel.py`.

`encode` makes columns of rows; `witness` verifies the order that revisions propose; `zones` decides keys whose written
values are unique, with no revisions needed. docs/audit-proofs.md proves the rules.
"""

from spark_audit.columnar.columns import FOREVER, Columns, encode, encode_rows
from spark_audit.columnar.witness import NOT_COVERED, OK, SUSPECT, Witnessed, witness
from spark_audit.columnar.zones import NEEDS_SEARCH, VIOLATION, Zoned, zones

__all__ = [
    "FOREVER",
    "NEEDS_SEARCH",
    "NOT_COVERED",
    "OK",
    "SUSPECT",
    "VIOLATION",
    "Columns",
    "Witnessed",
    "Zoned",
    "encode",
    "encode_rows",
    "witness",
    "zones",
]
