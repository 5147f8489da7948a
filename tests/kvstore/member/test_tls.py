"""A member with TLS at its ports: which clients it serves, how both sides report a refusal, and which data an
eavesdropper sees."""

from __future__ import annotations

import contextlib
import logging
import re
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import click
import pytest
import trio
from click.testing import CliRunner

from kvstore import Client, Member, MemberTls, StoreError, Tls, Unavailable, UnusableCertificates, open_node
from kvstore.cli.options.tls import join_tls_options, member_tls, member_tls_options
from kvstore.client.dial import TlsDialer, server_name_of
from kvstore.client.pump import dial_tcp
from kvstore.embedded import EmbeddedStore
from kvstore.errors import ReachableByOthers
from raft import InvalidConfiguration
from raft.runtime.tls import handshakes
from tests.raft.support.certificates import Certificates
from tests.raft.support.machines import a_listener, until

pytestmark = pytest.mark.timeout(120)

FILES = ("cert", "key", "client_ca", "peer_cert", "peer_key", "peer_ca")
KEY = b"the-secret-key"
SECRET = b"a value that nobody may read on the way"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


def port_tls(made: Certificates, **changed: Any) -> MemberTls:
    """A member's certificates for its client port. This port requires a certificate of each client."""
    known: dict[str, Any] = {"cert": made.issue("port.pem", "127.0.0.1", "localhost"), "client_ca": made.ca}
    return MemberTls(**(known | changed))


def client_tls(made: Certificates) -> Tls:
    return Tls(ca=made.ca, cert=made.issue("client.pem", "a-client"))


def peer_tls(made: Certificates, node_id: str) -> MemberTls:
    """All certificates of a member of a cluster."""
    cert = made.issue(f"{node_id}.pem", node_id, "127.0.0.1")
    return MemberTls(cert=cert, client_ca=made.ca, peer_cert=cert, peer_ca=made.ca, client=client_tls(made))


@asynccontextmanager
async def a_store(folder: Path, tls: MemberTls | None, **options: Any) -> AsyncIterator[EmbeddedStore]:
    with trio.fail_after(100):
        async with open_node(folder / "data", bootstrap=True, listen_client="127.0.0.1:0", tls=tls, **options) as store:
            yield store


async def refusal_of(address: str, tls: Tls | None) -> str:
    """The reason why a client cannot use the member at `address`."""
    with pytest.raises(Unavailable) as caught:
        async with Client([address], tls=tls, deadline_seconds=2.0) as client:
            await client.get(b"a")
    return str(caught.value)


def told(caplog: pytest.LogCaptureFixture, event: str) -> list[dict[str, Any]]:
    args = [record.args for record in caplog.records if isinstance(record.args, dict)]
    return [each["fields"] for each in args if each["event"] == event]


async def test_a_client_with_a_certificate_is_served(tmp_path: Path, made: Certificates) -> None:
    """Large values need many records, and more bytes than the socket takes at once."""
    async with (
        a_store(tmp_path, port_tls(made)) as store,
        Client([store.client_address], tls=client_tls(made)) as client,
    ):
        large = bytes(range(256)) * 3_000
        results = await client.put_many((b"%d" % number, large) for number in range(20))
        assert not [each for each in results if isinstance(each, StoreError)]
        for number in range(20):
            found = (await client.get(b"%d" % number)).record
            assert found is not None
            assert found.value == large
        async with client.watch(prefix=b"w") as watch:
            await store.put(b"w1", large)
            async for change in watch:
                assert change.key == b"w1"
                break


async def test_the_program_of_the_member_itself_needs_no_certificate(tmp_path: Path, made: Certificates) -> None:
    async with a_store(tmp_path, port_tls(made)) as store:
        assert (await store.put(b"a", b"1")).revision > 0


async def test_callers_that_do_not_fit_are_refused_with_words_on_both_sides(
    tmp_path: Path, made: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "kvstore.tls")
    stranger = Certificates(tmp_path / "strangers")
    async with a_store(tmp_path, port_tls(made)) as store:
        address = store.client_address
        assert "this port takes only connections with TLS" in await refusal_of(address, None)
        assert "the other side requires a certificate of this side" in await refusal_of(address, Tls(ca=made.ca))
        foreign = Tls(ca=made.ca, cert=stranger.issue("c.pem", "a-client"))
        assert "does not trust the authority" in await refusal_of(address, foreign)
        expired = Tls(ca=made.ca, cert=made.issue("expired.pem", "a-client", days=-1))
        assert "has expired" in await refusal_of(address, expired)
        wrong_authority = Tls(ca=stranger.ca, cert=client_tls(made).cert)
        assert "the certificate of the other side is not accepted" in await refusal_of(address, wrong_authority)
        async with Client([address], tls=client_tls(made)) as client:
            await client.put(b"a", b"1")

    reasons = [(each["code"], each["origin"]) for each in told(caplog, "refused") if each["code"] == "tls_required"]
    assert reasons == [("tls_required", "127.0.0.1")]


