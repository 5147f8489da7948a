"""The bytes of a snapshot file: a header, checksummed chunks, a trailer with totals.

All numbers are big-endian:

    8 bytes "HWM-SNP\\n", u32 format version, u32 length of the header, the header, u32 CRC32C over all of these
    per chunk:  u32 length ≥ 1, u32 checksum, the state machine's bytes
    trailer:    u32 zero, u32 checksum, u64 number of chunks, u64 bytes in all chunks; the file ends here

A checksum is CRC32C over (the previous checksum, the u32 length, the bytes). So the checksums detect chunks in a wrong
order, or from another snapshot. The header is one canonical CBOR map: `cluster_id`, `group_id`, `index`, `term`,
`feature_level`, `configuration` (bytes), `machine` (the state machine's own map).

See docs/reference/specification.md#52-snapshot-file.
"""

from __future__ import annotations

import struct
from typing import Any

import cbor2
import google_crc32c

from raft import (
    Configuration,
    Identity,
    InvalidConfiguration,
    NewerConfiguration,
    ProtocolError,
    SnapshotHeader,
    decode_item,
)
from storage.errors import CorruptSnapshot, NewerFormat

FORMAT_VERSION = 1
FEATURE_LEVEL = 1
MAGIC = b"HWM-SNP\n"
HEADER_BYTES_MAX = 1024 * 1024  # Enough for a few numbers and nine members.
CHUNK_BYTES_MAX = 16 * 1024 * 1024  # This bound is needed, because a reader keeps a whole chunk in memory.

PREAMBLE = struct.Struct(">8sII")
CHUNK_HEAD = struct.Struct(">II")
TOTALS = struct.Struct(">QQ")
CHECKSUM = struct.Struct(">I")


def encode_header(header: SnapshotHeader, identity: Identity) -> bytes:
    """The start of a snapshot file, before its first chunk."""
    fields = {
        "cluster_id": identity.cluster_id,
        "group_id": identity.group_id,
        "index": header.index,
        "term": header.term,
        "feature_level": FEATURE_LEVEL,
        "configuration": header.configuration.encode(),
        "machine": dict(header.machine),
    }
    body = cbor2.dumps(fields, canonical=True)
    assert len(body) <= HEADER_BYTES_MAX, len(body)
    raw = PREAMBLE.pack(MAGIC, FORMAT_VERSION, len(body)) + body
    return raw + CHECKSUM.pack(google_crc32c.value(raw))


def encode_chunk(chunk: bytes, previous_checksum: int) -> tuple[bytes, int]:
    """Return the 8 bytes that precede a chunk in the file, and the chunk's checksum."""
    assert 1 <= len(chunk) <= CHUNK_BYTES_MAX, len(chunk)
    checksum = chain_checksum(previous_checksum, len(chunk), chunk)
    return CHUNK_HEAD.pack(len(chunk), checksum), checksum


def encode_trailer(chunks: int, total_bytes: int, previous_checksum: int) -> bytes:
    """The end of a snapshot file, after its last chunk."""
    totals = TOTALS.pack(chunks, total_bytes)
    return CHUNK_HEAD.pack(0, chain_checksum(previous_checksum, 0, totals)) + totals


def chain_checksum(previous_checksum: int, length: int, data: bytes) -> int:
    """CRC32C over the previous checksum, a length and the bytes."""
    return int(google_crc32c.extend(google_crc32c.value(CHUNK_HEAD.pack(previous_checksum, length)), data))


def _is_count(item: object) -> bool:
    return type(item) is int and item >= 0


