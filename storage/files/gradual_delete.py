"""Deletion of large files in steps. A file system takes 40 ms to free 150 MiB, and the log would have to wait that
long."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from storage.files.interface import Delete, Done, Operation, SetSize

PIECE_BYTES = 4 * 1024 * 1024
"""The bytes freed by one step, which takes about 1 ms."""

Submit = Callable[[Sequence[Operation], Done], None]


def delete_in_steps(submit: Submit, path: str, size_bytes: int) -> None:
    """Delete a file of `size_bytes` in steps. The caller ensures that nothing uses the file or its name any more.

    Every step is a submission of its own, so that other submissions can run in between. After a failure or a crash the
    rest of the file stays.
    """

    def freed(error: BaseException | None) -> None:
        if error is None:
            delete_in_steps(submit, path, size_bytes - PIECE_BYTES)

    if size_bytes > PIECE_BYTES:
        submit([SetSize(path, size_bytes - PIECE_BYTES)], freed)
    else:
        submit([Delete(path)], lambda _: None)
