"""Leadership transfer (thesis §3.10): who takes over, and how far one attempt has come."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from raft.errors import TransferRefused
from raft.progress import PeerState, Progress


@dataclass(slots=True)
class Handover:
    """One attempt of a leader to make `peer_id` the next one. No entry is proposed meanwhile, so the peer catches up.

    It ends when this leader hears of the next term, or at `deadline` (monotonic ns): then it goes on as before, which
    is safe whatever the peer does later.
    """

    peer_id: str
    deadline: int
    is_told: bool = False  # The peer was asked to campaign. Asked again at each heartbeat: messages get lost.


def successor(peers: Mapping[str, Progress], wanted_id: str | None, *, silent_before: int) -> str:
    """The peer that is to take over: the wanted one, or else the one with most of the log, of those that were heard.

    Raises TransferRefused if it is no peer, or was not heard since `silent_before` (monotonic ns), or needs a snapshot.
    """
    if wanted_id is not None and wanted_id not in peers:
        there = ", ".join(peers) or "nobody"
        raise TransferRefused("not_a_peer", f"{wanted_id} is not another voter; there is: {there}")
    asked = peers if wanted_id is None else {wanted_id: peers[wanted_id]}
    able = [
        peer_id
        for peer_id, peer in asked.items()
        if peer.heard_at > silent_before and peer.state is not PeerState.SNAPSHOT
    ]
    if not able:
        who = wanted_id or "every other voter"
        raise TransferRefused("not_ready", f"{who} is silent, or needs a snapshot first; see its status, and try again")
    return max(able, key=lambda peer_id: peers[peer_id].match_index)
