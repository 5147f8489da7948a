"""The events into which all formats are translated. An event is the call or the end of one operation on one key."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TextIO

from spark_audit.errors import InputError

FOUND_CHARACTERS_MAX = 120  # An error shows at most this many characters of an unexpected text.


class Event(NamedTuple):
    """One event of a history. Values are texts, as in a row.

    `line` counts from 1. `type`: invoke, ok, fail, info. `op`: get, put, cas, append. `value`: the value that a
    completed get returned, or the new value of a put, cas or append; None if the line has none. `expected`: the
    expected value of a cas. `time_ns`: None if the line has no time. `error`: the reason of a failure; None if the line
    has none.
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

    At the first line that does not have the format, `events` raises NotImportable. The caller of `events` adds the name
    of the file to the error.
    """

    left_out: Counter[str]  # Description of lines that are not client events → their number.

    def events(self, text: TextIO) -> Iterator[Event]:
        """Yield the events of a history, in the order of its lines."""
        ...


@dataclass(frozen=True, slots=True)
class Settings:
    """The options for reading a history.

    `independent`: whether values are `[key value]`; None if the first operation decides. `initial`: the initial value
    of each register, as it is stored in a row; None for the default of the format. `nil_read_unknown`: whether a
    completed read of nil means that the value is not known, as in Knossos. Otherwise such a read means that the
    register held nil. `failed_cas_saw_another`: whether a failed compare-and-set means that the register did not have
    the expected value.
    """

    independent: bool | None = None
    initial: str | None = None
    nil_read_unknown: bool = False
    failed_cas_saw_another: bool = False


class NotImportable(InputError):
    """A line does not have the format. `line` counts from 1."""

    def __init__(self, file: str, line: int, expected: str, found: str) -> None:
        self.file, self.line, self.expected, self.found = file, line, expected, found
        super().__init__(file, line, expected, found)

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: expected {self.expected}, found {self.found}; nothing was written"


def refused(line: int, expected: str, found: Any) -> NotImportable:
    """Return the error for this line. The caller adds the name of the file."""
    text = str(found)
    shown = text if len(text) <= FOUND_CHARACTERS_MAX else f"{text[: FOUND_CHARACTERS_MAX - 1]}…"
    return NotImportable("", line, expected, shown)
