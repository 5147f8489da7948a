"""`python -m storage DIR` shows and verifies a data folder without changing anything in it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from storage import InlineFiles, open_data_folder
from storage.__main__ import main
from storage.folder.inspect import LOOKS_MAX, inspect
from tests.storage.support.builders import (
    IDENTITY,
    SMALL_SEGMENTS,
    built,
    entries,
    entry,
    first_start,
    opened,
    snapshot_header,
    synced,
    write,
)


def looked_at(folder: Path, *options: str) -> Result:
    return CliRunner().invoke(main, [str(folder), *options])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data folder that contains every kind of file."""
    files = InlineFiles(tmp_path)
    first_start(files)
    storage = opened(files, SMALL_SEGMENTS)
    synced(files, storage.log, write(*entries(1, 6), term=1, voted_for="n2"))
    synced(files, storage.log, write(*entries(4, 5, term=3), term=3, replace_from=4), hint=3)
    synced(files, storage.log, write(entry(6, term=3, payload=bytes(300))))
    built(files, storage, snapshot_header(3))
    storage.pins.pin("n2", b"2" * 16, lambda _: None)
    files.run()
    files.close()
    return tmp_path


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_good_folder_is_shown_verified_and_left_alone(folder: Path) -> None:
    before = contents(folder)

    result = looked_at(folder, "--frames")

    assert result.exit_code == 0
    for text in (
        f"node n1 of cluster {IDENTITY.cluster_id.hex()}, group 0",
        "term 3, voted for nobody, commit hint 3",
        "entries 1–6; terms: 1 from 1, 3 from 4",
        "knows n2 as " + (b"2" * 16).hex(),
        "replace_from 4",
        "300 in payloads",
        "snapshot 0000000000000003-0000000000000001.snap",
        "\ngood\n",
    ):
        assert text in result.output
    assert contents(folder) == before


def test_programs_get_one_json_object_with_every_frame(folder: Path) -> None:
    result = looked_at(folder, "--json")

    report = json.loads(result.output)
    assert report["hard_state"] == {"term": 3, "voted_for": None, "commit_index": 3}
    assert (report["first_index"], report["last_index"], report["term_runs"]) == (1, 6, [[1, 1], [4, 3]])
    frames = [frame for segment in report["segments"] for frame in segment["frames"]]
    assert [frame["batch"] for frame in frames] == list(range(1, len(frames) + 1))
    assert [frame["kinds"] for frame in frames if frame["kinds"]] == [{"commands": 6}, {"commands": 2}, {"commands": 1}]
    assert [row["index"] for row in report["snapshots"]] == [0, 3]
    assert report["problems"] == []


def test_a_folder_that_a_node_holds_can_be_looked_at(folder: Path) -> None:
    held = open_data_folder(folder)
    assert looked_at(folder).exit_code == 0
    held.close()


def test_a_torn_tail_is_shown_and_is_no_damage(folder: Path) -> None:
    last = max((folder / "groups/0/log").iterdir())
    last.write_bytes(last.read_bytes() + b"torn")

    result = looked_at(folder)

    assert result.exit_code == 0
    assert "4 bytes at the end do not count" in result.output


def test_damage_is_exit_code_3_with_file_and_byte(folder: Path) -> None:
    first = min((folder / "groups/0/log").iterdir())
    data = bytearray(first.read_bytes())
    data[70] ^= 1
    first.write_bytes(data)

    result = looked_at(folder)

    assert result.exit_code == 3
    assert f"{first.name}: damaged at byte 64" in result.output


@pytest.mark.parametrize("name", ["meta", "pins", "groups/0/snapshots/0000000000000003-0000000000000001.snap"])
def test_damage_outside_the_log_is_exit_code_3_too(folder: Path, name: str) -> None:
    data = bytearray((folder / name).read_bytes())
    data[-1] ^= 1
    (folder / name).write_bytes(data)

    result = looked_at(folder)

    assert result.exit_code == 3
    assert name in result.output


def test_a_missing_snapshot_is_damage_if_the_log_does_not_begin_at_1(folder: Path) -> None:
    for path in (folder / "groups/0/snapshots").iterdir():
        path.unlink()

    result = looked_at(folder)

    assert result.exit_code == 3
    assert "this node cannot start" in result.output


class VanishingFiles(InlineFiles):
    """Files of a running node. `times` times, the node deletes the oldest segment between the listing and the
    reading."""

    def __init__(self, folder: Path, times: int) -> None:
        super().__init__(folder)
        self.times = times

    def read(self, path: str, offset: int, length: int) -> bytes:
        if path.endswith(".wal") and self.times:
            self.times -= 1
            raise FileNotFoundError(path)
        return super().read(path, offset, length)


def test_what_changes_while_it_is_read_is_looked_at_again_a_few_times(folder: Path) -> None:
    files = VanishingFiles(folder, LOOKS_MAX - 1)
    assert inspect(files).problems == []
    files.times = LOOKS_MAX
    with pytest.raises(FileNotFoundError):
        inspect(files)
    files.close()


def test_what_is_no_data_folder_is_exit_code_2(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing"):
        result = looked_at(path)
        assert result.exit_code == 2
        assert "no data folder" in result.output


def test_a_missing_meta_beside_a_log_is_damage(folder: Path) -> None:
    (folder / "meta").unlink()
    assert looked_at(folder).exit_code == 3
