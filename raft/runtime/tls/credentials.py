"""The certificates of one port or caller. They are read again when their files change, without a restart."""

from __future__ import annotations

import ssl
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from raft.runtime.tls.contexts import (
    PROTOCOL_PEER,
    FilePath,
    certificate_of_port,
    client_context,
    expiry_of,
    is_named,
    names_in,
    server_context,
    try_with_itself,
)
from raft.runtime.tls.errors import UnusableTlsFiles

REREAD_SECONDS = 60.0
"""The interval at which the member checks whether the files have changed."""

Stamps = tuple[tuple[int, int, int] | None, ...]


class Contexts(NamedTuple):
    """The contexts of the answering and of the calling side; None for a side that does not exist. `expires_at`: when
    the member's certificate expires, in seconds since 1970; None for a client."""

    server: ssl.SSLContext | None
    client: ssl.SSLContext | None
    expires_at: float | None = None


class Credentials:
    """The TLS contexts that are made from certificate files. Each handshake uses the newest context.

    A context is never changed. If the files change, a new context is made, and open connections continue to use the old
    context. All methods are synchronous; `reread_if_changed` reads files, and may run in another thread.
    """

    def __init__(
        self,
        purpose: str,
        paths: Sequence[FilePath | None],
        make: Callable[[], Contexts],
        *,
        node_id: str = "",
        is_mixed: bool = False,
    ) -> None:
        """Read the files. `make` makes the contexts of the answering and of the calling side. `node_id`: the member
        that uses the credentials; empty for a client. `is_mixed`: True if connections without TLS are allowed, too.

        Raises UnusableTlsFiles.
        """
        self.purpose, self.node_id, self.is_mixed = purpose, node_id, is_mixed
        self._paths, self._make = [Path(path) for path in paths if path is not None], make
        self._stamps = self._stamp()
        self._contexts = make()
        self.refused = Counter[str]()  # Refused handshakes, by the code of `TlsFailed`.
        self.is_stale = False  # True while the files have changed, but their new content cannot be used.

    @property
    def server(self) -> ssl.SSLContext:
        """The context of the answering side."""
        assert self._contexts.server is not None, self.purpose
        return self._contexts.server

    @property
    def client(self) -> ssl.SSLContext:
        """The context of the calling side."""
        assert self._contexts.client is not None, self.purpose
        return self._contexts.client

    @property
    def expires_at(self) -> float | None:
        """When the member's certificate expires, in seconds since 1970; None for a client."""
        return self._contexts.expires_at

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of the files, as text for the log."""
        return tuple(map(str, self._paths))

    def reread_if_changed(self) -> bool:
        """Check the files. Return True if they have changed and are used from now on.

        Raises UnusableTlsFiles if they have changed and cannot be used. In this case the former contexts stay in use,
        and each later call tries again, because a certificate may become valid later.
        """
        stamps = self._stamp()
        if stamps == self._stamps and not self.is_stale:
            return False
        self.is_stale = True
        self._contexts = self._make()
        self._stamps, self.is_stale = stamps, False
        return True

    def _stamp(self) -> Stamps:
        return tuple(map(_stamp_of, self._paths))


def _stamp_of(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def peer_credentials(
    node_id: str, cert: FilePath, key: FilePath | None, ca: FilePath, *, is_mixed: bool = False
) -> Credentials:
    """The credentials for connections between members, where both sides show a certificate. Raises UnusableTlsFiles,
    also if the certificate names neither `node_id` nor the name in this id. An empty `node_id` means that the id is not
    known yet; then the names are not checked."""

    def make() -> Contexts:
        server = server_context("peers", cert, key, ca, PROTOCOL_PEER)
        client = client_context("peers", cert, key, ca, PROTOCOL_PEER, checks_name=False)
        certificate = try_with_itself("peers", server, client)
        names = names_in(certificate)
        if node_id and not is_named(node_id, names):
            raise UnusableTlsFiles(
                "peers", f"the certificate in {cert} names {', '.join(names) or 'nobody'}, and this member is {node_id}"
            )
        return Contexts(server, client, expiry_of(certificate))

    return Credentials("peers", (cert, key, ca), make, node_id=node_id, is_mixed=is_mixed)


def port_credentials(
    node_id: str,
    purpose: str,
    protocols: tuple[str, ...],
    cert: FilePath,
    key: FilePath | None,
    ca: FilePath | None,
    *,
    is_mixed: bool = False,
) -> Credentials:
    """The credentials of a port of the member `node_id`. With `ca`, callers must show a certificate. A certificate that
    has expired is refused.

    `purpose`: `clients` or `metrics`. `protocols`: the names of the application protocols (ALPN), the preferred
    one first. Raises UnusableTlsFiles.
    """

    def make() -> Contexts:
        server = server_context(purpose, cert, key, ca, *protocols)
        return Contexts(server, None, expiry_of(certificate_of_port(purpose, cert, key)))

    return Credentials(purpose, (cert, key, ca), make, node_id=node_id, is_mixed=is_mixed)


def caller_credentials(cert: FilePath | None, key: FilePath | None, ca: FilePath, protocol: str) -> Credentials:
    """The credentials of a client. Raises UnusableTlsFiles."""

    def make() -> Contexts:
        return Contexts(None, client_context("a client", cert, key, ca, protocol, checks_name=True))

    return Credentials("a client", (cert, key, ca), make)
