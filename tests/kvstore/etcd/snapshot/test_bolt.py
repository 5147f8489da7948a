"""A file of bbolt is read as it was written, and a damaged or hostile file ends in one clear error."""

from __future__ import annotations

import io
import random
import struct
from collections.abc import Callable, Iterable, Iterator

import pytest

from kvstore.errors import UnusableFile
from kvstore.etcd.snapshot.bolt_layout import BRANCH_PAGE, CHECKSUM, LEAF_PAGE, META, PAGE_HEAD, checksum
from kvstore.etcd.snapshot.bolt_reader import DEPTH_MAX, BoltReader
from kvstore.etcd.snapshot.bolt_writer import PAGE_BYTES, write_bolt

pytestmark = pytest.mark.timeout(60)

Row = tuple[bytes, bytes]


def written(*buckets: tuple[bytes, Iterable[Row]]) -> bytes:
    file = io.BytesIO()
    assert write_bolt(file, buckets) == len(file.getvalue())
    return file.getvalue()


def read(data: bytes) -> dict[bytes, list[Row]]:
    reader = BoltReader(io.BytesIO(data), "backup.db", len(data))
    return {name: list(reader.rows(name)) for name in reader.bucket_names}


def numbered(count: int, value: Callable[[int], bytes] = lambda number: b"value of %d" % number) -> list[Row]:
    return [(b"%017d" % number, value(number)) for number in range(count)]


@pytest.mark.parametrize("count", [0, 1, 2, 100, 20_000])
def test_rows_are_read_as_they_were_written(count: int) -> None:
    rows = numbered(count)

    assert read(written((b"auth", []), (b"key", rows), (b"meta", [(b"x", b"")]))) == {
        b"auth": [],
        b"key": rows,
        b"meta": [(b"x", b"")],
    }


@pytest.mark.parametrize("size", [0, 1, 4_000, 4_063, 4_064, 4_065, 4_096, 70_000, 1 << 20])
def test_values_of_any_size_are_read_as_they_were_written(size: int) -> None:
    rows = numbered(7, lambda number: random.Random(number).randbytes(size + number % 2))

    assert read(written((b"key", rows))) == {b"key": rows}


def test_long_keys_fill_branch_pages_beyond_a_page() -> None:
    rows = [(b"%05d" % number + bytes(32 * 1024 - 5), b"v") for number in range(30)]

    assert read(written((b"key", rows))) == {b"key": rows}


def test_random_trees_are_read_as_they_were_written() -> None:
    draw = random.Random(7)
    for _ in range(40):
        keys = sorted({draw.randbytes(draw.choice((1, 3, 17, 300))) for _ in range(draw.randrange(600))})
        rows = [(key, draw.randbytes(draw.choice((0, 5, 90, 5_000)))) for key in keys]
        assert read(written((b"key", rows))) == {b"key": rows}


@pytest.mark.parametrize("count", [3, 100, 465, 20_000])
def test_every_branch_page_has_two_children_at_least(count: int) -> None:
    """bbolt stops at a deletion below a branch page with one child."""
    data = written((b"key", numbered(count, lambda _: bytes(2_000))))

    heads = [PAGE_HEAD.unpack_from(data, offset) for offset in range(2 * PAGE_BYTES, len(data), PAGE_BYTES)]
    branches = [children for _, kind, children, _ in heads if kind == BRANCH_PAGE]
    assert branches
    assert min(branches) >= 2


def test_rows_are_not_held_in_memory() -> None:
    """The rows come from a generator, and pages are written before it ends."""
    file = io.BytesIO()
    sizes: list[int] = []

    def rows() -> Iterator[Row]:
        for row in numbered(2_000, lambda _: bytes(1_000)):
            sizes.append(file.getbuffer().nbytes)
            yield row

    write_bolt(file, [(b"key", rows())])
    assert all(number * 1_000 - size < 3 * PAGE_BYTES for number, size in enumerate(sizes))


@pytest.mark.parametrize("keys", [[b""], [b"b", b"a"], [b"a", b"a"], [b"a", bytes(32 * 1024 + 1)], [bytes(40_000)]])
def test_rows_out_of_order_or_too_large_are_refused(keys: list[bytes]) -> None:
    with pytest.raises(ValueError, match="key"):
        write_bolt(io.BytesIO(), [(b"key", [(key, b"") for key in keys])])


