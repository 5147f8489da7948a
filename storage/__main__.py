"""`python -m storage DIR`: show the content of a data folder and verify the whole folder, without changing anything."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import click

from storage.errors import StorageError
from storage.files.threaded import InlineFiles
from storage.folder.inspect import Report, SegmentReport, hard_state_fields, inspect
from storage.folder.metadata import META_PATH

EXIT_GOOD, EXIT_UNUSABLE, EXIT_DAMAGED = 0, 2, 3


@click.command(name="python -m storage")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, readable=False))
@click.option("--json", "as_json", is_flag=True, help="One JSON object, with every frame.")
@click.option("--frames", "with_frames", is_flag=True, help="A line per frame.")
def main(folder: Path, as_json: bool, with_frames: bool) -> None:
    """Show what is in the data folder DIR and verify all of it.

    Nothing is written and no lock is taken, so a node may be running in the folder. If the node is just writing to its
    log, the unfinished write is shown as a torn tail, which is not damage.

    Exit code: 0 good, 3 damaged, 2 unusable (no data folder, or made by a newer build).
    """
    if not (folder / META_PATH).exists() and not (folder / "groups").exists():
        click.echo(f"{folder}: no data folder: there is no {META_PATH} in it", err=True)
        click.echo("hint: name the folder that `hwm serve`, `hwm init` or `open_node` was given", err=True)
        sys.exit(EXIT_UNUSABLE)
    files = InlineFiles(folder)
    try:
        report = inspect(files)
    except StorageError as error:
        is_damage = type(error).__name__.startswith("Corrupt")
        click.echo(f"{folder}: {error}", err=True)
        sys.exit(EXIT_DAMAGED if is_damage else EXIT_UNUSABLE)
    except OSError as error:
        click.echo(f"{error.filename or folder}: cannot be read: {error.strerror or error}", err=True)
        click.echo(
            "hint: the folder must be as its node left it, and this user must be able to read all of it", err=True
        )
        sys.exit(EXIT_UNUSABLE)
    finally:
        files.close()
    if as_json:
        click.echo(json.dumps(report_fields(report)))
    else:
        _print(report, with_frames)
    for problem in report.problems:
        click.echo(f"{folder}: {problem}", err=True)
    sys.exit(EXIT_DAMAGED if report.problems else EXIT_GOOD)


def report_fields(report: Report) -> dict[str, Any]:
    """Return the report as plain values for JSON."""
    return {
        "cluster_id": report.identity.cluster_id.hex(),
        "group_id": report.identity.group_id,
        "node_id": report.identity.node_id,
        "incarnation_id": report.identity.incarnation_id.hex(),
        "pins": {peer_id: incarnation.hex() for peer_id, incarnation in sorted(report.pins.items())},
        "hard_state": report.hard_state and hard_state_fields(report.hard_state),
        "first_index": report.first_index,
        "last_index": report.last_index,
        "term_runs": [[run.index, run.term] for run in report.term_runs],
        "proven_batch": report.proven_batch,
        "last_batch": report.last_batch,
        "segments": [
            {
                "name": segment.name,
                "size_bytes": segment.size_bytes,
                "ignored_bytes": segment.ignored_bytes,
                "frames": segment.frames,
            }
            for segment in report.segments
        ],
        "snapshots": report.snapshots,
        "problems": report.problems,
    }


def _print(report: Report, with_frames: bool) -> None:
    identity = report.identity
    click.echo(f"node {identity.node_id} of cluster {identity.cluster_id.hex()}, group {identity.group_id}")
    click.echo(f"  incarnation {identity.incarnation_id.hex()}")
    for peer_id, incarnation in sorted(report.pins.items()):
        click.echo(f"  knows {peer_id} as {incarnation.hex()}")
    if report.hard_state is not None:
        vote = report.hard_state.voted_for or "nobody"
        click.echo(f"term {report.hard_state.term}, voted for {vote}, commit hint {report.hard_state.commit_index}")
        runs = ", ".join(f"{run.term} from {run.index}" for run in report.term_runs) or "none"
        click.echo(f"entries {report.first_index}–{report.last_index}; terms: {runs}")
        click.echo(f"batches up to {report.last_batch}, proven up to {report.proven_batch}")
    for segment in report.segments:
        _print_segment(segment, with_frames)
    for row in report.snapshots:
        state = f"damaged: {row['damage']['reason']}" if "damage" in row else f"{row['size_bytes']} bytes"
        click.echo(f"snapshot {row['name']}: {state}")
    click.echo("damaged" if report.problems else "good")


def _print_segment(segment: SegmentReport, with_frames: bool) -> None:
    kinds: Counter[str] = Counter()
    payload_bytes = 0
    for frame in segment.frames:
        kinds.update(frame.get("kinds", {}))
        payload_bytes += frame.get("payload_bytes", 0)
    batches = f"batches {segment.frames[0]['batch']}–{segment.frames[-1]['batch']}"
    entries = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())) or "no entries"
    click.echo(f"segment {segment.name}: {segment.size_bytes} bytes, {batches}, {entries}, {payload_bytes} in payloads")
    if with_frames:
        for frame in segment.frames:
            click.echo("  " + ", ".join(f"{name} {_plain(value)}" for name, value in frame.items() if value))
    if segment.ignored_bytes:
        click.echo(f"  {segment.ignored_bytes} bytes at the end do not count: an unfinished write")


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return "(" + ", ".join(f"{name} {inner}" for name, inner in value.items()) + ")"
    return str(value)


if __name__ == "__main__":
    main()
