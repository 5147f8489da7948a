"""One random stream per purpose, so that the removal of one fault does not change the draws for anything else.

A stream is named by the seed and a path (`net/n1>n2`, `disk/n1`, `node/n1/3`, `plan`). The name is hashed with SHA-256,
never with `hash()`, which differs from process to process.
"""

from __future__ import annotations

import hashlib
from random import Random


def stream(seed: int, purpose: str) -> Random:
    """Return the random stream of `seed` for `purpose`, which is the same in every process and on every machine."""
    digest = hashlib.sha256(f"{seed}/{purpose}".encode()).digest()
    return Random(int.from_bytes(digest[:16], "big"))


def identifier(seed: int, purpose: str) -> bytes:
    """Return 16 bytes that identify `purpose` in this seed, for example a cluster id or an incarnation."""
    return hashlib.sha256(f"{seed}/id/{purpose}".encode()).digest()[:16]
