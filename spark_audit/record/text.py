"""Keys and values of a program as text of a row: docs/reference/specification.md#104-text."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from spark_audit.history.operation import as_text
from spark_audit.history.requests import is_text
from spark_audit.record.errors import BadText

HASH_BYTES = 12  # Two different values of a history of 10⁹ values have equal hashes with probability 10⁻¹¹.
_BASE64 = "base64:"


def text_of(name: str, given: object) -> str:
    """Return the text that stands for `given` in a row; equal bytes have equal text. Raises BadText.

    `name`: what `given` is, for the message of an error.
    """
    if isinstance(given, str):
        if not given.isascii() and not is_text(given):
            raise BadText(f"{name} {given!r} has one half of a surrogate pair, which UTF-8 cannot encode; pass bytes")
        return as_text(given.encode()) if given.startswith(_BASE64) else given
    if isinstance(given, bytes):
        return as_text(given)
    raise BadText(f"{name} is {given!r}, of type {type(given).__name__}; pass str or bytes, for example str({name})")


def named_text(name: str, given: object) -> str:
    """Return the text of a key or a client, which must not be empty. Raises BadText."""
    if type(given) is str and given.isascii() and given and not given.startswith(_BASE64):
        return given  # The usual case, first because each operation passes here twice.
    if not given and isinstance(given, (str, bytes)):
        raise BadText(f"{name} is empty; a row needs the name of a {name}")
    return text_of(name, given)


def hasher(secret: bytes) -> Callable[[str, object], str]:
    """Return a function like `text_of` that returns a hash of the bytes: 24 hexadecimal digits.

    Equal bytes have equal hashes in all processes that use the same `secret` (at most 64 bytes). Without a secret,
    anyone who can guess a value can check the guess.
    """

    begun = hashlib.blake2b(digest_size=HASH_BYTES, key=secret)  # A copy takes half the time of a new hash.

    def hashed(name: str, given: object) -> str:
        hashing = begun.copy()
        hashing.update(given if isinstance(given, bytes) else text_bytes(name, given))
        return hashing.hexdigest()

    return hashed


def text_bytes(name: str, given: object) -> bytes:
    """Return the bytes of a text that a program passed. Raises BadText."""
    text_of(name, given)
    return given.encode() if isinstance(given, str) else bytes(given)  # type: ignore[call-overload]


def place_of(key: bytes) -> int:
    """Return the place of a key, a number in [0, 2⁶⁴), which is the same in every process and on every machine.

    Python's own `hash` differs between processes, so it cannot decide which keys are recorded.
    """
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big")