async def test_a_certificate_for_another_host_is_refused_by_the_client(tmp_path: Path, made: Certificates) -> None:
    elsewhere = port_tls(made, cert=made.issue("elsewhere.pem", "s9.example.org"))
    async with a_store(tmp_path, elsewhere) as store:
        assert "IP address mismatch" in await refusal_of(store.client_address, client_tls(made))


def test_a_dialer_and_certificates_exclude_each_other(made: Certificates) -> None:
    """If a dialer and certificates were both accepted, the certificates would be ignored, and all data would be sent
    without encryption."""
    with pytest.raises(InvalidConfiguration, match="dialer"):
        Client(["127.0.0.1:1"], dialer=dial_tcp, tls=client_tls(made))


@pytest.mark.parametrize("host", ["straße.example", "straße.example．"])
async def test_the_name_that_is_compared_is_the_one_that_is_looked_up(host: str) -> None:
    """Python's `ssl` encodes names by older rules (IDNA 2003). By these rules the name becomes strasse.example, which
    is the name of another host."""
    asked: list[str] = []

    class Resolver(trio.abc.HostnameResolver):
        async def getaddrinfo(self, host: bytes | None, *_: object, **__: object) -> Any:
            asked.append((host or b"").decode().removesuffix("."))
            raise OSError

        async def getnameinfo(self, *_: object) -> Any:
            raise OSError

    trio.socket.set_custom_hostname_resolver(Resolver())
    with pytest.raises(OSError):
        await dial_tcp(f"{host}:7101")
    assert asked == [server_name_of(f"{host}:7101")] == ["xn--strae-oqa.example"]


async def test_a_client_with_tls_at_a_plain_port_is_told_so(tmp_path: Path, made: Certificates) -> None:
    async with a_store(tmp_path, None) as store:
        assert "does not speak TLS on this port" in await refusal_of(store.client_address, client_tls(made))
        await store.put(b"a", b"1")


async def test_a_mixed_port_serves_both(tmp_path: Path, made: Certificates, caplog: pytest.LogCaptureFixture) -> None:
    """The log names each caller that still connects without TLS."""
    caplog.set_level(logging.WARNING, "kvstore.tls")
    async with a_store(tmp_path, port_tls(made, mixed=True)) as store:
        for tls in (None, client_tls(made), None):
            async with Client([store.client_address], tls=tls) as client:
                await client.put(b"a", b"1")
    assert [each["origin"] for each in told(caplog, "without_tls")] == ["127.0.0.1"]


@pytest.mark.parametrize("garbage", [b"\x16\x03\x01\x00\x05hello", b"\x16" + bytes(5_000), b"GET / HTTP/1.1\r\n\r\n"])
async def test_garbage_costs_its_own_connection_alone(tmp_path: Path, made: Certificates, garbage: bytes) -> None:
    async with a_store(tmp_path, port_tls(made)) as store:
        host, _, port = store.client_address.rpartition(":")
        async with await trio.open_tcp_stream(host, int(port)) as stream:
            await stream.send_all(garbage)
            with contextlib.suppress(trio.BrokenResourceError):
                while await stream.receive_some():
                    pass
        async with Client([store.client_address], tls=client_tls(made)) as client:
            await client.put(b"a", b"1")


