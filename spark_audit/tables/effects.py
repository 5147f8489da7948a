"""The effect of each row of a frame on the order of revisions: the functions of `history/effects.py`, in numpy."""

from __future__ import annotations

from spark_audit.history.operation import WEAK
from spark_audit.tables.frame import Bools, Frame


def taking_part(frame: Frame) -> Bools:
    """Return for each row whether it takes part in the order (`takes_part` of history/effects.py)."""
    taking: Bools = frame.codes("status").among("ok") & ~frame.null("revision")
    return taking & ~frame.codes("consistency").among(*WEAK)


def changes_of_one_key(frame: Frame) -> Bools:
    """Return for each row whether it is an acknowledged change of one key.

    `inspect_multi_key` does the same for transactions.
    """
    op = frame.codes("op")
    changes = op.among("put", "append")
    changes |= op.among("delete") & frame.output_flag("found")
    changes |= op.among("cas") & frame.output_flag("succeeded")
    return changes & frame.codes("status").among("ok")
