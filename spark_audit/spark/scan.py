"""The main pass of the audit over the data, as Spark stages.

Tasks read files in chunks, and cut the chunks into pieces (`tables/shuffle.py`). One shuffle brings the pieces of each
partition together, and a task decides the partition. Tasks read files as Arrow tables, and the shuffle moves Arrow
streams, because Spark's own rows cost ten times as much (docs/reference/audit.md).
"""

from __future__ import annotations

import json
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import chain, groupby
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as parquet
from pyspark.sql import functions as f

from spark_audit.history.clocks import Clocks
from spark_audit.history.paths import HistoryFile
from spark_audit.history.rows import REQUEST_OPS
from spark_audit.spark.keys import KEY_RESULT, batches_of, key_batches, key_schema, summed
from spark_audit.tables.conform import conform
from spark_audit.tables.frame import Frame
from spark_audit.tables.hot_keys import SAMPLE, HotKey, decide_parts, hot_keys, sampled
from spark_audit.tables.jsonl import pieces_of
from spark_audit.tables.order_blocks import Latest, blocks_of
from spark_audit.tables.parquet import leaves, open_table
from spark_audit.tables.ranges import HOT_ROWS, LIMITS
from spark_audit.tables.services import Settled, plain
from spark_audit.tables.shuffle import (
    BAD,
    CLASH,
    CLIENTS,
    HOT,
    IDS,
    KEYS,
    ORDER,
    ShufflePiece,
    clients_clash,
    concat,
    ids_clash,
    read_piece,
    shuffle_pieces,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Stage = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]

# A task holds this many rows at once. With everything computed from them, they take about 100 MB.
CHUNK_ROWS = 1 << 18
TASK_ROWS = 1 << 20
# The bytes of JSON lines per task. These lines have about a third of TASK_ROWS rows, because text is slow to parse.
LINES_TASK_BYTES = 1 << 27
# A Parquet source is sampled only if it has at least HOT_ROWS / (_UNTOLD * number of sources) rows of some key.
_UNTOLD = 4
PARTITION_ROWS = 250_000  # The number of rows of a partition. A partition is decided at once, which takes about 100 MB.
PIECES_AT_ONCE = 32  # Spark passes at most this many pieces to Python at once.
SMALL_ROWS = 5_000  # Up to this number of rows, there is only one partition: more tasks would cost more than they save.
JSON_ROW_BYTES = 300  # An estimate, which is used only to choose the number of partitions.
ERROR, SUMMARY = "error", "summary"
_OF_ONE_KEY = (
    "client", "key", "value", "expected", "expected_mod_revision", "output.value", "output.create_revision",
    "output.mod_revision", "output.version",
)  # fmt: skip
_CUT = "kind string, target int, place int, file string, payload binary"
RESULT = f"{KEY_RESULT}, kind string, file string, payload string"


@dataclass(frozen=True, slots=True)
class Source:
    """The input of one task: a part of one file.

    If `lines` is true, the file has JSON lines, and the part is the lines that begin at bytes in [`first`, `last`).
    Otherwise the file is a Parquet file, and the part is its row groups in [`first`, `last`).
    """

    path: str
    first: int
    last: int
    rows: int
    lines: bool = False


def sources(files: Sequence[HistoryFile]) -> list[Source]:
    """Return the sources of these files, one per task. Of the files, only Parquet footers are read."""
    return [source for file in files for source in _sources_of(file)]


