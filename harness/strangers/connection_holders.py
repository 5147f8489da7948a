"""Strangers that take what a connection costs a member (a place, a descriptor, memory) and give nothing back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from harness.strangers import wire

if TYPE_CHECKING:
    from harness.strangers.crowd import Stranger

_HOLD_SECONDS_MAX = 120.0
_BYTE_EVERY_SECONDS = 20.0
_LARGE_VALUE_BYTES = 2**20 - 1024
_LARGE_READS = 200


async def greet_and_idle(stranger: Stranger) -> None:
    """Say hello like a client, and nothing more, for as long as the member allows."""
    async with wire.connected(stranger.target.client_port) as stream:
        await stream.send_all(wire.client_hello())
        with trio.move_on_after(_HOLD_SECONDS_MAX):
            await wire.drain(stream)


async def say_nothing(stranger: Stranger) -> None:
    """Connect to any port and be silent."""
    async with wire.connected(stranger.random.choice(stranger.target.ports)) as stream:
        with trio.move_on_after(_HOLD_SECONDS_MAX):
            await wire.drain(stream)


async def never_finish_a_frame(stranger: Stranger) -> None:
    """All of the largest frame but its last bytes, and then a byte now and then."""
    body_bytes = wire.FRAME_BYTES_MAX - 1
    async with wire.connected(stranger.target.client_port) as stream:
        await stream.send_all(wire.client_hello() + body_bytes.to_bytes(4, "big"))
        for _ in range((body_bytes - 64) // wire.READ_BYTES):
            await stream.send_all(bytes(wire.READ_BYTES))
            await trio.sleep(0.02)  # 3 MiB/s each: a flood would measure the machine, not the member.
        with trio.move_on_after(_HOLD_SECONDS_MAX):
            while True:
                await trio.sleep(_BYTE_EVERY_SECONDS)
                await stream.send_all(b"\x00")


async def never_read(stranger: Stranger) -> None:
    """Ask again and again for a large value, and read no answer."""
    key = wire.PREFIX + b"large"
    if stranger.random.random() < 0.02:
        async with wire.connected(stranger.target.client_port) as stream:
            await stream.send_all(wire.client_hello() + wire.frame(wire.put(1, key, bytes(_LARGE_VALUE_BYTES))))
            await wire.read_frame(stream)
            await wire.read_frame(stream)
    async with wire.connected(stranger.target.client_port) as stream:
        reads = (wire.frame(wire.get(i + 1, key)) for i in range(_LARGE_READS))
        await stream.send_all(wire.client_hello() + b"".join(reads))
        await trio.sleep(stranger.random.uniform(1, _HOLD_SECONDS_MAX))
