"""Operations of many keys as columns of numbers, sorted by (key, call).

Failed operations and reads of unknown outcome are left out, because they do not affect the order of a key. Reads that
promise less than linearizability (`local` and `bounded` reads, and listings at a pinned revision) have columns of their
own, in `weak`. The projection of a listing onto one of its keys (`history/projection.py`) is a read of this key.
Appends, and projections of transactions, are of kind OTHER. Columns cannot express them, so `key/decide.py` decides
their keys.

A *token* is a number that stands for a value of one key. Arrow's dictionary compares whole texts, not their hashes, so
equal tokens mean equal texts. Key k has the tokens in [`tokens[k]`, `tokens[k + 1]`). The first of these tokens
stands for the absence of the key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_audit.history.operation import WEAK

Int8s: TypeAlias = npt.NDArray[np.int8]
Int64s: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]

FOREVER = 2**63 - 1  # The return of an operation of unknown outcome.
GET, PUT, DELETE, CAS, OTHER = range(5)
NOTHING = -1  # Stands for a token or a number that was not reported, or that does not apply.
PRESENT = -2  # In `finds`: the response reported a record without its value.

_KINDS = {"get": GET, "range": GET, "put": PUT, "delete": DELETE, "cas": CAS}
_OUTPUT: tuple[tuple[str, pa.DataType], ...] = (
    ("succeeded", pa.bool_()),
    ("found", pa.bool_()),
    ("value", pa.string()),
    ("create_revision", pa.int64()),
    ("mod_revision", pa.int64()),
    ("version", pa.int64()),
)
_FIELDS: list[tuple[str, pa.DataType]] = [
    ("run_id", pa.string()),
    ("op_id", pa.int64()),
    ("op", pa.string()),
    ("key", pa.string()),
    ("value", pa.string()),
    ("expected", pa.string()),
    ("expected_mod_revision", pa.int64()),
    ("output", pa.struct(list(_OUTPUT))),
    ("status", pa.string()),
    ("call_ns", pa.int64()),
    ("return_ns", pa.int64()),
    ("clock_id", pa.string()),
    ("revision", pa.int64()),
    ("consistency", pa.string()),
    ("weak", pa.string()),
]
NEEDED: pa.Schema = pa.schema(_FIELDS)


@dataclass(frozen=True, slots=True)
class Columns:
    """The operations of many keys. The rows of key k are those in [`starts[k]`, `starts[k + 1]`).

    `names[k]`: the (run_id, key) of key k. `row`: the number of the row in the input. The next four fields describe the
    effect of an operation. For an operation of unknown outcome, they describe the effect that it has if it takes
    effect.

    `writes`: the token that the operation writes; for a deletion that found a record or may have found one, the token
    of absence. `finds`: the token that the state before the operation must have, or PRESENT or NOTHING; for a failed
    compare-and-set, the token that its response reported. `differs`: for a failed compare-and-set, a token that the
    state before it must not have. `expected_revision`: the revision that the record before a compare-and-set must have;
    if the compare-and-set `failed`, the record must have another revision.
    """

    names: list[tuple[str, str]]
    starts: Int64s
    tokens: Int64s
    row: Int64s
    op_id: Int64s
    kind: Int8s
    unknown: Bools
    failed: Bools  # A compare-and-set whose comparison was false.
    call: Int64s
    ret: Int64s
    clock: Int64s
    revision: Int64s  # The revision of the operation; 0 if there is none.
    writes: Int64s
    finds: Int64s
    differs: Int64s
    expected_revision: Int64s
    mod: Int64s  # `mod`, `create` and `version` are the numbers of the record, as the response reported them.
    create: Int64s
    version: Int64s
    # The reads that promise less than linearizability, as separate columns with the same names and tokens.
    weak: Columns | None = None

    def __len__(self) -> int:
        return len(self.call)

    @property
    def keys(self) -> int:
        """The number of keys."""
        return len(self.names)

    def of_keys(self, keys: Int64s) -> Columns:
        """Return columns with only these keys and their rows. Tokens are renumbered."""
        rows, sizes = rows_of(self, keys), np.diff(self.starts)[keys]
        room = np.diff(self.tokens)[keys]
        tokens = np.concatenate(([0], np.cumsum(room)))
        moved = np.repeat(tokens[:-1] - self.tokens[keys], sizes)
        columns = {name: getattr(self, name)[rows] for name in _PER_ROW}
        for name in ("writes", "finds", "differs"):
            columns[name] = np.where(columns[name] >= 0, columns[name] + moved, columns[name])
        starts = np.concatenate(([0], np.cumsum(sizes)))
        return Columns([self.names[key] for key in keys.tolist()], starts, tokens, **columns)

    def where(self, rows: Bools) -> Columns:
        """Return these rows only. All keys and tokens are kept."""
        starts = np.concatenate(([0], np.cumsum(rows)))[self.starts]
        return Columns(self.names, starts, self.tokens, **{name: getattr(self, name)[rows] for name in _PER_ROW})

    def key_of_row(self) -> Int64s:
        """Return for each row the number of its key."""
        return np.repeat(np.arange(self.keys), np.diff(self.starts))


_PER_ROW = tuple(name for name in Columns.__slots__ if name not in ("names", "starts", "tokens", "weak"))


def rows_of(columns: Columns, keys: Int64s) -> Int64s:
    """Return the rows of these keys, in the given order of the keys."""
    sizes = np.diff(columns.starts)[keys]
    ends = np.cumsum(sizes)
    rows: Int64s = np.arange(int(sizes.sum())) + np.repeat(columns.starts[keys] - (ends - sizes), sizes)
    return rows


def encode_rows(rows: Iterable[Mapping[str, Any]]) -> Columns:
    """Return the columns of these rows.

    Every row must be well-formed (docs/reference/specification.md#103-row) and concern one key.
    """
    return encode(pa.Table.from_pylist([{**row} for row in rows], schema=NEEDED))


def encode(table: pa.Table) -> Columns:
    """Return the columns of a table. Takes O(n log n).

    Every row must be well-formed and concern one key. A column that the table does not have counts as null.
    """
    source = _Source(table)
    op, status = source.codes("op"), source.codes("status")
    ok, unknown = status.equal("ok"), status.equal("unknown")
    kind = np.full(table.num_rows, OTHER, np.int8)
    for name, number in _KINDS.items():
        kind[op.equal(name)] = number
    weak = source.valid("weak")
    for word in WEAK:
        weak = weak | source.codes("consistency").equal(word)
    taking_part = ok | (unknown & (kind != GET))
    key, names = _key_ids(source)
    row = _by_key_and_call(key, source.numbers("call_ns", 0), taking_part)
    made = _Meaning(source, kind, unknown)
    key = key[row]
    assert (key >= 0).all(), "a row of no single key: project it to its keys first"
    starts = np.searchsorted(key, np.arange(len(names) + 1))
    writes, finds, differs, tokens = made.tokens(row, key, len(names))
    unknown = unknown[row]
    found_record = made.found_record[row]
    columns = Columns(
        names=names,
        starts=starts,
        tokens=tokens,
        row=row,
        op_id=source.numbers("op_id", NOTHING)[row],
        kind=np.where(made.strange[row], np.int8(OTHER), kind[row]),
        unknown=unknown,
        failed=made.failed[row],
        call=source.numbers("call_ns", 0)[row],
        ret=np.where(unknown, FOREVER, source.numbers("return_ns", FOREVER)[row]),
        clock=source.codes("clock_id").ids[row],
        revision=np.where(unknown, 0, source.numbers("revision", 0)[row]),
        writes=writes,
        finds=finds,
        differs=differs,
        expected_revision=made.expected_revision[row],
        mod=np.where(found_record, source.output_numbers("mod_revision")[row], NOTHING),
        create=np.where(found_record, source.output_numbers("create_revision")[row], NOTHING),
        version=np.where(found_record, source.output_numbers("version")[row], NOTHING),
    )
    if not weak[row].any():
        return columns
    return replace(columns.where(~weak[row]), weak=columns.where(weak[row]))


def key_ids(table: pa.Table) -> Int64s:
    """Return for each row of the table the number of its key: the index of the key in `names` of `encode(table)`."""
    return _key_ids(_Source(table.select(["run_id", "key"])))[0]


@dataclass(frozen=True, slots=True)
class _Codes:
    """A column of texts, stored as indices into a list of texts; -1 for null."""

    ids: Int64s
    texts: list[str]

    def equal(self, text: str) -> Bools:
        equal: Bools = self.ids == (self.texts.index(text) if text in self.texts else -2)
        return equal


class _Source:
    """The columns of a table as numpy arrays. A column that the table does not have counts as null."""

    def __init__(self, table: pa.Table) -> None:
        self.rows = table.num_rows
        self._columns = {name: table.column(name).combine_chunks() for name in table.column_names}
        output: Any = self._columns.get("output")
        self._output = {} if output is None or pa.types.is_null(output.type) else _fields(output)

    def text(self, name: str) -> Any:
        return _as_text(self._columns.get(name), self.rows)

    def output_text(self, name: str) -> Any:
        return _as_text(self._output.get(name), self.rows)

    def codes(self, name: str) -> _Codes:
        column: Any = self._columns.get(name)
        if column is not None and pa.types.is_dictionary(column.type):
            return _used(_numbers(column.indices, -1), column.dictionary.to_pylist())
        encoded = self.text(name).dictionary_encode()
        return _Codes(_numbers(encoded.indices, -1), encoded.dictionary.to_pylist())

    def valid(self, name: str) -> Bools:
        return _valid(self._columns.get(name), self.rows)

    def numbers(self, name: str, null: int) -> Int64s:
        return self._filled(self._columns.get(name), null)

    def output_numbers(self, name: str) -> Int64s:
        return self._filled(self._output.get(name), NOTHING)

    def flags(self, name: str) -> Int8s:
        """A flag of `output` per row: 1, 0, or -1 for null."""
        return self._filled(self._output.get(name), NOTHING).astype(np.int8)

    def _filled(self, column: Any, null: int) -> Int64s:
        missing = column is None or pa.types.is_null(column.type)
        return np.full(self.rows, null, np.int64) if missing else _numbers(column, null)


def _used(ids: Int64s, texts: list[str | None]) -> _Codes:
    """Return the same column of texts with a dictionary that has no unused and no repeated entries."""
    there = np.zeros(len(texts) + 1, np.bool_)
    there[ids] = True
    number: dict[str, int] = {}
    numbers = [
        number.setdefault(text, len(number)) if used and text is not None else -1
        for text, used in zip(texts, there.tolist(), strict=False)
    ]
    return _Codes(np.array([*numbers, -1], np.int64)[ids], list(number))


def _fields(output: Any) -> dict[str, Any]:
    return {field.name: pc.struct_field(output, field.name) for field in output.type}


def _as_text(column: Any, rows: int) -> Any:
    if column is None or pa.types.is_null(column.type):
        return pa.nulls(rows, pa.large_string())
    return column if pa.types.is_large_string(column.type) else column.cast(pa.large_string())


def _valid(column: Any, rows: int) -> Bools:
    if column is None or column.null_count == len(column):
        return np.zeros(rows, np.bool_)
    return np.asarray(column.is_valid().to_numpy(zero_copy_only=False), np.bool_)


def _numbers(column: Any, null: int) -> Int64s:
    plain = column.cast(pa.int64()) if column.type != pa.int64() else column
    filled = plain.fill_null(null) if plain.null_count else plain
    return np.asarray(filled.to_numpy(zero_copy_only=False), np.int64)


def _key_ids(source: _Source) -> tuple[Int64s, list[tuple[str, str]]]:
    """Return for each row the number of its (run_id, key), and the list of these pairs in the order of the numbers."""
    run, key = source.codes("run_id"), source.codes("key")
    runs = run.texts or [""]
    if len(runs) == 1:
        return key.ids, [(runs[0], name) for name in key.texts]
    pairs, ids = np.unique(run.ids * len(key.texts) + key.ids, return_inverse=True)
    names = [(runs[pair // len(key.texts)], key.texts[pair % len(key.texts)]) for pair in pairs.tolist()]
    return ids.reshape(-1).astype(np.int64), names


def _by_key_and_call(key: Int64s, call: Int64s, taking_part: Bools) -> Int64s:
    """Return the numbers of the rows for which `taking_part` is true, sorted by (key, call)."""
    row = np.flatnonzero(taking_part)
    if len(row) > 1 and (np.diff(call[row]) < 0).any():
        row = row[np.argsort(call[row], kind="stable")]
    return row[sorted_by(key[row])]


def sorted_by(rank: Int64s) -> Int64s:
    """Return a stable argsort of numbers ≥ 0.

    Each rank and its place are packed into one number. Sorting these numbers is several times faster than an argsort of
    the ranks.
    """
    place_bits = max(1, len(rank) - 1).bit_length()
    if len(rank) == 0 or int(rank.max()).bit_length() + place_bits > 63:
        return np.argsort(rank, kind="stable")
    packed = (rank << place_bits) | np.arange(len(rank))
    packed.sort()
    return packed & ((1 << place_bits) - 1)


class _Meaning:
    """The effect of each row of the source on its key, and the state that the row requires before its operation."""

    def __init__(self, source: _Source, kind: Int8s, unknown: Bools) -> None:
        found, succeeded = source.flags("found"), source.flags("succeeded")
        cas = kind == CAS
        expected_revision = np.where(cas, source.numbers("expected_mod_revision", NOTHING), NOTHING)
        by_value = cas & (expected_revision < 0)
        self.failed = cas & ~unknown & (succeeded == 0)
        self.expected_revision = np.where(expected_revision > 0, expected_revision, NOTHING)
        reads = (kind == GET) | self.failed
        self.found_record = reads & (found == 1)
        deletes = (kind == DELETE) & (unknown | (found == 1))
        self._writes_value = (kind == PUT) | (cas & ~self.failed)
        self._writes_absence = deletes
        self._finds_absence = (reads & (found != 1)) | ((kind == DELETE) & ~unknown & (found != 1))
        self._finds_present = ((kind == DELETE) & ~unknown & (found == 1)) | self.found_record
        self._finds_seen = self.found_record & _valid_output(source, "value")
        expects_absence = (expected_revision == 0) | (by_value & ~source.valid("expected"))
        self._expects_absence = cas & expects_absence
        self._expects_value = by_value & source.valid("expected")
        # Revision 0 stands for absence. So the columns cannot express a record that a response reports with revision 0.
        self.strange = self.found_record & (source.output_numbers("mod_revision") == 0)
        self._source = source

    def tokens(self, row: Int64s, key: Int64s, keys: int) -> tuple[Int64s, Int64s, Int64s, Int64s]:
        """Return `writes`, `finds` and `differs` of these rows, and `tokens` of all keys (see `Columns`)."""
        source, rows = self._source, self._source.rows
        texts = pa.concat_arrays([source.text("value"), source.text("expected"), source.output_text("value")])
        ids = _numbers(texts.dictionary_encode().indices, NOTHING)
        meant = (self._writes_value, self._expects_value, self._finds_seen)
        table = np.stack(
            [np.where(where, ids[i * rows : (i + 1) * rows], NOTHING)[row] for i, where in enumerate(meant)], axis=1
        )
        tokens, first = number_tokens(table, key, keys)
        absence = first[key]
        writes = np.where(self._writes_absence[row], absence, tokens[:, 0])
        expects = np.where(self._expects_absence[row], absence, tokens[:, 1])
        seen = np.where(self._finds_present[row] & ~self._finds_seen[row], PRESENT, tokens[:, 2])
        seen = np.where(self._finds_absence[row], absence, seen)
        failed = self.failed[row]
        finds = np.where((expects != NOTHING) & ~failed, expects, seen)
        return writes, finds, np.where(failed, expects, NOTHING), first


def _valid_output(source: _Source, name: str) -> Bools:
    return np.asarray(source.output_text(name).is_valid().to_numpy(zero_copy_only=False), np.bool_)


def number_tokens(values: Int64s, key: Int64s, keys: int) -> tuple[Int64s, Int64s]:
    """Return the token of each value (NOTHING stays NOTHING), and `tokens` of all keys (see `Columns`).

    The rows must be sorted by key.
    """
    flat = values.reshape(-1)
    known = np.flatnonzero(flat >= 0)
    value, owner = flat[known], key[known // values.shape[1]]
    size = int(value.max(initial=-1)) + 1
    belongs = np.zeros(size, np.int64)
    belongs[value] = owner
    if (belongs[value] != owner).any():  # A value that occurs with several keys gets one token for each key.
        _, value = np.unique(owner * size + value, return_inverse=True)
        value, size = value.reshape(-1), len(_)
    first_seen = np.zeros(size, np.int64)
    # numpy keeps the last of several assignments to one index. The places are reversed, so the first place is kept.
    first_seen[value[::-1]] = np.arange(len(value))[::-1]
    is_first = np.zeros(len(value), np.bool_)
    is_first[first_seen[value]] = True
    rank = (np.cumsum(is_first) - 1)[first_seen[value]]
    tokens = np.full(len(flat), NOTHING, np.int64)
    # The smaller tokens are `rank` tokens of values, and `owner + 1` tokens that stand for the absence of a key.
    tokens[known] = rank + owner + 1
    new = np.bincount(owner[is_first], minlength=keys)
    first = np.concatenate(([0], np.cumsum(new + 1)))
    return tokens.reshape(values.shape), first
