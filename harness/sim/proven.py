"""Which bytes of a log have been proven durable: of these, damage must be seen at the next start (FORMATS §4)."""

from __future__ import annotations

from random import Random

from harness.sim.image import DiskImage
from harness.sim.taps import LOG_FOLDER


class Proven:
    """Sizes of the segments of one member, known from the outside.

    A frame says up to which batch it knew the log synced. So once a second sync has ended well, every byte that the
    first one made durable is proven by what the second one wrote.
    """

    def __init__(self, image: DiskImage) -> None:
        self._image = image
        self._synced: dict[str, int] = {}
        self._proven: dict[str, int] = {}

    def log_synced(self) -> None:
        """A sync of the log has ended well."""
        start = f"{LOG_FOLDER}/"
        self._proven = self._synced
        self._synced = {
            path: len(inode.durable)
            for path, inode in self._image.names.items()
            if inode is not None and path.startswith(start)
        }

    def rot(self, random: Random) -> bool:
        """Change one bit of it, in the newest segment as often as in any other; False if nothing is proven."""
        sizes = []
        for path in sorted(self._proven):
            inode = self._image.names.get(path)
            size = min(self._proven[path], len(inode.durable)) if inode is not None else 0
            if inode is not None and size:
                sizes.append((inode, size))
        if not sizes:
            return False
        inode, size = sizes[-1] if random.random() < 0.5 else random.choice(sizes)
        inode.rot(random.randrange(size), random.randrange(8))
        return True
