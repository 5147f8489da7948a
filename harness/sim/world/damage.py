"""Computes which bytes of a disk are proven to be durable, and makes damage that the next start must notice.

See docs/reference/specification.md#48-torn-tail-and-damage.
"""

from __future__ import annotations

from random import Random

from harness.sim.world.disk_image import DiskImage, Inode
from harness.sim.world.probes import LOG_FOLDER

SNAPSHOT_FOLDER = "groups/0/snapshots"
SEALED_PATHS = ("meta", "pins")


SEGMENTS_GROWING_MAX = 2
"""The most segments that can grow between two syncs: the newest segment, and the segment before it, which may have been
completed since the first of the two syncs.
"""

_LOOK_BYTES = 4096
_ZEROES = bytes(_LOOK_BYTES)


def written_bytes(content: bytes | bytearray) -> int:
    """Return the offset at which the zeroes at the end begin. These zeroes were written in advance for later frames.

    In the rare case that the last frame itself ends in zeroes, the offset is inside this frame.
    """
    end = len(content)
    while end:
        start = max(0, end - _LOOK_BYTES)
        rest = content[start:end]
        # The comparison comes first, because it takes a thirtieth of the time of `rstrip`.
        if rest != _ZEROES and (rest := rest.rstrip(b"\0")):
            return start + len(rest)
        end = start
    return 0


class ProvenBytes:
    """The number of proven bytes of each segment of one member, and the damage to the member's disk.

    Each frame states up to which batch the log was known to be synced. So after a second sync, the frames of the second
    sync prove every byte that the first sync made durable. If the *last* sync lost a write, no frame proves this write.
    The log is then the same as a log that ends before the write.
    """

    def __init__(self, image: DiskImage) -> None:
        self._image = image
        self._synced: dict[str, int] = {}
        self._proven: dict[str, int] = {}
        self._syncs_since_lie: int | None = None
        self._rotten: tuple[str, Inode] | None = None

    def log_synced(self) -> None:
        """Record that a sync of the log has succeeded."""
        start, before = f"{LOG_FOLDER}/", self._synced
        segments = sorted(path for path, inode in self._image.names.items() if inode and path.startswith(start))
        self._proven, self._synced = before, {}
        for place, path in enumerate(segments, 1):
            is_settled = path in before and place + SEGMENTS_GROWING_MAX <= len(segments)
            self._synced[path] = before[path] if is_settled else written_bytes(self._image.file(path).durable)
        if self._syncs_since_lie is not None:
            self._syncs_since_lie += 1

    def lied(self) -> None:
        """Record that the disk lies about the sync of the log that is under way."""
        self._syncs_since_lie = 0

    @property
    def is_lie_proven(self) -> bool:
        """True if a frame of a later sync states that the false sync had succeeded."""
        return self._syncs_since_lie is not None and self._syncs_since_lie > 1

    @property
    def rotten_path(self) -> str:
        """The path of the file that has rotted; "" if no file has rotted, or the rotten file is gone."""
        if self._rotten is None:
            return ""
        path, inode = self._rotten
        return path if self._image.names.get(path) is inode else ""

    def forget_damage(self) -> None:
        """Forget the damage, because the member has started with everything that it had promised on its disk."""
        self._syncs_since_lie = self._rotten = None

    def rot(self, random: Random) -> bool:
        """Change one proven bit of the log, most often in the newest segment. Returns False if no bit is proven."""
        sizes = []
        for path in sorted(self._proven):
            inode = self._image.names.get(path)
            size = min(self._proven[path], len(inode.durable)) if inode is not None else 0
            if inode is not None and size:
                sizes.append((path, inode, size))
        if not sizes:
            return False
        path, inode, size = sizes[-1] if random.random() < 0.5 else random.choice(sizes)
        return self._rot(path, inode, size, random)

    def rot_elsewhere(self, random: Random) -> bool:
        """Change one durable bit of a snapshot, of `meta` or of `pins`."""
        if random.random() < 0.8:
            return self.rot_snapshot(random)
        path = random.choice(SEALED_PATHS)
        return self._rot(path, self._image.file(path), len(self._image.file(path).durable), random)

    def rot_snapshot(self, random: Random) -> bool:
        """Change one durable bit of the newest snapshot, or sometimes of another snapshot."""
        names = self._image.children(SNAPSHOT_FOLDER)
        snapshots = [f"{SNAPSHOT_FOLDER}/{name}" for name in names if name.endswith(".snap")]
        path = snapshots[-1] if random.random() < 0.75 else random.choice(snapshots)
        inode = self._image.file(path)
        return self._rot(path, inode, len(inode.durable), random)

    def sizes(self) -> list[tuple[str, int]]:
        """Return (path, number of proven bytes) for each segment that has proven bytes."""
        found = []
        for path in sorted(self._proven):
            inode = self._image.names.get(path)
            size = min(self._proven[path], len(inode.durable)) if inode is not None else 0
            if size:
                found.append((path, size))
        return found

    def flip(self, path: str, offset: int, bit: int) -> None:
        """Change one bit of the durable byte at `offset`."""
        inode = self._image.file(path)
        inode.rot(offset, bit)
        self._rotten = path, inode

    def misplace(self, path: str, offset: int, source: int, length: int) -> None:
        """Copy `length` bytes of this file from `source` to `offset`."""
        inode = self._image.file(path)
        for content in (inode.durable, inode.current):
            content[offset : offset + length] = content[source : source + length]
        self._rotten = path, inode

    def _rot(self, path: str, inode: Inode, size: int, random: Random) -> bool:
        inode.rot(random.randrange(size), random.randrange(8))
        self._rotten = path, inode
        return True
