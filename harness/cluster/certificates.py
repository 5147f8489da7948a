"""The certificates of one cluster of the harness: an authority, and one certificate for each member and for clients.

They are made by the program `openssl`, as docs/operations/tls.md describes.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from harness.errors import BadInput
from kvstore import Tls
from raft.runtime import Credentials, peer_credentials

DAYS = "30"
CLIENT = "client"
OPENSSL_SECONDS = 30.0

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


class ClusterCertificates:
    """Makes the certificates in `folder`, which must not exist yet. Raises BadInput if the program `openssl` is
    missing or fails.

    The certificate of a member is made when it is first needed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self._credentials = folder, dict[str, Credentials]()
        folder.mkdir(parents=True)
        self._openssl(
            "req", "-x509", *_KEY, "-days", DAYS, "-subj", "/CN=harness", "-keyout", "ca.key", "-out", "ca.pem"
        )
        self._issue(CLIENT, f"DNS:{CLIENT}")

    @property
    def client(self) -> Tls:
        """The certificates of a client."""
        return Tls(ca=self._path("ca.pem"), cert=self._path(f"{CLIENT}.pem"), key=self._path(f"{CLIENT}.key"))

    def options(self, node_id: str) -> list[str]:
        """The options of `hwm serve` for a member, which gets a certificate if it has none yet. Takes some 50 ms."""
        self._make(node_id)
        cert, key, ca = (self._path(name) for name in (f"{node_id}.pem", f"{node_id}.key", "ca.pem"))
        return [
            f"--tls-cert={cert}", f"--tls-key={key}", f"--client-ca={ca}",
            f"--peer-cert={cert}", f"--peer-key={key}", f"--peer-ca={ca}",
            f"--ca={ca}", f"--cert={self._path(f'{CLIENT}.pem')}", f"--key={self._path(f'{CLIENT}.key')}",
        ]  # fmt: skip

    def peer(self, node_id: str) -> Credentials:
        """The credentials of a member among its peers, with which a proxy of the harness speaks for it."""
        known = self._credentials.get(node_id)
        if known is None:
            self._make(node_id)
            cert, key = self._path(f"{node_id}.pem"), self._path(f"{node_id}.key")
            known = self._credentials[node_id] = peer_credentials(node_id, cert, key, self._path("ca.pem"))
        return known

    def _make(self, node_id: str) -> None:
        if not self._path(f"{node_id}.pem").exists():
            self._issue(node_id, f"DNS:{node_id},DNS:localhost,IP:127.0.0.1")

    def _issue(self, name: str, names: str) -> None:
        self._openssl(
            "req", *_KEY, "-subj", f"/CN={name}", "-addext", f"subjectAltName={names}",
            "-keyout", f"{name}.key", "-out", f"{name}.csr",
        )  # fmt: skip
        self._openssl(
            "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
            "-days", DAYS, "-copy_extensions", "copy", "-out", f"{name}.pem",
        )  # fmt: skip

    def _path(self, name: str) -> Path:
        return self.folder / name

    def _openssl(self, *arguments: str) -> None:
        program = shutil.which("openssl")
        if program is None:
            raise BadInput("--tls needs the program openssl, which is not installed", "install it, or leave out --tls")
        words = [program, *arguments]
        done = subprocess.run(
            words, cwd=self.folder, capture_output=True, text=True, timeout=OPENSSL_SECONDS, check=False
        )
        if done.returncode != 0:
            problem = f"`{' '.join(words)}` failed: {done.stderr.strip()}"
            raise BadInput(problem, "OpenSSL 3 is needed; or leave out --tls")
