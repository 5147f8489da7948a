"""An ext4 volume for one test, if the machine can mount one."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.cluster.volumes import Volume

MIB = 1024 * 1024


def trouble_with_ext4(folder: Path) -> str:
    """The reason why this user cannot mount an ext4 volume on this machine; empty if mounting works. The system's own
    tools determine the reason."""
    image, there = folder / "probe.img", folder / "probe"
    image.parent.mkdir(parents=True, exist_ok=True)
    there.mkdir()
    with image.open("wb") as file:
        file.truncate(16 * MIB)
    try:
        for command in (["mkfs.ext4", "-q", str(image)], ["mount", "-o", "loop", str(image), str(there)]):
            done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
            if done.returncode != 0:
                return f"{command[0]}: {(done.stderr.strip() or str(done.returncode)).splitlines()[0]}"
        subprocess.run(["umount", str(there)], capture_output=True, timeout=20, check=True)
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    finally:
        image.unlink()
        there.rmdir()
    return ""


@contextmanager
def an_ext4(folder: Path) -> Iterator[Volume]:
    """A volume that contains the folder `data`. The test is skipped only if the machine cannot mount any volume."""
    trouble = trouble_with_ext4(folder)
    if trouble:
        pytest.skip(f"no ext4 can be mounted here: {trouble}")
    made = Volume(folder / "volumes", "n1", file_system="ext4", size_bytes=16 * MIB)
    try:
        made.open()
        made.data.mkdir()
        yield made
    finally:
        made.close()
