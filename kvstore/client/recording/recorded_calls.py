"""Records what this client saw, for an audit of production (`Client(record=…)`).

Recording lies between the calls of a client and its pump, and sees each request with its response. So the
three kinds of clients share it, every recipe passes through it, and a client without a recorder does nothing for it.

A gap in the record must never look like a violation:

- A write that has no row leaves its keys out of the audit, before it is sent. This is also so for commands that this
  module does not know.
- A key may have a value from before the recording began. So before the first operation on a key, the client reads the
  key, and records such a value.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from itertools import count
from typing import Any, cast

from kvstore.client.bulk import BulkCall
from kvstore.client.recording.recorder import OperationRecorder, RecordedOperation
from kvstore.client.shell import PumpOfCalls
from kvstore.errors import OperationFailed, StoreError
from kvstore.protocol.commands import (
    Add,
    Append,
    Command,
    CommandKind,
    CompareAndSet,
    Delete,
    DeleteRange,
    Get,
    KeylessCommand,
    Put,
    Range,
    Txn,
    prefix_range,
)
from kvstore.protocol.messages import Consistency, Request, RequestKind, Response, read_request
from kvstore.protocol.results import (
    CompareAndSetResult,
    DeleteResult,
    GetResult,
    PutResult,
    Result,
    read_answer,
    read_result,
)
from raft import Acknowledge, ProtocolError

KEYS_KNOWN_MAX = 100_000
"""The number of keys whose first read is remembered. After more of them, keys are read a second time."""

_WITHOUT_KEYS = Get | Range | KeylessCommand
"""The commands that change no key. The end of a lease removes keys, but these were left out when they were attached to
the lease."""

_OLD = frozenset({Consistency.LOCAL.word, Consistency.BOUNDED.word})  # The reads that may show an older state.
_SECONDS_MIN = 0.001  # The least time for an operation after the first read of its key, which takes of its deadline.
_numbers = count(1)  # Names of clients are unique in a process, because several clients may share one recorder.


_CERTAIN: tuple[type[BaseException], ...] = (OperationFailed,)


class Recording:
    """The recording of one client, which its tasks and threads share."""

    def __init__(self, recorder: OperationRecorder) -> None:
        self._recorder = recorder
        self._free: deque[str] = deque()  # Names that have no open operation.
        self._known: set[bytes] = set()  # Keys that were read before their first recorded operation.
        # The revision of the store before the first write of this client; 0: not known yet. A record up to this
        # revision may be from before the recording, and a record above it is not.
        self._base = 0

    async def ask(self, pump: PumpOfCalls, request: Request, seconds: float) -> tuple[Response, int]:
        """Send a request as `pump.ask` does, and record it. Also raises the errors of the recorder; then nothing was
        sent."""
        key = _recorded_key(request)
        if key is None or not self._recorder.records(key):
            self.leave_out(request)
            return await pump.ask(request, seconds)
        if key not in self._known:
            if _may_be_old(request):
                # The leader, which a first read needs, may be missing. A read without a row does no harm.
                return await pump.ask(request, seconds)
            begun = pump.loop.time()
            try:
                await self._read_first(pump, key, seconds)
            except StoreError:
                seconds -= pump.loop.time() - begun
                if seconds <= 0:
                    raise
                if request.kind is RequestKind.COMMAND:
                    self._recorder.leave_out(key)
                return await pump.ask(request, seconds)
            seconds = max(seconds - (pump.loop.time() - begun), _SECONDS_MIN)
        return await self._ask_recorded(pump, request, key, seconds)

    def leave_out(self, request: Request) -> None:
        """Leave the keys that a request may write out of the audit. Raises the errors of the recorder."""
        if request.kind is RequestKind.COMMAND:
            self._leave_out(request.command)

    def _leave_out(self, command: Command | None) -> None:
        recorder = self._recorder
        match command:
            case Put(key=key) | Delete(key=key) | CompareAndSet(key=key) | Add(key=key):
                recorder.leave_out(key)
            case Append(prefix=prefix):
                recorder.leave_out_range(*prefix_range(prefix))
            case DeleteRange(start=start, end=end):
                recorder.leave_out_range(start, end)
            case Txn(success=success, failure=failure):
                for operation in (*success, *failure):
                    self._leave_out(operation)
            case _ if not isinstance(command, _WITHOUT_KEYS):
                recorder.leave_out_range(b"", None)  # Nobody has said which keys this command writes.

    async def _read_first(self, pump: PumpOfCalls, key: bytes, seconds: float) -> None:
        """Read a key before its first operation, and record a value that may be from before the recording."""
        response, _ = await pump.ask(read_request(Get(key), Consistency.LINEARIZABLE), seconds)
        found = read_answer(response, _read, has_effect=False)
        self._base = self._base or response.revision
        if isinstance(found, GetResult) and (record := found.record) and record.mod_revision <= self._base:
            self._recorder.preexisting(key, record.value)
        if len(self._known) >= KEYS_KNOWN_MAX:
            self._known.clear()
        self._known.add(key)

    async def _ask_recorded(
        self, pump: PumpOfCalls, request: Request, key: bytes, seconds: float
    ) -> tuple[Response, int]:
        try:
            client = self._free.pop()
        except IndexError:
            client = f"kvstore-{next(_numbers)}"
        operation = self._begun(client, request, key)
        try:
            response, session_id = await pump.ask(request, seconds)
            result = read_answer(response, _read, has_effect=request.has_effect)
        except BaseException as error:
            with suppress(Exception):  # The error of the operation is more important than an error of the recorder.
                operation.__exit__(type(error), error, error.__traceback__)
                self._free.append(client)
            raise
        # The program gets its result, also if the recorder fails now. The row of a write then stays unknown, and a read
        # has no row. The next operation tells the program of a failure that lasts.
        with suppress(Exception):
            self._end(operation, request, response, result)
            self._free.append(client)
        return response, session_id

    def _begun(self, client: str, request: Request, key: bytes) -> RecordedOperation:
        recorder = self._recorder
        match request.command:
            case None:
                return recorder.get(client, key, did_not_happen=_CERTAIN)
            case Put(value=value):
                return recorder.put(client, key, value, did_not_happen=_CERTAIN)
            case CompareAndSet(value=value, expected=expected):
                by_value = expected if isinstance(expected, bytes) else None
                by_revision = expected if isinstance(expected, int) and expected else None
                return recorder.cas(
                    client, key, by_value, value, expected_mod_revision=by_revision, did_not_happen=_CERTAIN
                )
            case _:
                return recorder.delete(client, key, did_not_happen=_CERTAIN)

    def _end(self, operation: RecordedOperation, request: Request, response: Response, result: Result) -> None:
        revision = response.revision
        match result:
            case GetResult(record=record):
                word = Consistency(response.consistency or request.items[0]).word
                if word in _OLD and revision < self._base:
                    operation.failed("BeforeRecording")  # The member was older than the recording is.
                elif record is None:
                    operation.ok(None, revision=revision, consistency=word)
                else:
                    operation.ok(record.value, revision=revision, mod_revision=record.mod_revision, consistency=word)
            case PutResult():
                operation.ok(revision=revision)
            case DeleteResult(found=found):
                operation.ok(found=found, revision=revision)
            case CompareAndSetResult(succeeded=True):
                operation.ok(succeeded=True, revision=revision)
            case CompareAndSetResult(record=record):
                value = None if record is None else record.value
                operation.ok(succeeded=False, found=record is not None, value=value, revision=revision)
            case _:
                operation.__exit__(ProtocolError, ProtocolError("another kind of answer"), None)  # Unknown.


class RecordedPump:
    """A pump whose calls are recorded. Everything else is that of the pump below."""

    def __init__(self, pump: PumpOfCalls, recording: Recording) -> None:
        self._pump, self._recording = pump, recording

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pump, name)

    async def ask(self, request: Request, seconds: float) -> tuple[Response, int]:
        """Send a request, and record it."""
        return await self._recording.ask(self._pump, request, seconds)

    async def ask_each(self, group: BulkCall[Any]) -> None:
        """Send many requests. They are not recorded, so the keys of writes are left out."""
        group.look_at_each(self._recording.leave_out)
        await self._pump.ask_each(group)


def recorded(pump: PumpOfCalls, recording: Recording | None) -> PumpOfCalls:
    """Return a pump that records its calls, or, without a recording, the pump itself."""
    return pump if recording is None else cast("PumpOfCalls", RecordedPump(pump, recording))


def recording_of(recorder: OperationRecorder | None) -> Recording | None:
    """Return the recording with this recorder, if there is one."""
    return None if recorder is None else Recording(recorder)


def _recorded_key(request: Request) -> bytes | None:
    """Return the key of a request that gets a row; None for a request without a row."""
    if request.kind is RequestKind.READ:
        body = request.items[1]
        is_of_now = len(body) == 2 and body[0] == CommandKind.GET
        return body[1] if is_of_now else None
    if request.kind is not RequestKind.COMMAND or request.acknowledge is not Acknowledge.MAJORITY:
        return None
    match request.command:
        case Put(key=key, lease_id=0, keep_value=False, keep_lease=False) | Delete(key=key) | CompareAndSet(key=key):
            return key
        case _:
            return None


def _may_be_old(request: Request) -> bool:
    return request.kind is RequestKind.READ and Consistency(request.items[0]).word in _OLD


def _read(response: Response) -> Result:
    return read_result((response.code, response.revision, *response.fields))
