"""An Arrow table of rows, with access to its columns as numpy arrays. The checks of all rows work on such a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_audit.history.rows import FIELDS, Type

Int64s: TypeAlias = npt.NDArray[np.int64]
Int32s: TypeAlias = npt.NDArray[np.int32]
Bools: TypeAlias = npt.NDArray[np.bool_]
Row: TypeAlias = dict[str, Any]

# Columns of repeated texts.
NAMES = ("run_id", "client", "op", "key", "status", "clock_id", "consistency", "node", "acknowledge")
ROWS_AT_ONCE = 20_000  # At most this many rows of a table are Python objects at a time.
BLOCK_ROWS = 1 << 16
FEW_NULLS_MAX = 1 << 18  # An array of this many nulls is kept for each type. Each array takes some MB at most.
_ATOMS: dict[str, pa.DataType] = {"string": pa.large_string(), "long": pa.int64(), "boolean": pa.bool_()}


def arrow_type(wanted: Type) -> pa.DataType:
    """Return the Arrow type of a field of history/rows.py."""
    if isinstance(wanted, str):
        return _ATOMS[wanted]
    if isinstance(wanted, list):
        return pa.list_(arrow_type(wanted[0]))
    return pa.struct([(name, arrow_type(inner)) for name, inner in wanted])


@cache
def schema(*, names_coded: bool) -> pa.Schema:
    """Return the Arrow schema of a row. `names_coded`: whether the columns NAMES are dictionaries."""
    coded = pa.dictionary(pa.int32(), pa.large_string())
    fields = [(name, coded if names_coded and name in NAMES else arrow_type(wanted)) for name, wanted in FIELDS]
    return pa.schema(fields)


@dataclass(frozen=True, slots=True)
class Codes:
    """A column of texts as numbers.

    `ids`: for each row the number of its text, -1 for null; `number`: text → number; `texts`: the texts by number.
    """

    ids: Int32s
    texts: list[str]
    number: dict[str, int]

    def among(self, *wanted: str) -> Bools:
        """Return for each row whether its text is one of these; false for null."""
        found = np.zeros(len(self.ids), np.bool_)
        for text in wanted:
            if text in self.number:
                found |= self.ids == self.number[text]
        return found

    def part(self, start: int, end: int) -> Codes:
        """Return the codes of the rows in [`start`, `end`) only."""
        return Codes(self.ids[start:end], self.texts, self.number)


class Frame:
    """A table in `schema(names_coded=True)`, with each column in one chunk. Columns become numpy arrays on demand."""

    def __init__(self, table: pa.Table, codes: dict[str, Codes] | None = None) -> None:
        self.table = table
        self.rows = table.num_rows
        self._codes = codes or {}
        self._numbers: dict[tuple[str, int], Int64s] = {}

    def codes(self, name: str) -> Codes:
        """Return a column of texts (one of NAMES) as numbers."""
        if name not in self._codes:
            self._codes[name] = _codes(self._column(name))
        return self._codes[name]

    def numbers(self, name: str, null: int) -> Int64s:
        """Return a column of numbers. `null` replaces a missing number."""
        if (name, null) not in self._numbers:
            self._numbers[name, null] = _numbers(self._column(name), null)
        return self._numbers[name, null]

    def null(self, name: str) -> Bools:
        """Return for each row whether the column is null in it."""
        return self.codes(name).ids < 0 if name in NAMES else _null(self._column(name))

    def output(self) -> Any:
        """Return the column `output`, as an Arrow array."""
        return self._column("output")

    def output_null(self, name: str) -> Bools:
        """Return for each row whether this field of `output`, or `output` itself, is null."""
        return _null(pc.struct_field(self._column("output"), name))

    def output_flag(self, name: str) -> Bools:
        """Return for each row whether this flag of `output` is true."""
        return _flags(pc.struct_field(self._column("output"), name))

    def output_below(self, name: str, least: int) -> Bools:
        """Return for each row whether this number of `output` is reported and below `least`."""
        compare: Any = pc.less  # The type stubs of Arrow do not accept Python numbers.
        return _flags(compare(pc.struct_field(self._column("output"), name), least))

    def blocks(self) -> Iterator[tuple[int, Frame]]:
        """Yield (first row, frame) for BLOCK_ROWS rows at a time, so that temporary arrays stay in the CPU cache."""
        for start in range(0, self.rows, BLOCK_ROWS):
            codes = {name: self.codes(name).part(start, start + BLOCK_ROWS) for name in NAMES}
            yield start, Frame(self.table.slice(start, BLOCK_ROWS), codes)

    def dicts(self, rows: Int64s, names: Sequence[str] | None = None) -> Iterator[Row]:
        """Yield these rows as dicts, in this order. `names`: the columns that the dicts have; None for all columns."""
        table = self.table if names is None else self.table.select(list(names))
        for start in range(0, len(rows), ROWS_AT_ONCE):
            yield from table.take(rows[start : start + ROWS_AT_ONCE]).to_pylist()

    def _column(self, name: str) -> Any:
        return one_piece(self.table.column(name))


def _codes(column: Any) -> Codes:
    """Return the codes of a dictionary column. If its dictionary has a text twice, the text still gets one number."""
    ids = np.asarray(_filled(column.indices, -1).to_numpy(zero_copy_only=False), np.int32)
    texts: list[str] = column.dictionary.to_pylist()
    number: dict[str, int] = {}
    for text in texts:
        number.setdefault(text, len(number))
    if len(number) < len(texts):
        ids = np.array([*(number[text] for text in texts), -1], np.int32)[ids]
    return Codes(ids, list(number), number)


def distinct(numbers: Int64s) -> Int64s:
    """Return the distinct numbers, ascending. For many numbers, this is ten times as fast as `np.unique`."""
    ordered = np.sort(numbers)
    return ordered[np.flatnonzero(np.diff(ordered, prepend=ordered[:1] - 1))]


def nulls(rows: int, kind: pa.DataType) -> Any:
    """Return an array of nulls.

    A short array is a slice of a shared array. If each array were allocated, the allocations would take most of the
    time of `conform`.
    """
    return _few_nulls(kind).slice(0, rows) if rows <= FEW_NULLS_MAX else _made_nulls(rows, kind)


@cache
def _few_nulls(kind: pa.DataType) -> Any:
    return _made_nulls(FEW_NULLS_MAX, kind)


def _made_nulls(rows: int, kind: pa.DataType) -> Any:
    make: Any = pa.nulls  # The type stubs of Arrow list every type except DataType.
    return make(rows, kind)


def one_piece(column: Any) -> Any:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _filled(column: Any, null: Any) -> Any:
    return column.fill_null(null) if column.null_count else column


def _numbers(column: Any, null: int) -> Int64s:
    return np.asarray(_filled(column, null).to_numpy(zero_copy_only=False), np.int64)


def _null(column: Any) -> Bools:
    if not column.null_count:
        return np.zeros(len(column), np.bool_)
    return np.asarray(column.is_null().to_numpy(zero_copy_only=False), np.bool_)


def _flags(column: Any) -> Bools:
    return np.asarray(_filled(column, False).to_numpy(zero_copy_only=False), np.bool_)


@dataclass(slots=True)
class RowLocations:
    """The file and line of each row of a table. The rows from `starts[i]` up to the next start are of `files[i]`."""

    starts: list[int] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    lines: list[int | Sequence[int]] = field(default_factory=list)
    rows: int = 0

    def add(self, file: str, rows: int, lines: int | Sequence[int]) -> None:
        """Add this many rows of this file.

        `lines`: the line of the first row if the rows are on consecutive lines, otherwise the line of each row.
        """
        if not rows:
            return
        self.starts.append(self.rows)
        self.files.append(file)
        self.lines.append(lines)
        self.rows += rows

    def pieces(self) -> Iterator[tuple[str, int, int]]:
        """Yield (file, first row, end) for each sequence of rows that was added at once."""
        yield from zip(self.files, self.starts, [*self.starts, self.rows][1:], strict=True)

    def of(self, row: int) -> tuple[str, int]:
        """Return the file of a row, and its line, counted from 1."""
        piece = int(np.searchsorted(self.starts, row, side="right")) - 1
        lines, offset = self.lines[piece], row - self.starts[piece]
        return self.files[piece], lines + offset if isinstance(lines, int) else lines[offset]
