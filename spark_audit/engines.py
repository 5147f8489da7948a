"""The choice of engine: this process if the history fits in memory, otherwise Spark."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from typing import TYPE_CHECKING

from spark_audit.history.paths import HistoryFile

if TYPE_CHECKING:
    import pyarrow.parquet as parquet

ENGINES = ("auto", "local", "spark")
# A history whose estimated resident memory exceeds this limit is audited on Spark. About 1,200,000 single-key
# operations reach this limit.
LOCAL_BYTES_MAX = 2**30
_ALWAYS_BYTES = 100 * 2**20
_ROW_BYTES = 650  # The memory that the audit needs per row, in addition to the size of the row itself.
_MULTI_KEY_ROW_BYTES = 6_000  # Replaces `_ROW_BYTES` if the whole store may have to be replayed.
_EVENTS_FACTOR = 10  # The memory for the events of watches is this multiple of their size as JSON.
_HEAD_BYTES = 2**20  # The number of rows of a JSON lines file is estimated from this many of its first bytes.


def engine_for(files: Sequence[HistoryFile]) -> str:
    """Return `local` if these files are estimated to need at most LOCAL_BYTES_MAX of memory, otherwise `spark`."""
    return "local" if _ALWAYS_BYTES + sum(map(_bytes_for, files)) <= LOCAL_BYTES_MAX else "spark"


def _bytes_for(file: HistoryFile) -> int:
    size = file.path.stat().st_size
    if not file.parquet:
        with file.path.open("rb") as opened:
            head = opened.read(_HEAD_BYTES)
        rows = size * head.count(b"\n") // max(1, len(head))
        multi_key = b'"range"' in head or b'"txn"' in head
        own = size * _EVENTS_FACTOR if b'"watch"' in head else size // 3
        return own + rows * (_MULTI_KEY_ROW_BYTES if multi_key else _ROW_BYTES)
    import pyarrow as pa
    import pyarrow.parquet as parquet

    try:
        footer = parquet.read_metadata(file.path)
    except (pa.ArrowException, OSError):
        return size  # The audit will report the unreadable file, so its estimate does not matter.
    own = sum(footer.row_group(number).total_byte_size for number in range(footer.num_row_groups))
    own *= _EVENTS_FACTOR if _may_have(footer, "watch") else 1
    return own + footer.num_rows * (_MULTI_KEY_ROW_BYTES if _may_have(footer, "range") else _ROW_BYTES)


def _may_have(footer: parquet.FileMetaData, least: str) -> bool:
    """Return whether the file may have operations whose names are `least` or later in alphabetical order.

    Only the greatest name in the column is compared, which the footer has. The expensive operations (`range`, `txn`,
    `watch`) sort after almost all others, so the estimate is rarely too high for a history without them.
    """
    groups = (footer.row_group(number) for number in range(footer.num_row_groups))
    columns = (group.column(number) for group in groups for number in range(group.num_columns))
    statistics = [column.statistics for column in columns if column.path_in_schema == "op"]
    return any(found is None or not found.has_min_max or str(found.max) >= least for found in statistics)


class _NoPandas(MetaPathFinder):
    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:  # noqa: ARG002
        if fullname == "pandas":
            raise ModuleNotFoundError("No module named 'pandas'", name="pandas")


def spare_pandas() -> None:
    """Prevent the import of pandas by Arrow, which imports it only to test whether a value is a Series. The import
    takes half a second.

    Arrow attempts this import only once, and remembers that it failed. Other imports of pandas still work afterwards.
    """
    if "pandas" in sys.modules:
        return
    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        import pyarrow as pa

        pa.scalar(0)
    finally:
        sys.meta_path.remove(finder)
