"""The identity of peers: the incarnation of each peer with which this node exchanges messages.

A pin is the incarnation id that this node has recorded for a peer. The pin is durable before any message from that peer
is used. If a member comes back with another incarnation, it has lost its disk and forgotten its votes, so it is
refused. Only a new member with a new id can replace this member. If the configuration and the pin name different
incarnations of a peer, the configuration decides, because the whole cluster has agreed on it.

See docs/reference/specification.md#13-incarnations-and-pins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from raft.errors import RaftError
from raft.interfaces import PinStore

PINS_MAX = 1_024
"""The maximum number of pins, including those of removed members. Each pin takes 100 bytes in the file of pins."""


SHORT_BYTES = 4
"""The number of bytes of an incarnation id that the text of a refusal shows."""

REMOVED = "removed"
"""The code of a refusal that is final: the peer was removed from the cluster."""

WRONG_INCARNATION = "wrong_incarnation"
"""The code of a refusal: the peer had another data folder before, so the peer has forgotten its votes."""


class PeerRefused(RaftError):
    """The peer was refused, so its messages are not used. `code` is a fixed word; `reason` is a text that states the
    cause and what to do."""

    def __init__(self, peer_id: str, code: str, reason: str) -> None:
        super().__init__(peer_id, code, reason)
        self.peer_id, self.code, self.reason = peer_id, code, reason

    def __str__(self) -> str:
        return f"peer {self.peer_id} is refused: {self.reason}"


class IncarnationReplaced(RaftError):
    """This member began with an empty log, and was refused by a peer that knows this member with another data folder.

    So the member's data folder was lost and created again. The member has forgotten its votes and acknowledgements and
    must stop.
    """

    def __init__(self, peer_id: str) -> None:
        super().__init__(peer_id)
        self.peer_id = peer_id

    def __str__(self) -> str:
        return (
            f"{self.peer_id} knows this member with another data folder, which was lost or created again. This member "
            "has forgotten its votes and acknowledgements there, so it might break its promises"
        )


@dataclass(slots=True)
class _Pin:
    incarnation_id: bytes
    is_preliminary: bool = False
    is_durable: bool = False


class KnownIncarnations:
    """The pins of one node: durable pins, and pins that are being written. `is_blank`: True if the node's log was empty
    at the start."""

    def __init__(self, store: PinStore, failed: Callable[[str, BaseException], None], *, is_blank: bool) -> None:
        self._store = store
        self._failed = failed
        self._is_blank = is_blank
        self._pins = {peer_id: _Pin(pinned, is_durable=True) for peer_id, pinned in store.pins().items()}
        self.final = set(self._pins)  # Peers whose messages may be used: the pin is durable and final.

    def of(self, peer_id: str) -> bytes:
        """The incarnation id that is pinned or being pinned for this peer; b"" if the peer never connected."""
        pin = self._pins.get(peer_id)
        return pin.incarnation_id if pin is not None else b""

    def check(self, peer_id: str, incarnation_id: bytes, *, is_member: bool = True, known: bytes = b"") -> None:
        """Accept a peer's hello, and begin to pin the peer if it is new.

        `known`: the peer's incarnation in the configuration, or b"". Raises PeerRefused if the peer was known with
        another incarnation, or if the peer is new and there are already PINS_MAX pins.

        `is_member`: the peer is in the configuration. The pin of a peer that was not in the configuration is
        preliminary. This node has counted none of the peer's promises, so another incarnation may replace the pin. A
        preliminary pin becomes final when the pinned incarnation says hello as a member, or when a message of the
        pinned incarnation is used while the peer is a member.
        """
        assert len(incarnation_id) == 16, incarnation_id
        pin = self._pins.get(peer_id)
        pinned = pin.incarnation_id if pin is not None else None
        if known and known != pinned:
            pinned = None if known == incarnation_id else known  # The pin belongs to an earlier user of this id.
        elif pinned != incarnation_id and not known and pin is not None and pin.is_preliminary:
            pinned = None
        if pinned is None:
            if len({*self._pins, peer_id}) > PINS_MAX:
                raise PeerRefused(peer_id, "too_many_pins", f"{PINS_MAX} others are known here already")
            self.final.discard(peer_id)
            self._pins[peer_id] = new = _Pin(incarnation_id, is_preliminary=not is_member)
            self._store.pin(peer_id, incarnation_id, lambda error: self._pinned(peer_id, new, error))
        elif pinned != incarnation_id:
            raise PeerRefused(
                peer_id,
                WRONG_INCARNATION,
                f"it was known here as incarnation {_short(pinned)} and now comes as {_short(incarnation_id)}. Its "
                "data folder was lost or created again, so it has forgotten its votes. Bring back the folder itself "
                "(not an older copy), or replace it by a new member with a new node id",
            )
        elif is_member and pin is not None:
            pin.is_preliminary = False

    def may_use(self, peer_id: str, *, is_member: bool, known: bytes) -> bool:
        """True if a message of this peer may be used. `is_member` and `known`: see `check`. The caller need not call
        this for peers in `final`.

        If the peer is a member, its pin becomes final, because this node may count the promise that the message makes.
        """
        pin = self._pins.get(peer_id)
        if pin is None or not pin.is_durable or (known and known != pin.incarnation_id):
            return False
        if is_member:
            pin.is_preliminary = False
            self.final.add(peer_id)
        return True

    def configured(self, known: Iterable[tuple[str, bytes]]) -> None:
        """Note a changed configuration. `known`: pairs of a peer id and the peer's incarnation in the configuration;
        the incarnation is b"" if the configuration has none.

        If the incarnation with which a peer has connected differs from the one in the configuration, the peer's
        messages are not used from now on, even if its connections stay open.
        """
        for peer_id, incarnation_id in known:
            if incarnation_id and incarnation_id != self.of(peer_id):
                self.final.discard(peer_id)

    def refused_by(self, peer_id: str, code: str) -> None:
        """Note that a peer refused this node with `code`. If this node began with an empty log and the peer knows this
        node with another data folder, this node fails.

        If this node continued, members that never knew the old folder would accept it, although the node has forgotten
        its votes.
        """
        if code == WRONG_INCARNATION and self._is_blank:
            self._failed(f"its hello to {peer_id}", IncarnationReplaced(peer_id))

    def _pinned(self, peer_id: str, pin: _Pin, error: BaseException | None) -> None:
        if error is not None:
            self._failed(f"pinning the incarnation of peer {peer_id}", error)
        else:
            pin.is_durable = True  # If a newer pin has replaced this pin, this pin is no longer used.


def _short(incarnation_id: bytes) -> str:
    """The part of an incarnation id that may be shown. This part distinguishes data folders, but is too short to
    impersonate one of them."""
    return f"{incarnation_id[:SHORT_BYTES].hex()}…"
