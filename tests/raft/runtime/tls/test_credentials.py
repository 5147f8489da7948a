"""Certificates are read again when their files change, and files that cannot be used change nothing."""

from __future__ import annotations

import os
import shutil
import ssl
import time
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from raft.runtime import UnusableTlsFiles, caller_credentials, peer_credentials, port_credentials
from raft.runtime.tls.contexts import PROTOCOL_CLIENT, names_in
from raft.runtime.tls.credentials import Credentials
from tests.raft.support.certificates import Certificates

pytestmark = pytest.mark.timeout(30)


def port_of(cert: Path, key: Path | None = None, ca: Path | None = None) -> Credentials:
    return port_credentials("s1", "clients", (PROTOCOL_CLIENT,), cert, key, ca)


def replaced(path: Path, new: Path) -> None:
    """Replace the file `path` by another one, as a tool for renewing certificates does."""
    shutil.copy(new, path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)


def test_new_files_are_used_for_new_handshakes(tmp_path: Path) -> None:
    made = Certificates(tmp_path)
    credentials = made.peer("s1")
    server, client = credentials.server, credentials.client
    assert not credentials.reread_if_changed()
    assert credentials.server is server

    replaced(tmp_path / "s1.pem", made.issue("renewed.pem", "s1"))

    assert credentials.reread_if_changed()
    assert credentials.server is not server
    assert credentials.client is not client
    assert not credentials.reread_if_changed()


@pytest.mark.parametrize(
    ("flaw", "words"),
    [
        ("empty", "hold no certificate with its private key in the form PEM"),
        ("cut", "hold no certificate with its private key in the form PEM"),
        ("missing", "no such file or directory"),
        (
            "expired",
            "no peer would accept them: the certificate of this member itself is not accepted: certificate has",
        ),
        ("another member", "names s2, and this member is s1"),
        ("another authority", "no peer would accept them"),
    ],
)
def test_files_that_cannot_be_used_leave_the_former_ones_in_use(tmp_path: Path, flaw: str, words: str) -> None:
    made = Certificates(tmp_path)
    credentials = made.peer("s1")
    server, path = credentials.server, tmp_path / "s1.pem"
    good = path.read_bytes()
    match flaw:
        case "empty":
            path.write_bytes(b"")
        case "cut":
            path.write_bytes(good[:700])
        case "missing":
            path.unlink()
        case "expired":
            replaced(path, made.issue("expired.pem", "s1", days=-1))
        case "another member":
            replaced(path, made.issue("other.pem", "s2"))
        case "another authority":
            replaced(path, Certificates(tmp_path / "others").issue("other.pem", "s1"))

    for _ in range(2):
        with pytest.raises(UnusableTlsFiles, match=words):
            credentials.reread_if_changed()
        assert credentials.server is server

    path.write_bytes(good)
    assert credentials.reread_if_changed()
    assert not credentials.reread_if_changed()


@pytest.mark.parametrize(("days", "words"), [(-1, "certificate has expired"), (10, "")])
def test_a_certificate_of_a_port_that_no_client_would_accept_is_refused_at_the_start(
    tmp_path: Path, days: float, words: str
) -> None:
    """The port tries its certificate at the start. This also works if clients must show a certificate, because the
    trial needs no certificate of a client."""
    made = Certificates(tmp_path)
    cert = made.issue("port.pem", "127.0.0.1", days=days)
    for ca in (None, made.ca):
        if words:
            with pytest.raises(UnusableTlsFiles, match=f"no client would accept them: .*{words}"):
                port_of(cert, ca=ca)
        else:
            assert port_of(cert, ca=ca).expires_at is not None


def test_the_expiry_is_that_of_the_certificate_in_use(tmp_path: Path) -> None:
    made, now = Certificates(tmp_path), time.time()
    day = 86_400
    port, peer, caller = made.port(), made.peer("s1"), made.caller()
    for each in (port, peer):
        assert each.expires_at == pytest.approx(now + 10 * day, abs=60)
    assert caller.expires_at is None

    replaced(tmp_path / "port.pem", made.issue("renewed.pem", "127.0.0.1", days=90))
    assert port.expires_at == pytest.approx(now + 10 * day, abs=60)
    assert port.reread_if_changed()
    assert port.expires_at == pytest.approx(now + 90 * day, abs=60)


