"""The connections of each peer to this member: one that brings messages, and at most one newer that brought none yet.

A peer that connects anew has mostly lost its old connection, which this side need not have noticed. But its call may
also be a mistake: it meant somebody who was at this address before, and hangs up when it hears who answers. So the old
connection is ended by the first message on the new one, not by the call.
"""

from __future__ import annotations

import trio


class Inbound:
    """By peer, the scopes of its connections, oldest first: two at most. All is synchronous."""

    def __init__(self) -> None:
        self._scopes: dict[str, list[trio.CancelScope]] = {}

    def begin(self, peer_id: str, scope: trio.CancelScope) -> None:
        """A connection that has brought nothing yet. Another such one is ended: the peer has given it up."""
        scopes = self._scopes.setdefault(peer_id, [])
        for silent in scopes[1:]:
            silent.cancel()
        scopes[1:] = [scope]

    def has_older(self, peer_id: str, scope: trio.CancelScope) -> bool:
        """Whether this connection is the newer of two."""
        return scope in self._scopes.get(peer_id, [])[1:]

    def replace_older(self, peer_id: str, scope: trio.CancelScope) -> None:
        """It has brought a message: what there was before is a ghost."""
        if self.has_older(peer_id, scope):
            self._scopes[peer_id].pop(0).cancel()

    def has(self, peer_id: str) -> bool:
        """Whether a connection of this peer stands."""
        return peer_id in self._scopes

    def forget(self, peer_id: str, scope: trio.CancelScope) -> bool:
        """It is over; True if it was the last one of its peer."""
        scopes = self._scopes.get(peer_id, [])
        if scope not in scopes:
            return False  # Another one has replaced it.
        scopes.remove(scope)
        if not scopes:
            del self._scopes[peer_id]
        return not scopes

    def end(self, peer_id: str) -> None:
        """Hang up."""
        for scope in self._scopes.get(peer_id, []):
            scope.cancel()
