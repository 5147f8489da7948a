"""A recorded run on disk: docs/reference/specification.md#10-recorded-run.

    DIR/run.json       format, run id, seed, fault schedule, versions, clocks; `finished` once all rows are written
    DIR/ops/*          one row per operation, written when it ends: `*.jsonl` or `*.parquet`
    DIR/events.jsonl   faults, leader changes, changes of the members' status
    DIR/calls.jsonl    the calls of all writes so far; removed when the run ends in an orderly way

`calls.jsonl` is needed because a read may show a value whose write has not ended yet. If the harness is then killed,
the rows alone would show a value that nobody wrote. Calls are flushed before rows, so `calls.jsonl` has every write
that a recorded read could have seen. `close_unfinished_run` turns each call without a row into an `unknown` row.
"""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Protocol

from harness.errors import BadInput, ExtraMissing
from harness.recording.clock import RunClock

Row = dict[str, object]

# The format of a run folder. A run.json that states no format has this format. The audit has its own copy of this
# constant.
RUN_FORMAT = 1
WRITES = frozenset({"put", "delete", "cas", "txn", "delete_range", "lock", "consume"})
# A killed harness loses at most this many rows of JSON lines. If a recorded read shows the value of a write whose row
# is lost, calls.jsonl has the call of this write.
UNFLUSHED_ROWS_MAX = 500
PARQUET_ROWS_MAX = 20_000  # Rows per file. A killed harness loses the rows in memory, at most this many.


