"""Standard output and standard error of a command. A failed write to one of these streams never looks like a failure of
the command's work.

A write can fail because the reader has gone, the disk is full, or the descriptor was closed from the start. If such a
write raised OSError, the command's work would seem to have failed. Therefore no write raises OSError. The stream stores
the failure, and `StandardStreams.exit_code` reports it once, at the end. `spark_audit` imports no other package of this
project, so it has a copy of this file. A test checks that the two files are equal.
"""

from __future__ import annotations

import errno
import io
import os
import select
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

EXIT_OUTPUT_LOST = 74
"""`EX_IOERR`: the command was carried out, but its answer could not be written to standard output."""

WRITE_BYTES_MAX = 4096
"""The greatest number of bytes per write if `waits` is False. A pipe that polls as writable takes at least `PIPE_BUF`
bytes without blocking. On Linux, `PIPE_BUF` is this number."""


class OutputDescriptor(io.RawIOBase):
    """Writes to a descriptor, or drops all bytes if the descriptor was closed from the start (None). The error of a
    failed write is in `failure`.

    If `keeps_order` is True, nothing is written after a failed write, so that the data has no gap. If `keeps_order` is
    False, every write is tried, so that a log continues when its disk has room again. If `waits` is False, bytes that
    the reader does not take at once are dropped.
    """

    def __init__(self, descriptor: int | None, *, keeps_order: bool) -> None:
        self._descriptor, self._keeps_order = descriptor, keeps_order
        self.failure: OSError | None = None
        self.waits = True

    def writable(self) -> bool:
        """Called by io."""
        return True

    def fileno(self) -> int:
        """The descriptor. Raises OSError if there is none."""
        if self._descriptor is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return self._descriptor

    def isatty(self) -> bool:
        """True if the descriptor is a terminal."""
        return self._descriptor is not None and os.isatty(self._descriptor)

    def write(self, data: ReadableBuffer, /) -> int:
        """Write some of `data`, and return the number of written bytes. If the write fails, all bytes count as
        written."""
        view = memoryview(data).cast("B")
        if self.failure is not None and self._keeps_order:
            return len(view)
        try:
            while True:
                if not self.waits:
                    if not self._is_ready(0):
                        return len(view)
                    view = view[:WRITE_BYTES_MAX]
                try:
                    return os.write(self.fileno(), view)
                except BlockingIOError:  # Another process made this shared terminal or pipe non-blocking.
                    if not self.waits:
                        return len(view)
                    self._is_ready(None)
        except OSError as error:
            self.failure = error
            return len(view)

    def _is_ready(self, timeout_ms: float | None) -> bool:
        poll = select.poll()
        poll.register(self.fileno(), select.POLLOUT)
        return bool(poll.poll(timeout_ms))


@dataclass(frozen=True, slots=True)
class StandardStreams:
    """`output` carries the data of a command, `words` its messages to people."""

    output: OutputDescriptor
    words: OutputDescriptor

    def exit_code(self, earned: int) -> int:
        """Return the exit code of a command whose work ended with the code `earned`: 74 if `earned` is 0 and some
        output was lost.

        Any other `earned` is returned unchanged, because it is more important than the loss of the data. A loss of
        messages does not change the exit code.
        """
        sys.stdout.flush()
        failure = self.output.failure
        if failure is None or earned != 0:
            return earned
        if not isinstance(failure, BrokenPipeError):  # A broken pipe: `hwm range | head`.
            print(f"error: the answer could not be written: {failure.strerror or failure}", file=sys.stderr)
            print("hint: the command was carried out; only its output is lost", file=sys.stderr)
        return EXIT_OUTPUT_LOST


@contextmanager
def standard_streams() -> Iterator[StandardStreams]:
    """Replace `sys.stdout` and `sys.stderr` by streams that do not raise.

    A closed standard descriptor is opened on the null device. Otherwise the next file or connection would get the
    number of this descriptor. Messages that libraries write to standard error would then go into this file or
    connection. Streams that are not the interpreter's own, such as those of a test, are left alone.
    """
    closed = _fill_closed_descriptors()
    streams = StandardStreams(
        OutputDescriptor(None if 1 in closed else 1, keeps_order=True),
        OutputDescriptor(None if 2 in closed else 2, keeps_order=False),
    )
    before = sys.stdout, sys.stderr
    if sys.stdout is sys.__stdout__:
        sys.stdout = _text(streams.output, "surrogateescape")  # The names of files may contain any bytes.
    if sys.stderr is sys.__stderr__:
        sys.stderr = _text(streams.words, "backslashreplace")
    try:
        yield streams
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        sys.stdout, sys.stderr = before


def end_with_true_exit_code(command: Callable[[], object]) -> NoReturn:
    """Run a command, which may raise SystemExit, with `standard_streams`, and end the process. For console scripts."""
    with standard_streams() as streams:
        earned = 0
        try:
            command()
        except SystemExit as ended:
            if isinstance(ended.code, int):
                earned = ended.code
            elif ended.code is not None:
                print(ended.code, file=sys.stderr)
                earned = 1
        code = streams.exit_code(earned)
    sys.exit(code)


def wait_for_no_reader_of_words() -> None:
    """From now on, drop the bytes that the reader of standard error does not take at once.

    This is for a server, which must not stop because the reader of its log has stopped reading.
    """
    descriptor = getattr(getattr(sys.stderr, "buffer", None), "raw", None)
    if isinstance(descriptor, OutputDescriptor):
        descriptor.waits = False


def _fill_closed_descriptors() -> set[int]:
    closed = {number for number, stream in enumerate((sys.__stdin__, sys.__stdout__, sys.__stderr__)) if stream is None}
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            closed.add(number)
            with suppress(OSError):  # If no descriptor is left, no file can get this number.
                os.open(os.devnull, os.O_RDWR)  # The system assigns the lowest free number: this one.
    return closed


def _text(descriptor: OutputDescriptor, errors: str) -> io.TextIOWrapper:
    encoding = getattr(sys.__stdout__ or sys.__stderr__, "encoding", None) or "utf-8"
    if encoding.lower() in ("ascii", "us-ascii", "ansi_x3.4-1968"):
        encoding = "utf-8"  # No locale is set, so UTF-8 is used.
    return io.TextIOWrapper(
        io.BufferedWriter(descriptor),
        encoding=encoding,
        errors=errors,
        line_buffering=descriptor.isatty() or errors == "backslashreplace",
    )
