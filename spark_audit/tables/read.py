"""Reads histories into one Arrow table, and finds the malformed lines, with their files, numbers and reasons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from spark_audit.errors import Fault, MalformedHistory
from spark_audit.history.paths import HistoryFile
from spark_audit.tables.conform import conform, joined
from spark_audit.tables.frame import Frame, RowLocations, schema
from spark_audit.tables.jsonl import pieces_of
from spark_audit.tables.parquet import check_footers, leaves, open_table


@dataclass(slots=True)
class Read:
    """The rows of some files.

    `frame`: the rows that could be read. `locations`: their files and lines. `bad`: the malformed lines. `bad_count`:
    the number of these lines.
    """

    frame: Frame
    locations: RowLocations
    bad: list[Fault] = field(default_factory=list)
    bad_count: int = 0


def read(files: Sequence[HistoryFile], *, shown: bool) -> Read:
    """Read all rows of these files. `shown`: whether to include the columns that are only shown.

    Raises MalformedHistory if a Parquet file is damaged, or if its columns are not the columns of rows.
    """
    check_footers([str(file.path.resolve()) for file in files if file.parquet])
    locations, tables = RowLocations(), [schema(names_coded=True).empty_table()]
    found = Read(Frame(tables[0]), locations)
    for file in files:
        path = str(file.path.resolve())
        if file.parquet:
            table = _rows_of(path, shown)
            locations.add(path, table.num_rows, 1)
            tables.append(table)
            continue
        for piece in pieces_of(path):
            locations.add(path, piece.table.num_rows, piece.lines)
            tables.append(conform(piece.table))
            found.bad += [Fault(path, line, reason) for line, reason in piece.bad]
            found.bad_count += len(piece.bad)
    found.frame = Frame(joined([table for table in tables if table.num_rows] or tables[:1]))
    return found


def _rows_of(path: str, shown: bool) -> pa.Table:
    try:
        with open_table(path) as file:
            ops = file.read(columns=["op"]).column("op")
            table = conform(file.read(columns=leaves(file, ops, shown=shown)))
        table.validate(full=True)  # The full validation checks, among other things, that all text is UTF-8.
    except (pa.ArrowException, OSError) as error:
        raise _damaged(path, error) from error
    return table


def _damaged(path: str, error: Exception) -> MalformedHistory:
    return MalformedHistory((Fault(path, 0, f"cannot be read ({str(error).splitlines()[0]})"),), 1)