def to_text(data: bytes) -> str:
    """Return bytes as text for a history: as UTF-8, or as `base64:…` if they are not UTF-8 or begin with `base64:`."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        text = None
    if text is None or text.startswith("base64:"):
        return "base64:" + base64.b64encode(data).decode("ascii")
    return text


def canonical_json(value: object) -> str:
    """Return the canonical text of a `request` (docs/reference/specification.md#105-request)."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


class RowSink(Protocol):
    """A destination of rows. `flush` passes all complete rows to the operating system."""

    def add(self, row: Row) -> None: ...
    def flush(self) -> None: ...
    def close(self) -> None: ...


class _JsonLines:
    """A file of JSON lines. Lines wait in memory until `flush`, so the caller decides which file is written first."""

    def __init__(self, path: Path) -> None:
        self._file: IO[str] = path.open("a", encoding="utf-8")
        self._pending: list[str] = []

    def add(self, row: Mapping[str, object]) -> None:
        self._pending.append(json.dumps(row, separators=(",", ":"), ensure_ascii=False) + "\n")

    def flush(self) -> None:
        if self._pending:
            self._file.write("".join(self._pending))
            self._file.flush()
            self._pending.clear()

    def close(self) -> None:
        if not self._file.closed:
            self.flush()
            self._file.close()


class RunWriter:
    """Writes one run. Rows are in the order in which operations ended.

    Raises BadInput if `folder` is not empty or cannot be written, and ExtraMissing if the format is Parquet and pyarrow
    is not installed. The owner calls `flush` at intervals, and `finish` or `close` at the end.
    """

    def __init__(
        self, folder: Path, *, run_id: str, clock: RunClock, ops_format: str, about: dict[str, object]
    ) -> None:
        open_sink = _sink_of(ops_format)  # This call comes first, so that no folder is made if an extra is missing.
        prepare_folder(folder)
        self.folder, self.run_id, self.clock = folder, run_id, clock
        kind = {"format": RUN_FORMAT, "run_id": run_id}
        self._about: dict[str, object] = {**kind, "clocks": [clock.to_json()], "finished": False, **about}
        self._rows = open_sink(folder / "ops")
        self._calls = _JsonLines(folder / "calls.jsonl")
        self._events = _JsonLines(folder / "events.jsonl")
        self._next_op_id = 0
        self._unflushed = 0
        self._open: dict[int, Row] = {}
        self._write_about()

    def call(self, row: Row) -> int:
        """Record that an operation is about to be sent. `row`: all fields that are known so far. Returns its op_id."""
        op_id = self._next_op_id
        self._next_op_id += 1
        row |= {"run_id": self.run_id, "op_id": op_id, "clock_id": self.clock.clock_id}
        self._open[op_id] = row
        if row["op"] in WRITES:
            self._calls.add(row)
        return op_id

    def end(self, op_id: int, **outcome: object) -> Row:
        """Record how operation `op_id` ended. Every status except `unknown` needs a `return_ns`."""
        row = self._open.pop(op_id)
        row.update((name, value) for name, value in outcome.items() if value is not None)
        row.setdefault("return_ns", None)  # Null means that the operation never ended.
        assert (row["status"] == "unknown") == (row["return_ns"] is None), row
        assert (row["status"] == "ok") == ("output" in row), row
        self._rows.add(row)
        self._unflushed += 1
        if self._unflushed >= UNFLUSHED_ROWS_MAX:
            self.flush()
        return row

    def event(self, kind: str, **fields: object) -> None:
        """Record an event of the cluster, with the present time."""
        self._events.add({"at_ns": self.clock.now_ns(), "kind": kind, **fields})

    def flush(self) -> None:
        self._calls.flush()  # Calls are flushed before rows; the docstring of the module gives the reason.
        self._rows.flush()
        self._events.flush()
        self._unflushed = 0

    def finish(self, **about: object) -> None:
        """Close the run after all operations have ended. `about`: fields of run.json that are known only now."""
        self.close()
        self._about |= {"finished": True, **about}
        self._write_about()
        (self.folder / "calls.jsonl").unlink()

    def close(self) -> None:
        """Record all open operations as `unknown`, and close the files. The method may be called twice."""
        for op_id in list(self._open):
            self.end(op_id, status="unknown", error="HarnessStopped")
        self._calls.close()
        self._rows.close()
        self._events.close()

    def _write_about(self) -> None:
        write_json(self.folder / "run.json", self._about)


def prepare_folder(folder: Path) -> None:
    """Make `folder` and `ops/` in it. Raises BadInput if `folder` is not empty or cannot be written."""
    hint = "give --out a new folder, or one that is empty"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise BadInput(f"{folder} is not empty", hint)
        (folder / "ops").mkdir()
    except (FileExistsError, NotADirectoryError):
        raise BadInput(f"{folder} is not a folder", hint) from None
    except OSError as error:
        raise BadInput(f"{folder} cannot be written: {error.strerror}", hint) from None


def write_json(path: Path, value: object) -> None:
    """Replace a small JSON file atomically: a reader sees the old content or the new one, never a mixture."""
    aside = path.with_suffix(".tmp")
    aside.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    aside.replace(path)


def read_about(folder: Path) -> dict[str, object]:
    """Return the content of run.json. Raises BadInput if `folder` contains no run, or a run in a newer format."""
    try:
        about = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise BadInput(f"{folder} holds no recorded run", "name a folder that `hwm-harness run` made") from None
    assert isinstance(about, dict), about
    found = about.get("format", RUN_FORMAT)
    if not isinstance(found, int) or found > RUN_FORMAT:
        known = f"run.json has format {found!r}; this version reads up to {RUN_FORMAT}"
        raise BadInput(f"{folder}: {known}", "use the version that recorded it, or a newer one")
    return about


def read_rows(folder: Path) -> Iterator[Row]:
    """Yield all rows of a run, one file after the other."""
    for path in sorted((folder / "ops").glob("*.jsonl")):
        yield from _read_lines(path)
    for path in sorted((folder / "ops").glob("*.parquet")):
        from harness.recording.parquet import read_parquet

        yield from read_parquet(path)


def read_events(folder: Path) -> list[Row]:
    """Return all events of a run, in order of time."""
    path = folder / "events.jsonl"
    return list(_read_lines(path)) if path.exists() else []


def close_unfinished_run(folder: Path) -> int:
    """Make the run of a killed harness auditable: add an `unknown` row for each call without a row.

    Returns the number of added rows. Each added row gets a different `client` name, because an unknown operation is
    never closed, and only one operation may be open under a name.
    """
    about, calls_path = read_about(folder), folder / "calls.jsonl"
    if about.get("finished") or not calls_path.exists():
        return 0
    _cut_torn_lines(folder)
    ended = {row["op_id"] for row in read_rows(folder)}
    lost = [row for row in _read_lines(calls_path) if row["op_id"] not in ended]
    sink = _JsonLines(folder / "ops" / "closed.jsonl")
    for row in lost:
        ends = {"status": "unknown", "error": "HarnessKilled", "return_ns": None}
        sink.add(row | {"client": f"{row['client']}+{row['op_id']}"} | ends)
    sink.close()
    write_json(folder / "run.json", about | {"finished": True, "closed_after_kill": len(lost)})
    calls_path.unlink()
    return len(lost)


def copy_run(source: Path, target: Path) -> None:
    """Copy a run into a new folder, but only the files that the audit reads, without the members' data."""
    prepare_folder(target)
    for path in sorted((source / "ops").iterdir()):
        shutil.copyfile(path, target / "ops" / path.name)
    for name in ("run.json", "events.jsonl"):
        shutil.copyfile(source / name, target / name)


def write_rows(folder: Path, rows: list[Row]) -> None:
    """Replace all rows of a run by `rows`, as JSON lines."""
    for path in (folder / "ops").iterdir():
        path.unlink()
    sink = _JsonLines(folder / "ops" / "rows.jsonl")
    for row in rows:
        sink.add(row)
    sink.close()


def _sink_of(ops_format: str) -> Callable[[Path], RowSink]:
    if ops_format == "jsonl":
        return lambda folder: _JsonLines(folder / "rows.jsonl")
    assert ops_format == "parquet", ops_format
    try:
        from harness.recording.parquet import ParquetFiles
    except ModuleNotFoundError:
        raise ExtraMissing("pyarrow", "a history in Parquet") from None
    return lambda folder: ParquetFiles(folder, rows_max=PARQUET_ROWS_MAX)


def _read_lines(path: Path) -> Iterator[Row]:
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def _cut_torn_lines(folder: Path) -> None:
    """Remove the incomplete last line that a killed harness may leave in a file."""
    for path in [*(folder / "ops").glob("*.jsonl"), folder / "calls.jsonl", folder / "events.jsonl"]:
        data = path.read_bytes()
        if data and not data.endswith(b"\n"):
            path.write_bytes(data[: data.rfind(b"\n") + 1])
