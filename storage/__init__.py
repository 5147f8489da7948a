"""The storage of one node: its write-ahead log, its snapshots and its data folder. This package needs no event loop.

Other packages import names from `storage` itself and not from its submodules.
"""

from __future__ import annotations

from storage.errors import (
    CorruptLog,
    CorruptMeta,
    CorruptSnapshot,
    DiskFailing,
    DiskFull,
    FolderLocked,
    LogFailed,
    NewerFormat,
    NotCarriedOut,
    NotEmpty,
    NotInitialized,
    NotWritable,
    SnapshotRefused,
    StorageError,
    WrongCluster,
    WrongNode,
    is_disk_full,
    is_short_of_descriptors,
)
from storage.files.disk import read_all
from storage.files.interface import (
    CreateFile,
    Delete,
    Done,
    Files,
    MakeFolder,
    Operation,
    Rename,
    SetSize,
    SyncFile,
    SyncFolder,
    Write,
)
from storage.files.memory import MemoryFiles
from storage.files.threaded import InlineFiles, RealFiles
from storage.folder.data_folder import DataFolder, create_data_folder, holder_of, open_data_folder
from storage.folder.initialize import initialize
from storage.folder.inspect import Report, inspect
from storage.folder.memory_folder import MemoryFolder, create_memory_folder
from storage.folder.metadata import PinFile, read_identity
from storage.folder.open import OpenedStorage, open_storage
from storage.limits import StorageLimits
from storage.snapshots.format import FORMAT_VERSION as SNAPSHOT_FORMAT
from storage.snapshots.format import SnapshotParser
from storage.snapshots.store import SnapshotFolder
from storage.wal.wal import Wal

__all__ = [
    "SNAPSHOT_FORMAT",
    "CorruptLog",
    "CorruptMeta",
    "CorruptSnapshot",
    "CreateFile",
    "DataFolder",
    "Delete",
    "DiskFailing",
    "DiskFull",
    "Done",
    "Files",
    "FolderLocked",
    "InlineFiles",
    "LogFailed",
    "MakeFolder",
    "MemoryFiles",
    "MemoryFolder",
    "NewerFormat",
    "NotCarriedOut",
    "NotEmpty",
    "NotInitialized",
    "NotWritable",
    "OpenedStorage",
    "Operation",
    "PinFile",
    "RealFiles",
    "Rename",
    "Report",
    "SetSize",
    "SnapshotFolder",
    "SnapshotParser",
    "SnapshotRefused",
    "StorageError",
    "StorageLimits",
    "SyncFile",
    "SyncFolder",
    "Wal",
    "Write",
    "WrongCluster",
    "WrongNode",
    "create_data_folder",
    "create_memory_folder",
    "holder_of",
    "initialize",
    "inspect",
    "is_disk_full",
    "is_short_of_descriptors",
    "open_data_folder",
    "open_storage",
    "read_all",
    "read_identity",
]
