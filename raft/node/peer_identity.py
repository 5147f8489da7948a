"""Which incarnation of each peer this node talks to (docs/reference/specification.md#13-incarnations-and-pins).

A pin is durable before any vote, append or acknowledgement of that peer is used. A member that comes back with
another incarnation has lost its disk and forgotten its votes: it is refused until it is replaced as a new member.
What a configuration says of incarnations is the authority: the cluster has agreed on it.
"""

from __future__ import annotations

from collections.abc import Callable

from raft.errors import RaftError
from raft.interfaces import PinStore

PINS_MAX = 1_024
"""Ids that ever said hello here: all members of a long life, removed ones included. Each costs 100 bytes of a file."""


SHORT_BYTES = 4
"""What a refusal tells of an incarnation."""

REMOVED = "removed"
"""The code of a refusal that is final: it was a member, and is none for ever."""

WRONG_INCARNATION = "wrong_incarnation"
"""The code of a refusal: it was known with another data folder, and so has forgotten what it promised."""


class PeerRefused(RaftError):
    """This peer's messages are not used. `code` is a stable word, `reason` says why and what to do."""

    def __init__(self, peer_id: str, code: str, reason: str) -> None:
        super().__init__(peer_id, code, reason)
        self.peer_id, self.code, self.reason = peer_id, code, reason

    def __str__(self) -> str:
        return f"peer {self.peer_id} is refused: {self.reason}"


class DiskForgotten(RaftError):
    """This member began with nothing, and was refused by a peer that knows it with another data folder.

    Its folder was lost and made anew. What it voted and acknowledged before is forgotten, so it must not promise again.
    """

    def __init__(self, peer_id: str) -> None:
        super().__init__(peer_id)
        self.peer_id = peer_id

    def __str__(self) -> str:
        return (
            f"{self.peer_id} knows this member with another data folder, which was lost or made anew. What it voted "
            "and acknowledged there is forgotten, so it might break its promises"
        )


class PeerPins:
    """The durable pins, and those that are on their way to the disk. `is_blank`: this node began with an empty log."""

    def __init__(self, store: PinStore, failed: Callable[[str, BaseException], None], *, is_blank: bool) -> None:
        self._store = store
        self._failed = failed
        self._is_blank = is_blank
        self._durable = dict(store.pins())
        self._under_way: dict[str, bytes] = {}

    def is_pinned(self, peer_id: str) -> bool:
        """True once this peer's incarnation is durable here: its messages may be used."""
        return peer_id in self._durable

    def of(self, peer_id: str) -> bytes:
        """Its incarnation as far as it is known here; none if it never said hello."""
        return self._durable.get(peer_id) or self._under_way.get(peer_id, b"")

    def check(self, peer_id: str, incarnation_id: bytes, *, known: bytes = b"") -> None:
        """Accept a peer's hello; start to pin it when it is new. `known`: what the configuration says, if it does.

        Raises PeerRefused for another incarnation, and where PINS_MAX others have said hello.
        """
        assert len(incarnation_id) == 16, incarnation_id
        pinned = self._durable.get(peer_id, self._under_way.get(peer_id))
        if known and known != pinned:
            pinned = None if known == incarnation_id else known  # Who came before under this name was not meant.
        if pinned is None and len({*self._durable, *self._under_way, peer_id}) > PINS_MAX:
            raise PeerRefused(peer_id, "too_many_pins", f"{PINS_MAX} others are known here already")
        if pinned is None:
            self._durable.pop(peer_id, None)
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
        """A member refused this node. If it is blank and was known before, it ends, lest somebody new believe it."""
        if code == WRONG_INCARNATION and self._is_blank:
            self._failed(f"its hello to {peer_id}", DiskForgotten(peer_id))

    def _pinned(self, peer_id: str, incarnation_id: bytes, error: BaseException | None) -> None:
        if error is not None:
            self._failed(f"pinning the incarnation of peer {peer_id}", error)
        elif self._under_way.get(peer_id) == incarnation_id:  # Else another one has taken its place meanwhile.
            self._durable[peer_id] = self._under_way.pop(peer_id)


def _short(incarnation_id: bytes) -> str:
    """Enough to tell data folders apart, and too little to come as one: whoever calls is told it."""
    return f"{incarnation_id[:SHORT_BYTES].hex()}…"
