"""The metadata of a data folder: the file `meta` has the owner's identity, and the file `pins` has the accepted
incarnations of peers.

Both are checked files: small files with a checksum, which are always replaced as a whole. A checked file consists of 8
bytes of magic, the u32 format version, the u32 length of the map, one canonical CBOR map, and a u32 CRC32C over
everything before it. Numbers are big-endian.

See docs/reference/specification.md#15-data-folder.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import cbor2
import google_crc32c

from raft import Done, Identity, InvalidConfiguration, Member, ProtocolError, decode_item
from storage.ballast import Ballast
from storage.errors import CorruptMeta, NewerFormat
from storage.files.interface import CreateFile, Delete, Files, Operation, Rename, SyncFile, SyncFolder, Write

FORMAT_VERSION = 1
_HEAD = struct.Struct(">8sII")
_CHECKSUM = struct.Struct(">I")


def encode_checked_file(magic: bytes, fields: dict[str, Any]) -> bytes:
    """The bytes of a checked file with this magic and this map."""
    body = cbor2.dumps(fields, canonical=True)
    raw = _HEAD.pack(magic, FORMAT_VERSION, len(body)) + body
    return raw + _CHECKSUM.pack(google_crc32c.value(raw))


def decode_checked_file(path: str, data: bytes, magic: bytes) -> dict[str, Any]:
    """Return the map in a checked file. Raises CorruptMeta, NewerFormat."""
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
    """The operations that replace a file in the top folder: write a temporary file, sync it, rename it, sync the
    folder.

    A crash leaves either the old file or the new one.
    """
    aside = path + ".tmp"
    return [
        Delete(aside),
        CreateFile(aside),
        Write(aside, 0, (data,)),
        SyncFile(aside),
        Rename(aside, path),
        SyncFolder(""),
    ]


META_PATH = "meta"
PINS_PATH = "pins"
META_MAGIC = b"HWM-META"
PINS_MAGIC = b"HWM-PINS"
_SMALL_FILE_BYTES_MAX = 1024 * 1024


def encode_meta(identity: Identity, joins_as: Member | None = None) -> bytes:
    """The bytes of `meta`. `joins_as` is a joining member with its addresses, because no configuration contains them
    yet."""
    fields = _owner(identity) | {"incarnation_id": identity.incarnation_id}
    if joins_as is not None:
        fields["joins_as"] = [joins_as.peer_address, joins_as.client_address]
    return encode_checked_file(META_MAGIC, fields)


def encode_pins(identity: Identity, pins: Mapping[str, bytes]) -> bytes:
    """The bytes of `pins`."""
    return encode_checked_file(PINS_MAGIC, _owner(identity) | {"pins": dict(pins)})


def read_identity(files: Files) -> Identity:
    """The identity of the member that owns the folder. Raises NewerFormat. Raises CorruptMeta if `meta` is damaged or
    missing."""
    fields = _read(files, META_PATH, META_MAGIC)
    names = ("cluster_id", "group_id", "node_id", "incarnation_id")
    found: tuple[Any, ...] = tuple(fields.get(name) for name in names)
    cluster_id, group_id, node_id, incarnation_id = found
    are_ids = _is_16_bytes(cluster_id) and _is_16_bytes(incarnation_id) and type(node_id) is str
    if not (are_ids and type(group_id) is int and group_id >= 0):
        raise CorruptMeta(META_PATH, f"its content is impossible: {found!r}")
    return Identity(cluster_id=cluster_id, group_id=group_id, node_id=node_id, incarnation_id=incarnation_id)


def read_joins_as(files: Files) -> Member | None:
    """This member with its first addresses, if it was created to join a running cluster; otherwise None.

    Raises the same errors as `read_identity`.
    """
    fields = _read(files, META_PATH, META_MAGIC)
    try:
        addresses = fields.get("joins_as")
        if addresses is None:
            return None
        peer_address, client_address = addresses
        if not type(peer_address) is type(client_address) is str:
            raise TypeError(addresses)
        return Member(fields["node_id"], peer_address, client_address)
    except (KeyError, TypeError, ValueError, InvalidConfiguration) as error:
        raise CorruptMeta(META_PATH, f"its content is impossible: {error!r}") from error


class PinFile:
    """The file `pins`, which has the accepted incarnation of each peer. Implements `raft.PinStore`."""

    def __init__(self, files: Files, identity: Identity, ballast: Ballast | None = None) -> None:
        """Read the file. `ballast` is needed only for `pin`. Raises CorruptMeta, NewerFormat."""
        self._ballast, self._identity = ballast, identity
        fields = _read(files, PINS_PATH, PINS_MAGIC)
        pins = fields.get("pins")
        if not isinstance(pins, dict) or fields != _owner(identity) | {"pins": pins}:
            raise CorruptMeta(PINS_PATH, "it belongs to another node")
        if not all(type(peer_id) is str and _is_16_bytes(pin) for peer_id, pin in pins.items()):
            raise CorruptMeta(PINS_PATH, "its content is impossible: not a map of peers to incarnations")
        self._durable: dict[str, bytes] = pins
        self._accepted = dict(pins)

    def pins(self) -> Mapping[str, bytes]:
        """Durable pins: peer id → incarnation id."""
        return self._durable

    def pin(self, peer_id: str, incarnation_id: bytes, done: Done) -> None:
        """Make a pin durable. The new pin replaces an older pin of the same peer, because the caller knows which
        incarnation is valid."""
        self._accepted[peer_id] = incarnation_id
        pins: dict[str, bytes] = {}

        def operations() -> list[Operation]:
            nonlocal pins
            pins = dict(self._accepted)  # Each new file contains all pins accepted so far, durable or not.
            return replace_operations(PINS_PATH, encode_pins(self._identity, pins))

        def written(error: BaseException | None) -> None:
            if error is None:
                self._durable = pins
            done(error)

        assert self._ballast is not None, "opened to read only"
        self._ballast.submit(operations(), written, operations)


def _is_16_bytes(item: object) -> bool:
    """True for a cluster id or an incarnation id."""
    return type(item) is bytes and len(item) == 16


def _owner(identity: Identity) -> dict[str, Any]:
    return {"cluster_id": identity.cluster_id, "group_id": identity.group_id, "node_id": identity.node_id}


def _read(files: Files, path: str, magic: bytes) -> dict[str, Any]:
    try:
        data = files.read(path, 0, _SMALL_FILE_BYTES_MAX)
    except FileNotFoundError as error:
        raise CorruptMeta(path, "it is missing") from error
    return decode_checked_file(path, data, magic)
