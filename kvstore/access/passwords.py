"""Passwords: the verifier that the cluster stores instead of a password, and the check of a password.

scrypt takes about 50 ms and 16 MiB on purpose, so that a password cannot be guessed quickly from a stolen verifier.
Neither `make_verifier` nor the check may run on an event loop.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import struct

from kvstore.errors import OperationFailed

PASSWORD_BYTES_MAX = 1_024
"""The greatest length of a password in UTF-8."""

SALT_BYTES, HASH_BYTES = 16, 32
COST_LOG2, BLOCK_SIZE, PARALLELISM = 14, 8, 1
"""The parameters of scrypt for new verifiers: n = 2**14, r = 8, p = 1."""

COST_LOG2_MAX, BLOCK_SIZE_MAX, PARALLELISM_MAX = 17, 16, 4
"""With greater parameters, a check could take seconds or much memory. A verifier with greater parameters is therefore
treated as wrong."""

_HEAD = struct.Struct(">2sBBB")
_MAGIC = b"s1"


class InvalidPassword(OperationFailed):
    """A password cannot be used. Nothing was sent."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__(size_bytes)
        self.size_bytes = size_bytes

    def __str__(self) -> str:
        return f"a password has 1 to {PASSWORD_BYTES_MAX} bytes, and this one has {self.size_bytes}"


def password_bytes(password: str) -> bytes:
    """Return the bytes of a password. Raises InvalidPassword."""
    raw = password.encode("utf-8", "surrogatepass")
    if not 1 <= len(raw) <= PASSWORD_BYTES_MAX:
        raise InvalidPassword(len(raw))
    return raw


def make_verifier(password: str) -> bytes:
    """Return the verifier of a password: the parameters, a random salt and the hash. Takes 50 ms. Raises
    InvalidPassword."""
    return verifier_with(password, os.urandom(SALT_BYTES), COST_LOG2, BLOCK_SIZE, PARALLELISM)


def verifier_with(password: str, salt: bytes, cost_log2: int, block_size: int, parallelism: int) -> bytes:
    """Return the verifier of a password with the given salt of SALT_BYTES bytes and the given parameters of scrypt.
    Raises InvalidPassword."""
    head = _HEAD.pack(_MAGIC, cost_log2, block_size, parallelism)
    return head + salt + _hash(password_bytes(password), salt, cost_log2, block_size, parallelism)


def matches(password: str, verifier: bytes) -> bool:
    """Return True if the verifier was made of the password.

    The function takes 50 ms even for a user without a password, so that the duration does not reveal which users exist.
    """
    is_known = len(verifier) == _HEAD.size + SALT_BYTES + HASH_BYTES and verifier[:2] == _MAGIC
    magic, cost, size, parallelism = _HEAD.unpack_from(verifier if is_known else _NOBODY)
    assert magic == _MAGIC
    if cost > COST_LOG2_MAX or not 1 <= size <= BLOCK_SIZE_MAX or not 1 <= parallelism <= PARALLELISM_MAX or cost < 1:
        return False
    salt, wanted = verifier[_HEAD.size :][:SALT_BYTES], verifier[_HEAD.size + SALT_BYTES :]
    raw = password.encode("utf-8", "surrogatepass")[:PASSWORD_BYTES_MAX]
    found = _hash(raw, salt if is_known else bytes(SALT_BYTES), cost, size, parallelism)
    return hmac.compare_digest(found, wanted) and is_known


_NOBODY = _HEAD.pack(_MAGIC, COST_LOG2, BLOCK_SIZE, PARALLELISM)
"""The parameters for the check of a user who has no password, or does not exist."""


def _hash(raw: bytes, salt: bytes, cost_log2: int, block_size: int, parallelism: int) -> bytes:
    n = 1 << cost_log2
    memory_bytes_max = 128 * block_size * (n + parallelism + 2)
    return hashlib.scrypt(raw, salt=salt, n=n, r=block_size, p=parallelism, maxmem=memory_bytes_max, dklen=HASH_BYTES)
