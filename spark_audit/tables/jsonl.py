"""Reads JSON lines in pieces, with Arrow, or with Python if Arrow refuses a piece.

Arrow refuses a piece if any value does not have the type of its field in a row, any text is not UTF-8, or any number is
not an integer. Arrow does not report which line is wrong, so Python reads a refused piece again, line by line. Arrow
also accepts several rows on one line, or a row over several lines. So each line must begin with `{` and end with `}`. A
line break between `}` and `{` cannot be inside a row. So if every line begins and ends in this way, no row extends over
several lines. If there are also as many rows as lines, each line has exactly one row.

Arrow takes longer if the schema has more fields. So a piece is first read with only those fields that occur in its head
(its first bytes). If another field occurs in the piece, the piece is read again with all fields.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as arrow_json

from spark_audit.history.recorded_files import LeftOut, left_out_near, whole_bytes
from spark_audit.history.rows import FIELDS, OUTPUT, plain_problem, row_of_line
from spark_audit.tables.frame import Row, arrow_type, schema

# The size of a piece is limited, because one malformed line makes Python read the whole piece again.
PIECE_BYTES = 8 * 2**20
_BLOCK_BYTES = 2**20  # Each thread of Arrow parses a block of this size. A longer line is left to Python.
_HEAD_BYTES = 2**16  # The size of the head of a piece.


@dataclass(frozen=True, slots=True)
class Piece:
    """The rows of some lines.

    `lines`: the number of the first line if every line is a row, otherwise the line number of each row. `bad`: (line
    number, reason) for each malformed line.
    """

    table: pa.Table
    lines: int | Sequence[int]
    bad: list[tuple[int, str]] = field(default_factory=list)


def pieces_of(path: str, begin: int = 0, end: int | None = None) -> Iterator[Piece]:
    """Yield the pieces of a file, in order.

    Only the lines that begin at bytes in [`begin`, `end`) are read. The first of these lines has the number 1. Rows
    about keys that a recorder left out are not among the rows.
    """
    first = 1
    left_out = left_out_near(path)
    for text in _cut(path, begin, end):
        table = _by_arrow(text)
        piece = Piece(table, first) if table is not None else _by_line(text, first)
        yield _without(piece, left_out) if left_out else piece
        first += table.num_rows if table is not None else text.count(b"\n")


def _without(piece: Piece, left_out: LeftOut) -> Piece:
    """Return the piece without the rows about keys that are left out."""
    if "key" not in piece.table.column_names:
        return piece
    keys = piece.table.column("key").combine_chunks()
    ignored = [key for key in keys.unique().to_pylist() if left_out.has(key)]
    kept = np.flatnonzero(~pc.is_in(keys, pa.array(ignored, pa.string())).to_numpy(zero_copy_only=False))
    if len(kept) == piece.table.num_rows:
        return piece
    lines = [piece.lines + row if isinstance(piece.lines, int) else piece.lines[row] for row in kept.tolist()]
    return Piece(piece.table.take(kept), lines, piece.bad)


def _cut(path: str, begin: int, end: int | None) -> Iterator[bytes]:
    """Yield texts of about PIECE_BYTES, each of which consists of complete lines.

    The torn last line of a recorder is left out (`history/recorded_files.py`).
    """
    whole = whole_bytes(path)
    if whole is not None:
        end = whole if end is None else min(end, whole)
    with Path(path).open("rb") as file:
        here = begin
        if begin:
            file.seek(begin - 1)
            # The line that begins before `begin` is not read. It may end just before `begin`, so the search for its end
            # starts one byte earlier.
            here += len(file.readline()) - 1
        while text := file.read(PIECE_BYTES if end is None else min(PIECE_BYTES, max(0, end - here))):
            if not text.endswith(b"\n"):
                text += file.readline()  # The last line begins before `end`, so the whole line is part of this piece.
            here += len(text)
            yield text


def _by_arrow(text: bytes) -> pa.Table | None:
    codes = np.frombuffer(text, np.uint8)
    ends = np.flatnonzero(codes == ord("\n"))
    if not text.endswith(b"\n"):
        ends = np.append(ends, len(text))
    starts = np.concatenate(([0], ends[:-1] + 1))
    if (ends == starts).any() or (codes[starts] != ord("{")).any() or (codes[ends - 1] != ord("}")).any():
        return None
    try:
        if not text.isascii():
            text.decode()
    except UnicodeDecodeError:
        return None
    head = text[:_HEAD_BYTES]
    named = frozenset(name for name in _NAMES if f'"{name}"'.encode() in head)
    table = _parsed(text, _lean(named), "error")
    if table is None:
        table = _parsed(text, _PLAIN, "ignore")
    return table if table is not None and table.num_rows == len(ends) else None


def _parsed(text: bytes, fields: pa.Schema, others: Literal["error", "ignore"]) -> pa.Table | None:
    """Return the rows of the text; None if Arrow refuses it.

    `others`: how Arrow handles fields that are not in `fields`.
    """
    source: Any = pa.BufferReader(text)
    try:
        table = arrow_json.read_json(
            source,
            arrow_json.ReadOptions(block_size=_BLOCK_BYTES),
            arrow_json.ParseOptions(explicit_schema=fields, unexpected_field_behavior=others),
        )
        table.validate(full=True)
    except pa.ArrowException:
        return None
    return table


_PLAIN = pa.schema([(name, arrow_type(wanted)) for name, wanted in FIELDS])
_NAMES = frozenset(name for name, _ in (*FIELDS, *OUTPUT))


@cache
def _lean(names: frozenset[str]) -> pa.Schema:
    """Return the schema of a row in which the row and its output have only the fields with these names."""
    output = arrow_type(tuple((name, wanted) for name, wanted in OUTPUT if name in names))
    kinds = [(name, output if name == "output" else arrow_type(wanted)) for name, wanted in FIELDS if name in names]
    return pa.schema(kinds)


def _by_line(text: bytes, first: int) -> Piece:
    rows: list[Row] = []
    lines: list[int] = []
    bad: list[tuple[int, str]] = []
    for number, line in enumerate(text.split(b"\n"), first):
        if not line.strip(b" "):
            continue
        row, reason = row_of_line(line, plain_problem)
        if reason is not None:
            bad.append((number, reason))
        else:
            rows.append(row)
            lines.append(number)
    return Piece(pa.Table.from_pylist(rows, schema=schema(names_coded=False)), lines, bad)
