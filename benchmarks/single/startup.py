"""`python -m benchmarks.single.startup`: measures the phases of a member's restart, and the peak memory.

A log of puts is opened, read and applied. The puts have 16-byte keys (out of 100,000 different ones, or all new) and
128-byte values. The sessions of the puts acknowledge results as clients do. A snapshot is opened (which verifies it)
and restored. Each measurement runs in a fresh process, with the files in the page cache. The times are CPU seconds of
the process, so waiting for the disk is not measured.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import platform
import random
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from benchmarks.measure.machine import describe
from benchmarks.measure.usage import peak_bytes
from kvstore.protocol.commands import Put, RegisterSession, encode_command
from kvstore.store.machine import KvMachine
from raft import Configuration, Entry, EntryKind, HardState, Identity, LogWrite, Member, encode_batch
from raft.node.apply import apply_batch
from storage import InlineFiles, OpenedStorage, Operation, SyncFile, SyncFolder, create_data_folder, open_storage

RESULTS = Path(__file__).resolve().parent.parent / "results" / "startup.json"
IDENTITY = Identity(cluster_id=bytes(15) + b"b", group_id=0, node_id="s1", incarnation_id=bytes(16))
CONFIGURATION = Configuration.of([Member("s1")])
SESSIONS = 16
WINDOW = 64  # The number of open requests per client.
KEYS_OVERWRITTEN = 100_000
READ_BYTES = 1024 * 1024  # The bytes that one read of the log may return, as in a member.
FULL = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class StartupRow:
    """One measurement. `count`: the number of commands in the log plus the number of keys in the snapshot.

    All seconds are CPU time.
    """

    what: str
    count: int
    bytes_on_disk: int
    open_seconds: float
    read_seconds: float
    apply_seconds: float
    peak_mib: float

    @property
    def per_second(self) -> float:
        """Commands and keys per second of CPU time, over all phases."""
        return self.count / (self.open_seconds + self.read_seconds + self.apply_seconds)


class _UnsyncedFiles(InlineFiles):
    """Files that are never synced, so that a folder is prepared quickly."""

    def submit(self, operations: Sequence[Operation], done: Callable[[BaseException | None], None]) -> None:
        super().submit([each for each in operations if not isinstance(each, SyncFile | SyncFolder)], done)


def opened(files: InlineFiles) -> OpenedStorage:
    """Recover the storage in `files`."""
    results: list[OpenedStorage | BaseException] = []
    open_storage(files, identity=IDENTITY, done=results.append)
    files.run()
    if isinstance(results[0], BaseException):
        raise results[0]
    return results[0]


def puts(keys: Iterator[bytes], count: int, first_session: int) -> Iterator[bytes]:
    """Yield the commands of SESSIONS clients that each keep WINDOW requests open."""
    values = [random.Random(2).randbytes(128) for _ in range(64)]
    for i in range(count):
        number = 1 + i // SESSIONS
        yield encode_command(
            Put(next(keys), values[i % 64]),
            session_id=first_session + i % SESSIONS,
            request_no=number,
            acknowledged_up_to=max(0, number - WINDOW),
        )


def drawn_keys(distinct: int | None) -> Iterator[bytes]:
    """Yield 16-byte keys, drawn from `distinct` different ones. If `distinct` is None, nearly all keys are new."""
    draw = random.Random(1)
    while True:
        yield b"%016x" % (draw.randrange(distinct) if distinct else draw.getrandbits(64))


def log_entries(commands: int, batch: int, distinct: int | None, first_session: int = 1) -> Iterator[Entry]:
    """Yield the entries of a log: first the registration of the sessions, then puts, `batch` per entry."""
    register = [encode_command(RegisterSession(2**60))] * SESSIONS
    yield Entry(1, 1, EntryKind.COMMANDS, encode_batch(0, register))
    raw = puts(drawn_keys(distinct), commands, first_session)
    for index in range(2, 2 + -(-commands // batch)):
        payload = encode_batch(index, [each for _, each in zip(range(batch), raw, strict=False)])
        yield Entry(index, 1, EntryKind.COMMANDS, payload)


def state_of(keys: int) -> KvMachine:
    """Return a state machine with `keys` keys, and with the sessions that wrote the keys."""
    machine = KvMachine()
    for entry in log_entries(keys, 256, None) if keys else ():
        machine.apply(entry)
    return machine


def prepare(folder: Path, keys: int, entries: Iterator[Entry]) -> None:
    """Make a data folder with a snapshot of `keys` keys and a log of these entries.

    Each entry has a frame of its own, as if it had been synced alone.
    """
    picture = state_of(keys).snapshot()
    create_data_folder(
        folder,
        identity=IDENTITY,
        configuration=CONFIGURATION,
        machine_header=picture.header,
        machine_chunks=picture.chunks,
    )
    files = _UnsyncedFiles(folder)
    log = opened(files).log
    log.append(LogWrite(sequence=0, hard_state=HardState(term=1, voted_for="s1")))
    for entry in entries:
        log.append(LogWrite(sequence=0, entries=(entry,)))
        log.sync(entry.index - 1, _raise)
        files.run()
    files.close()


def _raise(error: BaseException | None) -> None:
    if error is not None:
        raise error


def measure(folder: Path, what: str, count: int) -> StartupRow:
    """Recover from `folder` in this process, and return the times of the phases."""
    files = InlineFiles(folder)
    laps = [time.process_time()]
    storage = opened(files)
    laps.append(time.process_time())
    machine = KvMachine()
    info = storage.snapshots.latest()
    machine.restore(info.header.machine, storage.snapshots.chunks(info))
    restored = time.process_time() - laps[-1]
    laps.append(time.process_time())
    reading = 0.0
    index = storage.log.first_index
    while index <= storage.log.last_index:
        began = time.process_time()
        entries = storage.log.read(index, storage.log.last_index, READ_BYTES)
        reading += time.process_time() - began
        waiting = deque(entries)
        while waiting:
            apply_batch(machine, waiting, READ_BYTES)
        index = entries[-1].index + 1
    laps.append(time.process_time())
    files.close()
    on_disk = sum(path.stat().st_size for path in folder.rglob("*") if path.suffix in (".wal", ".snap"))
    return StartupRow(
        what=what,
        count=count,
        bytes_on_disk=on_disk,
        open_seconds=laps[1] - laps[0],
        read_seconds=reading,
        apply_seconds=restored + laps[3] - laps[2] - reading,
        peak_mib=peak_bytes() / 2**20,
    )


def in_a_fresh_process(folder: Path, what: str, count: int) -> StartupRow:
    """Run `measure` in a new process, where no earlier work has used memory or warmed caches."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(measure, (folder, what, count))


