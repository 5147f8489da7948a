"""The bounds on the handshakes of one port, in number and in time, and the callers that the port refuses."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

import pytest
import trio

from raft.runtime import HANDSHAKE_REFUSALS, Credentials, TlsFailed, TlsStream, caller_credentials
from raft.runtime.tls import handshakes
from raft.runtime.tls.contexts import PROTOCOL_CLIENT, client_context, server_context
from raft.runtime.tls.credentials import Contexts
from raft.runtime.tls.handshakes import Handshakes, MemberStream, call
from raft.runtime.tls.session import TlsSession
from tests.raft.support.certificates import Certificates, old_client
from tests.raft.support.machines import until

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


def a_pair() -> tuple[trio.SocketStream, trio.SocketStream]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    return trio.SocketStream(trio.socket.from_stdlib_socket(ours)), trio.SocketStream(
        trio.socket.from_stdlib_socket(theirs)
    )


async def outcome_of(port: Credentials, caller: ssl.SSLContext, server_name: str = "127.0.0.1") -> tuple[str, str]:
    """Connect, and let the caller and the port each send a word. For each side, return the word that it received, or
    its reason for having no connection."""
    ours, theirs = a_pair()
    said: dict[str, str] = {}

    async def at_port() -> None:
        try:
            stream = await Handshakes(port).accept(theirs)
            await stream.send_all(b"welcome")
            said["port"] = bytes(await stream.receive_some()).decode()
        except TlsFailed as error:
            said["port"] = error.reason
        await trio.aclose_forcefully(theirs)

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(at_port)
            try:
                stream = TlsStream(ours, TlsSession(caller, is_server=False, server_name=server_name))
                await stream.do_handshake()
                await stream.send_all(b"hello")
                said["caller"] = (await stream.receive_some()).decode()
            except trio.BrokenResourceError as error:
                said["caller"] = error.reason if isinstance(error, TlsFailed) else "broken"
            await trio.aclose_forcefully(ours)
    return said["caller"], said["port"]


async def test_who_shows_a_certificate_of_the_authority_is_let_in(made: Certificates) -> None:
    assert await outcome_of(made.port(), made.caller().client) == ("welcome", "hello")


async def test_a_caller_without_a_certificate_is_refused_where_one_is_required(made: Certificates) -> None:
    caller = made.caller(with_certificate=False)

    assert await outcome_of(made.port(), caller.client) == (
        "the other side requires a certificate of this side",
        "the other side shows no certificate, which is required here",
    )
    assert await outcome_of(made.port(with_client_ca=False), caller.client) == ("welcome", "hello")


async def test_an_expired_certificate_is_refused_by_either_side(made: Certificates) -> None:
    expired = made.issue("expired.pem", "127.0.0.1", days=-1)
    caller = caller_credentials(expired, None, made.ca, PROTOCOL_CLIENT)
    context = server_context("clients", expired, None, None, PROTOCOL_CLIENT)
    port = Credentials("clients", (expired,), lambda: Contexts(context, None))  # It expired after the start.

    assert await outcome_of(made.port(), caller.client) == (
        "the other side says that the certificate of this side has expired",
        "the certificate of the other side is not accepted: certificate has expired",
    )
    assert (await outcome_of(port, made.caller().client))[0] == (
        "the certificate of the other side is not accepted: certificate has expired"
    )


async def test_a_certificate_of_another_authority_is_refused_by_either_side(made: Certificates, tmp_path: Path) -> None:
    others = Certificates(tmp_path)
    stranger = caller_credentials(others.issue("c.pem", "a-client"), None, made.ca, PROTOCOL_CLIENT)

    at_caller, at_port = await outcome_of(made.port(), stranger.client)
    assert at_caller == "the other side does not trust the authority that has signed the certificate of this side"
    assert at_port.startswith("the certificate of the other side is not accepted: ")
    at_caller, at_port = await outcome_of(others.port(with_client_ca=False), made.caller().client)
    assert at_caller.startswith("the certificate of the other side is not accepted: ")
    assert at_port == "the other side does not trust the authority that has signed the certificate of this side"


async def test_a_certificate_for_another_host_is_refused_by_the_caller(made: Certificates) -> None:
    at_caller, at_port = await outcome_of(made.port(), made.caller().client, server_name="s9.example.org")

    assert "Hostname mismatch, certificate is not valid for 's9.example.org'" in at_caller
    assert at_port == "the other side does not accept the certificate of this side"
    assert "IP address mismatch" in (await outcome_of(made.port(), made.caller().client, server_name="127.0.0.2"))[0]


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
async def test_a_caller_that_knows_only_old_versions_is_refused(made: Certificates, version: ssl.TLSVersion) -> None:
    at_caller, at_port = await outcome_of(made.port(with_client_ca=False), old_client(made.ca, version))

    assert at_port == "the other side speaks only versions of TLS before 1.2, which are not secure"
    assert at_caller == "the other side does not speak a version of TLS that this side allows"


async def test_refused_callers_are_counted_by_reason(made: Certificates, tmp_path: Path) -> None:
    """The keys of the expected counts are all codes that a caller can cause without waiting."""
    others = Certificates(tmp_path)

    def caller(cert: Path | None, ca: Path = made.ca) -> ssl.SSLContext:
        return caller_credentials(cert, None, ca, PROTOCOL_CLIENT).client

    port, no_cipher = made.port(), made.caller().client
    no_cipher.maximum_version = ssl.TLSVersion.TLSv1_2
    no_cipher.set_ciphers("AES128-GCM-SHA256")
    for context in (
        caller(None),
        caller(others.issue("foreign.pem", "a-client")),
        caller(made.issue("expired.pem", "a-client", days=-1)),
        caller(made.issue("client.pem", "a-client"), others.ca),
        no_cipher,
        old_client(made.ca, ssl.TLSVersion.TLSv1_1),
    ):
        assert "hello" not in await outcome_of(port, context)
    ours, theirs = a_pair()
    async with ours, theirs:
        await ours.send_all(b"GET / HTTP/1.1")
        await ours.send_eof()
        await accepted(Handshakes(port), theirs, [])
    ours, theirs = a_pair()
    async with theirs:
        await ours.send_all(b"\x16\x03\x01\x02\x00\x01")
        await ours.aclose()
        await accepted(Handshakes(port), theirs, [])

    assert port.refused == {
        "no_certificate": 1, "untrusted": 1, "expired": 1, "refused_by_caller": 1, "cipher": 1, "version": 1,
        "plain": 1, "closed": 1,
    }  # fmt: skip
    assert set(port.refused) <= HANDSHAKE_REFUSALS


async def test_tls_1_2_is_let_in_with_forward_secrecy_only(made: Certificates) -> None:
    """A handshake without forward secrecy needs an RSA key, and the certificates here have no RSA keys. So a refused
    handshake alone proves nothing, and the test also checks the port's list of ciphers."""
    allowed = made.port(with_client_ca=False).server.get_ciphers()
    assert {each["name"].partition("-")[0] for each in allowed if each["protocol"] == "TLSv1.2"} == {"ECDHE"}

    context = client_context("a client", None, None, made.ca, PROTOCOL_CLIENT, checks_name=True)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    assert await outcome_of(made.port(with_client_ca=False), context) == ("welcome", "hello")

    context.set_ciphers("AES128-GCM-SHA256")  # RSA without an exchange of ephemeral keys.
    assert (await outcome_of(made.port(with_client_ca=False), context))[1] == "the two sides have no cipher in common"