class SnapshotParser:
    """Parses a snapshot file from pieces of any size, and returns its verified chunks.

    `identity`: the cluster and group to which the file must belong; None if the file may belong to any cluster and
    group. `owner`: the (cluster_id, group_id) that the file states, once its header has been read. All methods may
    raise CorruptSnapshot or NewerFormat. In addition to the bytes of the last `feed`, the parser keeps at most one
    chunk in memory.
    """

    def __init__(self, path: str, identity: Identity | None) -> None:
        self._path, self._identity = path, identity
        self._buffer = bytearray()
        self._offset = 0  # The offset in the file of the first byte in `_buffer`.
        self._checksum = 0
        self._chunks = self._chunk_bytes = 0
        self.header: SnapshotHeader | None = None
        self.owner = (b"", 0)
        self.is_complete = False

    def feed(self, data: bytes) -> list[bytes]:
        """Parse the next bytes of the file. Return the chunks that are complete now."""
        self._buffer += data
        chunks: list[bytes] = []
        if self.header is None and not self._take_header():
            return chunks
        while not self.is_complete and len(self._buffer) >= CHUNK_HEAD.size:
            length, checksum = CHUNK_HEAD.unpack_from(self._buffer)
            if length > CHUNK_BYTES_MAX:
                raise self._damaged(f"a chunk of {length} bytes, the bound is {CHUNK_BYTES_MAX}")
            size = CHUNK_HEAD.size + (length or TOTALS.size)
            if len(self._buffer) < size:
                break
            chunk = bytes(self._buffer[CHUNK_HEAD.size : size])
            if chain_checksum(self._checksum, length, chunk) != checksum:
                raise self._damaged("a chunk fails its checksum")
            self._checksum = checksum
            if length:
                self._chunks += 1
                self._chunk_bytes += length
                chunks.append(chunk)
            else:
                self._take_totals(chunk)
            self._skip(size)
        if self.is_complete and self._buffer:
            raise self._damaged("there are bytes after the trailer")
        return chunks

    def finish(self) -> SnapshotHeader:
        """Return the header. Called after the last `feed`. Raises CorruptSnapshot if the file is not complete."""
        if self.header is None or not self.is_complete:
            self._offset += len(self._buffer)
            raise self._damaged("the file ends before its trailer")
        return self.header

    def _take_header(self) -> bool:
        if len(self._buffer) < PREAMBLE.size:
            return False
        magic, version, length = PREAMBLE.unpack_from(self._buffer)
        if magic != MAGIC:
            raise self._damaged("it does not begin like a snapshot")
        if length > HEADER_BYTES_MAX:
            raise self._damaged(f"a header of {length} bytes, the bound is {HEADER_BYTES_MAX}")
        size = PREAMBLE.size + length
        if len(self._buffer) < size + CHECKSUM.size:
            return False
        (self._checksum,) = CHECKSUM.unpack_from(self._buffer, size)
        if google_crc32c.value(bytes(self._buffer[:size])) != self._checksum:
            raise self._damaged("the header fails its checksum")
        if version > FORMAT_VERSION:
            raise NewerFormat(self._path, version, FORMAT_VERSION)
        self.header = self._decode_header(bytes(self._buffer[PREAMBLE.size : size]))
        self._skip(size + CHECKSUM.size)
        return True

    def _decode_header(self, body: bytes) -> SnapshotHeader:
        try:
            fields: dict[str, Any] = decode_item(body)
            owner = (fields["cluster_id"], fields["group_id"])
            level = fields["feature_level"]
            # The level is checked first, because a newer level may change the other fields.
            if type(level) is int and level > FEATURE_LEVEL:
                raise NewerFormat(self._path, level, FEATURE_LEVEL, "feature level")
            header = SnapshotHeader(
                index=fields["index"],
                term=fields["term"],
                configuration=Configuration.decode(fields["configuration"]),
                machine=fields["machine"],
            )
        except NewerConfiguration as error:
            raise NewerFormat(self._path, error.found, error.supported, "form of the member list") from error
        except (ProtocolError, KeyError, TypeError, InvalidConfiguration) as error:
            raise self._damaged(f"the header is impossible: {error!r}") from error
        if not (_is_count(header.index) and _is_count(header.term) and isinstance(header.machine, dict)):
            raise self._damaged("the header is impossible: no position, or no map of the state machine")
        if not (isinstance(owner[0], bytes) and _is_count(owner[1])):
            raise self._damaged("the header is impossible: no cluster and group")
        if self._identity is not None and owner != (self._identity.cluster_id, self._identity.group_id):
            raise self._damaged("it belongs to another cluster or group")
        self.owner = owner
        return header

    def _take_totals(self, totals: bytes) -> None:
        if TOTALS.unpack(totals) != (self._chunks, self._chunk_bytes):
            raise self._damaged("the totals in the trailer differ from what was read")
        self.is_complete = True

    def _skip(self, size: int) -> None:
        del self._buffer[:size]
        self._offset += size

    def _damaged(self, reason: str) -> CorruptSnapshot:
        return CorruptSnapshot(self._path, self._offset, reason)
