"""Checks the rows of a chunk, and cuts them into pieces for the tasks that decide, with Arrow and numpy.

Nothing can be decided from one chunk, because its keys, clients and revisions occur in other chunks, too. So some
columns of each row are sent to each of three partitions: the partition of its key, the partition of its op_id, and the
partition of the block of its revision. For each client, only the first call and the last return are sent. Pieces are
Arrow streams, so the shuffle moves a few thousand pieces instead of single rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_audit.columnar.columns import sorted_by
from spark_audit.tables.conform import conform
from spark_audit.tables.decide_keys import NEEDED
from spark_audit.tables.effects import changes_of_one_key, taking_part
from spark_audit.tables.frame import NAMES, Bools, Frame, Int32s, Int64s, one_piece
from spark_audit.tables.multi_key import MultiKeyRows, inspect_multi_key
from spark_audit.tables.row_rules import broken_rows
from spark_audit.tables.services import NOTHING_SETTLED, Settled, bad_services, judged_rows, plain

KEYS, IDS, CLIENTS, ORDER, TOTALS, BAD, CLASH = "keys", "ids", "clients", "order", "totals", "bad", "clash"
HOT = "hot"  # The kind of the rows of a hot key. The task that decides the key reads them in the order of `place`.
BLOCK_BITS = 14  # A block has 2^14 revisions. The order over all keys is checked one block at a time.
# Every piece includes the whole dictionary of each of its columns. So a column whose dictionary is longer than this is
# first converted to plain text.
DICTIONARY_MAX = 4_096
# The maximum number of rows of a piece. A piece of this size has a few MB. Spark passes several pieces at once.
PIECE_ROWS_MAX = 1 << 15
_ORDER = ("run_id", "clock_id", "revision", "call_ns", "return_ns", "op_id")
_OUTPUT = ("succeeded", "found", "value", "create_revision", "mod_revision", "version")
_MOSTLY_NULL = ("request", "weak", "changes_store", "expected_mod_revision")
_SHORT_MAX = 127  # If a dictionary has at most this many texts, its indices fit in one byte.
_ENDLESS = 2**63 - 1
_INT32_MAX = 2**31 - 1
_IDS_BITS = 16  # op_ids that differ only in these low bits go to one partition.


@dataclass(frozen=True, slots=True)
class ShufflePiece:
    """A piece of the input of the partition `target`.

    `payload`: JSON for the kinds TOTALS, BAD and CLASH, otherwise an Arrow stream. `place`: for the kind HOT, 1 + the
    number of the range, or 0 for rows that belong to no range; for all other kinds -1.
    """

    kind: str
    target: int
    payload: bytes
    place: int = -1


class Hot(Protocol):
    """A key that is decided in ranges (see `hot_keys.py`)."""

    @property
    def run_id(self) -> str:
        """The run of the key."""
        ...

    @property
    def key(self) -> str:
        """The name of the key."""
        ...

    def ranges_of(self, rank: Int64s, call: Int64s) -> Int64s:
        """Return for each of these operations the number of its range."""
        ...


def shuffle_pieces(
    table: pa.Table, partitions: int, hot: Sequence[Hot] = (), settled: Settled = NOTHING_SETTLED
) -> Iterator[ShufflePiece]:
    """Yield the pieces of these rows. If a row is malformed, yield only one piece, of kind BAD.

    `hot`: each of these keys has a partition of its own, after all other partitions. `settled`: the rows that replace
    unknown writes (`plain` in tables/services.py).

    There is a piece of kind TOTALS for each run. This piece has the numbers of `rows`, `unknown`, `failed`,
    `multi_key_requests` (listings and transactions that did not fail), `multi_key` (those that no single key can
    decide), `without_revision` (completed rows without a revision), `taking` (rows that take part in the order over all
    keys), and `services` (rows of services, and writes with an acknowledgement level).
    """
    recorded = Frame(conform(table))
    bad = sum(1 for _ in broken_rows(recorded))
    multi_key = inspect_multi_key(recorded) if not bad else None
    bad = bad or len(multi_key.bad if multi_key is not None else ()) + sum(1 for _ in bad_services(recorded))
    if bad or multi_key is None:
        yield ShufflePiece(BAD, 0, json.dumps(bad).encode())
        return
    frame = plain(recorded, settled)
    if frame is not recorded:
        multi_key = inspect_multi_key(frame)
    taking = taking_part(frame)
    yield from _totals(recorded, frame, multi_key, taking)
    keys = Frame(_narrow(_of_keys(frame, multi_key)))
    owner = _owners(keys, hot)
    yield from _hot(keys, hot, owner, partitions)
    yield from _keys(keys, np.flatnonzero(owner < 0), partitions)
    yield from _ids(recorded, partitions)
    yield from _clients(recorded, partitions)
    order = frame.table.select(list(_ORDER)).append_column(
        "reads", pa.array(~(changes_of_one_key(frame) | multi_key.changed))
    )
    rows = np.flatnonzero(taking)
    blocks = frame.numbers("revision", 0)[rows] >> BLOCK_BITS
    yield from _pieces(ORDER, _narrow(order), blocks % partitions, partitions, rows)


def read_piece(payload: bytes) -> pa.Table:
    """Return the table in the payload of a ShufflePiece."""
    with pa.ipc.open_stream(pa.py_buffer(payload)) as stream:
        return stream.read_all()


def concat(tables: Sequence[pa.Table]) -> pa.Table:
    """Return the tables of several pieces of one kind as one table.

    In the result, each column has one chunk, the columns in `NAMES` are dictionary-encoded, and numbers have 64 bits.
    """
    coded = [_coded(table) for table in tables]
    return _wide(pa.concat_tables(coded, promote_options="permissive").unify_dictionaries().combine_chunks())


def _coded(table: pa.Table) -> pa.Table:
    for place, name in enumerate(table.column_names):
        column: Any = table.column(name)
        if name in NAMES and not pa.types.is_dictionary(column.type):
            table = table.set_column(place, name, column.dictionary_encode())
        elif name in NAMES and column.type.index_type != pa.int32():
            table = table.set_column(place, name, _indexed(column, pa.int32()))
    return table


def _wide(table: pa.Table) -> pa.Table:
    """Convert all numbers back to 64 bits."""
    for place, name in enumerate(table.column_names):
        column: Any = table.column(name)
        if pa.types.is_int32(column.type):
            table = table.set_column(place, name, column.cast(pa.int64()))
        elif pa.types.is_struct(column.type) and any(pa.types.is_int32(field.type) for field in column.type):
            whole = one_piece(column)
            wide = [pa.field(one.name, pa.int64() if pa.types.is_int32(one.type) else one.type) for one in whole.type]
            table = table.set_column(place, name, whole.cast(pa.struct(wide)))
    return table


def _totals(recorded: Frame, frame: Frame, multi_key: MultiKeyRows, taking: Bools) -> Iterator[ShufflePiece]:
    """Yield the totals of each run. `recorded`: the rows as they were read. `frame`: their plain rows."""
    multi_key_requests = np.zeros(frame.rows, np.bool_)
    multi_key_requests[multi_key.rows] = True
    of_services = np.zeros(recorded.rows, np.bool_)
    of_services[judged_rows(recorded)] = True
    status, outcome = recorded.codes("status"), frame.codes("status")
    read = {
        "rows": np.ones(recorded.rows, np.bool_),
        "unknown": status.among("unknown"),
        "failed": status.among("fail"),
        "services": of_services,
    }
    judged = {
        "multi_key_requests": multi_key_requests & ~outcome.among("fail"),
        "multi_key": multi_key.concerns,
        "without_revision": outcome.among("ok") & frame.null("revision"),
        "taking": taking,
    }
    counts = {name: _by_run(recorded, where) for name, where in read.items()}
    counts |= {name: _by_run(frame, where) for name, where in judged.items()}
    for run_id in counts["rows"]:
        of_run = {name: by_run.get(run_id, 0) for name, by_run in counts.items()}
        yield ShufflePiece(TOTALS, 0, json.dumps({"run_id": run_id, **of_run}).encode())


def _by_run(frame: Frame, where: Bools) -> dict[str, int]:
    """Return run_id → the number of rows for which `where` is true. Runs without such rows are left out."""
    run = frame.codes("run_id")
    sums = np.bincount(run.ids[where], minlength=len(run.texts))
    return {run.texts[code]: int(sums[code]) for code in np.flatnonzero(sums).tolist()}


def _of_keys(frame: Frame, multi_key: MultiKeyRows) -> pa.Table:
    """Return the rows about single keys, and the projections of the other rows, with the columns that decisions
    need."""
    if not len(multi_key.rows):
        return _lean(frame.table, _OUTPUT)
    single = np.ones(frame.rows, np.bool_)
    single[multi_key.rows] = False
    names = (*_OUTPUT, "results")
    tables = [_lean(table, names) for table in (frame.table.take(np.flatnonzero(single)), *multi_key.parts)]
    return concat(tables)


def _lean(table: pa.Table, answers: Sequence[str]) -> pa.Table:
    output: Any = one_piece(table.column("output"))
    fields = [pc.struct_field(output, name) for name in answers]
    for name, kind in (("weak", pa.large_string()), ("changes_store", pa.bool_())):
        if name not in table.column_names:
            table = table.append_column(name, pa.nulls(table.num_rows, kind))
    lean = pa.StructArray.from_arrays(fields, names=list(answers), mask=output.is_null())
    for place, name in enumerate(table.column_names):
        column: Any = table.column(name)
        if name in _MOSTLY_NULL and column.null_count == table.num_rows:
            # A column takes no memory if its type is null.
            table = table.set_column(place, name, pa.nulls(table.num_rows))
        elif pa.types.is_dictionary(column.type) and len(one_piece(column).dictionary) <= _SHORT_MAX:
            table = table.set_column(place, name, _indexed(column, pa.int8()))
    return table.select([name for name in NEEDED if name != "output"]).append_column("output", lean)


def _narrow(table: pa.Table) -> pa.Table:
    """Convert numbers and text offsets to 32 bits wherever they fit, which saves a third of the bytes."""
    for place, name in enumerate(table.column_names):
        column = one_piece(table.column(name))
        if pa.types.is_struct(column.type):
            fields = [_narrowed(column.field(number)) for number in range(column.type.num_fields)]
            kinds: list[Any] = [pa.field(one.name, field.type) for one, field in zip(column.type, fields, strict=True)]
            column = pa.StructArray.from_arrays(fields, fields=kinds, mask=column.is_null())
        table = table.set_column(place, name, _narrowed(column))
    return table


def _narrowed(column: Any) -> Any:
    if pa.types.is_large_string(column.type) and column.nbytes <= _INT32_MAX:
        return column.cast(pa.string())
    if not pa.types.is_int64(column.type):
        return column
    ends: Any = pc.min_max(column)
    least, greatest = ends["min"].as_py(), ends["max"].as_py()
    fits = least is None or (least >= -_INT32_MAX and greatest <= _INT32_MAX)
    return column.cast(pa.int32()) if fits else column


def _indexed(column: Any, kind: pa.DataType) -> Any:
    """Return the dictionary column with indices of this type."""
    coded = one_piece(column)
    indices: Any = coded.indices.cast(kind)
    return pa.DictionaryArray.from_arrays(indices, coded.dictionary)


def _keys(frame: Frame, rows: Int64s, partitions: int) -> Iterator[ShufflePiece]:
    """Yield pieces of kind KEYS with these rows. All rows of a key go to the same partition."""
    run, key = frame.codes("run_id"), frame.codes("key")
    targets = _targets(run.ids[rows], run.texts, key.ids[rows], key.texts, partitions)
    yield from _pieces(KEYS, _short_dictionaries(frame.table), targets, partitions, rows)


def _owners(frame: Frame, hot: Sequence[Hot]) -> Int64s:
    """Return for each row the number of its key among the hot keys, or -1."""
    owner = np.full(frame.rows, -1, np.int64)
    for number, one in enumerate(hot):
        owner[frame.codes("run_id").among(one.run_id) & frame.codes("key").among(one.key)] = number
    return owner


def _hot(frame: Frame, hot: Sequence[Hot], owner: Int64s, partitions: int) -> Iterator[ShufflePiece]:
    """Yield pieces of kind HOT with the rows of hot keys.

    The rows of all hot keys are copied together. In measurements, a separate copy for each key took longer than all
    other work.
    """
    rows = np.flatnonzero(owner >= 0)
    if not len(rows):
        return
    owner, revision, call = owner[rows], frame.numbers("revision", 0)[rows], frame.numbers("call_ns", 0)[rows]
    ranked = frame.codes("status").among("ok")[rows] & (revision > 0) & (revision < 2**61)
    rank = 2 * np.where(ranked, revision, 0) + ~changes_of_one_key(frame)[rows]
    places = np.zeros(len(rows), np.int64)
    for number in np.unique(owner).tolist():
        mine = np.flatnonzero((owner == number) & ranked)
        places[mine] = 1 + hot[number].ranges_of(rank[mine], call[mine])
    target = owner * (int(places.max()) + 1) + places
    order = sorted_by(target)
    ordered = _short_dictionaries(frame.table).take(rows[order])
    edges = np.flatnonzero(np.diff(target[order], prepend=-1)).tolist()
    for first, end in pairwise([*edges, len(order)]):
        for begin in range(first, end, PIECE_ROWS_MAX):
            piece = piece_of(ordered.slice(begin, min(PIECE_ROWS_MAX, end - begin)))
            yield ShufflePiece(HOT, partitions + int(owner[order[first]]), piece, int(places[order[first]]))


def _targets(run: Int32s, runs: Sequence[str], name: Int32s, names: Sequence[str], partitions: int) -> Int64s:
    """Return a partition for each (run, name). The partition is the same in every process."""
    pairs, place = np.unique(run.astype(np.int64) * len(names) + name, return_inverse=True)
    salts = [crc32(text.encode("utf-8", "surrogatepass")) for text in runs]
    hashes = [
        crc32(names[pair % len(names)].encode("utf-8", "surrogatepass"), salts[pair // len(names)]) % partitions
        for pair in pairs.tolist()
    ]
    targets: Int64s = np.array(hashes, np.int64)[place.reshape(-1)]
    return targets


def _ids(frame: Frame, partitions: int) -> Iterator[ShufflePiece]:
    """Yield pieces of kind IDS with ranges of consecutive op_ids. If an op_id occurs twice in a run, yield only a piece
    of kind CLASH."""
    run, op_id = frame.codes("run_id").ids.astype(np.int64), frame.numbers("op_id", 0)
    if (np.diff(op_id) < 0).any() or (np.diff(run) < 0).any():
        order = np.lexsort((op_id, run))
        run, op_id = run[order], op_id[order]
    same, step = np.diff(run) == 0, np.diff(op_id)
    if (same & (step == 0)).any():
        yield ShufflePiece(CLASH, 0, b"{}")
        return
    cut = ~same | (step != 1) | (np.diff(op_id >> _IDS_BITS) != 0)
    first, last = np.flatnonzero(np.concatenate(([True], cut))), np.flatnonzero(np.concatenate((cut, [True])))
    texts = pa.array(frame.codes("run_id").texts, pa.large_string())
    named = pa.DictionaryArray.from_arrays(run[first].astype(np.int32), texts)
    table = pa.table({"run_id": named, "first": pa.array(op_id[first]), "last": pa.array(op_id[last])})
    yield from _pieces(IDS, table, (op_id[first] >> _IDS_BITS) % partitions, partitions)


def _short_dictionaries(table: pa.Table) -> pa.Table:
    for name in ("key", "client"):
        if name not in table.column_names:
            continue
        column: Any = table.column(name)
        if pa.types.is_dictionary(column.type) and sum(len(c.dictionary) for c in column.chunks) > DICTIONARY_MAX:
            plain = column.cast(pa.large_string())
            table = table.set_column(table.column_names.index(name), name, plain)
    return table


def _clients(frame: Frame, partitions: int) -> Iterator[ShufflePiece]:
    """Yield pieces of kind CLIENTS with the first call and the last return of each client.

    The last return is _ENDLESS if an operation of the client never returned. If two operations of a client overlap,
    yield only a piece of kind CLASH.
    """
    run, client = frame.codes("run_id"), frame.codes("client")
    call, ended = frame.numbers("call_ns", 0), frame.numbers("return_ns", _ENDLESS)
    owner = run.ids.astype(np.int64) * len(client.texts) + client.ids
    order = np.argsort(call, kind="stable") if (np.diff(call) < 0).any() else np.arange(frame.rows)
    order = order[sorted_by(owner[order])]
    same = np.diff(owner[order]) == 0
    if (same & (ended[order[:-1]] > call[order[1:]])).any():
        yield ShufflePiece(CLASH, 0, b"{}")
        return
    first, last = order[np.concatenate(([True], ~same))], order[np.concatenate((~same, [True]))]
    names = frame.table.select(["run_id", "client"]).take(first)
    table = names.append_column("first", pa.array(call[first])).append_column("last", pa.array(ended[last]))
    targets = _targets(run.ids[first], run.texts, client.ids[first], client.texts, partitions)
    yield from _pieces(CLIENTS, _short_dictionaries(table), targets, partitions)


def _pieces(
    kind: str, table: pa.Table, targets: Int64s, partitions: int, rows: Int64s | None = None
) -> Iterator[ShufflePiece]:
    """Yield pieces of a table. `rows`: the rows to send; None for all rows. `targets`: the partitions of these rows."""
    if not len(targets):
        return
    order = sorted_by(targets)
    ordered = table.take(order if rows is None else rows[order])
    edges = np.searchsorted(targets[order], np.arange(partitions + 1)).tolist()
    for target in range(partitions):
        for begin in range(edges[target], edges[target + 1], PIECE_ROWS_MAX):
            length = min(PIECE_ROWS_MAX, edges[target + 1] - begin)
            yield ShufflePiece(kind, target, piece_of(ordered.slice(begin, length)))


def piece_of(table: pa.Table) -> bytes:
    """Return the table as a payload, from which `read_piece` makes the table again."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    made: Any = sink.getvalue()
    return bytes(made)


def clients_clash(table: pa.Table) -> bool:
    """Return whether two intervals of one client overlap in a table of kind CLIENTS.

    If no intervals overlap, no two operations of one client overlap.
    """
    frame = Frame(table)
    run, client = frame.codes("run_id"), frame.codes("client")
    owner = run.ids.astype(np.int64) * len(client.texts) + client.ids
    first, last = frame.numbers("first", 0), frame.numbers("last", 0)
    order = np.lexsort((last, first, owner))
    same = np.diff(owner[order]) == 0
    return bool((same & (last[order[:-1]] > first[order[1:]])).any())


def ids_clash(table: pa.Table) -> bool:
    """Return whether, according to a table of kind IDS, an op_id occurs twice in a run."""
    frame = Frame(table)
    run, first, last = frame.codes("run_id").ids, frame.numbers("first", 0), frame.numbers("last", 0)
    order = np.lexsort((first, run))
    same = np.diff(run[order]) == 0
    return bool((same & (first[order[1:]] <= last[order[:-1]])).any())
