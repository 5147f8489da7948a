"""Deletion of large files in steps. A file system takes 40 ms to free 150 MiB at once, and the log would have to wait
for these 40 ms."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from storage.files.interface import Delete, Done, Operation, SetSize

PIECE_BYTES = 4 * 1024 * 1024
"""How many bytes one step frees. A step takes about 1 ms."""

Submit = Callable[[Sequence[Operation], Done], None]


def delete_in_steps(submit: Submit, path: str, size_bytes: int) -> None:
    """Delete a file of `size_bytes` in steps. No other code may use the file or its name from now on.

    Each step is a separate submission, so that other submissions can run between the steps. After a failure or a crash,
    the remaining part of the file stays on disk.
    """

    def freed(error: BaseException | None) -> None:
        if error is None:
            delete_in_steps(submit, path, size_bytes - PIECE_BYTES)

    if size_bytes > PIECE_BYTES:
        submit([SetSize(path, size_bytes - PIECE_BYTES)], freed)
    else:
        submit([Delete(path)], lambda _: None)
