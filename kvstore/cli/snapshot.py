"""`hwm snapshot`: saves a running cluster to a file, verifies a saved file, begins a new cluster from a saved file, or
makes a snapshot of etcd from it."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

import click

from kvstore.backup.file import BackupDamaged, BackupFailed, SnapshotFacts
from kvstore.backup.save import WAIT_SECONDS_DEFAULT, SavedSnapshot, save_snapshot
from kvstore.cli.common import ExitCode, Failure, Seconds, client_options, failure_of, print_json, run_with_client
from kvstore.cli.daemon.process import failure_of_member
from kvstore.cli.daemon.serve import folder_options
from kvstore.cli.output import OPERATION, say, show
from kvstore.client.client import Client
from kvstore.errors import Unavailable
from kvstore.etcd.snapshot.export import ExportSummary, export_etcd
from kvstore.member.config import MemberConfig
from kvstore.member.restore import REVISION_LEAP_MAX, read_initial_state, restore_folder
from kvstore.named_files import is_standard_output
from raft import Member
from storage import SNAPSHOT_FORMAT


def _file_or_standard_stream(ctx: click.Context, param: click.Parameter, value: str) -> Path | None:  # noqa: ARG001
    """Return None for `-`. A file named `-` can be given as `./-`. The texts are compared instead of paths, because as
    paths `-` and `./-` are equal."""
    return None if value == "-" else Path(value)


FILE = click.argument("file", type=click.Path(readable=False), metavar="FILE", callback=_file_or_standard_stream)


@click.group()
def snapshot() -> None:
    """Back up a running cluster, verify a backup, begin a new cluster with a backup, or give it to etcd."""


@snapshot.command()
@FILE
@click.option("--member", metavar="ID|HOST:PORT", help="The member that makes the snapshot. Default: the leader.")
@click.option("--existing", is_flag=True, help="Save the state that the member itself has applied. Needs no majority.")
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@click.option(
    "--wait",
    "wait_seconds",
    type=Seconds(),
    default=WAIT_SECONDS_DEFAULT,
    show_default=True,
    metavar="SECONDS",
    help="How long the member may take to make a snapshot. --deadline applies to each page.",
)
@client_options
def save(
    file: Path | None,
    member: str | None,
    existing: bool,
    force: bool,
    wait_seconds: float,
    endpoints: str,
    deadline_seconds: float,
    as_json: bool,
) -> None:
    """Save all keys of a running cluster, as they are at one revision, to FILE (`-`: standard output).

    FILE has every write that was acknowledged before the command began. The snapshot is verified while it arrives. FILE
    appears whole and durable, or not at all. A link is followed. A pipe, a character device and standard output are
    written only when the whole snapshot has arrived. A folder, socket or block device is refused.

    Use --existing --member for the last member that is left: FILE then has all that this member knows to be committed.
    Acknowledged writes that the member does not know to be committed are missing. If the member cannot make a new
    snapshot (its disk is full), its existing snapshot is saved after --wait, and the command reports what is missing.

    \b
    Exit codes: 0 saved; 1 saved with --existing, but older than what the member
    has applied; 2 wrong usage; 3 not saved (FILE exists, disk full, no snapshot
    in time); 5 no member could be reached, or there is no majority.
    """
    if file is not None and is_standard_output(file):
        file = None  # Otherwise the message on stdout would be mixed with the snapshot.
    if file is None and (as_json or sys.stdout.isatty()):
        what = "a terminal" if sys.stdout.isatty() else "the object of --json"
        raise click.UsageError(f"standard output is {what}: name a FILE")

    async def work(client: Client) -> SavedSnapshot:
        try:
            return await save_snapshot(
                client,
                file,
                member=member,
                existing=existing,
                force=force,
                wait_seconds=wait_seconds,
                tell=say,
            )
        except Unavailable as error:
            if existing and member is not None:
                raise  # The hint below would suggest options that the user has already given.
            failure = failure_of(error)
            failure.hint += "; for what one member has by itself: --existing --member HOST:PORT"
            raise failure from error

    saved = run_with_client(endpoints, deadline_seconds, work)
    facts = saved.facts
    if as_json:
        print_json({"file": str(file), "from": saved.node_id, **_fields(facts, saved.size_bytes), **_of_member(saved)})
    else:
        found = f"revision {facts.revision}, {facts.keys} keys, {saved.size_bytes} bytes, from {saved.node_id}"
        if file is None:
            say(f"standard output: {found}")
        else:
            show(f"{file}: {found}")
    for words in _what_may_lack(saved):
        say(words)
    if saved.is_older:
        sys.exit(ExitCode.NEGATIVE)


@snapshot.command()
@FILE
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, for programs.")
def status(file: Path | None, as_json: bool) -> None:
    """Verify all of FILE (`-`: standard input), every checksum and every row, and print a summary of its contents.

    \b
    Exit codes: 0 sound; 2 there is no such file, or it cannot be read;
    3 damaged, no snapshot at all, or of a newer format.
    """
    try:
        begin = read_initial_state(file)
    except BackupDamaged as error:
        if as_json:
            print_json({"file": str(file or "-"), "verdict": "damaged", "offset": error.offset, "reason": error.what})
        raise Failure(str(error), ExitCode.FAILED, error.hint) from error
    except BackupFailed as error:
        code = ExitCode.USAGE if isinstance(error.__cause__, OSError) else ExitCode.FAILED
        raise Failure(str(error), code, error.hint) from error
    fields = _fields(begin.facts, begin.size_bytes)
    if as_json:
        print_json({"file": str(file or "-"), "verdict": "sound", **fields})
        return
    for name, value in fields.items():
        show(f"{name.replace('_', ' ')}: {', '.join(value) if isinstance(value, tuple) else value}")
    show("sound: every checksum and every row")


@snapshot.command()
@FILE
@folder_options
@click.option(
    "--revision-leap",
    type=click.IntRange(0, REVISION_LEAP_MAX),
    default=None,
    help="Add this number to the revision of FILE, because clients may remember later revisions. Give the same number "
    "on all members. Default: 2^32; 0 at feature level 1.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, for programs.")
def restore(
    file: Path | None,
    folder: Path,
    node_id: str | None,
    members: tuple[Member, ...],
    cluster_token: str,
    revision_leap: int | None,
    as_json: bool,
) -> None:
    """Make DIR the data folder of a member of a new cluster that begins with the keys in FILE (`-`: standard input).

    Run the command once for each member, with the same FILE, the same --member list and the same --cluster-token, which
    must be new. Without --member, the new cluster has one member. Then start each member with `hwm serve DIR`, without
    --member and --cluster-token, which DIR remembers. The cluster id is new: members of the old cluster are refused.
    Open sessions are not restored.

    \b
    Exit codes: 0 made; 2 wrong options; 3 nothing was made (FILE is damaged,
    DIR is not empty or cannot be written).
    """
    try:
        config = MemberConfig(folder=folder, node_id=node_id, members=members or None, cluster_token=cluster_token)
        restored = restore_folder(config, file, revision_leap)
    except Exception as error:
        raise failure_of_member(error, folder) from error
    OPERATION.is_done = True
    identity, facts = restored.identity, restored.facts
    if as_json:
        ids = {"node_id": identity.node_id, "cluster_id": identity.cluster_id.hex()}
        print_json({"folder": str(folder), **ids, "revision": restored.revision, "keys": facts.keys})
    else:
        say(
            f"{folder}: member {identity.node_id} of the new cluster {identity.cluster_id.hex()}, "
            f"revision {restored.revision}, {facts.keys} keys"
        )


@snapshot.command("to-etcd")
@FILE
@click.argument("target", type=click.Path(path_type=Path, readable=False), metavar="TARGET")
@click.option("--force", is_flag=True, help="Replace TARGET if it exists.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, for programs.")
def to_etcd(file: Path | None, target: Path, force: bool, as_json: bool) -> None:
    """Make TARGET, a snapshot file of etcd 3.5, from FILE (`-`: standard input).

    FILE comes from `hwm snapshot save`. `etcdutl snapshot restore TARGET` makes the data folder of an etcd that has the
    same revision, keys, older versions, users and roles, and the leases with their full times to live. Sessions and
    limits have no place in etcd.

    etcd cannot verify the passwords of this store. Authentication is off in TARGET. To turn it on in the new etcd, set
    new passwords (`etcdctl user passwd NAME`), and then run `etcdctl auth enable`.

    \b
    Exit codes: 0 made; 2 wrong options; 3 TARGET was not made (FILE is damaged
    or cannot be read, TARGET exists or cannot be written).
    """
    if str(target) == "-" or is_standard_output(target):
        raise click.UsageError("TARGET must be a file, because its end is written before its beginning")
    try:
        made = export_etcd(file, target, force=force)
    except BackupFailed as error:
        raise failure_of(error) from error
    OPERATION.is_done = True
    if as_json:
        print_json({"file": str(target), **asdict(made)})
    else:
        show(
            f"{target}: revision {made.revision}, compact revision {made.compact_revision}, {made.keys} keys, "
            f"{made.rows} rows, {made.leases} leases, {made.users} users"
        )
    if words := _what_becomes_of_users(made):
        say(words)


def _what_becomes_of_users(made: ExportSummary) -> str:
    if not made.users:
        return ""
    remedy = "etcd cannot verify the passwords of this store: set new ones in the new etcd (`etcdctl user passwd NAME`)"
    if made.turned_off_auth:
        return f"warning: authentication is off in the file; {remedy}, and then run `etcdctl auth enable`"
    return remedy


def _fields(facts: SnapshotFacts, size_bytes: int) -> dict[str, object]:
    fields = asdict(facts) | {"format": SNAPSHOT_FORMAT, "size_bytes": size_bytes}
    return fields | {"cluster_id": facts.cluster_id.hex()}


def _of_member(saved: SavedSnapshot) -> dict[str, object]:
    if saved.member is None:
        return {}
    return {
        "applied_revision": saved.member.revision,
        "is_older": saved.is_older,
        "open_entries": saved.open_entries,
    }


def _what_may_lack(saved: SavedSnapshot) -> list[str]:
    """Return messages about writes that the file lacks, or may lack. Without `--existing`, there are no messages."""
    if saved.member is None:
        return []
    who, words = saved.node_id, []
    if saved.is_older:
        words.append(
            f"warning: {who} has applied revision {saved.member.revision}; this file has {saved.facts.revision}: "
            "later changes are not in it"
        )
    if count := saved.open_entries:
        words.append(
            f"warning: the log of {who} had {count} more entries, which it had not applied: their writes may have been "
            "acknowledged, and are not in this file"
        )
    words.append(f"acknowledged writes are not in this file if {who} did not know that they were committed")
    return words
