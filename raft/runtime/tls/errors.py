"""The errors of TLS. Their texts tell operators which side refused, and what it refused."""

from __future__ import annotations

import ssl

import trio

from raft.errors import RaftError


class TlsFailed(RaftError, trio.BrokenResourceError):
    """A TLS connection could not be opened, or broke. The socket can no longer be used.

    `is_plain`: the other side does not speak TLS, or ends each connection at the first bytes of TLS. `code`: one of
    HANDSHAKE_REFUSALS, by which refused handshakes are counted.
    """

    def __init__(self, reason: str, *, is_plain: bool = False, code: str = "other") -> None:
        super().__init__(reason)
        self.reason, self.is_plain = reason, is_plain
        self.code = "plain" if is_plain else code

    def __str__(self) -> str:
        return f"TLS: {self.reason}"


class UnusableTlsFiles(RaftError):
    """A certificate, a key or a file of authorities cannot be used. `purpose`: `clients`, `peers` or `a client`."""

    def __init__(self, purpose: str, reason: str) -> None:
        super().__init__(purpose, reason)
        self.purpose, self.reason = purpose, reason

    def __str__(self) -> str:
        return f"the TLS files for {self.purpose} cannot be used: {self.reason}"


HANDSHAKE_REFUSALS = frozenset(
    {
        "bad_certificate", "cipher", "closed", "expired", "no_certificate", "other", "plain", "refused_by_caller",
        "slow", "untrusted", "version",
    }
)  # fmt: skip
"""The codes of refused handshakes. The set is fixed, which bounds the number of metrics."""

_NOT_TLS = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "HTTPS_PROXY_REQUEST", "RECORD_LAYER_FAILURE"})
"""The reasons that OpenSSL gives if the first bytes are not a TLS record."""

_FLAWS = {
    "CERTIFICATE_REQUIRED": "the other side requires a certificate of this side",
    "UNKNOWN_CA": "the other side does not trust the authority that has signed the certificate of this side",
    "CERTIFICATE_EXPIRED": "the other side says that the certificate of this side has expired",
    "CERTIFICATE_REVOKED": "the other side says that the certificate of this side is revoked",
    "BAD_CERTIFICATE": "the other side does not accept the certificate of this side",
    "UNSUPPORTED_CERTIFICATE": "the other side says that the certificate of this side is not for this use",
    "CERTIFICATE_UNKNOWN": "the other side does not accept the certificate of this side",
    "PROTOCOL_VERSION": "the other side does not speak a version of TLS that this side allows",
    "UNSUPPORTED_PROTOCOL": "the other side speaks only versions of TLS before 1.2, which are not secure",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the other side shows no certificate, which is required here",
    "NO_SHARED_CIPHER": "the two sides have no cipher in common",
    "HANDSHAKE_FAILURE": "the two sides have no cipher or version in common",
    "INTERNAL_ERROR": "the other side reports an internal error",
    "UNEXPECTED_MESSAGE": "a message of the protocol came out of order",
}


_CODES = {
    "CERTIFICATE_REQUIRED": "refused_by_caller",
    "UNKNOWN_CA": "refused_by_caller",
    "CERTIFICATE_EXPIRED": "refused_by_caller",
    "CERTIFICATE_REVOKED": "refused_by_caller",
    "BAD_CERTIFICATE": "refused_by_caller",
    "UNSUPPORTED_CERTIFICATE": "refused_by_caller",
    "CERTIFICATE_UNKNOWN": "refused_by_caller",
    "PROTOCOL_VERSION": "version",
    "UNSUPPORTED_PROTOCOL": "version",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "no_certificate",
    "NO_SHARED_CIPHER": "cipher",
    "HANDSHAKE_FAILURE": "cipher",
}

_VERIFY_CODES = {9: "expired", 10: "expired", 18: "untrusted", 19: "untrusted", 20: "untrusted", 21: "untrusted"}
"""The codes of OpenSSL (x509_vfy.h) for a certificate that is not valid yet, has expired, or has an unknown authority
(four codes). All other codes mean that the certificate itself is not fit for this use."""


def failure_of(error: ssl.SSLError, *, is_established: bool) -> TlsFailed:
    """Translate an error of OpenSSL. `is_established`: True if the handshake was complete before the error."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return TlsFailed(
            f"the certificate of the other side is not accepted: {error.verify_message}",
            code=_VERIFY_CODES.get(error.verify_code, "bad_certificate"),
        )
    flaw = (error.reason or "").upper().replace(" ", "_")
    if not is_established and flaw in _NOT_TLS:
        return TlsFailed("the other side does not speak TLS on this port", is_plain=True)
    name = flaw.partition("_ALERT_")[2] or flaw
    words = _FLAWS.get(name) or (name.replace("_", " ").lower() or str(error))
    return TlsFailed(words, code=_CODES.get(name, "other"))
