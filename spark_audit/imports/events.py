"""The common form of all formats: one event per line of a history, about one operation on one register or key."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TextIO

from spark_audit.errors import InputError

FOUND_CHARACTERS_MAX = 120  # The number of characters of an unexpected text that an error shows.


class Event(NamedTuple):
    """One event of a history. All values are text as in a row.

    `line` counts from 1. `type`: invoke, ok, fail, info. `op`: get, put, cas, append. `value`: the value that a
    completed get returned, or the new value of a put, cas or append; None if the line has none. `expected`: the
    expected value of a cas. `time_ns`: None if the line has no time. `error`: why the operation failed, if the line
    says so.
    """

    line: int
    process: int
    type: str
    op: str
    key: str
    value: str | None = None
    expected: str | None = None
    time_ns: int | None = None
    error: str | None = None


class Reader(Protocol):
    """The reader of one format.

    At the first line that is not of the format, `events` raises NotImportable without the name of the file.
    """

    left_out: Counter[str]  # The lines that are not client events: description → number of lines.

    def events(self, text: TextIO) -> Iterator[Event]:
        """Yield the events of a history, in the order of its lines."""
        ...


@dataclass(frozen=True, slots=True)
class Settings:
    """How a history is to be read.

    `independent`: whether values are `[key value]`; None if the first operation decides. `initial`: the initial value
    of each register, as text of a row. `nil_read_unknown`: a completed read of nil means that the value is not known
    (as in Knossos), not that the register held nil. `failed_cas_saw_another`: a failed compare-and-set means that the
    register had another value than the expected one.
    """

    independent: bool | None = None
    initial: str | None = None
    nil_read_unknown: bool = False
    failed_cas_saw_another: bool = False


class NotImportable(InputError):
    """A line that is not of the format. `line` counts from 1."""

    def __init__(self, file: str, line: int, expected: str, found: str) -> None:
        self.file, self.line, self.expected, self.found = file, line, expected, found
        super().__init__(file, line, expected, found)

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: expected {self.expected}, found {self.found}; nothing was written"


def refused(line: int, expected: str, found: Any) -> NotImportable:
    """The error for this line; the caller adds the name of the file."""
    text = str(found)
    shown = text if len(text) <= FOUND_CHARACTERS_MAX else f"{text[: FOUND_CHARACTERS_MAX - 1]}…"
    return NotImportable("", line, expected, shown)
