"""Durable bytes: the write-ahead log, the snapshots, and the data folder of one node. No event loop in here.

This is the public face: other packages import from `storage`, never a submodule.
"""

from __future__ import annotations

from storage.ballast import is_disk_full, is_short_of_descriptors
from storage.datadir import DataFolder, create_data_folder, holder_of, open_data_folder
from storage.disk import read_all
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
)
from storage.files import (
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
from storage.initialize import initialize
from storage.inspection import Report, inspect
from storage.limits import StorageLimits
from storage.meta import PinFile, read_identity
from storage.opening import OpenedStorage, open_storage
from storage.real_files import InlineFiles, RealFiles
from storage.snapshot import SnapshotFolder
from storage.snapshot_format import FORMAT_VERSION as SNAPSHOT_FORMAT
from storage.snapshot_format import SnapshotParser
from storage.wal import Wal

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
