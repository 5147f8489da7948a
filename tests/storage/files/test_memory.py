"""Files in memory behave as those on a disk: the same operations have the same results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage import (
    CreateFile,
    Delete,
    InlineFiles,
    MakeFolder,
    MemoryFiles,
    NotCarriedOut,
    Operation,
    Rename,
    SetSize,
    SyncFile,
    SyncFolder,
    Write,
)

pytestmark = pytest.mark.timeout(60)

PATHS = st.sampled_from(["x", "y", "a/x", "a/b/x"])
FOLDERS = st.sampled_from(["", "a", "a/b"])
SIZES = st.integers(0, 12)
OPERATIONS: st.SearchStrategy[Operation] = st.one_of(
    st.builds(MakeFolder, st.sampled_from(["a", "a/b"])),
    st.builds(CreateFile, PATHS),
    st.builds(Write, PATHS, SIZES, st.lists(st.binary(max_size=4), max_size=3).map(tuple)),
    st.builds(SetSize, PATHS, SIZES),
    st.builds(SyncFile, PATHS),
    st.builds(SyncFolder, FOLDERS),
    st.builds(Rename, PATHS, PATHS),
    st.builds(Delete, PATHS),
)


class Posted:
    """The loop of the caller: it runs what was posted when the test says so."""

    def __init__(self) -> None:
        self.callbacks: list[Callable[[], None]] = []

    def run(self) -> None:
        callbacks, self.callbacks = self.callbacks, []
        for callback in callbacks:
            callback()


def contents(files: InlineFiles | MemoryFiles) -> dict[str, bytes | None]:
    """The contents of all files, and None for each folder."""
    found: dict[str, bytes | None] = {}
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        for name in files.names(folder):
            path = f"{folder}/{name}".lstrip("/")
            try:
                found[path] = files.read(path, 0, files.size_bytes(path))
            except (FileNotFoundError, IsADirectoryError):
                found[path] = None
                waiting.append(path)
    return found


@given(submissions=st.lists(st.lists(OPERATIONS, max_size=4), max_size=8))
def test_operations_have_the_results_that_they_have_on_a_disk(
    submissions: list[list[Operation]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    on_disk, posted = InlineFiles(tmp_path_factory.mktemp("files")), Posted()
    in_memory = MemoryFiles(posted.callbacks.append)
    for operations in submissions:
        ends: list[BaseException | None] = []
        on_disk.submit(operations, ends.append)
        on_disk.run()
        in_memory.submit(operations, ends.append)
        in_memory.run()
        assert [getattr(end, "errno", None) for end in ends[:1]] == [getattr(end, "errno", None) for end in ends[1:]]
        assert contents(in_memory) == contents(on_disk)
    on_disk.close()


def test_an_end_is_told_by_the_loop_and_never_inside_submit() -> None:
    posted, ends = Posted(), list[BaseException | None]()
    files = MemoryFiles(posted.callbacks.append)

    files.submit([CreateFile("x")], ends.append)
    assert ends == []

    posted.run()
    assert ends == [None]


def test_what_is_held_ends_with_start_and_so_does_what_follows_from_it() -> None:
    posted, ends = Posted(), list[str]()
    files = MemoryFiles(posted.callbacks.append)
    files.hold()

    def written(error: BaseException | None) -> None:
        ends.append("written")
        files.submit([SyncFile("x")], lambda _: ends.append("synced"))

    files.submit([CreateFile("x"), Write("x", 0, (b"1",))], written)
    assert (files.has_waiting, ends, posted.callbacks) == (True, [], [])

    assert files.start()
    assert (files.has_waiting, ends) == (False, ["written", "synced"])
    assert not files.start()


def test_the_first_failure_ends_a_submission_and_is_reported(tmp_path: Path) -> None:
    ends: list[BaseException | None] = []
    files = MemoryFiles(Posted().callbacks.append)

    files.submit([CreateFile("x"), SyncFile("y"), CreateFile("z")], ends.append)
    files.run()

    (error,) = ends
    assert isinstance(error, FileNotFoundError)
    assert error.filename == "y"
    assert files.names("") == ["x"]


def test_an_operation_of_an_unknown_kind_is_not_carried_out(tmp_path: Path) -> None:
    ends: list[BaseException | None] = []
    unknown: Sequence[Operation] = ["sync everything"]  # type: ignore[list-item]
    on_disk, in_memory = InlineFiles(tmp_path), MemoryFiles(Posted().callbacks.append)
    for files in (on_disk, in_memory):
        files.submit(unknown, ends.append)
        files.run()
    on_disk.close()

    assert [type(end) for end in ends] == [NotCarriedOut, NotCarriedOut]
    assert [str(end) for end in ends[1:]] == [str(ends[0])]
    assert "sync everything" in str(ends[0])


def test_a_mistake_of_the_program_is_told_like_a_failure_of_the_disk() -> None:
    ends: list[BaseException | None] = []
    files = MemoryFiles(Posted().callbacks.append)
    wrong: Sequence[Operation] = [CreateFile("x"), Write("x", 0, ("text",))]  # type: ignore[arg-type]

    files.submit(wrong, ends.append)
    files.run()

    assert isinstance(ends[0], NotCarriedOut)
