"""The certificates of a running member: they are loaded at the start, and read again when their files change."""

from __future__ import annotations

import logging

import trio

from kvstore.tls import MemberTls, UnusableCertificates
from raft.runtime import (
    PROTOCOL_CLIENT,
    PROTOCOL_HTTP,
    PROTOCOL_HTTP2,
    REREAD_SECONDS,
    Credentials,
    UnusableTlsFiles,
    peer_credentials,
    port_credentials,
)

logger = logging.getLogger("kvstore.certificates")


class MemberCertificates:
    """The credentials of the three ports; None for a port without TLS. `etcd`: etcd's clients use the client port, too.
    Raises UnusableCertificates."""

    def __init__(self, node_id: str, tls: MemberTls | None, *, etcd: bool = False) -> None:
        self._node_id = node_id
        self._told: dict[str, str] = {}  # For each purpose: the last logged reason why its files cannot be used.
        self._wanted = trio.Event()
        self.clients: Credentials | None = None
        self.metrics: Credentials | None = None
        self.peers: Credentials | None = None
        if tls is None:
            return
        protocols_of_clients = (PROTOCOL_CLIENT, PROTOCOL_HTTP2, PROTOCOL_HTTP) if etcd else (PROTOCOL_CLIENT,)
        try:
            if tls.cert is not None:
                self.clients, self.metrics = (
                    port_credentials(node_id, purpose, protocols, tls.cert, tls.key, tls.client_ca, is_mixed=tls.mixed)
                    for purpose, protocols in (("clients", protocols_of_clients), ("metrics", (PROTOCOL_HTTP,)))
                )
            if tls.peer_cert is not None and tls.peer_ca is not None:
                self.peers = peer_credentials(node_id, tls.peer_cert, tls.peer_key, tls.peer_ca, is_mixed=tls.mixed)
        except UnusableTlsFiles as error:
            raise UnusableCertificates(str(error)) from error

    @property
    def all(self) -> list[Credentials]:
        """The credentials of all ports with TLS."""
        return [each for each in (self.clients, self.metrics, self.peers) if each is not None]

    def reread(self) -> None:
        """Request a check of the files in the next turn."""
        self._wanted.set()

    async def keep_fresh(self) -> None:
        """Check the files each minute, and after `reread`, until cancelled. If files cannot be used, this is logged
        once, and the former contexts stay in use."""
        while True:
            with trio.move_on_after(REREAD_SECONDS):
                await self._wanted.wait()
            self._wanted = trio.Event()
            for credentials in self.all:
                await self._look_at(credentials)

    async def _look_at(self, credentials: Credentials) -> None:
        purpose = credentials.purpose
        try:
            has_changed = await trio.to_thread.run_sync(credentials.reread_if_changed)
        except UnusableTlsFiles as error:
            if self._told.get(purpose) != error.reason:
                self._told[purpose] = error.reason
                words = f"{error}. The former files stay in use until the new ones are good; handshakes continue"
                self._log(logging.ERROR, "certificates_refused", words, purpose=purpose, reason=error.reason)
            return
        self._told.pop(purpose, None)
        if has_changed:
            words = f"the TLS files for {purpose} have changed, and new connections use them: " + ", ".join(
                credentials.paths
            )
            self._log(logging.INFO, "certificates_reread", words, purpose=purpose, files=list(credentials.paths))

    def _log(self, level: int, event: str, words: str, **fields: object) -> None:
        told = {"node_id": self._node_id, "event": event, "fields": fields, "message": words}
        logger.log(level, "%(node_id)s: %(message)s", told)
