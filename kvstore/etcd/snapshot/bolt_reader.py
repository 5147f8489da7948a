"""Reads the rows of a file of bbolt, page by page. The file may be hostile.

Every walk through a tree ends: it goes down DEPTH_MAX levels at most, and reads no more pages than the file has. The
keys of a bucket must ascend, so a page that occurs twice in a tree is refused. A page is held in memory as a whole,
with at most PAGE_RUN_BYTES_MAX.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from kvstore.errors import UnusableFile
from kvstore.etcd.snapshot.bolt_layout import (
    BRANCH_ELEMENT,
    BRANCH_PAGE,
    BUCKET,
    BUCKET_ROW,
    CHECKSUM,
    KEY_BYTES_MAX,
    LEAF_ELEMENT,
    LEAF_PAGE,
    MAGIC,
    META,
    META_PAGE,
    PAGE_HEAD,
    PLAIN_ROW,
    VERSION,
    checksum,
)

DEPTH_MAX = 32
"""The greatest depth of a tree. A tree of 2³² pages with two children each has this depth."""

BUCKETS_MAX = 1_024
"""The greatest number of buckets of a file. etcd has some ten."""

PAGE_RUN_BYTES_MAX = 64 * 1024 * 1024
"""The greatest size of a page with its overflow pages. By default, etcd accepts requests of 1.5 MiB."""

_PAGE_SIZES = [1 << exponent for exponent in range(9, 17)]
_META_BYTES = PAGE_HEAD.size + META.size + CHECKSUM.size


class _Meta(NamedTuple):
    txid: int
    page_bytes: int
    pages: int
    root: int


class BoltReader:
    """The buckets of the file `file`, of which the first `size_bytes` are read. `name` is used in errors.

    All methods raise UnusableFile if the file is not a sound file of bbolt, or cannot be read.
    """

    def __init__(self, file: BinaryIO, name: str, size_bytes: int) -> None:
        self._file, self._name, self._size_bytes = file, name, size_bytes
        meta = self._find_meta()
        self._page_bytes, self._pages = meta.page_bytes, meta.pages
        if meta.pages * meta.page_bytes > size_bytes:
            raise self._unsound(f"it has {size_bytes} bytes, but its pages need {meta.pages * meta.page_bytes}")
        self._buckets: dict[bytes, bytes] = {}
        for flags, key, value in self._walk(meta.root):
            if flags != BUCKET_ROW:
                raise self._unsound(f"the row {key[:80]!r} is outside of all buckets")
            if len(value) < BUCKET.size:
                raise self._unsound(f"the bucket {key[:80]!r} has {len(value)} bytes")
            if len(self._buckets) == BUCKETS_MAX:
                raise self._unsound(f"it has more than {BUCKETS_MAX} buckets")
            self._buckets[key] = value

    @property
    def bucket_names(self) -> list[bytes]:
        """The names of the buckets, in byte order."""
        return list(self._buckets)

    def rows(self, bucket: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the rows of a bucket as (key, value), in the order of the keys; none if there is no such bucket."""
        value = self._buckets.get(bucket)
        if value is None:
            return
        root, _ = BUCKET.unpack_from(value)
        rows = self._walk(root) if root else self._inline_rows(value[BUCKET.size :])
        for flags, key, row_value in rows:
            if flags != PLAIN_ROW:
                raise self._unsound(f"the row {key[:80]!r} of the bucket {bucket!r} is a bucket itself")
            yield key, row_value

    def _find_meta(self) -> _Meta:
        """Return the meta page in force.

        If the first meta page is damaged, the size of the pages is unknown, so the second is searched for at each
        possible place."""
        found = [meta for meta in (self._meta_at(0),) if meta is not None]
        for page_bytes in [found[0].page_bytes] if found else _PAGE_SIZES:
            second = self._meta_at(page_bytes)
            if second is not None and second.page_bytes == page_bytes:
                found.append(second)
        if not found:
            raise self._unsound("neither of its two meta pages is valid")
        return max(found)

    def _meta_at(self, offset: int) -> _Meta | None:
        """Return the meta page at `offset`; None if there is no valid meta page."""
        if offset + _META_BYTES > self._size_bytes:
            return None
        data = self._read(offset, _META_BYTES)
        _, flags, _, _ = PAGE_HEAD.unpack_from(data)
        body = data[PAGE_HEAD.size : -CHECKSUM.size]
        magic, version, page_bytes, _, root, _, _, pages, txid = META.unpack(body)
        if flags != META_PAGE or magic != MAGIC or version != VERSION or page_bytes not in _PAGE_SIZES:
            return None
        (expected,) = CHECKSUM.unpack_from(data, len(data) - CHECKSUM.size)
        return _Meta(txid, page_bytes, pages, root) if checksum(body) == expected else None

    def _walk(self, root: int) -> Iterator[tuple[int, bytes, bytes]]:
        """Yield (flags, key, value) of all rows of the tree with this root page."""
        last, pages_left = b"", self._pages
        path = [iter([root])]  # For each level of the path to the present page: the pages that are still to be read.
        while path:
            page_id = next(path[-1], None)
            if page_id is None:
                path.pop()
                continue
            kind, count, page = self._page(page_id)
            where = f"page {page_id}"
            pages_left -= len(page) // self._page_bytes
            if pages_left < 0:
                raise self._unsound(f"{where} is in more than one place")
            if count == 0 and (kind == BRANCH_PAGE or len(path) > 1):
                raise self._unsound(f"{where} is empty")
            if kind == BRANCH_PAGE:
                if len(path) >= DEPTH_MAX:
                    raise self._unsound(f"{where} is more than {DEPTH_MAX} levels deep")
                path.append(iter(self._children(where, page, count)))
                continue
            for flags, key, value in self._leaf_rows(where, page, count):
                if key <= last:
                    raise self._unsound(f"the key {key[:80]!r} of {where} does not come after {last[:80]!r}")
                last = key
                yield flags, key, value

    def _inline_rows(self, page: bytes) -> Iterator[tuple[int, bytes, bytes]]:
        if len(page) < PAGE_HEAD.size:
            raise self._unsound("a bucket without a page of its own has no rows either")
        _, kind, count, _ = PAGE_HEAD.unpack_from(page)
        if kind != LEAF_PAGE:
            raise self._unsound(f"a page inside of a row has the type {kind:#x}")
        last = b""
        for flags, key, value in self._leaf_rows("a page inside of a row", page, count):
            if key <= last:
                raise self._unsound(f"the key {key[:80]!r} does not come after {last[:80]!r}")
            last = key
            yield flags, key, value

    def _page(self, page_id: int) -> tuple[int, int, bytes]:
        """Return the type, the number of elements, and all bytes of a branch page or leaf page."""
        if not 2 <= page_id < self._pages:
            raise self._unsound(f"it refers to page {page_id}, and has the pages 2 to {self._pages - 1}")
        offset = page_id * self._page_bytes
        page = self._read(offset, self._page_bytes)
        own_id, kind, count, overflow = PAGE_HEAD.unpack_from(page)
        if own_id != page_id:
            raise self._unsound(f"page {page_id} has the id {own_id}")
        if kind not in (BRANCH_PAGE, LEAF_PAGE):
            raise self._unsound(f"page {page_id} has the type {kind:#x}")
        size_bytes = (1 + overflow) * self._page_bytes
        if page_id + overflow >= self._pages:
            raise self._unsound(f"page {page_id} has {overflow} overflow pages, which exceed the file")
        if size_bytes > PAGE_RUN_BYTES_MAX:
            raise self._unsound(f"page {page_id} has {size_bytes} bytes; the bound is {PAGE_RUN_BYTES_MAX}")
        if overflow:
            page += self._read(offset + self._page_bytes, overflow * self._page_bytes)
        return kind, count, page

    def _children(self, where: str, page: bytes, count: int) -> list[int]:
        if PAGE_HEAD.size + count * BRANCH_ELEMENT.size > len(page):
            raise self._unsound(f"{where} has {count} elements, which exceed it")
        offset = PAGE_HEAD.size
        return [BRANCH_ELEMENT.unpack_from(page, offset + place * BRANCH_ELEMENT.size)[2] for place in range(count)]

    def _leaf_rows(self, where: str, page: bytes, count: int) -> Iterator[tuple[int, bytes, bytes]]:
        """Yield the rows of a page. No two rows share bytes, so a page yields no more bytes than it has."""
        end = PAGE_HEAD.size + count * LEAF_ELEMENT.size
        if end > len(page):
            raise self._unsound(f"{where} has {count} elements, which exceed it")
        for offset in range(PAGE_HEAD.size, end, LEAF_ELEMENT.size):
            flags, position, key_size, value_size = LEAF_ELEMENT.unpack_from(page, offset)
            start = offset + position
            middle = start + key_size
            if start < end or middle + value_size > len(page):
                raise self._unsound(
                    f"a row of {where} lies at {start} to {middle + value_size}, which is not its place"
                )
            if not 1 <= key_size <= KEY_BYTES_MAX:
                raise self._unsound(f"a key of {where} has {key_size} bytes")
            end = middle + value_size
            yield flags, page[start:middle], page[middle:end]

    def _read(self, offset: int, size: int) -> bytes:
        try:
            self._file.seek(offset)
            data = self._file.read(size)
        except OSError as error:
            raise UnusableFile(f"{self._name}: cannot be read: {(error.strerror or str(error)).lower()}") from error
        if len(data) < size:
            raise self._unsound(f"it ends at byte {offset + len(data)}")
        return data

    def _unsound(self, found: str) -> UnusableFile:
        return UnusableFile(f"{self._name}: no sound database of etcd: {found}. Use another copy, or save a new one")