async def test_a_handshake_has_a_place_and_a_bound_in_time(
    tmp_path: Path, made: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller that begins a handshake and then stops counts as a connection, and its connection is closed."""
    monkeypatch.setattr(handshakes, "HANDSHAKE_SECONDS_MAX", 3.0)
    async with a_store(tmp_path, port_tls(made)) as store:
        host, _, port = store.client_address.rpartition(":")
        listener = store._member.port

        def callers() -> int:
            return sum(place.origin == "127.0.0.1" for place in listener._places._taken.values())

        async with await trio.open_tcp_stream(host, int(port)) as stream:
            await stream.send_all(b"\x16\x03\x01\x02\x00\x01")
            await until(lambda: callers() == 1)
            security = listener._security
            assert security is not None
            await until(lambda: security._handshakes.count == 1)
            assert await stream.receive_some() == b""
        await until(lambda: callers() == 0)


async def http(address: str, path: str, context: ssl.SSLContext | None) -> bytes:
    host, _, port = address.rpartition(":")
    stream: trio.abc.Stream = await trio.open_tcp_stream(host, int(port))
    if context is not None:
        stream = trio.SSLStream(stream, context, server_hostname=host, https_compatible=True)
    async with stream:
        await stream.send_all(f"GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n".encode())
        found = b""
        while data := await stream.receive_some():
            found += data
        return found


async def test_the_metrics_port_speaks_https(tmp_path: Path, made: Certificates) -> None:
    """The test uses `trio.SSLStream` directly, as another program would."""
    from kvstore.member.config import MemberConfig
    from kvstore.member.member import run_member

    context = ssl.create_default_context(cafile=made.ca)
    context.load_cert_chain(client_tls(made).cert or "")
    config = MemberConfig(folder=tmp_path / "d", bootstrap=True, metrics="127.0.0.1:0", tls=port_tls(made))
    with trio.fail_after(40):
        async with trio.open_nursery() as nursery:
            member = await nursery.start(run_member, config)
            address = member.metrics_address
            assert b"200 OK" in await http(address, "/livez", context)
            assert b"highwatermark_revision" in await http(address, "/metrics", context)
            assert b"this port takes only connections with TLS" in await http(address, "/livez", None)
            metrics = (await http(address, "/metrics", context)).decode()
            expiry = re.findall(r'certificate_expiry_timestamp_seconds{purpose="(\w+)"} (\S+)', metrics)
            assert sorted(purpose for purpose, _ in expiry) == ["clients", "metrics"]
            assert all(float(seconds) == pytest.approx(time.time() + 864_000, abs=3_600) for _, seconds in expiry)
            assert 'tls_handshakes_refused_total{code="plain",purpose="metrics"} 1.0' in metrics
            assert 'tls_handshakes_refused_total{code="plain",purpose="clients"} 0.0' in metrics
            member.request_stop()


class Tap:
    """A proxy on loopback that records all bytes in both directions."""

    def __init__(self, target: str) -> None:
        self._target = target
        self.seen = bytearray()
        self.address = ""

    async def run(self, *, task_status: trio.TaskStatus[list[trio.SocketListener]]) -> None:
        listener, self.address = await a_listener()
        await trio.serve_listeners(self._serve, [listener], task_status=task_status)

    async def _serve(self, caller: trio.SocketStream) -> None:
        host, _, port = self._target.rpartition(":")
        with contextlib.suppress(OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            async with await trio.open_tcp_stream(host, int(port)) as member, caller, trio.open_nursery() as nursery:
                nursery.start_soon(self._carry, caller, member, nursery.cancel_scope)
                nursery.start_soon(self._carry, member, caller, nursery.cancel_scope)

    async def _carry(self, source: trio.SocketStream, target: trio.SocketStream, scope: trio.CancelScope) -> None:
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while data := await source.receive_some():
                self.seen += data
                await target.send_all(data)
        scope.cancel()


@pytest.mark.parametrize("has_tls", [True, False])
async def test_nothing_is_in_clear_on_the_wire(tmp_path: Path, made: Certificates, has_tls: bool) -> None:
    """An eavesdropper sees no keys, no values and no names of members. The same search finds these words in a
    connection without TLS, so the search works."""
    ports = [(await a_listener()) for _ in range(4)]
    addresses = [address for _, address in ports]
    for listener, _ in ports:
        await listener.aclose()
    members = [Member("member-one", addresses[0], addresses[1]), Member("member-two", addresses[2], addresses[3])]
    taps = {member.node_id: Tap(member.peer_address) for member in members}
    client_tap = Tap(members[0].client_address)
    with trio.fail_after(40):
        async with trio.open_nursery() as nursery, contextlib.AsyncExitStack() as stack:
            for tap in (*taps.values(), client_tap):
                await nursery.start(tap.run)
            for member in members:
                await stack.enter_async_context(
                    open_node(
                        tmp_path / member.node_id,
                        node_id=member.node_id,
                        members=members,
                        bootstrap=True,
                        dial={node_id: tap.address for node_id, tap in taps.items() if node_id != member.node_id},
                        tls=peer_tls(made, member.node_id) if has_tls else None,
                    )
                )
            async with Client([client_tap.address], tls=client_tls(made) if has_tls else None) as client:
                await client.put(KEY, SECRET)
                assert (await client.get(KEY)).record is not None
            await stack.aclose()
            nursery.cancel_scope.cancel()
    on_peer_wire = bytes(taps["member-one"].seen + taps["member-two"].seen)
    assert on_peer_wire
    assert client_tap.seen
    wires = {"peers": on_peer_wire, "clients": bytes(client_tap.seen)}
    in_clear = {name for name, wire in wires.items() if any(secret in wire for secret in (SECRET, KEY, b"member-one"))}
    assert in_clear == (set() if has_tls else {"peers", "clients"})


async def test_certificates_are_read_again_while_the_member_runs(
    tmp_path: Path, made: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    """A broken file changes nothing and is logged once. A valid file is used for the next connection."""
    caplog.set_level(logging.INFO, "kvstore.certificates")
    cert = tmp_path / "port.pem"
    cert.write_bytes(made.issue("port.pem", "127.0.0.1").read_bytes())
    tls = MemberTls(cert=cert)
    async with a_store(tmp_path, tls) as store:

        async def reread(event: str, count: int) -> None:
            store._member.certificates.reread()
            await until(lambda: len(told(caplog, event)) == count)

        async def is_served(ca: Path) -> bool:
            try:
                async with Client([store.client_address], tls=Tls(ca=ca), deadline_seconds=0.5) as client:
                    await client.put(b"a", b"1")
            except Unavailable:
                return False
            return True

        assert await is_served(made.ca)
        cert.write_bytes(b"broken")
        await reread("certificates_refused", 2)  # One by the client port, one by the metrics port.
        assert "hold no certificate with its private key" in told(caplog, "certificates_refused")[0]["reason"]
        assert await is_served(made.ca)
        store._member.certificates.reread()

        others = Certificates(tmp_path / "others")
        cert.write_bytes(others.issue("port.pem", "127.0.0.1").read_bytes())
        await reread("certificates_reread", 2)
        assert (await is_served(made.ca), await is_served(others.ca)) == (False, True)
    assert len(told(caplog, "certificates_refused")) == 2


async def test_a_client_reads_its_certificates_again(tmp_path: Path, made: Certificates) -> None:
    ca = tmp_path / "ca.pem"
    ca.write_bytes(Certificates(tmp_path / "others").ca.read_bytes())
    async with a_store(tmp_path, port_tls(made, client_ca=None)) as store:
        dial = TlsDialer(Tls(ca=ca))
        with pytest.raises(trio.BrokenResourceError):
            await dial(store.client_address)
        ca.write_bytes(b"broken")
        with pytest.raises(trio.BrokenResourceError):
            await dial(store.client_address)
        ca.write_bytes(made.ca.read_bytes())
        await (await dial(store.client_address)).aclose()


async def test_a_member_with_a_certificate_of_another_member_does_not_start(tmp_path: Path, made: Certificates) -> None:
    members = [Member("s1", "127.0.0.1:1", "127.0.0.1:2"), Member("s2", "127.0.0.1:3", "127.0.0.1:4")]
    with pytest.raises(UnusableCertificates, match="names s2, and this member is s1"):
        async with open_node(tmp_path / "s1", node_id="s1", members=members, bootstrap=True, tls=peer_tls(made, "s2")):
            pass


async def test_only_ports_with_tls_may_be_reachable_from_other_machines(tmp_path: Path, made: Certificates) -> None:
    options: dict[str, Any] = {"bootstrap": True, "listen_client": "0.0.0.0:0"}
    for tls in (None, port_tls(made, mixed=True)):
        with pytest.raises(ReachableByOthers):
            async with open_node(tmp_path / "d", tls=tls, **options):
                pass
    with trio.fail_after(20):
        async with open_node(tmp_path / "d", tls=port_tls(made), **options) as store:
            await store.put(b"a", b"1")


def test_files_that_need_each_other_are_asked_for() -> None:
    wrong: dict[str, Any]
    for wrong in (
        {"key": "k"}, {"client_ca": "ca"}, {"peer_cert": "c"}, {"peer_ca": "ca"}, {"peer_key": "k"}, {"mixed": True}
    ):  # fmt: skip
        with pytest.raises(InvalidConfiguration):
            MemberTls(**wrong)
    with pytest.raises(InvalidConfiguration):
        Tls(ca="ca", key="k")


def test_the_options_of_a_member_and_of_a_client_are_told_apart() -> None:
    """`hwm serve --join` takes the options of a member and those of a client."""
    found: list[MemberTls | None] = []

    @click.command()
    @join_tls_options
    @member_tls_options
    def command() -> None:
        found.append(member_tls())

    words = "--ca a --cert b --key c --tls-cert d --tls-key e --client-ca f --peer-cert g --peer-key h --peer-ca i"
    CliRunner().invoke(command, words.split(), catch_exceptions=False)
    CliRunner().invoke(command, ["--ca", "a"], catch_exceptions=False, env={"HWM_CERT": "b"})

    paths = {name: Path(letter) for name, letter in zip(FILES, "defghi", strict=True)}
    assert found == [MemberTls(**paths, client=Tls(ca=Path("a"), cert=Path("b"), key=Path("c"))), None]  # type: ignore[arg-type]
