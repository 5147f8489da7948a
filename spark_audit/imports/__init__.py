"""Turns histories of Jepsen, Knossos and Porcupine into rows that `hwm-audit check` reads.

docs/reference/audit-import.md specifies how each line is read, in particular `:fail` and `:info`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from spark_audit.errors import UnreadablePath
from spark_audit.imports.events import NotImportable, Reader, Settings
from spark_audit.imports.jepsen import JepsenEdn, JepsenLog
from spark_audit.imports.pairing import EventCounts, Pairing
from spark_audit.imports.porcupine import PorcupineKv
from spark_audit.imports.writing import RowWriter, rows_file

_READERS: Final[dict[str, Callable[[Settings], Reader]]] = {
    "jepsen-edn": JepsenEdn,
    "jepsen-log": JepsenLog,
    "porcupine-kv": PorcupineKv,
}
_INITIAL: Final = {"jepsen-edn": "nil", "jepsen-log": "nil", "porcupine-kv": ""}
FORMATS: Final = tuple(_READERS)


@dataclass(slots=True)
class Imported:
    """The counts over all files. `left_out`: description of lines that are not client events → their number."""

    runs: int = 0
    operations: int = 0
    unknown: int = 0
    failed: int = 0
    registers: int = 0
    silent_cas: int = 0
    left_out: Counter[str] = field(default_factory=Counter)

    def add(self, counts: EventCounts, reader: Reader) -> None:
        """Add the counts of one history."""
        self.runs += 1
        self.operations += counts.ok + counts.fail + counts.unknown - counts.initial
        self.unknown += counts.unknown
        self.failed += counts.fail
        self.registers += counts.initial
        self.silent_cas += counts.silent_cas
        self.left_out.update(reader.left_out)


def import_histories(
    name: str, paths: Sequence[Path], out: Path, settings: Settings, *, replace: bool = False
) -> Imported:
    """Read the histories at `paths`, and write their rows to `out` (.jsonl, .parquet).

    `name`: one of FORMATS. Each history is a run whose run_id is its path. Raises NotImportable at the first line that
    does not have the format. Raises UnreadablePath for a path that is given twice or cannot be opened, and for a file
    without any operation. On an error, `out` is unchanged.
    """
    twice = next((path for path, count in Counter(path.resolve() for path in paths).items() if count > 1), None)
    if twice is not None:
        raise UnreadablePath(str(twice), "is given twice")
    imported = Imported()
    with rows_file(out, replace=replace) as rows:
        for path in paths:
            _import_one(name, path, settings, rows, imported)
    return imported


def _import_one(name: str, path: Path, settings: Settings, rows: RowWriter, imported: Imported) -> None:
    reader = _READERS[name](settings)
    initial = _INITIAL[name] if settings.initial is None else settings.initial
    pairing = Pairing(str(path).encode("utf-8", "replace").decode(), initial, settings)
    try:
        text = path.open(encoding="utf-8-sig", newline="\n")
    except OSError as error:
        raise UnreadablePath(str(path), f"cannot be read: {error.strerror}") from error
    try:
        with text:
            for row in pairing.rows(reader.events(text)):
                rows.write(row)
    except NotImportable as error:
        raise NotImportable(str(path), error.line, error.expected, error.found) from error
    except UnicodeDecodeError as error:
        raise NotImportable(str(path), _line_of_other_bytes(path), "UTF-8", "other bytes") from error
    imported.add(pairing.counts, reader)
    if not pairing.counts.initial:
        raise UnreadablePath(str(path), f"holds no operation of a client, read as {name}")


def _line_of_other_bytes(path: Path) -> int:
    with path.open("rb") as lines:
        for line, content in enumerate(lines, 1):
            try:
                content.decode()
            except UnicodeDecodeError:
                return line
    return 0


__all__ = ["FORMATS", "Imported", "NotImportable", "Settings", "import_histories"]
