"""The rows of etcd's buckets have etcd's own bytes, and a row that is none is refused."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.access.state import Permission
from kvstore.etcd.snapshot.rows import (
    EtcdLease,
    EtcdRole,
    EtcdUser,
    InvalidRow,
    KeyVersion,
    RevisionKey,
    decode_lease,
    decode_number,
    decode_revision_key,
    decode_role,
    decode_user,
    decode_version,
    encode_lease,
    encode_number,
    encode_revision_key,
    encode_role,
    encode_user,
    encode_version,
    from_etcd_permission,
    to_etcd_permission,
)

LEASE_ID = 0x0851A21AD2FB0F0A

# These rows were read from a snapshot of etcd 3.5.1.
GOLDEN: list[tuple[Callable[[Any], bytes], Callable[[bytes], Any], Any, bytes]] = [
    (encode_revision_key, decode_revision_key, RevisionKey(2, 0), bytes(7) + b"\2_" + bytes(8)),
    (encode_revision_key, decode_revision_key, RevisionKey(6, 0, True), bytes(7) + b"\6_" + bytes(8) + b"t"),
    (encode_number, decode_number, LEASE_ID, b"\x08Q\xa2\x1a\xd2\xfb\x0f\n"),
    (
        encode_version,
        decode_version,
        KeyVersion(b"k1", b"second", 2, 5, 2),
        b"\n\x02k1\x10\x02\x18\x05 \x02*\x06second",
    ),
    (encode_version, decode_version, KeyVersion(b"k2"), b"\n\x02k2"),
    (
        encode_version,
        decode_version,
        KeyVersion(b"leased", b"x", 7, 7, 1, LEASE_ID),
        b"\n\x06leased\x10\x07\x18\x07 \x01*\x01x0\x8a\x9e\xec\x97\xad\xc3\xe8\xa8\x08",
    ),
    (encode_lease, decode_lease, EtcdLease(LEASE_ID, 600), b"\x08\x8a\x9e\xec\x97\xad\xc3\xe8\xa8\x08\x10\xd8\x04"),
    (encode_user, decode_user, EtcdUser("ann", b"$2a$", ("reader",)), b'\n\x03ann\x12\x04$2a$\x1a\x06reader"\x00'),
    (
        encode_role,
        decode_role,
        EtcdRole("reader", ((0, b"k", b"l"), (2, b"single", b""))),
        b"\n\x06reader\x12\x06\x12\x01k\x1a\x01l\x12\n\x08\x02\x12\x06single",
    ),
    (encode_role, decode_role, EtcdRole("root", ()), b"\n\x04root"),
]


@pytest.mark.parametrize(("encode", "decode", "row", "encoded"), GOLDEN)
def test_rows_have_etcds_own_bytes(
    encode: Callable[[Any], bytes], decode: Callable[[bytes], Any], row: Any, encoded: bytes
) -> None:
    assert encode(row) == encoded
    assert decode(encoded) == row


INT64 = st.integers(-(1 << 63), (1 << 63) - 1)


@given(st.builds(KeyVersion, st.binary(min_size=1), st.binary(), INT64, INT64, INT64, INT64))
def test_any_version_is_decoded_as_it_was_encoded(version: KeyVersion) -> None:
    assert decode_version(encode_version(version)) == version


@given(st.builds(EtcdUser, st.text(min_size=1), st.binary(), st.lists(st.text()).map(tuple), st.booleans()))
def test_any_user_is_decoded_as_it_was_encoded(user: EtcdUser) -> None:
    assert decode_user(encode_user(user)) == user


@given(st.binary(max_size=40))
def test_any_bytes_are_a_row_or_are_refused(data: bytes) -> None:
    for decode in (decode_revision_key, decode_number, decode_version, decode_lease, decode_user, decode_role):
        with suppress(InvalidRow):
            decode(data)


def test_fields_that_are_not_known_are_skipped() -> None:
    unknown = b"\x38\x07" + b"\x41" + bytes(8) + b"\x4a\x02ab" + b"\x55" + bytes(4)

    assert decode_version(unknown + b"\n\x01k") == KeyVersion(b"k")


@pytest.mark.parametrize(
    ("decode", "data", "found"),
    [
        (decode_version, b"", "has no key"),
        (decode_version, b"\n", "has no end"),
        (decode_version, b"\n\x05k", "exceeds its message"),
        (decode_version, b"\n\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01k", "exceeds its message"),
        (decode_version, b"\x10" + b"\xff" * 10, "more than 64 bits"),
        (decode_version, b"\x10" + b"\xff" * 9 + b"\x7f", "more than 64 bits"),
        (decode_version, b"\x08\x01", "an integer instead of bytes"),
        (decode_version, b"\x12\x01k", "bytes instead of an integer"),
        (decode_version, b"\x0b", "wire type 3"),
        (decode_version, b"\x02\x01k", "the number 0"),
        (decode_user, b"", "has no name"),
        (decode_user, b"\n\x01\xff", "not UTF-8"),
        (decode_role, b"", "has no name"),
        (decode_role, b"\n\x01r\x12\x02\x08\x03", "the type 3"),
        (decode_number, b"1234567", "7 bytes"),
        (decode_revision_key, bytes(7) + b"\1_" + bytes(7), "16 bytes"),
        (decode_revision_key, bytes(7) + b"\1_" + bytes(8) + b"x", "18 bytes"),
        (decode_revision_key, bytes(7) + b"\1-" + bytes(8), "is not a revision key"),
        (decode_revision_key, bytes(8) + b"_" + bytes(8), "is not a revision key"),
        (decode_revision_key, b"\xff" * 8 + b"_" + bytes(8), "is not a revision key"),
    ],
)
def test_a_row_that_is_none_is_refused(decode: Callable[[bytes], Any], data: bytes, found: str) -> None:
    with pytest.raises(InvalidRow, match=found):
        decode(data)


@pytest.mark.parametrize(
    ("ours", "etcds"),
    [
        ((b"", None, 1), (0, b"\0", b"\0")),
        ((b"a", None, 2), (1, b"a", b"\0")),
        ((b"", b"m", 3), (2, b"\0", b"m")),
        ((b"a", b"b", 3), (2, b"a", b"b")),
        ((b"a", b"a\0", 1), (0, b"a", b"")),
        ((b"\0", b"\0\0", 1), (0, b"\0", b"")),
    ],
)
def test_a_permission_keeps_its_keys(ours: Permission, etcds: tuple[int, bytes, bytes]) -> None:
    assert to_etcd_permission(ours) == etcds
    assert from_etcd_permission(etcds) == ours


def test_a_permission_without_keys_has_no_counterpart() -> None:
    assert to_etcd_permission((b"", b"\0", 1)) is None
    assert from_etcd_permission((0, b"b", b"a")) is None
    assert from_etcd_permission((0, b"", b"")) is None
