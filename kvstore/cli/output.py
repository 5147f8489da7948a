"""The output of a command of `hwm`, and the progress of its operation.

Data is written to stdout (`show`), and messages to stderr (`say`). Text from a store or another member is escaped,
because a key with a line end must not look like two keys, and such text must not control the terminal.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import dataclass

import click
import trio

from kvstore.cli.standard_streams import WRITE_BYTES_MAX, OutputDescriptor
from kvstore.protocol.text import escape_controls


@dataclass(slots=True)
class Operation:
    """The progress of the operation of this process. `run_operation` sets the progress, which determines the exit code
    of an error."""

    has_begun: bool = False
    is_done: bool = False

    def forget(self) -> None:
        """Reset the progress, because a new command begins."""
        self.has_begun = self.is_done = False


OPERATION = Operation()


def say(words: str) -> None:
    """Print a message of one line to stderr. If the message cannot be printed, it is dropped."""
    with suppress(OSError):
        click.echo(escape_controls(words), err=True)


def show(line: object) -> None:
    """Print one line of data to stdout."""
    show_bytes(_line_bytes(line))


async def show_when_read(line: object) -> None:
    """Print one line of data to stdout. While the line waits for the reader of a pipe, other tasks run.

    If the call is cancelled, a part of the line may have been printed.
    """
    await show_bytes_when_read(_line_bytes(line))


async def show_bytes_when_read(data: bytes) -> None:
    """Print data unchanged to stdout, as `show_when_read` prints a line."""
    for place in range(0, len(data), WRITE_BYTES_MAX):
        await _until_stdout_is_writable()
        show_bytes(data[place : place + WRITE_BYTES_MAX])


def show_bytes(data: bytes) -> None:
    """Print data unchanged to stdout, as bytes, because click would remove terminal colours from a text."""
    click.echo(data, nl=False)


def stdout_descriptor() -> OutputDescriptor | None:
    """The descriptor below `sys.stdout`; None if a test has put another stream there."""
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    return raw if isinstance(raw, OutputDescriptor) else None


async def _until_stdout_is_writable() -> None:
    await trio.lowlevel.checkpoint()
    descriptor = stdout_descriptor()
    if descriptor is not None and descriptor.failure is None:
        with suppress(OSError):  # A regular file cannot be waited for, and is always writable.
            await trio.lowlevel.wait_writable(descriptor.fileno())


def _line_bytes(line: object) -> bytes:
    return escape_controls(str(line)).encode("utf-8", "surrogateescape") + b"\n"
