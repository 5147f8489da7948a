"""Records the clients of any store, in tests and in production, as a history that `hwm-audit check` judges.

A `Recorder` writes one row per operation into a run folder (docs/reference/specification.md#10-recorded-run). Threads,
asyncio and trio use the same calls: recording is synchronous, and takes microseconds. Several processes may record into
one folder.

What belongs here: everything that a recorded program imports. It needs the base installation only, and loads neither
Spark nor numpy. Reading and judging histories belongs to the other chapters.
"""

from __future__ import annotations

from spark_audit.record.errors import (
    AlreadyEnded,
    BadAnswer,
    BadSetting,
    BadText,
    ClientBusy,
    MissingLibrary,
    NotEnded,
    NotRecorded,
    RecorderClosed,
    RecordError,
    RecordingFailed,
    RecordingFull,
    WrongFolder,
    WrongProcess,
)
from spark_audit.record.operation import CompareAndSet, Delete, Get, Put
from spark_audit.record.recorder import Recorder

__all__ = [
    "AlreadyEnded",
    "BadAnswer",
    "BadSetting",
    "BadText",
    "ClientBusy",
    "CompareAndSet",
    "Delete",
    "Get",
    "MissingLibrary",
    "NotEnded",
    "NotRecorded",
    "Put",
    "RecordError",
    "Recorder",
    "RecorderClosed",
    "RecordingFailed",
    "RecordingFull",
    "WrongFolder",
    "WrongProcess",
]
