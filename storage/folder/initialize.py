"""The explicit first start: writing an empty log, the first snapshot and `meta`.

`meta` is written last. Until `meta` exists, the folder has no member, and the first start may be repeated.

See docs/reference/specification.md#12-first-start.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from raft import Configuration, Done, HardState, Identity, LogPosition, Member, SnapshotHeader
from storage.errors import NotEmpty
from storage.files.interface import CreateFile, Delete, Files, MakeFolder, Operation, SyncFile, SyncFolder, Write
from storage.folder.metadata import META_PATH, PINS_PATH, encode_meta, encode_pins, replace_operations
from storage.layout import INITIALIZING_NAME, LOCK_NAME, log_folder, snapshot_folder
from storage.limits import StorageLimits
from storage.snapshots.format import encode_chunk, encode_header, encode_trailer
from storage.snapshots.writers import snapshot_name
from storage.wal.segment import SegmentHeader, new_segment_operations
from storage.wal.write_group import PendingWrites

BEGINNING = LogPosition(0, 0)


def initialize(
    files: Files,
    *,
    identity: Identity,
    configuration: Configuration,
    machine_header: Mapping[str, Any],
    machine_chunks: Iterable[bytes] = (),
    position: LogPosition = BEGINNING,
    joins_as: Member | None = None,
    done: Done,
    random_bytes: Callable[[int], bytes] = os.urandom,
) -> None:
    """Make an empty folder the data folder of a new member. `done(NotEmpty)` is called if the folder is not empty.

    The first snapshot has this `position` and `configuration`. An initial member begins with index 0 and the initial
    configuration; `machine_header` and `machine_chunks` are the state machine's initial state, which must be the same
    on all members. A member that joins the cluster later (`joins_as`, with its own addresses) begins with a snapshot
    from a member of the cluster. The log of such a member is empty, and the first open makes the log begin at the
    position of the snapshot.
    """
    assert position.index >= 0, position
    assert position == BEGINNING or joins_as is not None, (position, identity)
    names = [name for name in files.names("") if name != LOCK_NAME]
    if names and (INITIALIZING_NAME not in names or META_PATH in names):
        refusal = NotEmpty("the data folder", tuple(names))
        files.submit([], lambda error: done(error or refusal))
        return
    header = SnapshotHeader(
        index=position.index, term=position.term, configuration=configuration, machine=machine_header
    )
    operations = [
        *_begin(files, identity.group_id, is_again=bool(names)),
        *_first_segment(identity, random_bytes),
        *_first_snapshot(identity, header, machine_chunks),
        *replace_operations(PINS_PATH, encode_pins(identity, {})),
        *replace_operations(META_PATH, encode_meta(identity, joins_as)),
        Delete(INITIALIZING_NAME),
        SyncFolder(""),
    ]
    files.submit(operations, done)


def _begin(files: Files, group_id: int, is_again: bool) -> list[Operation]:
    folders = [log_folder(group_id), snapshot_folder(group_id)]
    operations: list[Operation] = [] if is_again else [CreateFile(INITIALIZING_NAME)]
    operations.append(SyncFolder(""))
    for folder in folders:  # Delete the files of an interrupted attempt, which no member has used.
        operations.append(MakeFolder(folder))
        operations += [Delete(f"{folder}/{name}") for name in files.names(folder)]
    return [*operations, *(SyncFolder(folder) for folder in (*folders, f"groups/{group_id}", "groups", ""))]


def _first_segment(identity: Identity, random_bytes: Callable[[int], bytes]) -> list[Operation]:
    header = SegmentHeader(
        group_id=identity.group_id,
        cluster_id=identity.cluster_id,
        number=1,
        salt=int.from_bytes(random_bytes(8), "big") or 1,
        previous_batch=0,
        previous_checksum=0,
    )
    frames = PendingWrites(from_index=1).encode(
        salt=header.salt,
        batch=1,
        durable_batch=0,
        previous_checksum=0,
        start=LogPosition(0, 0),
        hard_state=HardState(),
        frame_bytes_max=StorageLimits().frame_bytes_max,
    )
    return new_segment_operations(log_folder(identity.group_id), header, frames)


def _first_snapshot(identity: Identity, header: SnapshotHeader, chunks: Iterable[bytes]) -> list[Operation]:
    folder = snapshot_folder(identity.group_id)
    path = f"{folder}/{snapshot_name(LogPosition(header.index, header.term))}"
    start = encode_header(header, identity)
    buffers, checksum, total_bytes, count = [start], int.from_bytes(start[-4:], "big"), 0, 0
    for chunk in filter(None, chunks):
        head, checksum = encode_chunk(chunk, checksum)
        buffers += [head, chunk]
        total_bytes += len(chunk)
        count += 1
    buffers.append(encode_trailer(count, total_bytes, checksum))
    return [CreateFile(path), Write(path, 0, tuple(buffers)), SyncFile(path), SyncFolder(folder)]
