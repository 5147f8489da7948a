"""One operation of a client: it is begun by a method of the recorder, and ended here."""

from __future__ import annotations

import contextlib
from json.encoder import encode_basestring
from types import TracebackType
from typing import Any, ClassVar, Final, Protocol, TypeVar

from spark_audit.record.errors import BadAnswer, NotEnded, RecordError

REVISION_MAX = 2**63 - 1
ERROR_CHARACTERS_MAX = 60  # The room for the word of an error in the row of a write.
VALUE_BYTES_MAX = 64  # The room for the value in the row of a compare-and-set that failed. A longer one is left out.
_NUMBER = f"{REVISION_MAX}"
Self = TypeVar("Self", bound="OpenOperation")


class _Missing:
    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = _Missing()
"""The value of a read for which `ok` was called without a value. None means that the key was absent."""


class Owner(Protocol):
    """What an operation needs of its recorder."""

    def end(self, operation: OpenOperation, how: str, fields: str) -> None:
        """Write the end of the row. `how`: `ok`, `failed` or `unknown`. Sets `ended` of the operation."""
        ...

    def abandon(self, operation: OpenOperation, word: str) -> None:
        """Let the recorder end the operation with an unknown outcome, soon. Takes no lock."""
        ...

    def now_ns(self) -> int:
        """Return the stamp of now."""
        ...

    def value_text(self, given: object) -> str:
        """Return the text of a value for the row. Raises BadText."""
        ...


class OpenOperation:
    """An open operation. Exactly one of `ok`, `failed` and `unknown` ends it; they may be called in any thread.

    As a context manager it ends itself if the body raises an exception: as *did not happen*, if the exception is of a
    type in `did_not_happen`; otherwise with an unknown outcome. A read without an answer counts as failed, because it
    has no effect. A body that ends without an outcome raises NotEnded.

    Every method that ends the operation raises AlreadyEnded, RecorderClosed, WrongProcess or RecordingFailed.
    """

    # The longest text of `fields` that a row of this kind may have, in bytes. The recorder reserves the room.
    ROOM: ClassVar[int] = 0
    NAME: ClassVar[str]

    owner: Owner
    client: str
    key: str
    certain: tuple[type[BaseException], ...]
    ended: str | None = None
    number: int = 0
    epoch: int = 0
    part: int = 0
    head: str = ""  # The beginning of the row of a read.
    where: Any = None  # The file of the row of a write.
    offset: int = 0

    def __init__(self, owner: Owner, client: str, key: str, certain: tuple[type[BaseException], ...]) -> None:
        self.owner, self.client, self.key, self.certain = owner, client, key, certain

    def failed(self, error: str | None = None) -> None:
        """Record that the operation certainly had no effect, and never will. `error`: a stable word."""
        stamp = self.owner.now_ns()
        self.owner.end(self, "failed", f',"status":"fail","return_ns":{stamp}{_word(error)}')

    def unknown(self, error: str | None = None) -> None:
        """Record that nobody knows whether the operation took effect. `error`: a stable word.

        The client goes on under a new name in the history; the program keeps its own name for it.
        """
        self.owner.end(self, "unknown", f',"status":"unknown"{_word(error)}')

    def abandon(self, word: str) -> None:
        """End the operation as `unknown` does, but later: with the next call of the recorder.

        The garbage collector may call this at any time, also in a thread that holds the lock of the recorder.
        """
        if self.ended is None:
            self.owner.abandon(self, word)

    def _ok(self, output: str, revision: int | None, more: str = "") -> None:
        stamp = self.owner.now_ns()
        more += "" if revision is None else f',"revision":{checked("revision", revision, 1)}'
        self.owner.end(self, "ok", f',"status":"ok","return_ns":{stamp}{more},"output":{{{output}}}')

    def __str__(self) -> str:
        return f"the {self.NAME} of {self.key!r} by client {self.client!r} (operation {self.number})"

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.ended is not None:
            return
        if error is None:
            self.unknown("NotEnded")
            raise NotEnded(f"{self} has no outcome, so it counts as unknown; call ok(…), failed() or unknown()")
        if isinstance(error, GeneratorExit):
            self.abandon("GeneratorExit")  # The garbage collector closes a coroutine in which the body waited.
            return
        # The exception of the program is more important than an error of the recorder, which would hide it.
        with contextlib.suppress(RecordError):
            end = self.failed if isinstance(error, self.certain) else self.unknown
            end(type(error).__name__)


