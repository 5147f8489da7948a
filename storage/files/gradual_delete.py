"""Deletion of large files in steps: a file system takes 40 ms to free 150 MiB, and the log waits for the same disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from storage.files.interface import Delete, Done, Operation, SetSize

PIECE_BYTES = 4 * 1024 * 1024
"""The bytes freed by one step, in some 1 ms."""

Submit = Callable[[Sequence[Operation], Done], None]


def delete_in_steps(submit: Submit, path: str, size_bytes: int) -> None:
    """Delete a file of `size_bytes` that is no longer needed, and whose name has no meaning any more.

    Every step is a submission of its own, so that others come in between. After a failure or a crash the rest stays.
    """

    def freed(error: BaseException | None) -> None:
        if error is None:
            delete_in_steps(submit, path, size_bytes - PIECE_BYTES)

    if size_bytes > PIECE_BYTES:
        submit([SetSize(path, size_bytes - PIECE_BYTES)], freed)
    else:
        submit([Delete(path)], lambda _: None)
