"""`hwm check`: verifies a data folder."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NoReturn

import click

from kvstore.cli.common import ExitCode, Failure, print_json
from kvstore.cli.output import say, show
from storage import CorruptMeta, InlineFiles, Report, StorageError, holder_of, inspect

REMEDY_OF_A_SNAPSHOT = "the member can start, with an older snapshot instead of the damaged one. Check this disk"
REMEDY_OF_THE_REST = (
    "this member must not be started from it: put a new member in its place with `hwm member replace --endpoints "
    "HOST:PORT,… OLD_ID NEW_ID=PEER/CLIENT` (docs/operations/guide.md#damage), or restore a snapshot "
    "(docs/operations/guide.md)"
)


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, readable=False), metavar="DIR")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, for programs.")
def check(folder: Path, as_json: bool) -> None:
    """Verify all that is in the data folder DIR: identity, pins, every frame of the log, and every snapshot.

    Nothing is changed. If a member runs in DIR, the command prints a warning, and does not check unfinished writes.

    \b
    Exit codes: 0 sound; 3 damaged: file, byte and remedy are printed;
    2 no data folder, unreadable, or made by a newer build.
    """
    try:
        is_data_folder = (folder / "meta").exists() or (folder / "groups").exists()
        holder = holder_of(folder) if is_data_folder else None
    except OSError as error:
        raise _unreadable(error, folder) from error
    if not is_data_folder:
        raise Failure(
            f"{folder}: no data folder: there is no meta in it", ExitCode.USAGE, "name the DIR of `hwm serve`"
        )
    if holder is not None:
        pid = "another process" if holder.pid is None else f"process {holder.pid}"
        say(f"warning: {folder} is in use by {pid}: unfinished writes are not checked")
    files = InlineFiles(folder)
    try:
        report = inspect(files)
    except CorruptMeta as error:
        _tell_damage(folder, [str(error)], REMEDY_OF_THE_REST, as_json, in_use=holder is not None)
    except StorageError as error:
        raise Failure(f"{folder}: {error}", ExitCode.USAGE) from error
    except OSError as error:
        raise _unreadable(error, folder) from error
    finally:
        files.close()
    if report.problems:
        # The hard state is known only if the log is valid. `inspect` then also reports a problem if no valid snapshot
        # reaches the first entry of the log. Thus a member whose snapshots alone are damaged can start if the log is
        # complete.
        starts = report.hard_state is not None and all(".snap: damaged" in each for each in report.problems)
        remedy = REMEDY_OF_A_SNAPSHOT if starts else REMEDY_OF_THE_REST
        _tell_damage(folder, report.problems, remedy, as_json, in_use=holder is not None)
    _tell_soundness(folder, report, as_json, in_use=holder is not None)


def _unreadable(error: OSError, folder: Path) -> Failure:
    where = f"{error.filename or folder}: cannot be read: {(error.strerror or str(error)).lower()}"
    return Failure(where, ExitCode.USAGE, "this user must be able to read all of it")


def _tell_damage(folder: Path, problems: list[str], remedy: str, as_json: bool, *, in_use: bool) -> NoReturn:
    if as_json:
        print_json({"folder": str(folder), "verdict": "damaged", "in_use": in_use, "problems": problems})
    else:
        show(f"{folder}: damaged")
    for problem in problems:
        say(f"{folder}: {problem}")
    say(f"hint: {remedy}")
    sys.exit(ExitCode.FAILED)


def _tell_soundness(folder: Path, report: Report, as_json: bool, *, in_use: bool) -> None:
    identity, state = report.identity, report.hard_state
    assert state is not None, report
    newest = report.snapshots[-1]
    fields = {
        "folder": str(folder),
        "verdict": "sound",
        "in_use": in_use,
        "node_id": identity.node_id,
        "cluster_id": identity.cluster_id.hex(),
        "term": state.term,
        "commit_hint": state.commit_index,
        "first_index": report.first_index,
        "last_index": report.last_index,
        "segments": len(report.segments),
        "snapshot_index": newest["index"],
        "unfinished_bytes": sum(segment.ignored_bytes for segment in report.segments),
    }
    if as_json:
        print_json(fields)
        return
    show(f"{folder}: sound")
    show(f"member {identity.node_id} of cluster {identity.cluster_id.hex()}, term {state.term}")
    is_empty = report.last_index < report.first_index
    entries = "no entry" if is_empty else f"entries {report.first_index} to {report.last_index}"
    show(f"log: {entries} in {len(report.segments)} files; newest snapshot at {newest['index']}")
