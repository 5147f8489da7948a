"""Strangers that hold connections without using them.

Each connection counts towards the member's limit of connections, and takes a descriptor and memory of the member.
"""

from __future__ import annotations

import trio

from harness.strangers import wire
from harness.strangers.stranger import Stranger

_HOLD_SECONDS_MAX = 120.0
_BYTE_EVERY_SECONDS = 20.0
_READS = 200


async def greet_and_idle(stranger: Stranger) -> None:
    """Send the hello of a client and nothing else, until the member closes the connection."""
    async with wire.connected(stranger.target.client_port) as stream:
        await stream.send_all(wire.client_hello())
        with trio.move_on_after(_HOLD_SECONDS_MAX):
            await wire.drain(stream)


async def say_nothing(stranger: Stranger) -> None:
    """Connect to a random port of the member and send nothing."""
    async with wire.connected(stranger.random.choice(stranger.target.ports)) as stream:
        with trio.move_on_after(_HOLD_SECONDS_MAX):
            await wire.drain(stream)


async def never_finish_a_frame(stranger: Stranger) -> None:
    """Send nearly all of a frame of the greatest size, and then only one byte every _BYTE_EVERY_SECONDS."""
    body_bytes = wire.FRAME_BYTES_MAX - 1
    async with wire.connected(stranger.target.client_port) as stream:
        await stream.send_all(wire.client_hello() + body_bytes.to_bytes(4, "big"))
        for _ in range((body_bytes - 64) // wire.READ_BYTES):
            await stream.send_all(bytes(wire.READ_BYTES))
            # Limit the rate to 3 MiB/s per stranger, because a flood would test the machine instead of the member.
            await trio.sleep(0.02)
        with trio.move_on_after(_HOLD_SECONDS_MAX):
            while True:
                await trio.sleep(_BYTE_EVERY_SECONDS)
                await stream.send_all(b"\x00")


async def never_read(stranger: Stranger) -> None:
    """Send many requests for the whole log, and do not read the answers."""
    async with wire.connected(stranger.target.client_port) as stream:
        await stream.send_all(wire.client_hello() + wire.frame(wire.status(1, with_hash=False)))
        _, *answers = await wire.read_frames(stream, 2) or [None]
        known = answers[0][5] if answers and answers[0][1] == 0 else {}
        first_index = max(1, known.get("first_index", 1))
        await stream.send_all(b"".join(wire.frame(wire.read_log(i + 2, first_index)) for i in range(_READS)))
        await trio.sleep(stranger.random.uniform(1, _HOLD_SECONDS_MAX))
