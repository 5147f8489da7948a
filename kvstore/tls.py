"""The paths of the certificate files (PEM) that a client or a member uses."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kvstore.errors import UnusableFile
from raft import InvalidConfiguration

FilePath = str | Path


class UnusableCertificates(UnusableFile):
    """The certificates of a member or a client cannot be used. `reason` names the file."""

    @property
    def hint(self) -> str:
        return "see docs/operations/tls.md for the files that members and clients need"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """The certificates of a client. Files are read again when they change. Raises InvalidConfiguration.

    `ca`: the authorities, one of which must have signed each member's certificate. The certificate of a member must
    also name the dialled host or IP address. `cert`: the client's own certificate, with its chain. A member that was
    started with `--client-ca` requires this certificate. `key`: the private key of `cert`, without a password; None if
    the file of `cert` contains the key.
    """

    ca: FilePath
    cert: FilePath | None = None
    key: FilePath | None = None

    def __post_init__(self) -> None:
        if self.key is not None and self.cert is None:
            raise InvalidConfiguration("a private key is of no use to a client without its certificate")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberTls:
    """The certificates of one member. Files are read again when they change. Raises InvalidConfiguration.

    `cert`, `key`: the certificate that the client port and the metrics port show, and its private key (None: the file
    of `cert` contains the key). `client_ca`: the authorities of clients' certificates. If it is given, callers of both
    ports must show a certificate. `peer_cert`, `peer_key`, `peer_ca`: the same for the peer port. At the peer port,
    both sides always show a certificate, which must have the member's node id as a DNS name or as its common name.

    `mixed`: all ports also accept connections without TLS, and peers that do not speak TLS are dialled without TLS. Use
    this only while TLS is turned on or off in a running cluster. `client`: the certificates with which this member's
    own client reaches the client ports of the other members (to join a cluster, and in `open_node`).
    """

    cert: FilePath | None = None
    key: FilePath | None = None
    client_ca: FilePath | None = None
    peer_cert: FilePath | None = None
    peer_key: FilePath | None = None
    peer_ca: FilePath | None = None
    mixed: bool = False
    client: Tls | None = None

    def __post_init__(self) -> None:
        if self.cert is None and (self.key is not None or self.client_ca is not None):
            raise InvalidConfiguration(
                "a key or authorities for the client port need the certificate of the port: --tls-cert"
            )
        if (self.peer_cert is None) != (self.peer_ca is None) or (self.peer_key is not None and self.peer_cert is None):
            raise InvalidConfiguration(
                "TLS between members needs a certificate and the authorities of the others: --peer-cert and --peer-ca"
            )
        if self.mixed and self.cert is None and self.peer_cert is None:
            raise InvalidConfiguration("connections with and without TLS need certificates: --tls-cert or --peer-cert")

    def protects(self, purpose: str) -> bool:
        """True if the port for `purpose` (`clients`, `peers`, `metrics`) accepts only connections with TLS."""
        cert = self.peer_cert if purpose == "peers" else self.cert
        return cert is not None and not self.mixed
