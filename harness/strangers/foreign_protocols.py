"""Strangers that speak another protocol to a port of a member."""

from __future__ import annotations

import trio

from harness.strangers import wire
from harness.strangers.stranger import Stranger

_PATIENCE_SECONDS = 2.0

FIRST_WORDS: tuple[bytes, ...] = (
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /metrics HTTP/1.1\r\n" + b"X: y\r\n" * 2_000 + b"\r\n",
    b"POST /v3/kv/put HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n{",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(200)),  # A TLS handshake.
    b"*1\r\n$4\r\nPING\r\n",  # Redis.
    b"ruok",  # ZooKeeper.
    b"SSH-2.0-OpenSSH_9.6\r\n",
    b"\x00\x00\x00\x08\x04\xd2\x16\x2f",  # A PostgreSQL client asks for TLS.
    b"\xff" * 64,
    b"\x00" * 64,
    b"\xff\xff\xff\xff",
    b"\x00\x00\x00\x00" * 16,
)


async def speak_another_protocol(stranger: Stranger) -> None:
    """Send the first bytes of another protocol, or random bytes, to a random port of the member.

    Then wait, for a moment at most, until the member closes the connection.
    """
    random = stranger.random
    words = random.choice(FIRST_WORDS)
    if random.random() < 0.5:
        words = stranger.structures.changed_bytes(words)
    if random.random() < 0.1:
        words = random.randbytes(random.randrange(1, 5_000))
    async with wire.connected(random.choice(stranger.target.ports)) as stream:
        for piece in stranger.structures.pieces(words):
            await stream.send_all(piece)
        with trio.move_on_after(_PATIENCE_SECONDS):
            await wire.drain(stream)
