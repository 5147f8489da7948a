"""Errors of recording. Each message states what happened, the values, and what to do."""

from __future__ import annotations

from spark_audit.errors import AuditError


class RecordError(AuditError):
    """Base of every error of a recorder. The message is complete; `str(error)` returns it."""


class BadSetting(RecordError):
    """An argument of the recorder or of a wrapped function has a value that is not allowed."""


class WrongFolder(RecordError):
    """The folder cannot be written, holds another kind of history, or was begun with other settings."""


class BadText(RecordError):
    """A key, a value or a client is not text or bytes, or a key or a client is empty."""


class BadAnswer(RecordError):
    """`ok` lacks something that the row must state, or states something that no store can answer."""


class ClientBusy(RecordError):
    """A client began an operation while another operation of this client was open."""


class AlreadyEnded(RecordError):
    """An operation was ended a second time."""


class NotEnded(RecordError):
    """The body of an operation ended without an outcome. The operation is recorded with an unknown outcome."""


class RecorderClosed(RecordError):
    """The recorder was used after `close`."""


class WrongProcess(RecordError):
    """An operation that another process began was ended here, after a fork."""


class RecordingFull(RecordError):
    """A bound of the recorder is reached, and `at_bound` is `"error"`. The operation was not begun."""


class RecordingFailed(RecordError):
    """The system refused to write the history, for example because the disk is full."""


class NotRecorded(RecordError, AttributeError):
    """A call of a store that no row can state. Nothing was sent."""


class MissingLibrary(RecordError):
    """The client library of an adapter is not installed."""
