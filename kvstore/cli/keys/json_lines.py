"""`hwm export` and `hwm import`: keys as lines of JSON, to a file or a pipe, and back."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import BinaryIO

import click

from kvstore.backup.file import AtomicFile
from kvstore.backup.key_lines import InvalidLine, read_key_lines
from kvstore.backup.key_transfer import Existing, Exported, Imported, KeyExists, export_keys, import_keys
from kvstore.cli.common import Data, ExitCode, Failure, client_options, failure_of, print_json, run_with_client
from kvstore.cli.output import say, show, show_bytes_when_read
from kvstore.client.client import Client
from kvstore.errors import RevisionCompacted, StoreError

FILE = click.Path(readable=False)


@click.command("export")
@click.argument("prefix", type=Data(), required=False)
@click.option("--all", "everything", is_flag=True, help="Export all keys.")
@click.option(
    "--output", "-o", "file", type=FILE, default="-", show_default=True, metavar="FILE", help="`-`: standard output."
)
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@click.option(
    "--revision", type=click.IntRange(min=0), default=0, metavar="N", help="Export the keys as they were at revision N."
)
@client_options
def export_command(
    prefix: bytes | None,
    everything: bool,
    file: str,
    force: bool,
    revision: int,
    endpoints: str,
    deadline_seconds: float,
    as_json: bool,
) -> None:
    """Write the keys that begin with PREFIX as lines of JSON, all as they are at one revision.

    The first line has the revision, and the last line has the number of keys, so `hwm import` notices that a line is
    missing. FILE appears whole and durable, or not at all. Keys and values are text; `base64:...` stands for bytes that
    are not UTF-8. The keys are read page by page; --deadline applies to each page.

    Sessions, leases and the history are not exported. To save a whole cluster, use `hwm snapshot save`.

    \b
    Exit codes: 0 exported; 2 wrong usage; 3 not exported: FILE exists, the disk
    is full, or the revision was compacted; 5 no member could be reached, or
    there is no majority. Standard output then ends without the last line.
    """
    if everything == bool(prefix):
        raise click.UsageError("give a PREFIX, or --all")
    if file == "-" and as_json:
        raise click.UsageError("standard output is the object of --json: name a file with --output")
    done = Exported()

    async def work(client: Client) -> None:
        with ExitStack() as stack:
            target = None if file == "-" else stack.enter_context(AtomicFile(Path(file), force=force))

            async def write(data: bytes) -> None:
                if target is None:
                    await show_bytes_when_read(data)
                else:
                    target.write(data)

            try:
                await export_keys(client, prefix or b"", write, at_revision=revision, progress=done)
            except RevisionCompacted as error:
                failure = failure_of(error)
                failure.hint = (
                    f"{done.keys} keys were read. Keep more history (`hwm limits`), or use `hwm snapshot save`"
                )
                raise failure from error
            if target is not None:
                target.publish()

    run_with_client(endpoints, deadline_seconds, work)
    if as_json:
        print_json({"file": file, **asdict(done)})
    elif file == "-":
        say(f"{done.keys} keys at revision {done.revision}")
    else:
        show(f"{file}: {done.keys} keys at revision {done.revision}")
    if done.leased:
        say(f"{done.leased} keys have a lease; `hwm import` leaves them out, unless --with-leased is given")


@click.command("import")
@click.argument("file", type=FILE, default="-", metavar="[FILE]")
@click.option("--if-absent", is_flag=True, help="Leave keys as they are that exist already.")
@click.option("--overwrite", is_flag=True, help="Overwrite keys that exist already.")
@click.option("--with-leased", is_flag=True, help="Also write the keys that had a lease, without a lease.")
@client_options
def import_command(
    file: str,
    if_absent: bool,
    overwrite: bool,
    with_leased: bool,
    endpoints: str,
    deadline_seconds: float,
    as_json: bool,
) -> None:
    """Write the keys of FILE (`-`: standard input), which are lines of JSON, as `hwm export` writes them.

    A line needs only a key and a value: {"key": "a", "value": "1"}. The keys are written in transactions of at most 64
    keys and 512 KiB, in the order of the lines. By default, the command ends at the first key that exists already, and
    writes nothing of this transaction. A file is read to its end before anything is written, so a damaged file changes
    nothing. A pipe is read only once.

    After an error, the command says which lines are done. With --if-absent or --overwrite, the command may be repeated
    with the same input.

    \b
    Exit codes: 0 imported; 2 wrong usage, or nothing was written because the
    input cannot be read; 3 nothing was written; 4 keys were written, or may have
    been, before an error; 5 no member could be reached, or there is no majority.
    """
    if if_absent and overwrite:
        raise click.UsageError("give --if-absent or --overwrite")
    existing = Existing.KEEP if if_absent else Existing.OVERWRITE if overwrite else Existing.REFUSE
    done = Imported()
    name = "standard input" if file == "-" else file

    async def work(client: Client) -> None:
        try:
            await import_keys(client, read_key_lines(source), existing, with_leased=with_leased, progress=done)
        except (StoreError, InvalidLine, OSError) as error:
            raise _failure_of_import(error, done, name) from error

    with _opened(file) as source:
        try:
            _check_to_the_end(source)
        except (InvalidLine, OSError) as error:
            raise Failure(f"{name}: {error}", ExitCode.USAGE, "nothing was written") from error
        run_with_client(endpoints, deadline_seconds, work)
    if as_json:
        print_json({"written": done.written, "kept": done.kept, "left_out": done.leased})
        return
    say(f"{done.written} keys written")
    if done.kept:
        say(f"{done.kept} keys existed already, and were left as they are")
    if done.leased:
        say(f"{done.leased} keys had a lease, and were left out: --with-leased writes them without one")


def _opened(file: str) -> AbstractContextManager[BinaryIO]:
    """Return the input. Raises Failure if it cannot be opened."""
    if file == "-":
        if sys.stdin is None:
            raise Failure("standard input is closed", ExitCode.USAGE, "name a FILE")
        return nullcontext(sys.stdin.buffer)
    try:
        return Path(file).open("rb")
    except OSError as error:
        raise Failure(f"{file}: {error.strerror or error}", ExitCode.USAGE, "nothing was written") from error


def _check_to_the_end(source: BinaryIO) -> None:
    """If the input can be read twice, read it to its end, and go back to where reading began."""
    if source.seekable():
        begin = source.tell()
        for _ in read_key_lines(source):
            pass
        source.seek(begin)


def _failure_of_import(error: StoreError | InvalidLine | OSError, done: Imported, name: str) -> Failure:
    """Return the Failure, with the number of keys that were written, and the lines that may have been written."""
    cause = failure_of(error) if isinstance(error, StoreError) else Failure(f"{name}: {error}", ExitCode.FAILED)
    is_unknown = cause.exit_code == ExitCode.UNKNOWN
    message, hints = cause.message, [cause.hint]
    if isinstance(error, KeyExists):
        hints = ["--if-absent leaves such keys as they are, --overwrite overwrites them"]
    if is_unknown:
        message += f"; lines {done.open_from} to {done.open_to} may have been written"
    if done.written:
        message += f"; {done.written} keys were written before"
    if is_unknown or done.written:
        hints.append("with --if-absent or --overwrite the command may be repeated")
    else:
        hints.insert(0, "nothing was written")
    code = ExitCode.UNKNOWN if done.written else ExitCode(cause.exit_code)
    return Failure(message, code, "; ".join(filter(None, hints)), error if isinstance(error, StoreError) else None)
