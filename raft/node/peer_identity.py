"""The identity of peers: the incarnation of each peer that this node talks to.

A pin, which is the incarnation id recorded for a peer, is durable before any vote, append or acknowledgement of that
peer is used. A member that comes back with another incarnation has lost its disk and forgotten its votes: it is refused
until it is replaced as a new member. An incarnation named in the configuration overrides a pin, because the cluster has
agreed on it.

See docs/reference/specification.md#13-incarnations-and-pins.
"""

from __future__ import annotations

from collections.abc import Callable

from raft.errors import RaftError
from raft.interfaces import PinStore

PINS_MAX = 1_024
"""The maximum number of pins. The pins of removed members are kept. Each pin takes 100 bytes in the file of pins."""


SHORT_BYTES = 4
"""How many bytes of an incarnation id the text of a refusal shows."""

REMOVED = "removed"
"""The code of a final refusal: the peer was removed from the cluster."""

WRONG_INCARNATION = "wrong_incarnation"
"""The code of a refusal: the peer had another data folder before, so it has forgotten its promises."""


class PeerRefused(RaftError):
    """The messages of this peer are not used. `code` is a stable word; `reason` is a text with the cause and what to
    do."""

    def __init__(self, peer_id: str, code: str, reason: str) -> None:
        super().__init__(peer_id, code, reason)
        self.peer_id, self.code, self.reason = peer_id, code, reason

    def __str__(self) -> str:
        return f"peer {self.peer_id} is refused: {self.reason}"


class IncarnationReplaced(RaftError):
    """This member began with an empty log, and a peer that knows it with another data folder refused it.

    The member's data folder was lost and created again. The member has forgotten its votes and acknowledgements, so it
    must stop.
    """

    def __init__(self, peer_id: str) -> None:
        super().__init__(peer_id)
        self.peer_id = peer_id

    def __str__(self) -> str:
        return (
            f"{self.peer_id} knows this member with another data folder, which was lost or made anew. What it voted "
            "and acknowledged there is forgotten, so it might break its promises"
        )


class KnownIncarnations:
    """The pins of one node, durable or being written. `is_blank`: the node's log was empty at the start."""

    def __init__(self, store: PinStore, failed: Callable[[str, BaseException], None], *, is_blank: bool) -> None:
        self._store = store
        self._failed = failed
        self._is_blank = is_blank
        self.durable = dict(store.pins())  # By peer id. Only messages of these peers may be used.
        self._under_way: dict[str, bytes] = {}

    def of(self, peer_id: str) -> bytes:
        """The known incarnation id of this peer, or b"" if it never connected."""
        return self.durable.get(peer_id) or self._under_way.get(peer_id, b"")

    def check(self, peer_id: str, incarnation_id: bytes, *, known: bytes = b"") -> None:
        """Accept a peer's hello; begin to pin a new peer. `known`: the peer's incarnation in the configuration, or b"".

        Raises PeerRefused for another incarnation, and beyond PINS_MAX peers.
        """
        assert len(incarnation_id) == 16, incarnation_id
        pinned = self.durable.get(peer_id, self._under_way.get(peer_id))
        if known and known != pinned:
            pinned = None if known == incarnation_id else known  # The pin belongs to an earlier holder of this id.
        if pinned is None and len({*self.durable, *self._under_way, peer_id}) > PINS_MAX:
            raise PeerRefused(peer_id, "too_many_pins", f"{PINS_MAX} others are known here already")
        if pinned is None:
            self.durable.pop(peer_id, None)
            self._under_way[peer_id] = incarnation_id
            self._store.pin(peer_id, incarnation_id, lambda error: self._pinned(peer_id, incarnation_id, error))
        elif pinned != incarnation_id:
            raise PeerRefused(
                peer_id,
                WRONG_INCARNATION,
                f"it was known here as incarnation {_short(pinned)} and now comes as {_short(incarnation_id)}. Its "
                "data folder was lost or made anew, so it has forgotten its votes. Bring back the folder itself (no "
                "older copy), or replace it as a new member with a new node id",
            )

    def refused_by(self, peer_id: str, code: str) -> None:
        """Take note that a peer refused this node with `code`. If this node began with an empty log and the peer knows
        it with another data folder, this node ends. Otherwise members that never knew the old folder would accept this
        node.
        """
        if code == WRONG_INCARNATION and self._is_blank:
            self._failed(f"its hello to {peer_id}", IncarnationReplaced(peer_id))

    def _pinned(self, peer_id: str, incarnation_id: bytes, error: BaseException | None) -> None:
        if error is not None:
            self._failed(f"pinning the incarnation of peer {peer_id}", error)
        elif self._under_way.get(peer_id) == incarnation_id:  # Otherwise a newer pin has replaced this one.
            self.durable[peer_id] = self._under_way.pop(peer_id)


def _short(incarnation_id: bytes) -> str:
    """The public prefix of an incarnation id: it tells data folders apart, but is too short to impersonate one."""
    return f"{incarnation_id[:SHORT_BYTES].hex()}…"
