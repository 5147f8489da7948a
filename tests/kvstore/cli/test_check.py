"""`hwm check DIR` and `hwm snapshot status FILE`, as scripts use them: exit codes, words, JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kvstore.cli.main import cli
from kvstore.protocol.commands import Put
from storage import open_data_folder
from tests.kvstore.support.in_memory_cluster import Cluster

LOG = "groups/0/log/0000000000000002.wal"
SNAPSHOT = "groups/0/snapshots/0000000000000000-0000000000000000.snap"


def hwm(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, [str(each) for each in arguments])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a member that was killed after a few puts."""
    cluster = Cluster(tmp_path, 1)
    client = cluster.client(ttl_ns=0)
    for number in range(20):
        client.do(Put(b"k%d" % number, bytes(100)))
    cluster.kill("s1")
    return tmp_path / "s1"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_sound_folder_is_said_to_be_so_and_left_alone(folder: Path) -> None:
    before = contents(folder)

    result = hwm("check", folder)
    fields = json.loads(hwm("check", folder, "--json").stdout)

    assert (result.exit_code, result.stderr) == (0, "")
    assert (fields["verdict"], fields["node_id"], fields["in_use"]) == ("sound", "s1", False)
    assert fields["last_index"] >= 20
    assert contents(folder) == before


def test_a_folder_in_use_is_checked_with_a_warning_that_names_the_process(folder: Path) -> None:
    held = open_data_folder(folder)
    try:
        result = hwm("check", folder)
    finally:
        held.close()

    assert result.exit_code == 0
    assert "in use by process" in result.stderr
    assert hwm("check", folder).stderr == ""


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def cut(path: Path, size_bytes: int) -> None:
    path.write_bytes(path.read_bytes()[:size_bytes])


def drop(*paths: Path) -> None:
    for path in paths:
        path.unlink()


@pytest.mark.parametrize(
    ("name", "harm", "said"),
    [
        ("meta", lambda path: flip(path, 20), "meta: damaged:"),
        ("meta", drop, "meta: damaged: it is missing"),
        ("pins", lambda path: flip(path, 20), "pins: damaged:"),
        (LOG, lambda path: flip(path, 300), "groups/0/log"),
        (LOG, drop, f"{LOG}: damaged at byte 0: the segment is missing"),
        (LOG, lambda path: cut(path, 0), f"{LOG}: damaged at byte 0:"),
        (LOG, lambda path: cut(path, 64), f"{LOG}: damaged at byte 64: the first frame is bad"),
        (SNAPSHOT, lambda path: flip(path, 100), f"{SNAPSHOT}: damaged at byte 0:"),
        (SNAPSHOT, drop, "the log begins at 1, and no snapshot is valid"),
    ],
)
def test_damage_is_named_with_its_file_and_a_remedy(
    folder: Path, name: str, harm: Callable[[Path], None], said: str
) -> None:
    harm(folder / name)

    result = hwm("check", folder)

    assert result.exit_code == 3, result.output
    assert f"{folder}: {said}" in result.stderr, result.stderr
    assert "hint: this member must not be started" in result.stderr
    assert json.loads(hwm("check", folder, "--json").stdout)["verdict"] == "damaged"


@pytest.mark.parametrize(
    "harm",
    [
        lambda folder: cut(folder / LOG, 1_000),
        lambda folder: drop(folder / LOG, *folder.glob("groups/0/reached-*")),
    ],
    ids=["the end of the newest file", "the newest file and its note"],
)
def test_what_looks_like_a_crash_before_a_sync_is_sound_and_the_end_of_the_log_tells_it(
    folder: Path, harm: Callable[[Path], None]
) -> None:
    """The check cannot detect that something was cut off, as docs/operations/guide.md explains."""
    entries = json.loads(hwm("check", folder, "--json").stdout)["last_index"]
    harm(folder)

    fields = json.loads(hwm("check", folder, "--json").stdout)

    assert fields["verdict"] == "sound"
    assert fields["last_index"] < entries


def test_what_is_no_data_folder_is_not_called_damaged(tmp_path: Path) -> None:
    result = hwm("check", tmp_path)

    assert (result.exit_code, "no data folder" in result.stderr) == (2, True)


def test_the_status_of_a_file_has_a_verdict_and_an_exit_code_for_each_end(folder: Path, tmp_path: Path) -> None:
    good, bad = folder / SNAPSHOT, tmp_path / "bad"
    bad.write_bytes(good.read_bytes()[:-3])

    sound = hwm("snapshot", "status", good, "--json")
    damaged = hwm("snapshot", "status", bad, "--json")
    missing = hwm("snapshot", "status", tmp_path / "missing")

    assert (sound.exit_code, damaged.exit_code, missing.exit_code) == (0, 3, 2)
    fields = json.loads(sound.stdout)
    assert (fields["verdict"], fields["revision"], fields["keys"], fields["index"]) == ("sound", 1, 0, 0)
    assert json.loads(damaged.stdout)["verdict"] == "damaged"
    assert "hint: use another copy" in damaged.stderr
