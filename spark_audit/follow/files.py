"""Reads growing files: either the new rows of a file, or once more the rows that were read before.

Bytes that were read before must never change. Of a file of JSON lines, only complete lines are read: text after the
last line end may still be growing, unless the history is final. A Parquet file is read as a whole, once its footer is
written.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spark_audit.errors import FAULTS_SHOWN_MAX, Fault, MalformedHistory, UnreadablePath
from spark_audit.history.paths import HistoryFile
from spark_audit.history.recorded_files import RECORD_SUFFIX, left_out_near
from spark_audit.history.rows import FIELDS, problem, row_of_line

Row = dict[str, Any]

# Before new rows are read, this many bytes before the position are compared with their checksum. When earlier rows are
# read again, all bytes before the position are compared.
END_BYTES = 4096
_NAMES = tuple(name for name, _ in FIELDS)
_BLOCK_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class FilePosition:
    """The position up to which a file was read.

    `size`: the position in bytes. `lines`: the position in lines, or, in a Parquet file, in rows. `crc`: CRC-32 of all
    bytes before the position. `end_crc`: CRC-32 of the last END_BYTES bytes before the position.
    """

    size: int = 0
    lines: int = 0
    crc: int = 0
    end_crc: int = 0


def new_rows(file: HistoryFile, mark: FilePosition, *, final: bool) -> tuple[list[Row], FilePosition]:
    """Return the rows after the position, with all fields, and the position after these rows.

    Raises MalformedHistory if a row is malformed, and UnreadablePath if the file cannot be read or its earlier bytes
    have changed.
    """
    path = file.path
    try:
        with path.open("rb") as opened:
            opened.seek(max(0, mark.size - END_BYTES))
            before = opened.read(min(mark.size, END_BYTES))
            if zlib.crc32(before) != mark.end_crc:
                raise _changed(path)
            data = opened.read()
    except OSError as error:
        raise UnreadablePath(str(path), error.strerror or str(error)) from error
    if file.parquet:
        if data and mark.size:
            raise _changed(path)
        return _new_table(file, data, final) if data else ([], mark)
    # The torn last line of a recorder is left out even at the end (`history/recorded_files.py`).
    whole_lines_only = not final or path.name.endswith(RECORD_SUFFIX)
    taken = data[: data.rfind(b"\n") + 1] if whole_lines_only else data
    lines = taken.split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    faults: list[Fault] = []
    rows: list[Row] = []
    left_out = left_out_near(path)
    for number, line in enumerate(lines, mark.lines + 1):
        if line.strip(b" "):
            row, reason = _row_of(line)
            if not left_out.has(row.get("key")):
                rows.append(row)
            if reason is not None:
                faults.append(Fault(str(path), number, reason))
    _refuse(faults)
    crc = zlib.crc32(taken, mark.crc)
    end = zlib.crc32((before + taken)[-END_BYTES:])
    return rows, FilePosition(mark.size + len(taken), mark.lines + len(lines), crc, end)


def rows_again(file: HistoryFile, mark: FilePosition) -> Iterator[Row]:
    """Yield the rows before the position.

    Raises UnreadablePath if the bytes of these rows have changed. This error may be raised only after the last row.
    """
    crc, left = 0, mark.size
    if not left:
        return
    if file.parquet:
        if zlib.crc32(_bytes_of(file.path)) != mark.crc:
            raise _changed(file.path)
        yield from _table_rows(file.path)
        return
    left_out = left_out_near(file.path)
    try:
        with file.path.open("rb") as opened:
            for line in opened:
                if left <= 0:
                    break
                # If the position is inside a line, the line has grown since the position was stored. So only the bytes
                # before the position are used.
                line = line[:left]
                crc, left = zlib.crc32(line, crc), left - len(line)
                if line.strip(b" \n"):
                    row, reason = _row_of(line)
                    if reason is not None:
                        raise _changed(file.path)
                    if not left_out.has(row["key"]):
                        yield row
    except OSError as error:
        raise UnreadablePath(str(file.path), error.strerror or str(error)) from error
    if left or crc != mark.crc:
        raise _changed(file.path)


def _row_of(line: bytes) -> tuple[Row, str | None]:
    row, reason = row_of_line(line, problem)
    return (_whole(row), None) if reason is None else ({}, reason)


def _whole(row: Mapping[str, Any]) -> Row:
    """Return the row with all fields. A field that the input leaves out becomes null; an unknown field is dropped."""
    return {name: row.get(name) for name in _NAMES}


def _new_table(file: HistoryFile, data: bytes, final: bool) -> tuple[list[Row], FilePosition]:
    if not final and data[-4:] != b"PAR1":
        return [], FilePosition()  # The footer of a Parquet file is written last.
    from spark_audit.tables.parquet import check_footers

    check_footers([str(file.path)])
    rows = list(_table_rows(file.path))
    _refuse([Fault(str(file.path), n, reason) for n, row in enumerate(rows, 1) if (reason := problem(row))])
    return rows, FilePosition(len(data), len(rows), zlib.crc32(data), zlib.crc32(data[-END_BYTES:]))


def _table_rows(path: Path) -> Iterator[Row]:
    import pyarrow.parquet as parquet

    with parquet.ParquetFile(path) as table:
        for batch in table.iter_batches():
            for row in batch.to_pylist():
                yield _whole(row)


def _bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UnreadablePath(str(path), error.strerror or str(error)) from error


def _refuse(faults: list[Fault]) -> None:
    if faults:
        raise MalformedHistory(tuple(faults[:FAULTS_SHOWN_MAX]), len(faults))


def _changed(path: Path) -> UnreadablePath:
    return UnreadablePath(
        str(path),
        "is no longer what was read before; only new rows may follow. Follow it from the beginning, with another STATE",
    )
