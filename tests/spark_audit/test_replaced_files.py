"""The output of the audit replaces a file only if it is a regular file."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_audit.errors import UnreadablePath
from spark_audit.follow.state import FollowState, read_state, write_state
from spark_audit.imports.writing import rows_file
from spark_audit.report.keys_file import write_key_file
from spark_audit.report.page import write_page


def write_rows(path: Path) -> None:
    with rows_file(path, replace=True):
        pass


WRITERS: dict[str, Callable[[Path], object]] = {
    "page.html": lambda path: write_page(path, "page"),
    "keys.parquet": lambda path: write_key_file([], path),
    "rows.jsonl": write_rows,
    "state": lambda path: write_state(path, FollowState()),
    "state that is read": read_state,
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_pipe_or_device_of_that_name_is_not_replaced(name: str, tmp_path: Path) -> None:
    """A link to a pipe or a device is not replaced either. The audit does not wait for a pipe to which nobody
    writes."""
    pipe, link = tmp_path / name, tmp_path / f"link-{name}"
    os.mkfifo(pipe)
    link.symlink_to(os.devnull)

    for path in (pipe, link):
        with pytest.raises(UnreadablePath, match="not a regular file"):
            WRITERS[name](path)

    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert stat.S_ISCHR(Path(os.devnull).stat().st_mode)
    assert sorted(tmp_path.iterdir()) == sorted([pipe, link])


@pytest.mark.parametrize("name", [name for name in WRITERS if name != "state that is read"])
def test_a_link_is_followed_and_stays(name: str, tmp_path: Path) -> None:
    """The output replaces the file to which the link leads."""
    (tmp_path / "there").mkdir()
    link = tmp_path / name
    link.symlink_to(Path("there") / name)

    WRITERS[name](link)

    assert link.is_symlink()
    assert (tmp_path / "there" / name).is_file()
