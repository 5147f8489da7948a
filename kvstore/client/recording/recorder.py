"""What a client needs of a recorder.

The recorder is an object of another package: `spark_audit.record.Recorder`, or one of the program's own. Neither
package imports the other.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Protocol


class RecordedOperation(Protocol):
    """An operation that a recorder has begun. It ends once."""

    def ok(self, *answer: Any, **numbers: Any) -> None:
        """Record the answer: `ok(value, revision=, mod_revision=, consistency=)` of a get, `ok(revision=)` of a put,
        `ok(found=, revision=)` of a deletion, `ok(succeeded=, found=, value=, revision=)` of a compare-and-set."""
        ...

    def failed(self, error: str | None = None) -> None:
        """Record that the operation certainly has no effect. `error`: a stable word."""
        ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Record the end by an exception: without effect, if its type is in `did_not_happen`, otherwise unknown."""
        ...


class OperationRecorder(Protocol):
    """A recorder of operations, such as `spark_audit.record.Recorder`. Several threads may call it.

    `client`: a name that has at most one open operation. A method that raises an error has begun nothing; then the
    operation is not sent, and the caller gets this error.
    """

    def get(self, client: str, key: bytes, /, *, did_not_happen: tuple[type[BaseException], ...]) -> RecordedOperation:
        """Begin a read."""
        ...

    def put(
        self, client: str, key: bytes, value: bytes, /, *, did_not_happen: tuple[type[BaseException], ...]
    ) -> RecordedOperation:
        """Begin a write."""
        ...

    def delete(
        self, client: str, key: bytes, /, *, did_not_happen: tuple[type[BaseException], ...]
    ) -> RecordedOperation:
        """Begin a deletion."""
        ...

    def cas(
        self,
        client: str,
        key: bytes,
        expected: bytes | None,
        value: bytes,
        /,
        *,
        expected_mod_revision: int | None,
        did_not_happen: tuple[type[BaseException], ...],
    ) -> RecordedOperation:
        """Begin a compare-and-set by value, by revision, or, if both are None, for an absent key."""
        ...

    def records(self, key: bytes, /) -> bool:
        """Return whether operations on a key are recorded."""
        ...

    def preexisting(self, key: bytes, value: bytes, /) -> None:
        """Record a value that no recorded operation wrote."""
        ...

    def leave_out(self, key: bytes, /) -> None:
        """Leave a key out of the audit, in all processes."""
        ...

    def leave_out_range(self, start: bytes, end: bytes | None, /) -> None:
        """Leave the keys from `start` to before `end` out of the audit; None: all further keys."""
        ...
