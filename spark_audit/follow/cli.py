"""The command `hwm-audit follow`: audits a growing history, part by part. The exit codes are those of `check`."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from spark_audit.errors import Fault, MalformedHistory, NothingToCheck, UnreadablePath, report_errors
from spark_audit.follow.files import FilePosition, new_rows, rows_again
from spark_audit.follow.follow import Run, RunCarry, follow
from spark_audit.follow.state import FollowState, read_state, write_state
from spark_audit.history.paths import HistoryFile, history_files, min_in_sync_of, read_run_file
from spark_audit.history.recorded_files import open_process
from spark_audit.key.decide import CONFIGURATIONS_MAX
from spark_audit.report.terminal import print_verdict
from spark_audit.verdict.verdict import Verdict

# No client waits longer than this for an answer, and no recorder buffers rows for longer than this.
SETTLED_SECONDS = 30.0


@click.command("follow")
@click.argument("state", type=click.Path(path_type=Path, dir_okay=False), metavar="STATE.json")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--final", is_flag=True, help="The history is complete: decide all of it.")
@click.option(
    "--settled",
    type=click.FloatRange(min=0),
    default=SETTLED_SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="The longest time from the call of an operation until its row is in the history.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the whole verdict as JSON.")
@click.option(
    "--configurations-max",
    type=click.IntRange(min=1),
    default=CONFIGURATIONS_MAX,
    show_default=True,
    help="The most configurations to search for a key before it counts as undecided.",
)
@click.option("--verbose", is_flag=True, help="Show a traceback if the job fails.")
def follow_command(
    state: Path,
    paths: tuple[str, ...],
    final: bool,
    settled: float,
    as_json: bool,
    configurations_max: int,
    verbose: bool,
) -> None:
    """Check what was added to histories since the last run of this command. Each PATH is as for `check`.

    STATE.json keeps the results of earlier runs of the command. The check runs in this process, without Spark. The
    verdict covers all operations that are settled so far; with --final, it covers all operations.

    Exit status: 0 linearizable, 3 violation, 4 undecided, 2 unreadable or malformed input, 1 the job failed.
    """
    with report_errors(verbose=verbose):
        if state.resolve() in {file.path.resolve() for file in history_files(paths)}:
            raise UnreadablePath(str(state), "lies among the histories: keep the state elsewhere")
        followed = read_state(state)
        verdict = follow_files(
            followed, paths, settled_ns=round(settled * 1e9), final=final, configurations_max=configurations_max
        )
        write_state(state, followed)
    waiting = sum(len(run.held) for run in followed.runs.values())
    if waiting:
        click.echo(f"hwm-audit: {waiting} operations wait for the next part, which may tell more of them", err=True)
    for run_id, run in sorted(followed.runs.items()):
        if run.whole or run.uncut:
            click.echo(f"hwm-audit: run {run_id} is read from its start each time: {run.whole or run.uncut}", err=True)
    if as_json:
        click.echo(verdict.to_json())
    else:
        print_verdict(verdict, Console(soft_wrap=False))
    sys.exit(verdict.exit_code)


def follow_files(
    followed: FollowState,
    paths: tuple[str, ...],
    *,
    settled_ns: int,
    final: bool,
    configurations_max: int = CONFIGURATIONS_MAX,
) -> Verdict:
    """Audit the new rows of the files at these paths and of all files read before, and update `followed`.

    Raises UnreadablePath, MalformedHistory, and, if `final`, NothingToCheck. After an error, `followed` is inconsistent
    and must be discarded.
    """
    started = time.perf_counter()
    files = {str(file.path.resolve()): file for file in history_files((*paths, *followed.files))}
    headers = {folder: read_run_file(folder) for folder in {file.folder for file in files.values()}}
    new: dict[str, list[Mapping[str, Any]]] = {run_id: [] for run_id in followed.runs}
    for name, file in files.items():
        if not final and (process := open_process(file.path)) is not None:
            words = f"may still change: {process} has not closed its recorder, and replaces the ends of rows"
            hint = (
                "close it first; or, once it has ended or was killed, give --final; `hwm-audit check` reads it any time"
            )
            raise UnreadablePath(str(file.path), f"{words}. {hint}")
        rows, followed.files[name] = new_rows(file, followed.files.get(name, FilePosition()), final=final)
        for row in rows:
            _check_folder(followed, row["run_id"], file, headers[file.folder])
            new.setdefault(row["run_id"], []).append(row)
    verdict = Verdict(engine="parts")
    for run_id, rows_of_run in sorted(new.items()):
        folder = Path(followed.folders[run_id])
        mine = [(file, followed.files[name]) for name, file in files.items() if file.folder == folder]
        clocks, limit = headers[folder].get("clocks") or (), min_in_sync_of(headers[folder])
        run = Run(run_id, clocks, _Again(run_id, mine), configurations_max, limit)
        carry = followed.runs.setdefault(run_id, RunCarry())
        follow(run, carry, rows_of_run, settled_ns=settled_ns, final=final, verdict=verdict)
    if final and verdict.operations == verdict.unknown + verdict.failed:
        raise NothingToCheck(", ".join(paths), verdict.operations)
    verdict.seconds = time.perf_counter() - started
    return verdict


class _Again:
    """Reads the rows of one run again, in each file up to the position that was reached so far."""

    def __init__(self, run_id: str, files: list[tuple[HistoryFile, FilePosition]]) -> None:
        self._run_id, self._files = run_id, files

    def __call__(self) -> Iterator[Mapping[str, Any]]:
        for file, mark in self._files:
            yield from (row for row in rows_again(file, mark) if row["run_id"] == self._run_id)


def _check_folder(followed: FollowState, run_id: str, file: HistoryFile, header: Mapping[str, Any]) -> None:
    mine = str(file.folder)
    known = followed.folders.setdefault(run_id, mine)
    if known != mine:
        raise MalformedHistory((Fault(mine, 0, f"run_id {run_id} is also that of {known}; runs are never joined"),), 1)
    if header.get("run_id") not in (None, run_id):
        reason = f"names the run {header['run_id']}, but its rows are of {run_id}"
        raise MalformedHistory((Fault(str(file.folder / "run.json"), 0, reason),), 1)
