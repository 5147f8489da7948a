"""The output of a command of `hwm`, and the progress of its operation.

Data is written to stdout (`show`), and messages to stderr (`say`). Text from a store or another member is escaped,
because a key with a line end must not look like two keys, and such text must not control the terminal.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import click

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
    """Print a message of one line to stderr. If printing fails, the line is dropped."""
    with suppress(OSError):
        click.echo(escape_controls(words), err=True)


def show(line: object) -> None:
    """Print one line of data to stdout."""
    show_bytes(escape_controls(str(line)).encode("utf-8", "surrogateescape") + b"\n")


def show_bytes(data: bytes) -> None:
    """Print data unchanged to stdout, as bytes, because click would remove terminal colours from a text."""
    click.echo(data, nl=False)
