"""Strangers on the peer port that claim to be a member, and then send messages that no honest member sends.

These strangers know only facts about the members that any client can read. These strangers send no message that an
honest member could have sent. Without certificates, a member could not distinguish such a message from an honest
message.
"""

from __future__ import annotations

from typing import Any

import trio

from harness.strangers import wire
from harness.strangers.stranger import Stranger

_PATIENCE_SECONDS = 3.0
_TERM_MAX = 2**63 - 1


async def claim_an_impossible_term(stranger: Stranger) -> None:
    """Send the hello of another member, with its true ids, and then a message with an impossibly high term."""
    known = await _known_members(stranger)
    if known is None:
        return
    cluster_id, incarnations = known
    others = [node_id for node_id in incarnations if node_id != stranger.target.node_id]
    if not others:
        return
    node_id = stranger.random.choice(sorted(others))
    message: list[Any] = stranger.random.choice(
        (
            [4, 0, _TERM_MAX, False],  # A vote.
            [3, 0, _TERM_MAX, 1, 1, False],  # A candidate.
            [5, 0, _TERM_MAX, 0, 0, 0, 0, 1, []],  # A leader.
            [4, 0, _TERM_MAX - stranger.random.randrange(2**40), False],
        )
    )
    async with wire.connected(stranger.target.peer_port) as stream:
        await stream.send_all(wire.peer_hello(cluster_id, node_id, incarnations[node_id]))
        if not await wire.read_frames(stream, 1, _PATIENCE_SECONDS):
            return
        await stream.send_all(wire.frame(message))
        stranger.counts["impossible terms sent"] += 1
        with trio.move_on_after(_PATIENCE_SECONDS):
            await wire.drain(stream)


async def say_changed_hellos(stranger: Stranger) -> None:
    """Send the hello of a member with one or two changes, and sometimes a random frame after it."""
    random, structures = stranger.random, stranger.structures
    hello = ["HWM", 1, 1, 0, random.randbytes(16), 0, "n1", random.randbytes(16), 1, "127.0.0.1:1", 1, 1]
    async with wire.connected(stranger.target.peer_port) as stream:
        await stream.send_all(wire.frame(structures.changed(hello, random.choice((1, 1, 2)))))
        if random.random() < 0.5:
            await stream.send_all(wire.frame(structures.item()))
        with trio.move_on_after(_PATIENCE_SECONDS):
            await wire.drain(stream)


async def _known_members(stranger: Stranger) -> tuple[bytes, dict[str, bytes]] | None:
    """Request the cluster id and each member's incarnation from the target, as a client may.

    Returns None after a refusal.
    """
    async with wire.connected(stranger.target.client_port) as stream:
        await stream.send_all(wire.client_hello() + wire.frame([1, 9, False]))
        hello, *answers = await wire.read_frames(stream, 2, _PATIENCE_SECONDS) or [None]
    if not answers or answers[0][1] != 0:
        return None
    answer = answers[0]
    members = answer[5].get("members", ())
    told = {each["node_id"]: each.get("incarnation_id") or bytes(16) for each in members if "node_id" in each}
    return hello[4], {node_id: value if isinstance(value, bytes) else bytes(16) for node_id, value in told.items()}
