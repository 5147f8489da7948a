"""The order in which names of files may come to be (docs/reference/specification.md#413-names)."""

from __future__ import annotations

from harness.sim.engine.errors import require
from harness.sim.world.disk_image import DiskImage, parent
from storage import Rename

LOG_FOLDER_NAME = "log"


def check_rename(image: DiskImage, rename: Rename) -> None:
    """A segment gets its name when all before it have theirs durably: else a crash may leave a gap among them.

    A crash may forget the older one of two names that are not synced. What then looks like damage is refused, and the
    member never starts again.
    """
    folder = parent(rename.new_path)
    if folder.rpartition("/")[2] == LOG_FOLDER_NAME:
        loose = [path for path in image.loose_names(folder) if path != rename.old_path]
        require(not loose, "segments get their names one after the other", rename.new_path, loose)
