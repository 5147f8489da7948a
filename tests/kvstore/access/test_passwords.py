"""Unit tests of passwords, tokens and ranges."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.access.passwords import COST_LOG2_MAX, make_verifier, matches
from kvstore.access.permissions import KeyRanges
from kvstore.access.state import AccessState, User
from kvstore.access.tokens import TOKEN_NS, make_token, user_of_token
from kvstore.errors import OperationFailed, Unauthenticated
from kvstore.protocol.access_commands import VERIFIER_BYTES_MAX
from kvstore.server.access_guard import PasswordCheck

ADA = User("ada", b"verifier")
STATE = AccessState(is_enabled=True, token_key=bytes(32), users={"ada": ADA})


def test_a_verifier_matches_its_password_alone_and_does_not_tell_which_passwords_are_equal() -> None:
    one, other = make_verifier("p\u00e4ssword"), make_verifier("p\u00e4ssword")
    assert matches("p\u00e4ssword", one)
    assert not matches("passw\u00f6rd", one)
    assert not matches("", one)
    assert one != other
    assert len(one) <= VERIFIER_BYTES_MAX


@pytest.mark.parametrize(
    "verifier",
    [b"", b"s1", b"s2" + bytes(51), b"s1" + bytes([COST_LOG2_MAX + 1, 8, 1]) + bytes(48), b"s1" + bytes(51)],
)
def test_nothing_matches_a_verifier_of_no_password_or_beyond_the_bounds(verifier: bytes) -> None:
    """A root user may have sent any bytes as a verifier, and a check of a password against them must not take all
    memory."""
    assert not matches("", verifier)
    assert not matches("password", verifier)


@pytest.mark.parametrize("password", ["", "\u00e4" * 513])
def test_a_password_that_is_too_short_or_too_long_makes_no_verifier(password: str) -> None:
    with pytest.raises(OperationFailed, match="1 to 1024 bytes"):
        make_verifier(password)


def test_a_token_ends_with_its_time_its_password_and_its_user() -> None:
    token = make_token(STATE, ADA, 7)
    assert user_of_token(STATE, token, 7 + TOKEN_NS - 1) is ADA
    with pytest.raises(Unauthenticated, match="too old"):
        user_of_token(STATE, token, 7 + TOKEN_NS)
    for state in (
        AccessState(is_enabled=True, token_key=bytes(32), users={"ada": User("ada", b"another")}),
        AccessState(is_enabled=True, token_key=bytes(31) + b"x", users={"ada": ADA}),
        AccessState(is_enabled=True, token_key=bytes(32)),
    ):
        with pytest.raises(Unauthenticated, match="must authenticate again"):
            user_of_token(state, token, 7)


@given(st.binary(max_size=300), st.integers(0, 300), st.integers(1, 255))
def test_no_bytes_but_those_of_a_member_are_a_token(noise: bytes, place: int, flip: int) -> None:
    token = bytearray(make_token(STATE, ADA, 7))
    token[place % len(token)] ^= flip
    for forged in (noise, bytes(token)):
        with pytest.raises(Unauthenticated):
            user_of_token(STATE, forged, 7)


KEYS = st.binary(max_size=2)
RANGES = st.lists(st.tuples(KEYS, st.none() | KEYS), max_size=6)


@given(RANGES, KEYS, st.none() | KEYS)
def test_ranges_cover_what_each_of_their_keys_is_in(
    ranges: list[tuple[bytes, bytes | None]], start: bytes, end: bytes | None
) -> None:
    """The test compares the result with a search through all ranges. A key after `start` differs from `start` by at
    least one byte."""
    ranges = [(first, last) for first, last in ranges if last is None or first < last]

    def has(key: bytes) -> bool:
        return any(first <= key and (last is None or key < last) for first, last in ranges)

    keys = KeyRanges(ranges)
    assert keys.has_key(start) == has(start)
    if end is not None and end <= start:
        return
    bounds = {start, *[each for pair in ranges for each in pair if each is not None], b"\xff\xff\xff"}
    tested = [key for key in bounds if key >= start and (end is None or key < end)]
    assert keys.covers(start, end) == (all(map(has, tested)) and has(start))


def test_ranges_that_touch_are_one() -> None:
    keys = KeyRanges([(b"b", b"c"), (b"a", b"b")])
    assert keys.covers(b"a", b"c")
    assert not keys.covers(b"a", b"c\0")
    assert not keys.has_all_keys
    assert KeyRanges([(b"", b"m"), (b"m", None)]).has_all_keys


@pytest.mark.parametrize("error", [ValueError("memory limit exceeded"), MemoryError()])
def test_a_check_without_memory_is_a_wrong_password_and_the_member_goes_on(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def no_memory(*_: object, **__: object) -> bytes:
        raise error

    verifier = make_verifier("right")
    monkeypatch.setattr("hashlib.scrypt", no_memory)
    check = PasswordCheck(1, 1, "ada", "right", verifier)
    check.compute()
    assert not check.is_right
