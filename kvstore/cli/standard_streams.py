"""Standard output and standard error of a command: what cannot be written never decides what the command did.

A reader may have gone, its disk may be full, the descriptor may be closed from the start. An OSError of such a stream
that rises through a command looks like a failure of what the command does. So no write raises one: the failure is kept
beside the stream, and `StandardStreams.exit_code` looks at it once, at the end. `spark_audit` has a copy of this file,
because it imports no other package of this project; a test holds the two equal.
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
"""`EX_IOERR`: carried out, but the answer could not be written to standard output."""

WRITE_BYTES_MAX = 4096
"""At a time to a stream that is not waited for: a pipe that is ready takes so many without a wait (`PIPE_BUF`)."""


class OutputDescriptor(io.RawIOBase):
    """Writes to a descriptor, None if it was closed from the start. A write that fails is kept in `failure`.

    `keeps_order`: nothing is written behind what could not be written, so that data has no hole. Else each write is
    tried: a log goes on when its disk has room again. `waits` False: what the reader does not take at once is dropped.
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
        """True if it is a terminal."""
        return self._descriptor is not None and os.isatty(self._descriptor)

    def write(self, data: ReadableBuffer, /) -> int:
        """All of `data` counts as written if writing it fails."""
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
                except BlockingIOError:  # Another process that has this terminal or pipe, too, made it so.
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
    """`output` has the data of a command, `words` what is said to people."""

    output: OutputDescriptor
    words: OutputDescriptor

    def exit_code(self, earned: int) -> int:
        """The exit code of a command that has earned this one: 74 for 0 if its data was lost, else `earned` itself.

        Any other code says something that would be lost with it. Lost words change nothing.
        """
        sys.stdout.flush()
        failure = self.output.failure
        if failure is None or earned != 0:
            return earned
        if not isinstance(failure, BrokenPipeError):  # Its reader wanted no more: `hwm range | head`.
            print(f"error: the answer could not be written: {failure.strerror or failure}", file=sys.stderr)
            print("hint: the command was carried out; only what it had to say is lost", file=sys.stderr)
        return EXIT_OUTPUT_LOST


@contextmanager
def standard_streams() -> Iterator[StandardStreams]:
    """Put streams that do not raise in the place of `sys.stdout` and `sys.stderr`.

    A standard descriptor that is closed is opened on the null device: else the next file or connection would get its
    number, and whatever is written there, by a library that is about to abort the process too. Streams that are not
    the interpreter's own (a test's) are left alone.
    """
    closed = _fill_closed_descriptors()
    streams = StandardStreams(
        OutputDescriptor(None if 1 in closed else 1, keeps_order=True),
        OutputDescriptor(None if 2 in closed else 2, keeps_order=False),
    )
    before = sys.stdout, sys.stderr
    if sys.stdout is sys.__stdout__:
        sys.stdout = _text(streams.output, "surrogateescape")  # Names of files may hold any bytes.
    if sys.stderr is sys.__stderr__:
        sys.stderr = _text(streams.words, "backslashreplace")
    try:
        yield streams
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        sys.stdout, sys.stderr = before


def end_with_true_exit_code(command: Callable[[], object]) -> NoReturn:
    """Run a command, which may raise SystemExit, with such streams, and end the process. For console scripts."""
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
    """From now on what the reader of standard error does not take at once is dropped.

    For a server: whoever reads its log must not be able to stop it by standing still.
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
            with suppress(OSError):  # No descriptor is left: then none is given to anybody else, either.
                os.open(os.devnull, os.O_RDWR)  # The lowest number that is free, which is this one.
    return closed


def _text(descriptor: OutputDescriptor, errors: str) -> io.TextIOWrapper:
    encoding = getattr(sys.__stdout__ or sys.__stderr__, "encoding", None) or "utf-8"
    if encoding.lower() in ("ascii", "us-ascii", "ansi_x3.4-1968"):
        encoding = "utf-8"  # A locale that was never set; nothing but UTF-8 is meant.
    return io.TextIOWrapper(
        io.BufferedWriter(descriptor),
        encoding=encoding,
        errors=errors,
        line_buffering=descriptor.isatty() or errors == "backslashreplace",
    )
