"""Authorities and certificates for tests, as files. There are certificates of members and of clients, and certificates
that must be refused."""

from __future__ import annotations

import datetime
import ssl
import warnings
from pathlib import Path

import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtensionOID

from raft.runtime.tls.contexts import PROTOCOL_CLIENT, PROTOCOL_PEER
from raft.runtime.tls.credentials import Credentials, caller_credentials, peer_credentials, port_credentials


class Certificates:
    """A folder with one authority, `ca.pem`, and the certificates that it has issued. A certificate and its key are in
    one file."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.authority = folder, trustme.CA()
        self.ca = folder / "ca.pem"
        self.authority.cert_pem.write_to_path(self.ca)

    def issue(self, file_name: str, *names: str, common_name: str | None = None, days: float = 10) -> Path:
        """Issue a certificate for `names`. `days` is the time for which it is valid from now on; a negative value means
        that it has expired."""
        now = datetime.datetime.now(datetime.UTC)
        issued = self.authority.issue_cert(
            *names,
            common_name=common_name,
            not_before=now - datetime.timedelta(days=30),
            not_after=now + datetime.timedelta(days=days),
        )
        path = self.folder / file_name
        issued.private_key_and_cert_chain_pem.write_to_path(path)
        return path

    def issue_with_names(self, file_name: str, names: bytes) -> Path:
        """Issue a certificate whose names (SAN) are these bytes of DER. The bytes need not be valid text."""
        key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
        authority = x509.load_pem_x509_certificate(self.authority.cert_pem.bytes())
        signer = serialization.load_pem_private_key(self.authority.private_key_pem.bytes(), None)
        assert isinstance(signer, ec.EllipticCurvePrivateKey)
        issued = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([]))
            .issuer_name(authority.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=10))
            .add_extension(x509.UnrecognizedExtension(ExtensionOID.SUBJECT_ALTERNATIVE_NAME, names), critical=False)
            .sign(signer, hashes.SHA256())
        )
        own = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        path = self.folder / file_name
        path.write_bytes(own + issued.public_bytes(serialization.Encoding.PEM))
        return path

    def peer(self, node_id: str, *, is_mixed: bool = False) -> Credentials:
        """The credentials of a member, with a new certificate that names it."""
        return peer_credentials(
            node_id, self.issue(f"{node_id}.pem", node_id, "127.0.0.1"), None, self.ca, is_mixed=is_mixed
        )

    def port(self, *, with_client_ca: bool = True, is_mixed: bool = False) -> Credentials:
        """The credentials of a client port on loopback."""
        cert = self.issue("port.pem", "127.0.0.1", "localhost")
        ca = self.ca if with_client_ca else None
        return port_credentials("s1", "clients", (PROTOCOL_CLIENT,), cert, None, ca, is_mixed=is_mixed)

    def caller(self, *, with_certificate: bool = True) -> Credentials:
        """The credentials of a client."""
        cert = self.issue("client.pem", "a-client") if with_certificate else None
        return caller_credentials(cert, None, self.ca, PROTOCOL_CLIENT)


def old_client(ca: Path, version: ssl.TLSVersion) -> ssl.SSLContext:
    """The context of a client that uses only `version`, which must be older than TLS 1.2."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(ca)
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.options &= ~(ssl.OP_NO_TLSv1 | ssl.OP_NO_TLSv1_1)
    context.set_alpn_protocols([PROTOCOL_PEER])
    with warnings.catch_warnings():  # Python warns of these old versions, but this test needs them.
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = context.maximum_version = version
    return context
