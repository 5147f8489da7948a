"""Keys as lines of JSON: the format of `hwm export` and `hwm import`.

The first line is a header, each further line is one key, and the last line has the number of keys. An input without its
last line was cut short. Lines that another program wrote may lack the header and the last line.

Keys and values are text, or `base64:…` for bytes that are not UTF-8.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

from kvstore.limits import RESPONSE_BYTES_MAX
from kvstore.protocol.results import KeyRecord
from kvstore.protocol.text import escape_controls_in_json, from_text, to_text

FORMAT = "highwatermark keys"
VERSION = 1

LINE_BYTES_MAX = 6 * RESPONSE_BYTES_MAX
"""The longest line. A record fits in a response, and JSON writes a byte as at most six characters (`\\u0000`)."""

BATCH_KEYS_MAX = 64
"""The greatest number of keys in one transaction: each key can need a comparison and a put, and a transaction has room
for 128."""

BATCH_BYTES_MAX = 512 * 1024
"""The greatest number of bytes of keys and values in one transaction with more than one key."""


class InvalidLine(ValueError):
    """A line is not in the format. `line_no` counts from 1."""

    def __init__(self, line_no: int, what: str) -> None:
        super().__init__(f"line {line_no}: {what}")
        self.line_no = line_no


@dataclass(frozen=True, slots=True)
class KeyLine:
    """One key of an input. `lease_id` is 0 if the key had no lease."""

    line_no: int
    key: bytes
    value: bytes
    lease_id: int


def header_line(revision: int, prefix: bytes) -> bytes:
    """Return the first line. All lines show the keys as they were at `revision`."""
    return _line({"format": FORMAT, "version": VERSION, "revision": revision, "prefix": to_text(prefix)})


def key_line(record: KeyRecord) -> bytes:
    """Return the line of one key."""
    return _line(
        {
            "key": to_text(record.key),
            "value": to_text(record.value or b""),
            "create_revision": record.create_revision,
            "mod_revision": record.mod_revision,
            "key_version": record.version,
            **({"lease_id": record.lease_id} if record.lease_id else {}),
        }
    )


def end_line(keys: int) -> bytes:
    """Return the last line."""
    return _line({"end": True, "keys": keys})


def _line(value: dict[str, Any]) -> bytes:
    return escape_controls_in_json(json.dumps(value, ensure_ascii=False)).encode() + b"\n"


def read_key_lines(source: BinaryIO) -> Iterator[KeyLine]:
    """Yield each key of an input. Raises InvalidLine, also at the end of an input that was cut short."""
    has_header = has_end = False
    keys = line_no = 0
    while line := source.readline(LINE_BYTES_MAX + 1):
        line_no += 1
        if len(line) > LINE_BYTES_MAX:
            raise InvalidLine(line_no, f"the line is longer than {LINE_BYTES_MAX} bytes, which no record needs")
        if not line.strip():
            continue
        if has_end:
            raise InvalidLine(line_no, "there is a line behind the last line of an export")
        found = _object(line_no, line)
        if "format" in found:
            if has_header or keys:
                raise InvalidLine(line_no, "a header in the middle: give each export to a command of its own")
            _check_header(line_no, found)
            has_header = True
        elif "end" in found:
            if found.get("keys") != keys:
                raise InvalidLine(line_no, f"the export had {found.get('keys')} keys, and {keys} are here")
            has_end = True
        else:
            yield _key_line(line_no, found)
            keys += 1
    if has_header and not has_end:
        raise InvalidLine(line_no + 1, f"the last line is missing: the export was cut short after {keys} keys")


def batches_of(lines: Iterator[KeyLine]) -> Iterator[list[KeyLine]]:
    """Yield the keys in groups that each fit in one transaction. No group contains a key twice."""
    batch: dict[bytes, KeyLine] = {}
    size_bytes = 0
    for line in lines:
        line_bytes = len(line.key) + len(line.value)
        is_full = len(batch) == BATCH_KEYS_MAX or size_bytes + line_bytes > BATCH_BYTES_MAX
        if batch and (is_full or line.key in batch):
            yield list(batch.values())
            batch, size_bytes = {}, 0
        batch[line.key] = line
        size_bytes += line_bytes
    if batch:
        yield list(batch.values())


def _object(line_no: int, line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidLine(line_no, f"this is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise InvalidLine(line_no, f"this is no object with a key and a value, but a {type(found).__name__}")
    return found


def _check_header(line_no: int, found: dict[str, Any]) -> None:
    if found["format"] != FORMAT:
        raise InvalidLine(line_no, f"the format is {found['format']!r}, not {FORMAT!r}")
    if found.get("version") != VERSION:
        raise InvalidLine(line_no, f"version {found.get('version')!r} of the format; this build knows {VERSION}")


def _key_line(line_no: int, found: dict[str, Any]) -> KeyLine:
    lease_id = found.get("lease_id", 0)
    if type(lease_id) is not int or lease_id < 0:
        raise InvalidLine(line_no, f"lease_id must be an integer from 0 on, not {lease_id!r}")
    key, value = _bytes(line_no, found, "key"), _bytes(line_no, found, "value")
    if not key:
        raise InvalidLine(line_no, "the key is empty")
    return KeyLine(line_no, key, value, lease_id)


def _bytes(line_no: int, found: dict[str, Any], name: str) -> bytes:
    text = found.get(name)
    if not isinstance(text, str):
        raise InvalidLine(line_no, f"{name} must be text, not {text!r}")
    try:
        return from_text(text)
    except ValueError as error:
        raise InvalidLine(line_no, f"{name}: {error}") from error