class Get(OpenOperation):
    """A read of one key."""

    NAME = "get"

    def ok(
        self,
        value: str | bytes | _Missing | None = MISSING,
        *,
        revision: int | None = None,
        mod_revision: int | None = None,
        create_revision: int | None = None,
        version: int | None = None,
        consistency: str | None = None,
    ) -> None:
        """Record the answer. `value`: what the read returned; None if there was no such key.

        `revision`: the revision of the response; the other numbers are those of the record. `consistency`: `local` or
        `bounded` for a read that may be old; such a read is judged less strictly. Raises BadAnswer, BadText, and the
        errors of an end.
        """
        if isinstance(value, _Missing):
            raise BadAnswer(f"{self} has no value; call ok(value) with what was read, or ok(None) if there was no key")
        if consistency is not None and consistency not in ("linearizable", "lease", "follower", "bounded", "local"):
            hint = "it is linearizable, lease, follower, bounded or local"
            raise BadAnswer(f"{self} has the consistency {consistency!r}; {hint}")
        output = '"found":false' if value is None else f'"found":true,"value":{encode_basestring(self._text(value))}'
        if create_revision is not None:
            output += f',"create_revision":{checked("create_revision", create_revision, 0)}'
        if mod_revision is not None:
            output += f',"mod_revision":{checked("mod_revision", mod_revision, 0)}'
        if version is not None:
            output += f',"version":{checked("version", version, 0)}'
        self._ok(output, revision, "" if consistency is None else f',"consistency":"{consistency}"')

    def unknown(self, error: str | None = None) -> None:
        """Record a read without an answer. It has no effect, so its row has the status `fail`."""
        self.failed(error)

    def _text(self, value: str | bytes) -> str:
        return self.owner.value_text(value)


class Put(OpenOperation):
    """A write of one key."""

    NAME = "put"
    ROOM = max(
        len(f',"status":"ok","return_ns":{_NUMBER},"revision":{_NUMBER},"output":{{"succeeded":false}}'),
        len(f',"status":"fail","return_ns":{_NUMBER},"error":""') + ERROR_CHARACTERS_MAX,
    )

    def ok(self, *, revision: int | None = None) -> None:
        """Record that the store acknowledged the write. `revision`: the revision of the write, if the store has any."""
        self._ok('"succeeded":true', revision)


class Delete(OpenOperation):
    """A deletion of one key."""

    NAME = "delete"
    ROOM = Put.ROOM

    def ok(self, *, found: bool | None = None, revision: int | None = None) -> None:
        """Record that the store acknowledged the deletion. `found`: whether there was a record to remove.

        Raises BadAnswer if `found` is missing.
        """
        if not isinstance(found, bool):
            raise BadAnswer(
                f"{self} has found={found!r}; call ok(found=True) if a record was removed, else found=False"
            )
        self._ok(f'"found":{"true" if found else "false"}', revision)


class CompareAndSet(OpenOperation):
    """A write of one key under the condition that the key has an expected value, or is absent."""

    NAME = "cas"
    ROOM = Put.ROOM + len(',"found":false,"value":') + VALUE_BYTES_MAX
    expects_absence: bool

    def ok(
        self,
        *,
        succeeded: bool | None = None,
        found: bool | None = None,
        value: str | bytes | None = None,
        revision: int | None = None,
    ) -> None:
        """Record that the store evaluated the comparison. `succeeded`: whether the key had the expected value.

        If not: `found` states whether there was a record, and `value` is the value of this record, if the store
        reported it. A value of more than 62 bytes may be left out of the row, which then says only that it differed.
        If the absence of the key was expected, `found` is True by itself. Raises BadAnswer, and the errors of an end.
        """
        if not isinstance(succeeded, bool):
            raise BadAnswer(
                f"{self} has succeeded={succeeded!r}; call ok(succeeded=True) or ok(succeeded=False, found=…)"
            )
        if succeeded:
            self._ok('"succeeded":true', revision)
            return
        found = True if found is None and (self.expects_absence or value is not None) else found
        if not isinstance(found, bool):
            raise BadAnswer(
                f"{self} failed, and found={found!r}; state whether the key existed: found=True or found=False"
            )
        output = f'"succeeded":false,"found":{"true" if found else "false"}'
        if found and value is not None:
            shown = encode_basestring(self.owner.value_text(value))
            output += f',"value":{shown}' if len(shown.encode()) <= VALUE_BYTES_MAX else ""
        self._ok(output, revision)


def checked(name: str, number: object, least: int) -> int:
    """Return a number of a row. Raises BadAnswer if it is not a whole number from `least` to REVISION_MAX."""
    if isinstance(number, int) and not isinstance(number, bool) and least <= number <= REVISION_MAX:
        return number
    raise BadAnswer(f"{name} is {number!r}; it is a whole number from {least} to 2⁶³ − 1, or None if it is not known")


def _word(error: str | None) -> str:
    """Return the field `error`. A word is cut to the room that a row has for it."""
    if error is None:
        return ""
    word = error.encode("ascii", "replace").decode()[:ERROR_CHARACTERS_MAX].replace('"', "'").replace("\\", "/")
    return f',"error":"{"".join(letter if letter.isprintable() else " " for letter in word)}"'
