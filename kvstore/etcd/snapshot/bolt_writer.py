"""Writes a file of bbolt in one pass over ordered rows.

The B+tree of a bucket is built from the leaves up. A page is written once it is full, and only the pages that are being
filled are in memory: one for each level of the tree. The pages are full, as bbolt's own are after a load in order.

bbolt needs at least two children in a branch page, or else a later deletion makes it stop. So a branch page is written
only if two children remain for the next page.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import BinaryIO

from kvstore.etcd.snapshot.bolt_layout import (
    BRANCH_ELEMENT,
    BRANCH_PAGE,
    BUCKET,
    BUCKET_ROW,
    CHECKSUM,
    FREELIST_PAGE,
    KEY_BYTES_MAX,
    LEAF_ELEMENT,
    LEAF_PAGE,
    MAGIC,
    META,
    META_PAGE,
    PAGE_HEAD,
    PLAIN_ROW,
    VALUE_BYTES_MAX,
    VERSION,
    checksum,
)

PAGE_BYTES = 4096

Rows = Iterable[tuple[bytes, bytes]]

_META_PAGES = 2
_CHILDREN_MIN = 2
_Child = tuple[bytes, int]
"""(first key, page id)"""


def write_bolt(file: BinaryIO, buckets: Iterable[tuple[bytes, Rows]]) -> int:
    """Write buckets, given as (name, rows), to the empty file `file`. Return the size of the file in bytes.

    The names, and the keys of each bucket, must be in byte order, without repetition. `file` must be seekable, because
    the two meta pages are written last. Raises ValueError if a row is out of order, or too large for bbolt, and the
    errors of `file` and of the rows.
    """
    pages = _Pages(file)
    freelist = pages.add(FREELIST_PAGE, 0, b"")
    root = _Tree(pages)
    for name, rows in buckets:
        tree = _Tree(pages)
        for key, value in rows:
            tree.add(key, value)
        root.add(name, BUCKET.pack(tree.finish(), 0), BUCKET_ROW)
    pages.finish(root.finish(), freelist)
    return pages.count * PAGE_BYTES


class _Pages:
    """The pages of the file, which are written in the order of their ids. `count`: the number of pages."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.count = _META_PAGES
        file.write(bytes(_META_PAGES * PAGE_BYTES))  # Their place; `finish` fills it.

    def add(self, flags: int, count: int, body: bytes) -> int:
        """Write a page with `count` elements, and as many overflow pages as it needs. Return its id."""
        page_id, size = self.count, PAGE_HEAD.size + len(body)
        used = -(-size // PAGE_BYTES)
        self._file.write(PAGE_HEAD.pack(page_id, flags, count, used - 1))
        self._file.write(body)
        self._file.write(bytes(used * PAGE_BYTES - size))
        self.count += used
        return page_id

    def finish(self, root: int, freelist: int) -> None:
        """Write both meta pages. They differ only in the transaction id, so the file has one state."""
        for number in range(_META_PAGES):
            meta = META.pack(MAGIC, VERSION, PAGE_BYTES, 0, root, 0, freelist, self.count, number)
            page = PAGE_HEAD.pack(number, META_PAGE, 0, 0) + meta + CHECKSUM.pack(checksum(meta))
            self._file.seek(number * PAGE_BYTES)
            self._file.write(page)
        self._file.seek(self.count * PAGE_BYTES)


class _Tree:
    """The B+tree of one bucket, which gets its rows in the order of their keys."""

    def __init__(self, pages: _Pages) -> None:
        self._pages = pages
        self._last = b""
        self._rows: list[tuple[int, bytes, bytes]] = []  # (flags, key, value) of the leaf page that is being filled.
        self._size_bytes = PAGE_HEAD.size
        self._levels: list[_Level] = []  # Lowest first.

    def add(self, key: bytes, value: bytes, flags: int = PLAIN_ROW) -> None:
        """Add the next row. Raises ValueError."""
        if key <= self._last:
            raise ValueError(f"the key {key[:80]!r} does not come after {self._last[:80]!r}")
        if len(key) > KEY_BYTES_MAX or len(value) > VALUE_BYTES_MAX:
            raise ValueError(f"a row of {len(key)} + {len(value)} bytes is too large for bbolt: key {key[:80]!r}")
        size_bytes = LEAF_ELEMENT.size + len(key) + len(value)
        if self._rows and self._size_bytes + size_bytes > PAGE_BYTES:
            self._write_leaf()
        self._rows.append((flags, key, value))
        self._size_bytes += size_bytes
        self._last = key

    def finish(self) -> int:
        """Write all pages that are being filled. Return the id of the root page."""
        if self._rows or not self._levels:
            self._write_leaf()
        number = 0
        while True:
            level = self._levels[number]
            if number == len(self._levels) - 1 and len(level.children) == 1:
                return level.children[0][1]
            self._write_branch(number, level.take())
            number += 1

    def _write_leaf(self) -> None:
        rows = self._rows
        heads, data = list[bytes](), list[bytes]()
        position = LEAF_ELEMENT.size * len(rows)  # From the start of the first element.
        for number, (flags, key, value) in enumerate(rows):
            own = position - LEAF_ELEMENT.size * number
            heads.append(LEAF_ELEMENT.pack(flags, own, len(key), len(value)))
            data += (key, value)
            position += len(key) + len(value)
        page_id = self._pages.add(LEAF_PAGE, len(rows), b"".join(heads + data))
        first_key = rows[0][1] if rows else b""
        self._rows, self._size_bytes = [], PAGE_HEAD.size
        self._add_child(0, (first_key, page_id))

    def _write_branch(self, number: int, children: list[_Child]) -> None:
        """Write a page with children of level `number`, and add the page to the next level."""
        heads, keys = list[bytes](), list[bytes]()
        position = BRANCH_ELEMENT.size * len(children)
        for place, (key, page_id) in enumerate(children):
            heads.append(BRANCH_ELEMENT.pack(position - BRANCH_ELEMENT.size * place, len(key), page_id))
            keys.append(key)
            position += len(key)
        page_id = self._pages.add(BRANCH_PAGE, len(children), b"".join(heads + keys))
        self._add_child(number + 1, (children[0][0], page_id))

    def _add_child(self, number: int, child: _Child) -> None:
        if number == len(self._levels):
            self._levels.append(_Level())
        level = self._levels[number]
        level.add(child)
        if level.is_full:
            self._write_branch(number, level.take(_CHILDREN_MIN))


class _Level:
    """The pages of one level of a tree that have no parent page yet."""

    def __init__(self) -> None:
        self.children: list[_Child] = []
        self._size_bytes = PAGE_HEAD.size

    def add(self, child: _Child) -> None:
        self.children.append(child)
        self._size_bytes += _child_bytes(child)

    @property
    def is_full(self) -> bool:
        """True if the children exceed a page, and suffice for two pages."""
        return self._size_bytes > PAGE_BYTES and len(self.children) >= 2 * _CHILDREN_MIN

    def take(self, left: int = 0) -> list[_Child]:
        """Remove and return all children except the last `left`."""
        end = len(self.children) - left
        taken, self.children = self.children[:end], self.children[end:]
        self._size_bytes = PAGE_HEAD.size + sum(map(_child_bytes, self.children))
        return taken


def _child_bytes(child: _Child) -> int:
    return BRANCH_ELEMENT.size + len(child[0])
