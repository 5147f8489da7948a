"""What is asked of the rows of a run when keys are decided again near some revisions (`store/gap_reassignment.py`)."""

from dataclasses import dataclass

ROWS_MAX = 200_000  # Of a key, from `low` to `high`, that are looked at together.


@dataclass(frozen=True, slots=True)
class Near:
    """Of `key` the rows that take part with revisions from `low` to `high`, and `around` more on either side (fewer
    only if there are no more)."""

    key: str
    low: int
    high: int
    around: int
