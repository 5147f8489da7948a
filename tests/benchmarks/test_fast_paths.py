"""The measurement of a fast path turns off exactly this path."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.single.fast_paths import (
    FAST_PATHS,
    PACKAGES,
    ROOT,
    FastPath,
    Gain,
    PathNotFound,
    copy_without,
    environment,
)


@pytest.mark.parametrize("path", FAST_PATHS, ids=lambda path: path.name)
def test_each_path_can_be_turned_off(path: FastPath, tmp_path: Path) -> None:
    copy = copy_without([path], tmp_path / "copy")

    changed = [
        str(file.relative_to(copy))
        for package in PACKAGES
        for file in (copy / package).rglob("*.py")
        if file.read_bytes() != (ROOT / file.relative_to(copy)).read_bytes()
    ]
    assert changed == ([path.file] if path.file else [])
    for name in changed:
        compile((copy / name).read_text(), name, "exec")


def test_a_path_that_has_moved_is_an_error_and_no_ratio_of_one(tmp_path: Path) -> None:
    gone = FastPath("gone", "kvstore/server/service.py", "no such text", "", ())

    with pytest.raises(PathNotFound, match="0 times"):
        copy_without([gone], tmp_path / "copy")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("start", [["-c", "import raft.runtime; print(raft.__file__)"], ["-m", "raft.place"]])
def test_every_process_of_a_measurement_imports_the_copy(start: list[str], tmp_path: Path) -> None:
    """A process imports the copy even if it starts in the folder of the repository, where Python would search first."""
    copy = copy_without([], tmp_path / "copy")
    (copy / "raft" / "place.py").write_text("print(__file__)\n")

    with environment(FAST_PATHS[0], copy):
        done = subprocess.run([sys.executable, *start], cwd=ROOT, capture_output=True, text=True, check=True)

    assert Path(done.stdout.strip()).is_relative_to(copy)


def test_the_gain_is_the_median_of_adjacent_windows() -> None:
    """The ratio of the medians would be wrong, because the machine is slower in some pairs than in others."""
    assert Gain("a", "put", 1, 0.0, 0.0, [1.2, 0.9, 1.1]).ratio == 1.1
