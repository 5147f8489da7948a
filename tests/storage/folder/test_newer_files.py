"""A file that a newer build has written is refused and left unchanged. The error names the part of the file that is new
(docs/reference/versions.md).
"""

from __future__ import annotations

from collections.abc import Callable

import cbor2
import google_crc32c
import pytest

from raft import Configuration, InvalidConfiguration, NewerConfiguration, encode_item
from storage import NewerFormat
from storage.snapshots.format import PREAMBLE
from storage.wal.frame import HEAD
from storage.wal.segment import HEADER_BYTES
from tests.storage.support.builders import (
    CONFIGURATION,
    SNAPSHOTS,
    Damage,
    built,
    entry,
    frames,
    new_folder,
    opened,
    segment_path,
    segments,
    snapshot_header,
    synced,
    write,
)
from tests.storage.support.power_loss_files import PowerLossFiles

Spoil = Callable[[PowerLossFiles], None]


def a_member() -> PowerLossFiles:
    """A folder with a log of one entry, and a snapshot after it."""
    files = new_folder()
    storage = opened(files)
    synced(files, storage.log, write(entry(1, term=1), term=1))
    built(files, storage, snapshot_header(1))
    return files


def sealed_version(path: str) -> Spoil:
    def spoil(files: PowerLossFiles) -> None:
        damage = Damage(files, path)
        damage.set_byte(11, 2)
        damage.fix_checksum(0, files.size_bytes(path))

    return spoil


def segment_version(files: PowerLossFiles) -> None:
    damage = Damage(files, segment_path(1))
    damage.set_byte(11, 2)
    damage.fix_checksum(0, HEADER_BYTES)


def frame_byte(field_offset: int, value: int) -> Spoil:
    def spoil(files: PowerLossFiles) -> None:
        path, frame = next((path, frame) for path in segments(files) for frame in frames(files, path) if frame.table)
        damage = Damage(files, path)
        damage.set_byte(frame.offset + field_offset, value)
        damage.fix_checksum(frame.offset, frame.end_offset)

    return spoil


def snapshot_path(files: PowerLossFiles) -> str:
    return f"{SNAPSHOTS}/{max(files.names(SNAPSHOTS))}"


def snapshot_version(files: PowerLossFiles) -> None:
    path = snapshot_path(files)
    size = PREAMBLE.size + int.from_bytes(files.read(path, 12, 4), "big")
    damage = Damage(files, path)
    damage.set_byte(11, 2)
    damage.fix_checksum(0, size + 4)


def snapshot_field(name: str, value: object) -> Spoil:
    """Change a field of the snapshot's header. This field is checked before all other fields."""

    def spoil(files: PowerLossFiles) -> None:
        path = snapshot_path(files)
        magic, version, length = PREAMBLE.unpack(files.read(path, 0, PREAMBLE.size))
        fields = cbor2.loads(files.read(path, PREAMBLE.size, length)) | {name: value, "more": 1}
        body = cbor2.dumps(fields, canonical=True)
        raw = PREAMBLE.pack(magic, version, len(body)) + body
        files.put(path, raw + google_crc32c.value(raw).to_bytes(4, "big"))

    return spoil


# The offset comes after a hard state without a vote, the first index, the term and the length.
KIND_AT = HEAD.size + 18 + 8 + 12

NEWER: dict[str, tuple[Spoil, str, int, int]] = {
    "meta": (sealed_version("meta"), "format version", 2, 1),
    "pins": (sealed_version("pins"), "format version", 2, 1),
    "segment": (segment_version, "format version", 2, 1),
    "flag of a frame": (frame_byte(35, 0x42), "frame flags", 0x42, 15),
    "kind of an entry": (frame_byte(KIND_AT, 4), "entry kind", 4, 3),
    "snapshot": (snapshot_version, "format version", 2, 1),
    "level of a snapshot": (snapshot_field("feature_level", 2), "feature level", 2, 1),
    "members in a snapshot": (
        snapshot_field("configuration", encode_item([4, []])),
        "form of the member list",
        4,
        3,
    ),
}


@pytest.mark.parametrize("name", NEWER)
def test_a_file_of_a_newer_build_is_refused_with_what_was_found_and_what_is_known(name: str) -> None:
    """The file is sound. So the advice is to use another build, and not to add a new member. The file stays
    unchanged."""
    spoil, what, found, supported = NEWER[name]
    files = a_member()
    spoil(files)
    before = {path: bytes(files.edit(path)) for path in ("meta", "pins", *segments(files), snapshot_path(files))}

    with pytest.raises(NewerFormat, match="start it with the newer build that wrote it") as refused:
        opened(files)

    assert (refused.value.what, refused.value.found, refused.value.supported) == (what, found, supported)
    assert f"{what} {found}, this build reads up to {supported}" in str(refused.value)
    assert {path: bytes(files.edit(path)) for path in before} == before


def test_a_member_list_of_a_newer_form_is_told_from_garbage() -> None:
    """If an entry of the log contains such a list, the member ends with the same words."""
    with pytest.raises(NewerConfiguration, match="form 7; this build knows up to 3"):
        Configuration.decode(encode_item([7, "whatever", {}]))
    for garbage in ([1, [], []], [0], ["s1"], [[1, 2, 3]], []):
        with pytest.raises(InvalidConfiguration) as refused:
            Configuration.decode(encode_item(garbage))
        assert not isinstance(refused.value, NewerConfiguration)
    assert Configuration.decode(CONFIGURATION.encode()) == CONFIGURATION
