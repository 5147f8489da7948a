"""Reads the keys of a store into lines, and writes the keys of lines into a store."""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

import trio

from kvstore.backup.key_lines import KeyLine, batches_of, end_line, header_line, key_line
from kvstore.client.client import Client
from kvstore.errors import OperationFailed
from kvstore.protocol.commands import Compare, Comparison, Put, Range, Target, prefix_range
from kvstore.protocol.results import GetResult


class Existing(enum.Enum):
    """How an import treats a key that already exists in the store."""

    REFUSE = "refuse"  # The import ends.
    KEEP = "keep"
    OVERWRITE = "overwrite"


class KeyExists(OperationFailed):
    """A key of an import already exists. No key of its batch was written."""

    def __init__(self, line_no: int, key: bytes, mod_revision: int) -> None:
        super().__init__(line_no, key, mod_revision)
        self.line_no, self.key, self.mod_revision = line_no, key, mod_revision

    def __str__(self) -> str:
        return f"line {self.line_no}: the key {self.key!r} exists already, with mod_revision {self.mod_revision}"


@dataclass(slots=True)
class Exported:
    """The progress of an export."""

    revision: int = 0
    keys: int = 0
    leased: int = 0  # The number of these keys that have a lease.


@dataclass(slots=True)
class Imported:
    """The progress of an import. After an error, the lines from `open_from` to `open_to` belong to the unfinished
    transaction. All keys of earlier lines are done."""

    written: int = 0
    kept: int = 0  # Keys that were left unchanged, because they already existed.
    leased: int = 0  # Keys that were left out, because they had a lease.
    open_from: int = 0
    open_to: int = 0


async def export_keys(
    client: Client,
    prefix: bytes,
    write: Callable[[bytes], Awaitable[None]],
    *,
    at_revision: int = 0,
    progress: Exported | None = None,
) -> Exported:
    """Write all keys with `prefix` as lines, page by page, all as they were at one revision.

    `at_revision`: the revision to read; 0: the present revision. Raises RevisionCompacted if the revision can no longer
    be read. At feature level 1, this error occurs if the export has more than one page and the store changes during the
    export.
    """
    progress = Exported() if progress is None else progress
    request = Range(*prefix_range(prefix))
    async for page in client.pages(request, one_revision=True, at_revision=at_revision):
        if not progress.revision:
            progress.revision = at_revision or page.revision
            await write(header_line(progress.revision, prefix))
        await write(b"".join(map(key_line, page.items)))
        progress.keys += len(page.items)
        progress.leased += sum(bool(record.lease_id) for record in page.items)
    await write(end_line(progress.keys))
    return progress


async def import_keys(
    client: Client,
    lines: Iterator[KeyLine],
    existing: Existing,
    *,
    with_leased: bool = False,
    progress: Imported | None = None,
) -> Imported:
    """Write the keys of `lines`, in transactions of a bounded number of keys and bytes, one after the other.

    A key that had a lease is left out, or, with `with_leased`, written without a lease. Raises KeyExists, InvalidLine
    and OSError (from `lines`), and the errors of the client. After an error, the keys of earlier transactions remain
    written.
    """
    progress = Imported() if progress is None else progress
    batches = batches_of(_without_leased(lines, progress, with_leased=with_leased))
    while batch := await trio.to_thread.run_sync(lambda: next(batches, None), abandon_on_cancel=True):
        progress.open_from, progress.open_to = batch[0].line_no, batch[-1].line_no
        left = batch
        while left and not await _write(client, left, existing):
            present = await _present(client, left)
            if present and existing is Existing.REFUSE:
                line = next(line for line in left if line.key in present)
                raise KeyExists(line.line_no, line.key, present[line.key])
            left = [line for line in left if line.key not in present]
        progress.written += len(left)
        progress.kept += len(batch) - len(left)
        progress.open_from = progress.open_to = 0
    return progress


def _without_leased(lines: Iterator[KeyLine], progress: Imported, *, with_leased: bool) -> Iterator[KeyLine]:
    for line in lines:
        if line.lease_id and not with_leased:
            progress.leased += 1
        else:
            yield line


async def _write(client: Client, lines: list[KeyLine], existing: Existing) -> bool:
    """Write the keys of one batch. Return False, without a write, if one of the keys exists and must not be
    overwritten."""
    absent = [Compare(line.key, Target.VERSION, Comparison.EQUAL, 0) for line in lines]
    puts = [Put(line.key, line.value) for line in lines]
    result = await client.txn([] if existing is Existing.OVERWRITE else absent, puts)
    return result.succeeded


async def _present(client: Client, lines: list[KeyLine]) -> dict[bytes, int]:
    """The keys of a batch that exist, with their mod_revisions."""
    present: dict[bytes, int] = {}
    results = await client.get_many([line.key for line in lines])
    for line, result in zip(lines, results, strict=True):
        if not isinstance(result, GetResult):
            raise result
        if result.record is not None:
            present[line.key] = result.record.mod_revision
    return present