async def accepted(port: Handshakes, stream: trio.SocketStream, said: list[str | MemberStream]) -> None:
    try:
        said.append(await port.accept(stream, seconds=10))
    except TlsFailed as error:
        said.append(error.reason)


async def test_a_caller_without_tls_is_told_in_its_own_protocol_or_let_in_if_the_port_is_mixed(
    made: Certificates,
) -> None:
    said: list[str | MemberStream] = []
    with trio.fail_after(20):
        ours, theirs = a_pair()
        async with ours, theirs, trio.open_nursery() as nursery:
            nursery.start_soon(accepted, Handshakes(made.port(), str.encode), theirs, said)
            await ours.send_all(b"\0\0\0\x05hello")
            assert b"this port takes only connections with TLS" in await ours.receive_some()
            await ours.aclose()
        ours, theirs = a_pair()
        async with ours, theirs:
            await ours.send_all(b"\0\0\0\x05hello")
            await accepted(Handshakes(made.port(is_mixed=True)), theirs, said)
            assert await theirs.receive_some() == b"\0\0\0\x05hello"
    assert said == ["the caller does not speak TLS, and this port takes nothing else", theirs]


async def test_a_mixed_port_shakes_hands_with_those_who_want_to(made: Certificates) -> None:
    assert await outcome_of(made.port(is_mixed=True), made.caller().client) == ("welcome", "hello")


async def test_silent_callers_cost_no_handshake_and_are_given_up(
    made: Certificates, autojump_clock: trio.testing.MockClock
) -> None:
    port, said = Handshakes(made.port()), list[str | MemberStream]()
    ours, theirs = a_pair()
    async with ours, theirs:
        await accepted(port, theirs, said)
    assert port.count == 0
    assert said == ["the handshake was not done within 10 s"]
    assert trio.current_time() >= 10


async def test_handshakes_that_are_begun_and_left_make_room_for_others(
    made: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Callers that have sent only the beginning of a handshake may take all places. Even then, an honest caller waits
    only for one second."""
    monkeypatch.setattr(handshakes, "HANDSHAKES_MAX", 3)
    monkeypatch.setattr(handshakes, "UNDISTURBED_SECONDS", 0.05)
    port, said = Handshakes(made.port()), list[str | MemberStream]()
    pairs = [a_pair() for _ in range(4)]
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            for ours, theirs in pairs[:3]:
                await ours.send_all(b"\x16\x03\x01\x02\x00\x01")
                nursery.start_soon(accepted, port, theirs, said)
            await until(lambda: port.count == 3)
            nursery.start_soon(accepted, port, pairs[3][1], said)
            async with await call(pairs[3][0], made.caller(), "127.0.0.1"):
                assert port.count <= 3
            assert "the handshake was given up, because others waited" in said
            nursery.cancel_scope.cancel()
        for each in pairs:
            for stream in each:
                await stream.aclose()


async def test_callers_in_line_that_also_stop_keep_nobody_away_for_long(
    made: Certificates, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """All places and most of the waiting line are taken by callers that have sent only the beginning of a handshake.
    The callers in line wake at the same time. Each of them must give up a different handshake; otherwise only one place
    would become free in UNDISTURBED_SECONDS."""
    monkeypatch.setattr(handshakes, "HANDSHAKES_MAX", 8)
    port, said = Handshakes(made.port()), list[str | MemberStream]()
    pairs = [a_pair() for _ in range(33)]
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for ours, theirs in pairs[:32]:
                await ours.send_all(b"\x16\x03\x01\x02\x00\x01")
                nursery.start_soon(accepted, port, theirs, said)
            await until(lambda: port.count == 8)
            nursery.start_soon(accepted, port, pairs[32][1], said)
            began = trio.current_time()
            async with await call(pairs[32][0], made.caller(), "127.0.0.1"):
                assert trio.current_time() - began < 5  # Each second, eight of the 32 callers ahead give way.
                assert port.count <= 8
            nursery.cancel_scope.cancel()
        for each in pairs:
            for stream in each:
                await stream.aclose()