def _prepare_elsewhere(folder: Path, keys: int, commands: int, batch: int, distinct: int | None) -> None:
    first_session = 1 + (SESSIONS if keys else 0)
    prepare(folder, keys, log_entries(commands, batch, distinct, first_session) if commands else iter(()))


def plan(commands: int, keys: int) -> Iterator[tuple[str, int, int, int, int, int | None]]:
    """Yield (what, count, keys in the snapshot, commands in the log, commands per entry, distinct keys) of each row."""
    for batch in (1, 16, 256):
        yield f"log, {batch} to an entry", commands, 0, commands, batch, KEYS_OVERWRITTEN
    yield "log, 256 to an entry, new keys", commands, 0, commands, 256, None
    yield "snapshot", keys, keys, 0, 1, None
    # At full size the log has 256 MiB, with about 190 bytes per command.
    log_commands = 256 * 2**20 * commands // FULL // 192
    yield "snapshot and a log of 256 MiB", keys + log_commands, keys, log_commands, 16, KEYS_OVERWRITTEN


def run(commands: int, keys: int, only: str, scratch: Path) -> Iterator[StartupRow]:
    """Measure all rows whose name contains `only`."""
    for number, (what, count, *shape) in enumerate(plan(commands, keys)):
        if only in what:
            folder = scratch / str(number)
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                pool.apply(_prepare_elsewhere, (folder, *shape))
            yield in_a_fresh_process(folder, what, count)


def line(row: StartupRow) -> str:
    """Return a row of the table."""
    phases = f"{row.open_seconds:.2f} | {row.read_seconds:.2f} | {row.apply_seconds:.2f}"
    size = f"{row.bytes_on_disk / 2**20:.0f}"
    return f"| {row.what} | {row.count:,} | {size} | {phases} | {row.per_second:,.0f} | {row.peak_mib:.0f} |"


@click.command()
@click.option(
    "--commands", default=FULL, show_default=True, type=click.IntRange(1000), help="How many commands the log has."
)
@click.option(
    "--keys", default=FULL, show_default=True, type=click.IntRange(1000), help="How many keys the snapshot has."
)
@click.option("--only", default="", help="Rows whose name has this in it.")
@click.option(
    "--folder", type=click.Path(path_type=Path, file_okay=False), help="The folder for the data.  [default: temporary]"
)
@click.option("--json", "out", type=click.Path(path_type=Path, dir_okay=False), help="The file for the results.")
def main(commands: int, keys: int, only: str, folder: Path | None, out: Path | None) -> None:
    """Measure how fast a member restarts. A run of full size writes results/startup.json."""
    click.echo("| what | commands, keys | MiB on disk | open s | read s | restore, apply s | per second | peak MiB |")
    click.echo("|---|---|---|---|---|---|---|---|")
    rows = []
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        machine = _machine(Path(scratch))
        for row in run(commands, keys, only, Path(scratch)):
            rows.append(row)
            click.echo(line(row))
    if out is None and (commands, keys, only) == (FULL, FULL, ""):
        out = RESULTS
    if out is not None:
        out.write_text(as_json(machine, rows), encoding="utf-8")


def _machine(folder: Path) -> dict[str, Any]:
    try:
        return describe(folder)
    except ImportError:  # Without the `bench` extra, psutil is missing, and only these two facts are known.
        return {"python": platform.python_version(), "cores": os.cpu_count()}


def as_json(machine: dict[str, Any], rows: Sequence[StartupRow]) -> str:
    """Return the content of a results file."""
    content = {"machine": machine, "rows": [{**asdict(row), "per_second": round(row.per_second)} for row in rows]}
    return json.dumps(content, indent=1) + "\n"


if __name__ == "__main__":
    main()
