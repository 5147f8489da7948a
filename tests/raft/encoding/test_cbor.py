"""The CBOR profile of frames (docs/reference/specification.md#72-cbor-profile)."""

from __future__ import annotations

import threading
from typing import Any

import cbor2
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from raft import DEPTH_MAX, INT64_MAX, INT64_MIN, ProtocolError, decode_item, encode_item

allowed_atoms = (
    st.integers(INT64_MIN, INT64_MAX) | st.binary(max_size=20) | st.text(max_size=20) | st.booleans() | st.none()
)
map_keys = st.text(max_size=5) | st.integers(INT64_MIN, INT64_MAX)
allowed_items = st.recursive(
    allowed_atoms,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(map_keys, inner, max_size=5),
    max_leaves=20,
)

HOSTILE = {
    "nothing": "",
    "two items": "0102",
    "an item and a byte": "8101ff",
    "a half float": "f97e00",
    "a single float": "fa3f800000",
    "a double float": "fb3ff0000000000000",
    "a float inside": "8201f93c00",
    "undefined": "f7",
    "undefined inside": "81f7",
    "a simple value": "e0",
    "a simple value of two bytes": "f8ff",
    "a positive bignum": "c249010000000000000000",
    "a negative bignum": "c349010000000000000000",
    "a small bignum": "c24101",
    "a date": "c074323031332d30332d32315432303a30343a30305a",
    "a decimal fraction": "c48221196ab3",
    "a shared value": "d81c8101",
    "a shared reference": "82d81c01d81d00",
    "a rational": "d81e820103",
    "a regular expression": "d82363612b29",
    "a regular expression that is valid": "d8236161",
    "a uuid": "d82550" + "00" * 16,
    "a set": "d901028101",
    "string references": "d9010081d81900",
    "self-described CBOR": "d9d9f701",
    "an unknown tag": "da000186a06161",
    "a tag inside": "81d8236161",
    "a tag as a map key": "a1d823616101",
    "an unsigned integer of 64 bits": "1bffffffffffffffff",
    "one above int64": "1b8000000000000000",
    "one below int64": "3b8000000000000000",
    "a big integer inside": "811bffffffffffffffff",
    "indefinite bytes": "5f4101ff",
    "indefinite text": "7f6161ff",
    "an indefinite array": "9f01ff",
    "an indefinite map": "bf0102ff",
    "a break": "ff",
    "a duplicate key": "a201010102",
    "a duplicate text key": "a2616101616102",
    "a key that is bytes": "a1410101",
    "a key that is an array": "a1810101",
    "a key that is null": "a1f601",
    "a key that is a boolean": "a1f501",
    "a big integer key": "a11bffffffffffffffff01",
    "text that is not UTF-8": "62c328",
    "text with a lone surrogate": "63eda080",
    "an array that is cut short": "8301",
    "bytes longer than the body": "5a7fffffff01",
    "bytes of 2**64 - 1": "5bffffffffffffffff",
    "text of 2**64 - 1": "7bffffffffffffffff",
    "an array of 2**64 - 1": "9bffffffffffffffff",
    "a map of 2**64 - 1": "bbffffffffffffffff",
    "a reserved head": "1c",
    "10,000 nested arrays": "81" * 10_000 + "01",
    "10,000 nested maps": "a101" * 10_000 + "01",
    "10,000 nested tags": "c1" * 10_000 + "01",
}


@pytest.mark.parametrize("hexadecimal", HOSTILE.values(), ids=HOSTILE.keys())
def test_what_the_profile_does_not_have_is_a_protocol_error(hexadecimal: str) -> None:
    """The profile excludes floats, tags, indefinite lengths, duplicate keys and bignums, and demands exactly one item.

    See docs/reference/specification.md#72-cbor-profile.
    """
    with pytest.raises(ProtocolError):
        decode_item(bytes.fromhex(hexadecimal))


@given(item=allowed_items)
@example(item=INT64_MAX)
@example(item=INT64_MIN)
@example(item=b"x" * 100_000)
@example(item=["x" * 70_000, b"y" * 70_000, [1] * 20_000])
def test_what_is_allowed_comes_back_equal_and_of_the_same_types(item: Any) -> None:
    """The decoder object is reused, so the test gives it items of all sizes, one after the other."""
    assert repr(decode_item(encode_item(item))) == repr(item)


@given(item=allowed_items, tail=st.binary(min_size=1, max_size=5))
def test_bytes_after_the_item_are_an_error(item: Any, tail: bytes) -> None:
    """`cbor2.loads` ignores bytes after the item. So two readers could disagree on the content of a frame."""
    with pytest.raises(ProtocolError):
        decode_item(encode_item(item) + tail)


def test_bytes_after_a_large_item_are_an_error() -> None:
    """Bytes after a large body are an error, too, and the error names the number of these bytes."""
    with pytest.raises(ProtocolError, match="1 bytes after"):
        decode_item(encode_item(b"x" * 100_000) + b"\x00")


@given(body=st.binary(max_size=60))
def test_garbage_is_decoded_or_refused_and_never_anything_else(body: bytes) -> None:
    """Decoded items consist of allowed types only: encoding and decoding them gives the same items."""
    try:
        item = decode_item(body)
    except ProtocolError:
        return
    assert repr(decode_item(encode_item(item))) == repr(item)


def test_nesting_is_allowed_up_to_the_bound() -> None:
    """DEPTH_MAX nested containers are allowed, and one more is refused."""
    assert decode_item(b"\x81" * DEPTH_MAX + b"\x01")
    with pytest.raises(ProtocolError):
        decode_item(b"\x81" * (DEPTH_MAX + 1) + b"\x01")


def test_a_refused_item_leaves_nothing_behind_for_the_next() -> None:
    """The decoder object is not reused after an error."""
    for _ in range(10):
        with pytest.raises(ProtocolError):
            decode_item(bytes.fromhex("8201d81c01"))
        assert decode_item(bytes.fromhex("820102")) == [1, 2]


def test_threads_may_decode_at_the_same_time() -> None:
    """A client may run in another thread than a node that is embedded in the same process."""
    wrong: list[Any] = []

    def decode_many(number: int) -> None:
        body = encode_item([number] * 50)
        wrong.extend(item for item in (decode_item(body) for _ in range(2_000)) if item != [number] * 50)

    threads = [threading.Thread(target=decode_many, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)

    assert not any(thread.is_alive() for thread in threads)
    assert wrong == []


def test_the_library_alone_would_let_these_through() -> None:
    """The library decodes these items, so this project checks them itself. The test fails with a release of `cbor2`
    that refuses them."""
    assert cbor2.loads(b"\x01\x02") == 1
    assert cbor2.loads(bytes.fromhex("d8236161")).pattern == "a"
