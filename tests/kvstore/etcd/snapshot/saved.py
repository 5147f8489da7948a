"""Stores for the tests of snapshots, and the file of a snapshot as `hwm snapshot save` makes it."""

from __future__ import annotations

import random
from pathlib import Path

from kvstore.protocol.commands import (
    Append,
    Compact,
    Delete,
    DeleteRange,
    LeaseGrant,
    Put,
    Range,
    Txn,
)
from kvstore.protocol.results import KeyRecord
from kvstore.store.machine import KvMachine
from raft import Configuration, Identity, Member, SnapshotHeader
from storage.snapshots.format import encode_chunk, encode_header, encode_trailer
from tests.kvstore.support.machine_fixture import SECOND, Fed

IDENTITY = Identity(cluster_id=bytes(16), group_id=0, node_id="s1", incarnation_id=bytes(16))
INDEX, TERM = 77, 3


def save(machine: KvMachine, path: Path) -> Path:
    """Write the snapshot of a machine to `path`."""
    picture = machine.snapshot()
    header = SnapshotHeader(
        index=INDEX, term=TERM, configuration=Configuration.of([Member("s1")]), machine=dict(picture.header)
    )
    parts, count, size_bytes = [encode_header(header, IDENTITY)], 0, 0
    checksum = int.from_bytes(parts[0][-4:], "big")
    for chunk in picture.chunks:
        head, checksum = encode_chunk(chunk, checksum)
        parts += (head, chunk)
        count += 1
        size_bytes += len(chunk)
    path.write_bytes(b"".join([*parts, encode_trailer(count, size_bytes, checksum)]))
    return path


def records_at(machine: KvMachine, revision: int) -> list[KeyRecord]:
    """All records of a machine at a revision."""
    found: list[KeyRecord] = []
    start = b""
    while True:
        page = machine.range(Range(start, revision=revision))
        found += page.items
        if not page.more:
            return found
        start = found[-1].key + b"\0"


def lived_in(seed: int = 1, *, changes: int = 120, level: int = 3, **limits: int) -> Fed:
    """A store with changes of all kinds: puts, deletions, transactions, and leases, some of which have
    ended. Its history does not begin at the first revision."""
    draw = random.Random(seed)
    fed = Fed(level=level, lease_grace_ns=1, **limits)
    lease_ids = list(range(101, 105)) if level > 1 else []
    for lease_id in lease_ids:
        fed.do(LeaseGrant(lease_id, (lease_id - 70) * SECOND + 1), time=SECOND)
    fed.do(LeaseGrant(9, SECOND), time=SECOND) if level > 1 else None

    def key() -> bytes:
        return b"k%02d" % draw.randrange(40)

    def value() -> bytes:
        return draw.randbytes(draw.choice((0, 3, 60, 60, 60, 6_000)))

    for number in range(changes):
        kind = draw.randrange(10)
        if kind < 5:
            fed.do(Put(key(), value()), time=SECOND)
        elif kind == 5 or level == 1:
            fed.do(Delete(key()), time=SECOND)
        elif kind == 6:
            fed.do(Put(key(), value(), lease_id=draw.choice([9, *lease_ids] if number < changes // 2 else lease_ids)),
                   time=SECOND if number < changes // 2 else 3 * SECOND)  # fmt: skip
        elif kind == 7:
            keys = sorted({key() for _ in range(5)}, key=lambda _: draw.random())
            fed.do(Txn((), tuple(draw.choice((Put(each, value()), Delete(each))) for each in keys)), time=SECOND)
        elif kind == 8:
            start = key()
            fed.do(DeleteRange(start, start + b"\xff"), time=SECOND)
        else:
            fed.do(Append(b"log/", value()), time=SECOND)
        if number == changes // 3 and level > 1 and fed.machine.history.is_on:
            least = fed.machine.compact_revision + 1
            fed.do(Compact(max(least, fed.machine.revision - changes // 6)), time=SECOND)
    return fed
