"""A small file that is always replaced as a whole (`meta`, `pins`): 8 bytes magic, u32 format version, u32 length, one
canonical CBOR map, u32 CRC32C over all before it. Big-endian."""

from __future__ import annotations

import struct
from typing import Any

import cbor2
import google_crc32c

from raft import ProtocolError, decode_item
from storage.errors import CorruptMeta, NewerFormat
from storage.files.interface import CreateFile, Delete, Operation, Rename, SyncFile, SyncFolder, Write

FORMAT_VERSION = 1
_HEAD = struct.Struct(">8sII")
_CHECKSUM = struct.Struct(">I")


def seal(magic: bytes, fields: dict[str, Any]) -> bytes:
    """The bytes of such a file."""
    body = cbor2.dumps(fields, canonical=True)
    raw = _HEAD.pack(magic, FORMAT_VERSION, len(body)) + body
    return raw + _CHECKSUM.pack(google_crc32c.value(raw))


def unseal(path: str, data: bytes, magic: bytes) -> dict[str, Any]:
    """Read what `seal` wrote. Raises CorruptMeta, NewerFormat."""
    if len(data) < _HEAD.size + _CHECKSUM.size:
        raise CorruptMeta(path, f"{len(data)} bytes are too few")
    found_magic, version, length = _HEAD.unpack_from(data)
    if found_magic != magic:
        raise CorruptMeta(path, "it does not begin as it should")
    if google_crc32c.value(data[:-4]) != _CHECKSUM.unpack(data[-4:])[0]:
        raise CorruptMeta(path, "it fails its checksum")
    if version > FORMAT_VERSION:
        raise NewerFormat(path, version, FORMAT_VERSION)
    if length != len(data) - _HEAD.size - _CHECKSUM.size:
        raise CorruptMeta(path, "its length is wrong")
    try:
        fields = decode_item(data[_HEAD.size : -4])
    except ProtocolError as error:
        raise CorruptMeta(path, f"its content is impossible: {error}") from error
    if not isinstance(fields, dict):
        raise CorruptMeta(path, "it holds no map")
    return fields


def replace_operations(path: str, data: bytes) -> list[Operation]:
    """Write a top-level file aside, sync it, give it its name, sync the name: always the old one or the new one."""
    aside = path + ".tmp"
    return [
        Delete(aside),
        CreateFile(aside),
        Write(aside, 0, (data,)),
        SyncFile(aside),
        Rename(aside, path),
        SyncFolder(""),
    ]