def test_a_key_and_its_certificate_may_be_replaced_one_after_the_other(tmp_path: Path) -> None:
    made = Certificates(tmp_path)
    names = ("cert.pem", "key.pem")
    for folder in ("old", "new"):
        issued = made.authority.issue_cert("127.0.0.1")
        (tmp_path / folder).mkdir()
        issued.cert_chain_pems[0].write_to_path(tmp_path / folder / "cert.pem")
        issued.private_key_pem.write_to_path(tmp_path / folder / "key.pem")
    cert, key = (Path(shutil.copy(tmp_path / "old" / name, tmp_path / name)) for name in names)
    credentials = port_of(cert, key)

    replaced(cert, tmp_path / "new" / "cert.pem")
    with pytest.raises(UnusableTlsFiles, match=r"key\.pem does not belong to the certificate in .*cert\.pem"):
        credentials.reread_if_changed()
    replaced(key, tmp_path / "new" / "key.pem")
    assert credentials.reread_if_changed()


def test_a_file_of_authorities_is_replaced_as_a_whole(tmp_path: Path) -> None:
    """If an authority is no longer in the file, it is no longer trusted."""
    made, others = Certificates(tmp_path), Certificates(tmp_path / "others")
    credentials = port_of(made.issue("port.pem", "127.0.0.1"), ca=made.ca)
    before = credentials.server.get_ca_certs()

    replaced(made.ca, others.ca)

    assert credentials.reread_if_changed()
    after = credentials.server.get_ca_certs()
    assert (len(before), len(after), before == after) == (1, 1, False)


def test_a_key_with_a_password_is_refused_and_nobody_is_asked_for_it(tmp_path: Path) -> None:
    made = Certificates(tmp_path)
    issued = made.authority.issue_cert("127.0.0.1")
    key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None)
    (tmp_path / "key.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    issued.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")

    with pytest.raises(UnusableTlsFiles, match=r"the key in .*key\.pem has a password"):
        port_of(tmp_path / "cert.pem", tmp_path / "key.pem")


def test_files_of_authorities_must_have_certificates(tmp_path: Path) -> None:
    made = Certificates(tmp_path)
    (tmp_path / "empty.pem").write_bytes(b"")

    with pytest.raises(UnusableTlsFiles, match=r"empty\.pem holds no certificate of an authority"):
        caller_credentials(None, None, tmp_path / "empty.pem", PROTOCOL_CLIENT)
    with pytest.raises(UnusableTlsFiles, match=r"nowhere\.pem: no such file"):
        port_of(made.issue("port.pem", "127.0.0.1"), ca=tmp_path / "nowhere.pem")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_named(tmp_path: Path) -> None:
    cert = Certificates(tmp_path).issue("port.pem", "127.0.0.1")
    cert.chmod(0)

    with pytest.raises(UnusableTlsFiles, match=r"port\.pem: permission denied"):
        port_of(cert)


def test_a_member_is_named_by_a_dns_name_or_by_the_common_name(tmp_path: Path) -> None:
    made = Certificates(tmp_path)
    by_common_name = made.issue("cn.pem", "host.example.org", common_name="s1")

    assert peer_credentials("s1", by_common_name, None, made.ca).purpose == "peers"
    with pytest.raises(UnusableTlsFiles, match=r"names host\.example\.org, s1, and this member is s2"):
        peer_credentials("s2", by_common_name, None, made.ca)


def test_a_member_with_a_random_id_is_named_by_its_name(tmp_path: Path) -> None:
    made = Certificates(tmp_path)
    cert = made.issue("named.pem", "hwm-0")
    assert peer_credentials("hwm-0-0123abcd", cert, None, made.ca).node_id == "hwm-0-0123abcd"
    with pytest.raises(UnusableTlsFiles, match="names hwm-0, and this member is hwm-1-0123abcd"):
        peer_credentials("hwm-1-0123abcd", cert, None, made.ca)


def test_old_versions_renegotiation_and_tickets_are_off(tmp_path: Path) -> None:
    credentials = Certificates(tmp_path).peer("s1")

    for context in (credentials.server, credentials.client):
        assert context.minimum_version == ssl.TLSVersion.TLSv1_2
        assert context.options & ssl.OP_NO_RENEGOTIATION
        assert context.options & ssl.OP_NO_TICKET
    assert credentials.server.num_tickets == 0
    assert credentials.server.verify_mode is ssl.CERT_REQUIRED
    assert credentials.client.verify_mode is ssl.CERT_REQUIRED
    assert names_in(None) == ()
