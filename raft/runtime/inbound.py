"""The inbound connections of each peer: one connection carries messages, and there may be one newer connection without
messages.

If a peer connects again, it has usually lost its old connection, even if this side has not noticed the loss yet. But
the peer may also have dialled by mistake: it wanted to reach another member, which had this address before. In this
case the peer will disconnect when it reads our hello. So the old connection is closed only when the first message
arrives on the new connection.
"""

from __future__ import annotations

import trio


class InboundConnections:
    """The cancel scopes of the connections of each peer. There are at most two connections per peer; the older one
    comes first. All methods are synchronous."""

    def __init__(self) -> None:
        self._scopes: dict[str, list[trio.CancelScope]] = {}

    def begin(self, peer_id: str, scope: trio.CancelScope) -> None:
        """Add a new connection, on which no message has arrived yet. If another connection without messages is open,
        close that connection, because the peer has given it up."""
        scopes = self._scopes.setdefault(peer_id, [])
        for silent in scopes[1:]:
            silent.cancel()
        scopes[1:] = [scope]

    def has_older(self, peer_id: str, scope: trio.CancelScope) -> bool:
        """True if this connection is the newer one of the peer's two connections."""
        return scope in self._scopes.get(peer_id, [])[1:]

    def replace_older(self, peer_id: str, scope: trio.CancelScope) -> None:
        """Note the first message on this connection. Close the older connection, which is dead."""
        if self.has_older(peer_id, scope):
            self._scopes[peer_id].pop(0).cancel()

    def has(self, peer_id: str) -> bool:
        """True if a connection from this peer is open."""
        return peer_id in self._scopes

    def forget(self, peer_id: str, scope: trio.CancelScope) -> bool:
        """Note that this connection has ended. Return True if this was the last connection from the peer."""
        scopes = self._scopes.get(peer_id, [])
        if scope not in scopes:
            return False  # A newer connection has replaced this one.
        scopes.remove(scope)
        if not scopes:
            del self._scopes[peer_id]
        return not scopes

    def end(self, peer_id: str) -> None:
        """Close all connections from a peer."""
        for scope in self._scopes.get(peer_id, []):
            scope.cancel()
