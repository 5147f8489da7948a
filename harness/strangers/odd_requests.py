"""Strangers that send the hello of a client, and then requests that no honest client sends."""

from __future__ import annotations

from typing import Any

import trio

from harness.strangers import wire
from harness.strangers.stranger import Stranger

_REQUESTS_PER_VISIT = 40
_PATIENCE_SECONDS = 3.0
_DAY_NS = 86_400 * 1_000_000_000
_HASHES_PER_VISIT = 100
_SESSIONS_PER_VISIT = 400

IMPOSSIBLE_ADDRESSES: tuple[object, ...] = (
    "a..b:7104", ".a:7104", f"{'a' * 64}.example:7104", f"{'a.' * 130}a:7104", "a b:7104", "\x1b[2J:7104", "a\nb:7104",
    "[::1:7104", "host:99999", "host", "", ":7104", 7104, b"host:1", None, "\u202ehost:7104",
)  # fmt: skip
"""Addresses with an impossible host or port, and values that are not addresses."""


async def send_changed_requests(stranger: Stranger) -> None:
    """Send _REQUESTS_PER_VISIT usual requests with one to three changes each, and then a frame with changed bytes.

    Then wait, for a moment at most, until the member closes the connection.
    """
    random, structures = stranger.random, stranger.structures
    key = bytes((random.randrange(97, 123),))
    usual: tuple[list[Any], ...] = (
        wire.put(1, key, b"value"),
        wire.get(2, key, random.randrange(1, 6)),
        [3, 3, 5, [2, key], 50],
        [4, 2, [wire.NO_SESSION, 2, 0, 5, key, b"value", b"expected"]],
        [5, 2, [wire.NO_SESSION, 3, 0, 6, [[1, 1, key, b"value"]], [[1, key, b"v"]], [[3, key]]]],
        [6, 3, 1, [4, key, None, 10, False, False, False, 0, 0]],
        [7, 5, 1, 1_000],
        [8, 1],
        [9, 9, False],
    )
    async with wire.connected(stranger.target.client_port) as stream:
        await stream.send_all(wire.client_hello())
        for _ in range(_REQUESTS_PER_VISIT):
            request = wire.without_effect(structures.changed(random.choice(usual), random.choice((1, 1, 2, 3))))
            await stream.send_all(wire.frame(request))
            stranger.counts["changed requests sent"] += 1
        await stream.send_all(structures.changed_bytes(wire.frame(wire.get(99, key))))
        await stream.send_eof()
        with trio.move_on_after(_PATIENCE_SECONDS):
            await wire.drain(stream)


async def send_unhashable_consistency(stranger: Stranger) -> None:
    """Send a read request whose consistency is a map, which Python cannot hash. The frame has only twelve bytes."""
    async with wire.connected(stranger.target.client_port) as stream:
        await stream.send_all(wire.client_hello() + wire.frame([1, 3, {}, [2, b"k"]]))
        with trio.move_on_after(_PATIENCE_SECONDS):
            await wire.drain(stream)


async def ask_for_state_hashes(stranger: Stranger) -> None:
    """Send _HASHES_PER_VISIT requests at once, each for the hash of the whole state."""
    requests = (wire.frame(wire.status(i + 1, with_hash=True)) for i in range(_HASHES_PER_VISIT))
    async with wire.connected(stranger.target.client_port) as stream:
        await stream.send_all(wire.client_hello() + b"".join(requests))
        with trio.move_on_after(_PATIENCE_SECONDS):
            await wire.drain(stream)


async def register_sessions(stranger: Stranger) -> None:
    """Register sessions that are never used, with times to live from a minute to a day."""
    random = stranger.random
    ttls_ns = (_DAY_NS, 3_600 * 10**9, 600 * 10**9, 60 * 10**9)
    requests = (wire.frame(wire.register_session(i + 1, random.choice(ttls_ns))) for i in range(_SESSIONS_PER_VISIT))
    async with wire.connected(stranger.target.client_port) as stream:
        await stream.send_all(wire.client_hello() + b"".join(requests))
        stranger.counts["sessions asked for"] += _SESSIONS_PER_VISIT
        with trio.move_on_after(_PATIENCE_SECONDS):
            await wire.drain(stream)


async def add_impossible_members(stranger: Stranger) -> None:
    """Ask to add members with impossible addresses.

    If a member accepted such an address, all clients would get the address with the list of members.
    """
    async with wire.connected(stranger.target.client_port) as stream:
        await stream.send_all(wire.client_hello())
        for number, address in enumerate(IMPOSSIBLE_ADDRESSES, start=1):
            peer, client = stranger.random.choice(((address, "127.0.0.1:9"), ("127.0.0.1:9", address)))
            if client in (None, ""):
                continue  # A member accepts this address, because a member may have no client port.
            await stream.send_all(wire.frame(wire.add_member(number, f"x{number}", peer, client)))
        await stream.send_eof()
        with trio.move_on_after(_PATIENCE_SECONDS):
            await wire.drain(stream)
