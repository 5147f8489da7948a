"""The output of a command of `hwm`, and the progress of its operation: the only file that writes to a standard stream.

Data goes to stdout (`show`), words to stderr (`say`). Text from a store or another member is escaped: a key with a line
end must not look like two keys, and a terminal must not obey text that a stranger has written.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import click

from kvstore.protocol.text import escape_controls


@dataclass(slots=True)
class Operation:
    """How far the one operation of this process has come: set by whoever runs it, for the exit code at the end."""

    has_begun: bool = False
    is_done: bool = False

    def forget(self) -> None:
        """A new command begins."""
        self.has_begun = self.is_done = False


OPERATION = Operation()


def say(words: str) -> None:
    """One line for people, to stderr; what cannot be said is dropped."""
    with suppress(OSError):
        click.echo(escape_controls(words), err=True)


def show(line: object) -> None:
    """One line of data, to stdout."""
    show_bytes(escape_controls(str(line)).encode("utf-8", "surrogateescape") + b"\n")


def show_bytes(data: bytes) -> None:
    """Data as it is: click would take what looks like the colours of a terminal out of a text."""
    click.echo(data, nl=False)