def test_buckets_out_of_order_are_refused() -> None:
    with pytest.raises(ValueError, match="does not come after"):
        write_bolt(io.BytesIO(), [(b"meta", []), (b"key", [])])


# Damaged files.

ROWS = numbered(5, lambda number: bytes([number]) * (1_200 + 100 * number))
SMALL = written((b"key", ROWS), (b"meta", [(b"term", b"7")]))


def test_a_flipped_byte_ends_in_an_error_or_in_a_bounded_number_of_rows() -> None:
    """bbolt has no checksum of rows. So a changed value is not detected here, but by the SHA-256 behind a snapshot."""
    refused = 0
    for offset in range(len(SMALL)):
        changed = bytearray(SMALL)
        changed[offset] ^= 0xFF
        try:
            rows = read(bytes(changed))
        except UnusableFile:
            refused += 1
        else:
            assert max(map(len, rows.values())) <= len(ROWS)
    assert refused >= 250


@pytest.mark.parametrize("cut", [*range(0, len(SMALL), PAGE_BYTES), 1, 15, PAGE_BYTES + 79, len(SMALL) - 1])
def test_a_file_that_was_cut_short_is_refused(cut: int) -> None:
    with pytest.raises(UnusableFile, match=r"meta pages is valid|its pages need"):
        read(SMALL[:cut])


def test_one_damaged_meta_page_does_no_harm_and_two_do() -> None:
    for number in range(2):
        changed = bytearray(SMALL)
        changed[number * PAGE_BYTES + 20] ^= 1
        assert read(bytes(changed)) == read(SMALL)
    changed[20] ^= 1
    with pytest.raises(UnusableFile, match="neither of its two meta pages is valid"):
        read(bytes(changed))


