"""The `ssl` contexts of a port and of a client: versions, ciphers, and the rules about which side must show a
certificate."""

from __future__ import annotations

import os
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from raft.membership.names import name_of
from raft.runtime.tls.errors import TlsFailed, UnusableTlsFiles
from raft.runtime.tls.session import TlsSession

CIPHERS_OF_TLS_1_2 = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Only ciphers with forward secrecy and authenticated encryption. TLS 1.3 has no other ciphers."""

FilePath = str | os.PathLike[str]

PROTOCOL_CLIENT, PROTOCOL_PEER, PROTOCOL_HTTP, PROTOCOL_HTTP2 = "hwm", "hwm-peer", "http/1.1", "h2"
"""The names of the application protocols (ALPN): of the client port, the peer port and the metrics port, and of etcd's
clients at the client port. A side that
names no protocol is accepted, because its first bytes after the handshake also show the protocol."""


def server_context(
    purpose: str, cert: FilePath, key: FilePath | None, ca: FilePath | None, *protocols: str
) -> ssl.SSLContext:
    """Make the context of a port. `protocols`: the application protocols, the preferred one first. With `ca`, each
    caller must show a certificate of one of these authorities.

    Sessions are not resumed, because a resumed session would skip the check of the certificate. Raises
    UnusableTlsFiles.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _restrict(context, *protocols)
    context.num_tickets = 0
    _load_own(context, purpose, cert, key)
    if ca is not None:
        _load_authorities(context, purpose, ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(
    purpose: str, cert: FilePath | None, key: FilePath | None, ca: FilePath, protocol: str, *, checks_name: bool
) -> ssl.SSLContext:
    """Make the context of a caller, which accepts only servers with a certificate of an authority in `ca`.

    If `checks_name` is True, the certificate must be for the dialled host. It is False for peers, because the node id
    identifies a peer. Raises UnusableTlsFiles.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _restrict(context, protocol)
    context.check_hostname = checks_name
    _load_authorities(context, purpose, ca)
    if cert is not None:
        _load_own(context, purpose, cert, key)
    return context


def _restrict(context: ssl.SSLContext, *protocols: str) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(CIPHERS_OF_TLS_1_2)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_TICKET | ssl.OP_NO_COMPRESSION
    context.set_alpn_protocols(list(protocols))


def _load_own(context: ssl.SSLContext, purpose: str, cert: FilePath, key: FilePath | None) -> None:
    for path in (cert, key):
        if path is not None:
            _check_readable(purpose, path)

    def ask_for_password() -> str:
        raise UnusableTlsFiles(purpose, f"the key in {key or cert} has a password; give a key without one")

    try:
        context.load_cert_chain(cert, key, ask_for_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            words = f"the key in {key or cert} does not belong to the certificate in {cert}"
        else:
            words = f"{cert} and {key or cert} hold no certificate with its private key in the form PEM"
        raise UnusableTlsFiles(purpose, words) from None
    except OSError as error:
        raise UnusableTlsFiles(purpose, f"{cert}: {(error.strerror or str(error)).lower()}") from None


def _load_authorities(context: ssl.SSLContext, purpose: str, ca: FilePath) -> None:
    _check_readable(purpose, ca)
    try:
        context.load_verify_locations(cafile=ca)
    except (ssl.SSLError, OSError):
        raise UnusableTlsFiles(purpose, f"{ca} holds no certificate of an authority in the form PEM") from None


def _check_readable(purpose: str, path: FilePath) -> None:
    try:
        with Path(path).open("rb") as file:
            file.read(1)
    except OSError as error:
        raise UnusableTlsFiles(purpose, f"{path}: {(error.strerror or str(error)).lower()}") from None


def names_in(certificate: dict[str, Any] | None) -> tuple[str, ...]:
    """The names of a certificate: its DNS names (SAN), then its common names (CN), without repetitions."""
    if certificate is None:
        return ()
    names = [value for kind, value in certificate.get("subjectAltName", ()) if kind == "DNS"]
    names += [value for part in certificate.get("subject", ()) for kind, value in part if kind == "commonName"]
    return tuple(dict.fromkeys(names))


def is_named(node_id: str, names: Sequence[str]) -> bool:
    """True if a certificate with these names belongs to the member `node_id`.

    A member that is started by name gets its id when its folder is made, and another id after the loss of the folder.
    So its certificate states the name instead of the id.
    """
    return node_id in names or name_of(node_id) in names


def try_with_itself(purpose: str, server: ssl.SSLContext, client: ssl.SSLContext) -> dict[str, Any]:
    """Perform a handshake between the two contexts of one member, in memory. Return the member's own certificate.

    With this check, the member never begins to use a certificate that no peer would accept. Such a certificate has
    expired, comes from a foreign authority, or is not allowed for servers or for clients. Raises UnusableTlsFiles.
    Cost: some milliseconds.
    """
    certificate = _shake_hands(purpose, server, client, "no peer would accept them").certificate
    assert certificate is not None, "the context of the caller requires a certificate"
    return certificate


def certificate_of_port(purpose: str, cert: FilePath, key: FilePath | None) -> dict[str, Any]:
    """Return the certificate of a port, as `ssl` decodes it, after a handshake with itself in memory.

    With this check, the port never begins to use a certificate that no client would accept. Such a certificate has
    expired, is not valid yet, or is not allowed for servers. Nobody knows here which authorities the clients trust, so
    the authority of the certificate is not checked. Raises UnusableTlsFiles.
    """
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _load_own(server, purpose, cert, key)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_mode = ssl.CERT_NONE
    refusal = "no client would accept them"
    shown = _shake_hands(purpose, server, client, refusal).certificate_bytes
    assert shown is not None, "a server always shows a certificate"
    client.verify_mode = ssl.CERT_REQUIRED
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # The certificate itself is the trust anchor.
    client.load_verify_locations(cadata=shown)
    certificate = _shake_hands(purpose, server, client, refusal).certificate
    assert certificate is not None, "the context of the caller requires a certificate"
    return certificate


def _shake_hands(purpose: str, server: ssl.SSLContext, client: ssl.SSLContext, refusal: str) -> TlsSession:
    """Return the side of the caller after a handshake in memory. Raises UnusableTlsFiles, which begins with
    `refusal`."""
    answerer, caller = TlsSession(server, is_server=True), TlsSession(client, is_server=False)
    try:
        caller.handshake()
        while not (caller.is_established and answerer.is_established):
            answerer.feed(caller.take_output())
            if answerer.has_output:
                caller.feed(answerer.take_output())
    except TlsFailed as error:
        reason = error.reason.replace("of the other side", "of this member itself")
        raise UnusableTlsFiles(purpose, f"{refusal}: {reason}") from None
    return caller


def expiry_of(certificate: dict[str, Any]) -> float:
    """Return the time at which a certificate expires, in seconds since 1970 (UTC)."""
    return ssl.cert_time_to_seconds(certificate["notAfter"])
