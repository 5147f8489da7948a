"""Converts Arrow columns of any permitted type to the type of the row.

Missing fields become null, and unknown fields are dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_audit.tables.frame import nulls, one_piece, schema


def conform(table: pa.Table) -> pa.Table:
    """Return the table in `schema(names_coded=True)`, with each column in one chunk."""
    wanted = schema(names_coded=True)
    arrays = [_column(table, field.name, field.type) for field in wanted]
    return pa.Table.from_arrays(arrays, schema=wanted)


def joined(tables: Sequence[pa.Table]) -> pa.Table:
    """Concatenate tables that `conform` returned. There must be at least one."""
    if len(tables) == 1:
        return tables[0]
    return pa.concat_tables(tables).unify_dictionaries().combine_chunks()


def _column(table: pa.Table, name: str, wanted: pa.DataType) -> Any:
    if name not in table.column_names:
        return nulls(table.num_rows, wanted)
    column = table.column(name)
    if column.num_chunks == 0:
        return nulls(0, wanted)
    chunks: Any = [_conforming(chunk, wanted) for chunk in column.chunks]
    return one_piece(pa.chunked_array(chunks).unify_dictionaries())


def _conforming(array: Any, wanted: Any) -> Any:
    if pa.types.is_null(array.type):
        return nulls(len(array), wanted)
    if pa.types.is_dictionary(wanted):
        return _coded(array)
    if array.type == wanted:
        return array
    if pa.types.is_dictionary(array.type):
        return array.dictionary_decode().cast(wanted)
    if pa.types.is_struct(wanted):
        return _structure(array, wanted)
    # Lists are rare. These columns are converted through Python, which is cheap compared with the other work for a
    # listing.
    if pa.types.is_list(wanted):
        return pa.array(array.to_pylist(), wanted)
    return array.cast(wanted)


def _coded(array: Any) -> Any:
    coded = array if pa.types.is_dictionary(array.type) else array.dictionary_encode()
    return pa.DictionaryArray.from_arrays(coded.indices.cast(pa.int32()), coded.dictionary.cast(pa.large_string()))


def _structure(array: Any, wanted: Any) -> Any:
    have = {field.name for field in array.type}
    children = [
        _conforming(pc.struct_field(array, field.name), field.type)
        if field.name in have
        else nulls(len(array), field.type)
        for field in wanted
    ]
    return pa.StructArray.from_arrays(children, fields=list(wanted), mask=array.is_null())