def _sources_of(file: HistoryFile) -> Iterator[Source]:
    path = str(file.path.resolve())
    if not file.parquet:
        size = file.path.stat().st_size
        for begin in range(0, max(1, size), LINES_TASK_BYTES):
            end = min(size, begin + LINES_TASK_BYTES)
            yield Source(path, begin, end, (end - begin) // JSON_ROW_BYTES, lines=True)
        return
    footer = parquet.read_metadata(path)
    first, rows = 0, 0
    for group in range(footer.num_row_groups):
        rows += footer.row_group(group).num_rows
        if rows >= TASK_ROWS or group == footer.num_row_groups - 1:
            yield Source(path, first, group + 1, rows)
            first, rows = group + 1, 0


@dataclass(frozen=True, slots=True)
class Scan:
    """The plan of a pass over some files. `clocks`: path of a file → the clocks of its run."""

    session: SparkSession
    sources: list[Source]
    clocks: dict[str, Clocks]
    partitions: int
    configurations_max: int
    hot: tuple[HotKey, ...] = ()  # The partitions of hot keys come after all other partitions.
    settled: Settled = field(default_factory=dict)  # The rows that replace unknown writes (`tables/services.py`).

    @classmethod
    def of(
        cls,
        session: SparkSession,
        files: Sequence[HistoryFile],
        clocks: Mapping[str, Clocks],
        configurations_max: int,
    ) -> Scan:
        """Plan the pass: sources, partitions and hot keys."""
        found = sources(files)
        rows = sum(source.rows for source in found)
        tasks = int(session.conf.get("spark.sql.shuffle.partitions") or 1)
        partitions = max(tasks, -(-rows // PARTITION_ROWS)) if rows > SMALL_ROWS else 1
        hot = _hot_keys(session, found) if rows > HOT_ROWS else ()
        return cls(session, found, dict(clocks), partitions, configurations_max, hot)

    @contextmanager
    def handing_over_few(self) -> Iterator[None]:
        """Let Spark pass fewer pieces to Python at once while the body runs.

        A piece may have several MB, and Java limits an Arrow batch to 2 GiB.
        """
        name = "spark.sql.execution.arrow.maxRecordsPerBatch"
        before = self.session.conf.get(name) or ""
        self.session.conf.set(name, str(PIECES_AT_ONCE))
        try:
            yield
        finally:
            self.session.conf.set(name, before)

    def results(self) -> DataFrame:
        """Return the results of all partitions, as rows of RESULT.

        Each row is the result of a key, or a note of `_decider`. Only notes have a `kind`.
        """
        return self._gathered(self._cuts()).mapInArrow(_decider(self.clocks, self.configurations_max, None), RESULT)

    def block_results(self, carries: Mapping[tuple[str, int], Latest]) -> DataFrame:
        """Check some blocks of the order over all keys once more, each starting from its carry in `carries`.

        Return the results as rows of RESULT.
        """
        cuts = self._cuts().where(f.col("kind") == ORDER)
        return self._gathered(cuts).mapInArrow(_decider(self.clocks, self.configurations_max, dict(carries)), RESULT)

    def _cuts(self) -> DataFrame:
        tasks = self.session.range(0, len(self.sources), 1, len(self.sources))
        return tasks.mapInArrow(_reader(self.sources, self.partitions, self.hot, self.settled), _CUT)

    def _gathered(self, cuts: DataFrame) -> DataFrame:
        """Return the pieces with one partition per target.

        The last targets come first, because they belong to hot keys, which take the longest.
        """
        count = self.partitions + len(self.hot)
        gathered = cuts.repartitionById(count, f.lit(count - 1) - f.col("target"))
        return gathered.sortWithinPartitions("place") if self.hot else gathered


def _hot_keys(session: SparkSession, found: Sequence[Source]) -> tuple[HotKey, ...]:
    tasks = session.range(0, len(found), 1, len(found))
    every = [(one.path, one.first, one.last, one.lines) for one in found]
    samples = tasks.mapInArrow(_sampler(every, HOT_ROWS // (_UNTOLD * len(found))), SAMPLE)
    return tuple(hot_keys([samples.toArrow()], HOT_ROWS, LIMITS.range))


def _sampler(found: Sequence[tuple[str, int, int, bool]], rows_min: int) -> Stage:
    def sample(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for table in sampled([found[row["id"]] for row in batch.to_pylist()], rows_min):
                yield from table.combine_chunks().to_batches()

    return sample


def _reader(found: Sequence[Source], partitions: int, hot: Sequence[HotKey], settled: Settled) -> Stage:
    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in batch.to_pylist():
                source = found[row["id"]]
                for cut in _cuts_of(source, partitions, hot, settled):
                    yield pa.RecordBatch.from_arrays(
                        [
                            pa.array([cut.kind], pa.string()),
                            pa.array([cut.target], pa.int32()),
                            pa.array([cut.place], pa.int32()),
                            pa.array([source.path], pa.string()),
                            pa.array([cut.payload], pa.binary()),
                        ],
                        names=["kind", "target", "place", "file", "payload"],
                    )

    return read


def _cuts_of(source: Source, partitions: int, hot: Sequence[HotKey], settled: Settled) -> Iterator[ShufflePiece]:
    try:
        for table in chunks(source):
            if table is None:
                yield ShufflePiece(BAD, 0, b"1")
            else:
                yield from shuffle_pieces(table, partitions, hot, settled)
    except (pa.ArrowException, OSError) as error:
        yield ShufflePiece(BAD, 0, json.dumps(f"cannot be read ({str(error).splitlines()[0]})").encode())


def chunks(source: Source, *, order_only: bool = False) -> Iterator[pa.Table | None]:
    """Yield tables of at most CHUNK_ROWS; None for malformed lines.

    `order_only`: whether to leave out, where possible, the columns that are used only to decide single keys. These
    columns have most of the bytes.
    """
    if source.lines:
        for piece in pieces_of(source.path, source.first, source.last):
            if piece.bad:
                yield None
            for begin in range(0, piece.table.num_rows, CHUNK_ROWS):
                yield piece.table.slice(begin, CHUNK_ROWS)
        return
    with open_table(source.path) as file:
        for group in range(source.first, source.last):
            ops = file.read_row_group(group, columns=["op"]).column("op")
            columns = leaves(file, ops)
            if order_only and not any(op in REQUEST_OPS for op in ops.unique().to_pylist()):
                columns = [name for name in columns if name not in _OF_ONE_KEY]
            for batch in file.iter_batches(CHUNK_ROWS, row_groups=[group], columns=columns, use_threads=False):
                table = pa.Table.from_batches([batch])
                table.validate(full=True)  # The full validation checks, among other things, that all text is UTF-8.
                yield table


def plain_frames(source: Source, settled: Settled, *, order_only: bool = False) -> Iterator[Frame]:
    """Yield the plain rows of each chunk of a source (`plain` in tables/services.py). No line may be malformed."""
    for table in chunks(source, order_only=order_only):
        assert table is not None, "malformed rows were refused before"
        yield plain(Frame(conform(table)), settled)


def _decider(
    clocks: Mapping[str, Clocks], configurations_max: int, carries: Mapping[tuple[str, int], Latest] | None
) -> Stage:
    def decide_all(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        pieces: dict[str, list[pa.Table]] = {}
        of_run: dict[str, Clocks] = {}
        cuts = (cut for batch in batches for cut in batch.to_pylist())
        for cut in cuts:
            if cut["kind"] == HOT:  # The partition of a hot key has only the pieces of this key, sorted by place.
                yield from _decided(_of_hot_key(chain((cut,), cuts), clocks[cut["file"]], configurations_max))
            elif cut["kind"] in (KEYS, IDS, CLIENTS, ORDER):
                table = read_piece(cut["payload"])
                pieces.setdefault(cut["kind"], []).append(table)
                for run_id in table.column("run_id").unique().to_pylist():
                    of_run[str(run_id)] = clocks[cut["file"]]
            else:
                yield _note(cut["kind"], cut["payload"].decode(), cut["file"])
        for kind, clash in ((IDS, ids_clash), (CLIENTS, clients_clash)):
            if kind in pieces and clash(concat(pieces.pop(kind))):
                yield _note(CLASH, "{}")
        if ORDER in pieces:
            for block in blocks_of(concat(pieces.pop(ORDER)), of_run, carries):
                yield _note(ORDER, json.dumps(asdict(block)))
        if KEYS in pieces:
            yield from _decided(key_batches(concat(pieces.pop(KEYS)), of_run, configurations_max))

    return decide_all


def _of_hot_key(cuts: Iterable[Mapping[str, Any]], clocks: Clocks, configurations_max: int) -> Iterator[pa.RecordBatch]:
    parts = (
        (place, concat([read_piece(cut["payload"]) for cut in some]))
        for place, some in groupby(cuts, key=lambda cut: int(cut["place"]))
    )
    yield from batches_of(decide_parts(parts, clocks, configurations_max))


def _decided(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the results of keys, and then a note with their sums."""
    summary: Counter[tuple[str, str, str]] = Counter()
    try:
        for batch in batches:
            summary.update(summed(batch))
            yield _padded(batch)
        yield _note(SUMMARY, json.dumps([[*name, number] for name, number in sorted(summary.items())]))
    except Exception:  # The cause may be contradictory rows, which are reported after all rows are read.
        yield _note(ERROR, json.dumps(traceback.format_exc()))


_NOTES = ("kind", "file", "payload")


def _padded(batch: pa.RecordBatch) -> pa.RecordBatch:
    nothing = pa.nulls(batch.num_rows, pa.string())
    return pa.RecordBatch.from_arrays([*batch.columns, *(nothing for _ in _NOTES)], [*batch.schema.names, *_NOTES])


def _note(kind: str, payload: str, file: str | None = None) -> pa.RecordBatch:
    empty = [pa.nulls(1, field.type) for field in key_schema()]
    texts = [pa.array([text], pa.string()) for text in (kind, file, payload)]
    return pa.RecordBatch.from_arrays([*empty, *texts], [*key_schema().names, *_NOTES])
