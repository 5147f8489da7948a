"""TLS between members. The certificate of a peer must name the peer, so that no member can pose as another one."""

from __future__ import annotations

from raft.node.peer_identity import PeerRefused
from raft.runtime.tls.contexts import is_named, names_in
from raft.runtime.tls.handshakes import MemberStream
from raft.runtime.tls.stream import TlsStream


def check_certificate(stream: MemberStream, node_id: str) -> None:
    """Check the certificate of the other side: its DNS names (SAN) or its common name must include `node_id` or the
    name in this id.

    A plain stream is not checked: it exists only if connections without TLS are allowed. Raises PeerRefused.
    """
    if isinstance(stream, TlsStream):
        names = names_in(stream.session.certificate)
        if not is_named(node_id, names):
            raise PeerRefused(
                node_id,
                "wrong_certificate",
                f"its certificate names {', '.join(map(repr, names)) or 'nobody'}, not {node_id!r}; "
                "check its address, or give it a certificate with its own node id as a DNS name",
            )
