"""The inbound connections of each peer: one that carries messages, and at most one newer one without a message yet.

A peer that connects again has usually lost its old connection, even if this side has not noticed the loss yet. But the
peer may also have dialled by mistake: it wanted to reach another member that had this address before, and it
disconnects when it reads our hello. So a new connection ends the old one only with its first message.
"""

from __future__ import annotations

import trio


class InboundConnections:
    """The cancel scopes of the connections by peer id: oldest first, at most two per peer. Every method is
    synchronous."""

    def __init__(self) -> None:
        self._scopes: dict[str, list[trio.CancelScope]] = {}

    def begin(self, peer_id: str, scope: trio.CancelScope) -> None:
        """Add a connection without a message yet. An earlier connection without messages is closed, because the peer
        gave it up."""
        scopes = self._scopes.setdefault(peer_id, [])
        for silent in scopes[1:]:
            silent.cancel()
        scopes[1:] = [scope]

    def has_older(self, peer_id: str, scope: trio.CancelScope) -> bool:
        """Whether this connection is the newer of two."""
        return scope in self._scopes.get(peer_id, [])[1:]

    def replace_older(self, peer_id: str, scope: trio.CancelScope) -> None:
        """A message arrived on this connection: close the older connection, which is dead."""
        if self.has_older(peer_id, scope):
            self._scopes[peer_id].pop(0).cancel()

    def has(self, peer_id: str) -> bool:
        """Whether a connection of this peer is open."""
        return peer_id in self._scopes

    def forget(self, peer_id: str, scope: trio.CancelScope) -> bool:
        """The connection is over; True if it was the last one of its peer."""
        scopes = self._scopes.get(peer_id, [])
        if scope not in scopes:
            return False  # A newer connection has replaced this one.
        scopes.remove(scope)
        if not scopes:
            del self._scopes[peer_id]
        return not scopes

    def end(self, peer_id: str) -> None:
        """End all connections of a peer."""
        for scope in self._scopes.get(peer_id, []):
            scope.cancel()
