"""TLS between members: a peer is who its certificate names, so one member cannot pose as another."""

from __future__ import annotations

from raft.node.peer_identity import PeerRefused
from raft.runtime.tls.contexts import names_in
from raft.runtime.tls.handshakes import MemberStream
from raft.runtime.tls.stream import TlsStream


def check_certificate(stream: MemberStream, node_id: str) -> None:
    """Check that the certificate of the other side names `node_id`, as a DNS name (SAN) or as its common name.

    A plain stream is not checked: only a port that allows connections without TLS has one. Raises PeerRefused.
    """
    if isinstance(stream, TlsStream):
        names = names_in(stream.session.certificate)
        if node_id not in names:
            raise PeerRefused(
                node_id,
                "wrong_certificate",
                f"its certificate names {', '.join(map(repr, names)) or 'nobody'}, not {node_id!r}; "
                "check its address, or give it one with its own node id as a DNS name",
            )
