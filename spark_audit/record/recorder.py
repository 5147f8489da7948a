"""The recorder of one process."""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import sys
import threading
import time
import uuid
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from json.encoder import encode_basestring
from pathlib import Path
from types import TracebackType
from typing import Any

from spark_audit.history.recorded_files import ProcessState, left_out_name
from spark_audit.record.errors import (
    AlreadyEnded,
    ClientBusy,
    RecorderClosed,
    RecordError,
    RecordingFull,
    WrongProcess,
)
from spark_audit.record.folder import OPERATION_BITS, Process, begin_process, clock_step_ns, join_folder, write_state
from spark_audit.record.functions import ARGUMENTS, Answer, recorded
from spark_audit.record.left_out import LeftOutKeys
from spark_audit.record.operation import CompareAndSet, Delete, Get, OpenOperation, Put
from spark_audit.record.parts import KeyParts
from spark_audit.record.settings import (
    FLUSH_SECONDS,
    PARTS,
    ROTATE_BYTES,
    RecorderSettings,
    check,
    check_errors,
    check_revision,
)
from spark_audit.record.text import hasher, named_text, place_of, text_bytes, text_of

_SECOND_NS = 1_000_000_000
# By the room of a row: its end, as long as the outcome is unknown.
_UNKNOWN_ENDS = {
    room: b',"status":"unknown"'.ljust(room) + b"}\n" for room in (Put.ROOM, Delete.ROOM, CompareAndSet.ROOM)
}
PREEXISTING = "preexisting"  # The clock, and the beginning of the clients, of values from before the recording.
_recorders: weakref.WeakValueDictionary[str, Recorder] = weakref.WeakValueDictionary()


