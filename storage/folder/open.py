"""Opening a member's storage: recovery. The caller gets the storage only after the whole storage has become durable.

See docs/reference/specification.md#35-recovery.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from raft import HardState, Identity, LogPosition, LogWrite
from storage.ballast import Ballast
from storage.errors import CorruptLog, CorruptMeta, CorruptSnapshot, StorageError, WrongCluster, WrongNode, in_folder
from storage.files.interface import Delete, Files, Operation, SetSize, SyncFile, SyncFolder
from storage.files.threaded import InlineFiles, RealFiles
from storage.folder.metadata import META_PATH, PinFile, read_identity
from storage.layout import INITIALIZING_NAME, log_folder, snapshot_folder
from storage.limits import StorageLimits
from storage.snapshots.store import SnapshotFolder
from storage.wal.recovery import Recovered, recover_log
from storage.wal.segment import TEMPORARY_SUFFIX, segment_name
from storage.wal.wal import Wal


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedStorage:
    """The storage with which a node starts.

    `warnings` lists the damaged snapshots, instead of which the node uses an older snapshot. `torn_bytes` is the number
    of bytes that were cut off the end of the log. These bytes belong to a write that was under way when the last
    process ended, so no vote or acknowledgement depended on them.
    """

    log: Wal
    snapshots: SnapshotFolder
    pins: PinFile
    hard_state: HardState
    warnings: tuple[CorruptSnapshot, ...] = ()
    torn_bytes: int = 0


def open_storage(
    files: Files,
    *,
    identity: Identity,
    limits: StorageLimits | None = None,
    done: Callable[[OpenedStorage | BaseException], None],
    random_bytes: Callable[[int], bytes] = os.urandom,
) -> None:
    """Recover one member's storage. Reads are synchronous; writes are submitted. `done` receives the storage, a
    StorageError or an OSError.

    Frames above the highest proven batch are copied into a new segment and then cut off the old segment. The log is
    dropped, by writing a reset, in two cases: the log ends before the newest valid snapshot, or the log's term at the
    snapshot's index differs from the snapshot's term. Recovery can be interrupted at any point and repeated.

    See docs/reference/specification.md#35-recovery and docs/reference/specification.md#55-choice-at-start.
    """
    opening = _Opening(files, identity, limits or StorageLimits(), random_bytes)
    try:
        opening.read()
    except (StorageError, OSError) as error:
        problem = in_folder(error, str(files.folder)) if isinstance(files, RealFiles | InlineFiles) else error
        files.submit([], lambda submit_error: done(submit_error or problem))
        return
    opening.write(done)


class _Opening:
    def __init__(
        self, files: Files, identity: Identity, limits: StorageLimits, random_bytes: Callable[[int], bytes]
    ) -> None:
        self._files, self._identity, self._limits = files, identity, limits
        self._random_bytes = random_bytes
        self._ballast = Ballast(files, limits.ballast_bytes)
        self._log_folder = log_folder(identity.group_id)
        self._snapshot_folder = snapshot_folder(identity.group_id)

    def read(self) -> None:
        """Read everything. Recovery writes nothing until this call has succeeded, so damage is reported before any
        change."""
        _check_identity(read_identity(self._files), self._identity)
        self._ballast.is_present()  # Raises OSError if something other than a file has the ballast's name.
        self._pins = PinFile(self._files, self._identity, self._ballast)
        recovered = recover_log(self._files, self._log_folder, self._identity)
        self._old_segment = recovered.segments[-1]
        self._old_size_bytes = self._old_segment.size_bytes
        self._torn_bytes = recovered.torn_bytes
        self._wal = Wal(
            self._files,
            self._log_folder,
            identity=self._identity,
            limits=self._limits,
            random_bytes=self._random_bytes,
            ballast=self._ballast,
            recovered=recovered,
        )
        self._hint = self._take_unproven(recovered)
        self._snapshots = SnapshotFolder(
            self._files, self._snapshot_folder, identity=self._identity, ballast=self._ballast
        )
        self._warnings = self._snapshots.open(self._wal.first_index)
        self._agree_with_snapshot()

    def write(self, done: Callable[[OpenedStorage | BaseException], None]) -> None:
        """Write the changes of recovery, in this order: delete leftover files and make all names durable; write the new
        segment; cut the old segment; make the ballast. Names are made durable first, because the later steps rely on
        them."""

        def names_durable(error: BaseException | None) -> None:
            if error is not None:
                done(error)
            else:
                self._wal.sync_to_new_segment(self._hint, self._cut_operations(), log_durable)

        def log_durable(error: BaseException | None) -> None:
            if error is not None:
                done(error)
            else:
                self._ballast.restore(ballast_tried)

        def ballast_tried(error: BaseException | None) -> None:
            done(error or self._opened())

        self._files.submit(self._tidy_operations(), names_durable)

    def _take_unproven(self, recovered: Recovered) -> int:
        """Write again the frames that may exist only in the page cache. Return the highest commit hint."""
        hint = recovered.state.hard_state.commit_index
        for write in recovered.unproven:
            problem = self._wal.take(write)
            if problem is not None:
                raise CorruptLog(self._old_path, self._old_size_bytes, problem)
            hint = max(hint, write.hard_state.commit_index if write.hard_state else 0)
        return hint

    def _agree_with_snapshot(self) -> None:
        """Complete the installation of a snapshot if a crash interrupted the installation after the snapshot file was
        durable.

        See docs/reference/specification.md#55-choice-at-start.
        """
        header = self._snapshots.latest().header
        if header.term > self._wal.hard_state.term:  # A node's term must not be below the term of its snapshot.
            self._wal.append(LogWrite(sequence=0, hard_state=HardState(term=header.term)))
        if not self._wal.continues(LogPosition(header.index, header.term)):
            self._wal.append(LogWrite(sequence=0, reset=LogPosition(header.index, header.term)))

    def _tidy_operations(self) -> list[Operation]:
        names = self._files.names(self._log_folder)
        return [
            *(Delete(f"{self._log_folder}/{name}") for name in names if name.endswith(TEMPORARY_SUFFIX)),
            *self._snapshots.leftovers(),
            Delete(INITIALIZING_NAME),
            SyncFolder(self._snapshot_folder),
            SyncFolder(self._log_folder),
            SyncFolder(""),
        ]

    def _cut_operations(self) -> list[Operation]:
        if self._files.size_bytes(self._old_path) == self._old_size_bytes:
            return []
        return [SetSize(self._old_path, self._old_size_bytes), SyncFile(self._old_path)]

    @property
    def _old_path(self) -> str:
        return f"{self._log_folder}/{segment_name(self._old_segment.number)}"

    def _opened(self) -> OpenedStorage:
        self._ballast.may_wait = True
        return OpenedStorage(
            log=self._wal,
            snapshots=self._snapshots,
            pins=self._pins,
            hard_state=self._wal.hard_state,
            warnings=tuple(self._warnings),
            torn_bytes=self._torn_bytes,
        )


def _check_identity(found: Identity, expected: Identity) -> None:
    if found.cluster_id != expected.cluster_id:
        raise WrongCluster("the data folder", found.cluster_id, expected.cluster_id)
    if found.node_id != expected.node_id:
        raise WrongNode("the data folder", found.node_id, expected.node_id)
    if found != expected:
        raise CorruptMeta(META_PATH, f"it names {found}, and {expected} was expected")