def test_a_read_error_names_the_file() -> None:
    class Failing(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            raise OSError(5, "Input/output error")

    with pytest.raises(UnusableFile, match=r"backup\.db: cannot be read: input/output error"):
        BoltReader(Failing(SMALL), "backup.db", len(SMALL))


# Hostile files, made of pages that bbolt never writes.


def leaf_element(position: int, key_size: int, value_size: int, flags: int = 0) -> bytes:
    return struct.pack("<IIII", flags, position, key_size, value_size)


def page(page_id: int, kind: int, count: int, body: bytes = b"", overflow: int = 0) -> bytes:
    return (PAGE_HEAD.pack(page_id, kind, count, overflow) + body).ljust(PAGE_BYTES, b"\0")


def branch(page_id: int, *children: int) -> bytes:
    body = b"".join(struct.pack("<IIQ", 0, 0, child) for child in children)
    return page(page_id, BRANCH_PAGE, len(children), body)


def leaf(page_id: int, *keys: bytes) -> bytes:
    heads, data = b"", b"".join(keys)
    for place, key in enumerate(keys):
        position = 16 * (len(keys) - place) + sum(map(len, keys[:place]))
        heads += leaf_element(position, len(key), 0)
    return page(page_id, LEAF_PAGE, len(keys), heads + data)


def file_of(*pages: bytes, pages_stated: int | None = None) -> bytes:
    """A file whose root page 2 has the bucket `key` with the root page 3. `pages` begin at page 3."""
    root = page(2, LEAF_PAGE, 1, leaf_element(16, 3, 16, 1) + b"key" + struct.pack("<QQ", 3, 0))
    stated = 3 + len(pages) if pages_stated is None else pages_stated
    meta = META.pack(0xED0CDAED, 2, PAGE_BYTES, 0, 2, 0, (1 << 64) - 1, stated, 1)
    head = PAGE_HEAD.pack(0, 4, 0, 0) + meta + CHECKSUM.pack(checksum(meta))
    return head.ljust(2 * PAGE_BYTES, b"\0") + root + b"".join(pages)


def test_the_hostile_files_differ_from_sound_ones_in_one_thing() -> None:
    assert read(file_of(branch(3, 4, 5), leaf(4, b"a", b"b"), leaf(5, b"c"))) == {
        b"key": [(b"a", b""), (b"b", b""), (b"c", b"")]
    }


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (file_of(branch(3, 3)), "in more than one place"),
        (file_of(branch(3, 4), branch(4, 3)), "in more than one place"),
        (file_of(branch(3, 4, 4), leaf(4, b"a")), "does not come after"),
        (file_of(branch(3, *[4] * 200), leaf(4)), "is empty"),
        (file_of(branch(3)), "is empty"),
        (
            file_of(*[branch(number, *[number + 1] * 200) for number in range(3, 3 + DEPTH_MAX)]),
            "levels deep",
        ),
        (file_of(branch(3, 4), branch(5)), "page 4 has the id 5"),
        (file_of(branch(3, 99)), "refers to page 99"),
        (file_of(branch(3, 0)), "refers to page 0"),
        (file_of(branch(3, 1 << 63)), "refers to page"),
        (file_of(page(3, 0x10, 0)), "the type 0x10"),
        (file_of(page(3, LEAF_PAGE | BRANCH_PAGE, 1)), "the type 0x3"),
        (file_of(page(3, LEAF_PAGE, 0xFFFF)), "65535 elements"),
        (file_of(page(3, BRANCH_PAGE, 0xFFFF)), "65535 elements"),
        (file_of(page(3, LEAF_PAGE, 1, overflow=0xFFFFFFFF)), "exceed the file"),
        (file_of(page(3, LEAF_PAGE, 1, leaf_element(16, 1, 0xFFFFFFFF) + b"k")), "not its place"),
        (file_of(page(3, LEAF_PAGE, 1, leaf_element(0, 1, 0) + b"k")), "not its place"),
        (file_of(page(3, LEAF_PAGE, 1, leaf_element(16, 0, 1) + b"k")), "a key of page 3 has 0 bytes"),
        (file_of(page(3, LEAF_PAGE, 2, leaf_element(32, 1, 9) + leaf_element(17, 2, 9) + b"k")), "not its place"),
        (file_of(page(3, LEAF_PAGE, 1, leaf_element(16, 1, 0, 1) + b"k")), "is a bucket itself"),
        (file_of(leaf(3, b"b", b"a")), "does not come after"),
        (file_of(leaf(3, b"a"), pages_stated=1 << 60), "its pages need"),
        (file_of(leaf(3, b"a"), pages_stated=3), "refers to page 3"),
    ],
)
def test_a_hostile_file_is_refused(data: bytes, found: str) -> None:
    with pytest.raises(UnusableFile, match=found):
        read(data)


def test_pages_that_share_their_overflow_pages_are_refused() -> None:
    """Each of these leaves has all the pages behind it, so the file would be read a hundred times."""
    count = 100
    leaves = [
        page(number, LEAF_PAGE, 1, leaf_element(16, 4, 0) + b"%04d" % number, overflow=3 + count - number)
        for number in range(4, 4 + count)
    ]
    with pytest.raises(UnusableFile, match="in more than one place"):
        read(file_of(branch(3, *range(4, 4 + count)), *leaves))


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (b"short", "has 5 bytes"),
        (bytes(16), "no rows either"),
        (bytes(16) + PAGE_HEAD.pack(0, BRANCH_PAGE, 1, 0), "the type 0x1"),
        (bytes(16) + PAGE_HEAD.pack(0, LEAF_PAGE, 1, 0), "exceed it"),
    ],
)
def test_a_hostile_bucket_is_refused(value: bytes, found: str) -> None:
    body = leaf_element(16, 3, len(value), 1) + b"key" + value
    data = file_of()[: 2 * PAGE_BYTES] + page(2, LEAF_PAGE, 1, body)

    with pytest.raises(UnusableFile, match=found):
        read(data)


def test_a_bucket_inside_of_its_row_is_read() -> None:
    """bbolt keeps the rows of a small bucket in the row of the bucket."""
    inline = PAGE_HEAD.pack(0, LEAF_PAGE, 2, 0) + leaf_element(32, 1, 2) + leaf_element(19, 1, 0) + b"axyb"
    value = bytes(16) + inline
    data = file_of()[: 2 * PAGE_BYTES] + page(2, LEAF_PAGE, 1, leaf_element(16, 3, len(value), 1) + b"key" + value)

    assert read(data) == {b"key": [(b"a", b"xy"), (b"b", b"")]}