class Recorder:
    """Records the operations of clients into a run folder. All methods may be called in any thread or task.

    ```python
    with Recorder("history") as recorder:
        with recorder.put("client-1", "key", b"value") as op:
            store.set("key", b"value")
            op.ok()
    ```

    `folder`: is made if it is missing; the recorders of several processes may share it. `values`: `"hash"` records a
    hash of each value, keyed with `secret`; `"plain"` records the values. `sample`: the share of the keys that are
    recorded, in (0, 1]; a stable hash of the key decides, so each recorded key is whole. `bytes_max`, `rate_max`: the
    bounds of this process, in bytes of files and in operations per second; None: no bound. `at_bound`: `"error"` raises
    RecordingFull; `"drop"` drops a sixteenth of the keys, with all their rows, in all processes. `rotate_bytes`: the
    size at which a new file is begun. `flush_seconds`: see `flush`. `did_not_happen`: errors of the program that prove
    that an operation had no effect. `run_id`: the name of the run; None: a random one. `error_bound_ns`: the largest
    error of the machine's time of day, in ns, if machines are compared; None: stamps of different machines give no
    order. `monotonic_ns`: the clock, for tests that move it.

    A recorder that is passed to a child process, forked or spawned, is a recorder of its own there, with its own files
    in the same folder. To pass it, the secret is pickled.

    Raises BadSetting, WrongFolder and RecordingFailed. `Recorder.close` is also called when the interpreter exits.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        values: str = "hash",
        secret: bytes = b"",
        sample: float = 1.0,
        bytes_max: int | None = None,
        rate_max: int | None = None,
        at_bound: str = "error",
        rotate_bytes: int = ROTATE_BYTES,
        flush_seconds: float = FLUSH_SECONDS,
        did_not_happen: tuple[type[BaseException], ...] = (),
        run_id: str | None = None,
        error_bound_ns: int | None = None,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        settings = RecorderSettings(
            values=values,
            secret=secret,
            sample=sample,
            bytes_max=bytes_max,
            rate_max=rate_max,
            at_bound=at_bound,
            rotate_bytes=rotate_bytes,
            flush_seconds=flush_seconds,
            did_not_happen=did_not_happen,
            run_id=run_id,
            error_bound_ns=error_bound_ns,
        )
        self._join(uuid.uuid4().hex, folder, settings, monotonic_ns)
        self._start()

    def _join(
        self, name: str, folder: str | os.PathLike[str], settings: RecorderSettings, monotonic_ns: Callable[[], int]
    ) -> None:
        """Join the run. `name`: a random name, which a recorder keeps when it is passed to another process."""
        good = isinstance(folder, str | os.PathLike) and os.fspath(folder) != ""
        check("folder", folder, good, "the path of a folder")
        check("monotonic_ns", monotonic_ns, callable(monotonic_ns), "a function that returns ns")
        self.folder, self._settings, self._monotonic_ns = Path(folder), settings, monotonic_ns
        self._did_not_happen = settings.did_not_happen
        self._value_text = hasher(settings.secret) if settings.values == "hash" else text_of
        self._below = int(settings.sample * 2**64)
        self._part_count = PARTS if settings.at_bound == "drop" else 1
        self._placed = settings.sample < 1 or self._part_count > 1
        self._bytes_max, self._rate_max = settings.bytes_max, settings.rate_max
        self._flush_ns = int(settings.flush_seconds * _SECOND_NS)
        self.run_id, self._clock = join_folder(
            self.folder, run_id=settings.run_id, error_bound_ns=settings.error_bound_ns, shared=settings.shared
        )
        self._offset_ns = self._clock.offset_ns
        self._epoch = 0  # The number of forks that led to this process.
        self._closed = False
        self._reset()
        self._name = name
        _recorders[name] = self
        atexit.register(self.close)

    def _reset(self) -> None:
        """Set what belongs to one process: no file, no open operation."""
        self._lock = threading.Lock()
        self._parts: KeyParts | None = None
        self._left_out: LeftOutKeys | None = None
        self._process: Process
        self._row = self._suffix = ""
        self._next = self._end = 0  # The numbers of operations: the next one, and the first one of another process.
        self._refused = 0  # The operations that a bound did not let begin.
        self._open: dict[str, OpenOperation] = {}
        self._abandoned: deque[tuple[OpenOperation, str]] = deque()
        self._renamed: dict[str, int] = {}  # How often a client had an unknown outcome.
        self._in_second = 0  # The operations since the stamp `_second_ns`.
        self._second_ns = 0
        self._flushed_ns = self.now_ns()

    def get(self, client: str, key: str | bytes, *, did_not_happen: tuple[type[BaseException], ...] = ()) -> Get:
        """Begin a read of a key.

        `client`: a name that has at most one open operation in this process. `did_not_happen`: more errors like those
        of the recorder. Raises ClientBusy, BadText, RecordingFull, RecordingFailed and RecorderClosed; then nothing has
        begun, and the operation should not be sent.
        """
        errors = did_not_happen + self._did_not_happen
        operation = Get(self, named_text("client", client), named_text("key", key), errors)
        self._begin(operation, key, "")
        return operation

    def put(
        self,
        client: str,
        key: str | bytes,
        value: str | bytes,
        *,
        did_not_happen: tuple[type[BaseException], ...] = (),
    ) -> Put:
        """Begin a write of a key. Arguments and errors are as in `get`."""
        errors = did_not_happen + self._did_not_happen
        operation = Put(self, named_text("client", client), named_text("key", key), errors)
        self._begin(operation, key, f',"value":{encode_basestring(self._value_text("value", value))}')
        return operation

    def delete(self, client: str, key: str | bytes, *, did_not_happen: tuple[type[BaseException], ...] = ()) -> Delete:
        """Begin a deletion of a key. Arguments and errors are as in `get`."""
        errors = did_not_happen + self._did_not_happen
        operation = Delete(self, named_text("client", client), named_text("key", key), errors)
        self._begin(operation, key, "")
        return operation

    def cas(
        self,
        client: str,
        key: str | bytes,
        expected: str | bytes | None,
        value: str | bytes,
        *,
        expected_mod_revision: int | None = None,
        did_not_happen: tuple[type[BaseException], ...] = (),
    ) -> CompareAndSet:
        """Begin a compare-and-set. `expected`: None if the key must be absent.

        `expected_mod_revision`: the revision that the last write of the key must have, instead of a value; then
        `expected` is None. The rest is as in `get`. Raises also BadSetting.
        """
        errors = did_not_happen + self._did_not_happen
        operation = CompareAndSet(self, named_text("client", client), named_text("key", key), errors)
        operation.expects_absence = expected is None and expected_mod_revision is None
        fields = f',"value":{encode_basestring(self._value_text("value", value))}'
        if expected is not None:
            fields += f',"expected":{encode_basestring(self._value_text("expected", expected))}'
        if expected_mod_revision is not None:
            check_revision(expected_mod_revision, expected)
            fields += f',"expected_mod_revision":{expected_mod_revision}'
        self._begin(operation, key, fields)
        return operation

    def initial(self, key: str | bytes, value: str | bytes) -> None:
        """Record the value that a key had before the first client began. One process records it, before all clients.

        A history begins with an empty store. Without this call, a read of an older value looks like a value that
        nobody wrote. Raises the errors of `put`.
        """
        with self.put(f"initial {named_text('key', key)}", key, value) as operation:
            operation.ok()

    def preexisting(self, key: str | bytes, value: str | bytes) -> None:
        """Record a value that a key had before the recording began, and that was read while clients are at work.

        Unlike `initial`, any process may call it at any time, also several processes for one key. Call it before this
        process records its first operation on the key, and only for a value that no recorded operation wrote. It needs
        a store with revisions: only the revision that a read reports shows when this value was written. The row has a
        clock of its own, because it was written before every other row. Raises the errors of `put`.
        """
        operation = Put(self, PREEXISTING, named_text("key", key), ())
        place = place_of(text_bytes("key", key)) if self._placed else 0
        value_field = f',"value":{encode_basestring(self._value_text("value", value))}'
        with self._lock:
            parts = self._begun(operation)
            if place >= self._below or not self._admitted(parts, operation, place % parts.count):
                return
            now = self.now_ns()
            line = (
                f'{{"run_id":{encode_basestring(self.run_id)},"clock_id":"{PREEXISTING}","op_id":{operation.number},'
                f'"client":"{PREEXISTING}{self._suffix}.{operation.number}","op":"put",'
                f'"key":{encode_basestring(operation.key)}{value_field},"call_ns":{now},"status":"unknown"}}\n'
            )
            parts.add(operation.part, line.encode())
            self._flush(parts, now)

    def records(self, key: str | bytes) -> bool:
        """Return whether operations on a key are worth recording: it is in the sample, and not dropped or left out.

        Raises BadText, RecorderClosed and RecordingFailed.
        """
        data = text_bytes("key", key)
        place = place_of(data) if self._placed else 0
        with self._lock:
            if place >= self._below:
                return False
            parts = self._running("records", key)
            if self._left_out is not None and self._left_out.has(data):
                return False
            return parts.count == 1 or parts.is_recorded(place % parts.count)

    def leave_out(self, key: str | bytes) -> None:
        """Leave a key out of the audit, with all its rows in all processes, from the first one to the last.

        Call it before a recorded key is written in a way that is not recorded. The mark reaches the system at once, so
        a kill does not lose it. Raises BadText, RecorderClosed and RecordingFailed; then the write must not be sent.
        """
        named_text("key", key)
        data = text_bytes("key", key)
        place = place_of(data) if self._placed else 0
        with self._lock:
            parts = self._running("leave_out", key)
            if place < self._below and place % parts.count not in parts.dropped:
                self._marks().add(data)

    def leave_out_range(self, start: str | bytes, end: str | bytes | None) -> None:
        """Leave out all keys from `start` to before `end`, as `leave_out` does. `end`: None for all further keys.

        Keys are compared as bytes; text is UTF-8.
        """
        first, last = text_bytes("start", start), None if end is None else text_bytes("end", end)
        with self._lock:
            self._running("leave_out_range", start)
            self._marks().add_range(first, last)

    def wrap(
        self,
        op: str,
        function: Callable[..., Any],
        *,
        client: str | Callable[[], str],
        answer: Answer | None = None,
        did_not_happen: tuple[type[BaseException], ...] = (),
    ) -> Callable[..., Any]:
        """Return a function like `function` that records each call as an operation `op`.

        The function may return an awaitable, whether it is an `async def` or not. Then the operation ends when the
        awaitable ends; the recorded function returns a coroutine, which must be awaited.

        `op`: `get`, `put`, `delete` or `cas`. The first arguments of the function are `key`; `key, value`; `key`; or
        `key, expected, value`. `client`: the client of all calls, or a function that returns the client of this call.
        `answer`: turns what the function returned into the arguments of `ok`. By default a get returns the value or
        None, a put returns nothing of interest, and a delete and a cas return whether they found or succeeded.
        Raises BadSetting.
        """
        check("op", op, op in ARGUMENTS, ", ".join(ARGUMENTS))
        check("function", function, callable(function), "callable")
        check("client", client, isinstance(client, str) or callable(client), "text, or a function that returns text")
        check("answer", answer, answer is None or callable(answer), "None or a function")
        check_errors(did_not_happen)
        begin = getattr(self, op)
        return recorded(lambda *given: begin(*given, did_not_happen=did_not_happen), op, function, client, answer)

    def recorded(
        self,
        op: str,
        *,
        client: str | Callable[[], str],
        answer: Answer | None = None,
        did_not_happen: tuple[type[BaseException], ...] = (),
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Return a decorator that does what `wrap` does."""
        return lambda function: self.wrap(op, function, client=client, answer=answer, did_not_happen=did_not_happen)

    def flush(self) -> None:
        """Pass all rows to the system, so that a kill loses none of them. Raises RecordingFailed.

        The row of a write reaches the system before the write is sent, so only rows of reads wait. They also go with
        the next write, after 64 KiB, and when something is recorded `flush_seconds` after the last flush. Nothing is
        synced to the disk: a crash of the machine may lose rows, and then also rows of writes.
        """
        self._end_abandoned()
        with self._lock:
            if self._parts is not None and not self._closed:
                self._flush(self._parts, self.now_ns())

    def close(self) -> None:
        """Flush, and end the recording of this process. Open writes stay unknown. A second call does nothing.

        Raises RecordingFailed; the recorder is then closed, too.
        """
        self._end_abandoned()
        with self._lock:
            if self._closed:
                return
            self._closed = True
            atexit.unregister(self.close)
            self._open.clear()
            if self._left_out is not None:
                self._left_out.close()
            if self._parts is not None:
                try:
                    self._parts.flush()
                    self._write_state(self._parts)
                finally:
                    self._parts.close()

    def __reduce__(self) -> tuple[Callable[..., Recorder], tuple[str, Path, RecorderSettings, Callable[[], int]]]:
        settings = replace(self._settings, run_id=self.run_id)
        return _passed, (self._name, self.folder.absolute(), settings, self._monotonic_ns)

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # What follows is used by operations.

    def abandon(self, operation: OpenOperation, word: str) -> None:
        """End an operation with an unknown outcome before the next one begins. Takes no lock."""
        self._abandoned.append((operation, word))

    def _end_abandoned(self) -> None:
        while self._abandoned:
            with contextlib.suppress(IndexError, RecordError):  # Another thread may have taken the last one.
                operation, word = self._abandoned.popleft()
                operation.unknown(word)

    def now_ns(self) -> int:
        """Return the stamp of now, in ns of the run's clock."""
        return self._monotonic_ns() + self._offset_ns

    def value_text(self, given: object) -> str:
        """Return the text, or the hash, of a value. Raises BadText."""
        return self._value_text("value", given)

    def end(self, operation: OpenOperation, how: str, fields: str) -> None:
        """Write the end of the row of an operation. `how`: `ok`, `failed` or `unknown`."""
        with self._lock:
            if operation.ended is not None:
                words = f"{operation} was ended twice: first {operation.ended}, now {how}"
                raise AlreadyEnded(f"{words}; end an operation once")
            if operation.epoch != self._epoch:
                hint = "the process that began an operation also ends it"
                raise WrongProcess(f"{operation} was begun before a fork, in another process; {hint}")
            if self._closed:
                raise RecorderClosed(f"{operation} was ended after close; end all operations first. Its row stays open")
            operation.ended = how
            del self._open[operation.client]
            if how == "unknown":
                self._rename(operation.client)
            if operation.head:
                parts = self._parts
                assert parts is not None
                parts.add(operation.part, f"{operation.head}{fields}}}\n".encode())
            elif operation.where is not None:
                try:
                    operation.where.complete(operation.offset, fields.encode().ljust(operation.ROOM) + b"}\n")
                except BaseException:
                    # The row still says that the outcome is unknown, so this name of the client is used up.
                    self._rename(operation.client)
                    raise

    def _rename(self, client: str) -> None:
        """Let the client continue under a new name, because the outcome of its operation is unknown."""
        self._renamed[client] = self._renamed.get(client, 0) + 1

    def _begin(self, operation: OpenOperation, key: str | bytes, fields: str) -> None:
        client = operation.client
        place = place_of(text_bytes("key", key)) if self._placed else 0
        if self._abandoned:
            self._end_abandoned()
        with self._lock:
            if (other := self._open.get(client)) is not None and not self._closed:
                words = f"client {client!r} called {operation.NAME} of {operation.key!r} while {other} is open"
                raise ClientBusy(f"{words}; give each thread or task a client of its own")
            parts = self._begun(operation)
            if place < self._below and self._admitted(parts, operation, place % parts.count):
                now = self._monotonic_ns() + self._offset_ns
                if now - self._flushed_ns > self._flush_ns:
                    self._flush(parts, now)
                again = self._renamed.get(client)
                name = client + self._suffix if again is None else f"{client}{self._suffix}.{again}"
                head = (
                    f'{self._row}{operation.number},"client":{encode_basestring(name)},"op":"{operation.NAME}",'
                    f'"key":{encode_basestring(operation.key)}{fields},"call_ns":{now}'
                )
                if operation.ROOM:
                    end = _UNKNOWN_ENDS[operation.ROOM]
                    try:
                        operation.where, operation.offset = parts.begin(operation.part, head.encode(), end)
                    except BaseException:
                        self._rename(client)  # The row may be in the file, with an unknown outcome.
                        raise
                else:
                    operation.head = head
            self._open[client] = operation

    def _begun(self, operation: OpenOperation) -> KeyParts:
        """Give an operation its number, and return the files of this process."""
        if self._closed:
            hint = "begin a new recorder, or stop the clients before close"
            raise RecorderClosed(f"client {operation.client!r} called {operation.NAME} after close; {hint}")
        parts = self._parts or self._start()
        if self._next == self._end:
            words = f"this process has begun 2^{OPERATION_BITS} operations, so there is no number for"
            raise RecordingFull(f"{words} {operation.NAME} of {operation.key!r}; close, and begin a new recorder")
        operation.epoch, operation.number = self._epoch, self._next
        self._next += 1
        return parts

    def _running(self, name: str, key: str | bytes) -> KeyParts:
        """Return the files of this process, for the method `name`."""
        if self._closed:
            hint = "begin a new recorder, or stop the clients before close"
            raise RecorderClosed(f"{name}({key!r}) was called after close; {hint}")
        return self._parts or self._start()

    def _marks(self) -> LeftOutKeys:
        if self._left_out is None:
            self._left_out = LeftOutKeys(self.folder / "recorders" / left_out_name(self._process.name))
        return self._left_out

    def _admitted(self, parts: KeyParts, operation: OpenOperation, part: int) -> bool:
        """Return whether the operation is recorded: its part of the keys is not dropped, and the bounds are kept."""
        operation.part = part
        if self._bytes_max is not None or self._rate_max is not None:
            self._check_bounds(parts, operation)
        if parts.count == 1 or parts.is_recorded(part):
            return True
        parts.not_recorded += 1
        return False

    def _check_bounds(self, parts: KeyParts, operation: OpenOperation) -> None:
        now = self.now_ns()
        if not 0 <= now - self._second_ns < _SECOND_NS:
            self._second_ns = now
            self._in_second = 0
        if parts.is_recorded(operation.part):
            self._in_second += 1
        if self._rate_max is not None and self._in_second > self._rate_max:
            self._at_bound(parts, operation, f"rate_max={self._rate_max} operations per second")
            self._in_second = 0
        while self._bytes_max is not None and parts.bytes >= self._bytes_max and not parts.all_dropped:
            self._at_bound(parts, operation, f"bytes_max={self._bytes_max}, and {parts.bytes} bytes are recorded")

    def _at_bound(self, parts: KeyParts, operation: OpenOperation, reached: str) -> None:
        if parts.count == 1:
            self._refused += 1
            if self._refused == 1:
                self._write_state(parts)
            hint = 'raise the bound, lower sample, or give at_bound="drop"'
            raise RecordingFull(f"{operation} was not begun: {reached}; {hint}")
        parts.drop_one()
        self._write_state(parts)

    def _flush(self, parts: KeyParts, now_ns: int) -> None:
        self._flushed_ns = now_ns
        parts.flush()

    def _start(self) -> KeyParts:
        """Begin the files of this process."""
        process = self._process = begin_process(self.folder)
        self._next = process.token << OPERATION_BITS
        self._end = self._next + (1 << OPERATION_BITS)
        self._suffix = f"@{process.token:06x}"
        run, clock = encode_basestring(self.run_id), encode_basestring(self._clock.clock_id)
        self._row = f'{{"run_id":{run},"clock_id":{clock},"op_id":'
        parts = KeyParts(self.folder, process.name, self._part_count, self._settings.rotate_bytes)
        self._write_state(parts)
        self._parts = parts
        processes = sys.modules.get("multiprocessing.process")  # Importing it would take longer than all the rest.
        if processes is not None and processes.parent_process() is not None:
            from multiprocessing import util

            # A forked child of multiprocessing ends without the functions of atexit.
            util.Finalize(None, self.close, exitpriority=-100)
        return parts

    def _write_state(self, parts: KeyParts) -> None:
        """State what this process did not record, in a small file of its own."""
        settings = self._settings
        state = ProcessState(
            run_id=self.run_id,
            host=socket.gethostname(),
            pid=os.getpid(),
            clock=self._clock,
            settings=settings.shared,
            bytes_max=settings.bytes_max,
            rate_max=settings.rate_max,
            parts_of_the_keys=parts.count,
            dropped_parts=tuple(sorted(parts.dropped)),
            operations_recorded=sum(parts.recorded),
            operations_not_recorded=parts.not_recorded,
            operations_refused=self._refused,
            clock_step_ns=clock_step_ns(self._clock),
            closed=self._closed,
        )
        write_state(self.folder, self._process, state)

    def _after_fork(self) -> None:
        """Give a forked child a recorder without files: files, open operations and waiting rows are the parent's."""
        if self._parts is not None:
            self._parts.close()
        if self._left_out is not None:
            self._left_out.close()
        self._epoch += 1
        self._reset()


def _passed(name: str, folder: Path, settings: RecorderSettings, monotonic_ns: Callable[[], int]) -> Recorder:
    """Return the recorder with this name in this process. Each task of a pool asks for it again.

    A new recorder begins its files with its first operation: `multiprocessing` forgets what a child registered for its
    end before the function of the child begins.
    """
    if (known := _recorders.get(name)) is not None:
        return known
    recorder = Recorder.__new__(Recorder)
    recorder._join(name, folder, settings, monotonic_ns)
    return recorder


def _forked() -> None:
    for recorder in list(_recorders.values()):
        recorder._after_fork()


os.register_at_fork(after_in_child=_forked)
