"""The layout of a file of bbolt, version 2 (https://github.com/etcd-io/bbolt). All numbers are little-endian.

The file consists of pages of equal size. A page that does not suffice is followed by `overflow` further pages, which
have no header of their own. Pages 0 and 1 are meta pages; the one with a valid checksum and the higher transaction id
is in force.

    page            id u64, flags u16, count u16, overflow u32, then the elements, then their keys and values
    leaf element    flags u32 (1: the value is a bucket), position u32, size of the key u32, size of the value u32
    branch element  position u32, size of the key u32, id of the child page u64
    bucket          id of its root page u64, sequence u64; if the id is 0, the only page of the bucket follows
    meta            magic u32, version u32, page size u32, flags u32, root bucket, id of the freelist page u64,
                    number of pages in use u64, transaction id u64, FNV-1a checksum of all before u64

A position is the distance of the key from the start of its element. The value follows the key. The key of a branch
element is the first key below the child page.
"""

from __future__ import annotations

import struct

MAGIC = 0xED0CDAED
VERSION = 2

BRANCH_PAGE, LEAF_PAGE, META_PAGE, FREELIST_PAGE = 0x01, 0x02, 0x04, 0x10
PLAIN_ROW, BUCKET_ROW = 0, 1

PAGE_HEAD = struct.Struct("<QHHI")
LEAF_ELEMENT = struct.Struct("<IIII")
BRANCH_ELEMENT = struct.Struct("<IIQ")
BUCKET = struct.Struct("<QQ")
META = struct.Struct("<IIIIQQQQQ")
CHECKSUM = struct.Struct("<Q")

KEY_BYTES_MAX = 32 * 1024
"""The longest key that bbolt accepts."""

VALUE_BYTES_MAX = (1 << 31) - 2
"""The longest value that bbolt accepts."""

_FNV_BASIS, _FNV_PRIME, _FNV_MASK = 0xCBF29CE484222325, 0x100000001B3, (1 << 64) - 1


def checksum(data: bytes) -> int:
    """Return the FNV-1a hash of 64 bits."""
    value = _FNV_BASIS
    for byte in data:
        value = ((value ^ byte) * _FNV_PRIME) & _FNV_MASK
    return value
