"""The byte tables of docs/reference/specification.md are right, because the worked examples there are the golden
files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from storage.snapshots import format as snapshot_format
from storage.wal import frame, segment
from tests.storage.folder.test_golden import GOLDEN

DOCUMENT = Path(__file__).parents[3] / "docs" / "reference" / "specification.md"
ROW = re.compile(r" *(\d+)  ([0-9a-f]+)(?: +(.*))?")


def rows(language: str) -> list[tuple[int, bytes, str]]:
    """For each line of the example in this kind of code block: the offset, the bytes and the meaning."""
    (block,) = re.findall(rf"```{language}\n(.*?)\n```", DOCUMENT.read_text(), re.DOTALL)
    matches = [ROW.fullmatch(line) for line in block.splitlines()]
    assert all(matches)
    return [(int(match[1]), bytes.fromhex(match[2]), match[3] or "") for match in matches if match]


@pytest.mark.parametrize(
    ("language", "path"),
    [
        ("segment", "groups/0/log/0000000000000004.wal"),
        ("snapshot", "groups/0/snapshots/0000000000000009-0000000000000005.snap"),
    ],
)
def test_the_worked_example_is_the_golden_file(language: str, path: str) -> None:
    offset = 0
    for said_offset, data, _ in rows(language):
        assert said_offset == offset
        offset += len(data)

    assert b"".join(data for _, data, _ in rows(language)) == (GOLDEN / path).read_bytes()


def test_the_meanings_in_the_worked_example_are_what_the_code_reads() -> None:
    data = (GOLDEN / "groups/0/log/0000000000000004.wal").read_bytes()
    header = segment.decode_header("x", data)
    said = {meaning: raw for _, raw, meaning in rows("segment")}
    assert int.from_bytes(said["continues after batch 10 …"], "big") == header.previous_batch == 10
    assert int.from_bytes(said["segment 4"], "big") == header.number == 4

    for each in segment.scan_frames("x", data, header).frames:
        offsets = {offset: meaning for offset, _, meaning in rows("segment")}
        assert offsets[each.offset] == "salt"
        assert offsets[each.offset + 8] == f"length {each.length}"
        assert offsets[each.offset + 16] == f"batch {each.batch}"
        assert offsets[each.offset + 24] == f"batch {each.durable_batch} was durable"
        assert offsets[each.offset + 36] == f"{len(each.table)} entries"


def test_the_sizes_in_the_tables_are_those_of_the_code() -> None:
    text = DOCUMENT.read_text()

    assert segment.HEADER_BYTES == 64
    assert frame.HEAD.size == 8 + 4 + 4 + 8 + 8 + 4 + 4
    for size, name in (
        (frame.POSITION.size, "start (flag 1)"),
        (frame.POSITION.size, "reset (flag 4)"),
        (frame.INDEX.size, "replace (flag 8)"),
        (f"{frame.HARD_STATE.size} + n", "hard state (flag 2)"),
        (f"{frame.INDEX.size} + {frame.ENTRY.size} each", "entries, if any"),
    ):
        assert f"| {size} | {name} |" in text
    assert f"Format version {segment.FORMAT_VERSION}." in text
    assert segment.FORMAT_VERSION == snapshot_format.FORMAT_VERSION
