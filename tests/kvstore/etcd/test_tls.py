"""Etcd's clients at a client port with TLS."""

from __future__ import annotations

import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import trio
from h2.connection import H2Connection
from h2.events import ResponseReceived

from harness.cluster.ports import free_ports
from kvstore import Client, Member, MemberTls, Tls, auth_switch, open_node
from kvstore.etcd import EtcdNotInstalled
from kvstore.etcd.schema import make
from raft import InvalidConfiguration
from tests.kvstore.etcd.grpc_client import CallFailed, GrpcClient
from tests.kvstore.etcd.member import KV
from tests.raft.support.certificates import Certificates


@asynccontextmanager
async def a_port(folder: Path, *, asks_for_certificates: bool = False) -> AsyncIterator[tuple[str, Certificates]]:
    made = Certificates(folder / "certificates")
    tls = MemberTls(
        cert=made.issue("port.pem", "127.0.0.1", "localhost"),
        client_ca=made.ca if asks_for_certificates else None,
        client=Tls(ca=made.ca, cert=made.issue("member.pem", "a-member") if asks_for_certificates else None),
    )
    with trio.fail_after(30):
        async with open_node(folder / "data", bootstrap=True, etcd=True, listen_client="127.0.0.1:0", tls=tls) as store:
            yield store.client_address, made


async def dial(
    address: str, made: Certificates, protocols: list[str], cert: Path | None = None
) -> trio.SSLStream[trio.SocketStream]:
    context = ssl.create_default_context(cafile=str(made.ca))
    if cert is not None:
        context.load_cert_chain(cert)
    context.set_alpn_protocols(protocols)
    host, _, port = address.rpartition(":")
    stream = trio.SSLStream(
        await trio.open_tcp_stream(host, int(port)), context, server_hostname="127.0.0.1", https_compatible=True
    )
    await stream.do_handshake()
    return stream


async def test_http2_is_agreed_in_the_handshake(tmp_path: Path) -> None:
    async with a_port(tmp_path) as (address, made), trio.open_nursery() as nursery:
        stream = await dial(address, made, ["h2"])
        assert stream.selected_alpn_protocol() == "h2"
        client = GrpcClient(stream)
        client.h2.initiate_connection()
        nursery.start_soon(client.run)
        put = await client.call(f"{KV}/Put", make("PutRequest", key=b"a", value=bytes(300_000)))
        assert put.header.revision == 2
        found = await client.call(f"{KV}/Range", make("RangeRequest", key=b"a"))
        assert found.kvs[0].value == bytes(300_000)
        nursery.cancel_scope.cancel()
        await trio.aclose_forcefully(stream)


async def test_the_gateway_is_served_over_tls(tmp_path: Path) -> None:
    async with a_port(tmp_path) as (address, made):
        stream = await dial(address, made, ["http/1.1"])
        assert (await answer_to(stream, VERSION)).startswith(b"HTTP/1.1 200")
        await trio.aclose_forcefully(stream)


async def answer_to(stream: trio.SSLStream[trio.SocketStream], request: bytes) -> bytes:
    """The bytes that come back until the other side closes the connection."""
    answer = b""
    await stream.send_all(request)
    while data := await stream.receive_some(65_536):
        answer += data
    return answer


VERSION = b"GET /version HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"


@pytest.mark.parametrize("protocol", ["h2", "http/1.1"])
async def test_a_port_that_asks_for_certificates_refuses_clients_without_one(tmp_path: Path, protocol: str) -> None:
    """TLS 1.3 tells the client so in its first read, because the handshake of the client is over by then."""
    request = VERSION if protocol == "http/1.1" else b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9)
    async with a_port(tmp_path, asks_for_certificates=True) as (address, made):
        stranger = Certificates(tmp_path / "strangers").issue("client.pem", "a-client")
        for cert, words in ((None, "CERTIFICATE_REQUIRED"), (stranger, "UNKNOWN_CA")):
            stream = await dial(address, made, [protocol], cert)
            with pytest.raises(trio.BrokenResourceError) as refused:
                await answer_to(stream, request)
            await trio.aclose_forcefully(stream)
            assert words in str(refused.value.__cause__)


async def test_a_port_that_asks_for_certificates_serves_clients_with_one(tmp_path: Path) -> None:
    async with a_port(tmp_path, asks_for_certificates=True) as (address, made):
        cert = made.issue("client.pem", "a-client")
        stream = await dial(address, made, ["http/1.1"], cert)
        assert (await answer_to(stream, VERSION)).startswith(b"HTTP/1.1 200")
        await trio.aclose_forcefully(stream)
        stream = await dial(address, made, ["h2"], cert)
        async with trio.open_nursery() as nursery:
            client = GrpcClient(stream)
            client.h2.initiate_connection()
            nursery.start_soon(client.run)
            assert (await client.call(f"{KV}/Put", make("PutRequest", key=b"a"))).header.revision == 2
            nursery.cancel_scope.cancel()
        await trio.aclose_forcefully(stream)


async def test_the_name_in_a_certificate_is_no_user_at_the_port_of_etcds_clients(tmp_path: Path) -> None:
    async with a_port(tmp_path, asks_for_certificates=True) as (address, made):
        cert = made.issue("root.pem", "a-name", common_name="root")
        stream = await dial(address, made, ["h2"], cert)
        async with trio.open_nursery() as nursery:
            grpc = GrpcClient(stream)
            grpc.h2.initiate_connection()
            nursery.start_soon(grpc.run)
            auth = "/etcdserverpb.Auth"
            await grpc.call(f"{auth}/UserAdd", make("AuthUserAddRequest", name="root", password="r00t"))
            await grpc.call(f"{auth}/UserGrantRole", make("AuthUserGrantRoleRequest", user="root", role="root"))
            await grpc.call(f"{auth}/AuthEnable", make("AuthEnableRequest"))
            put = make("PutRequest", key=b"a")
            with pytest.raises(CallFailed, match="user name is empty"):
                await grpc.call(f"{KV}/Put", put)
            named = make("AuthenticateRequest", name="root", password="r00t")
            token = (await grpc.call(f"{auth}/Authenticate", named)).token
            await grpc.call(f"{KV}/Put", put, headers=[("token", token)])
            async with Client([address], tls=Tls(ca=made.ca, cert=cert)) as own:
                assert (await auth_switch(own)).user == "root"
            nursery.cancel_scope.cancel()
        await trio.aclose_forcefully(stream)


async def test_the_gateway_is_not_served_over_http2(tmp_path: Path) -> None:
    """A client that can do both, such as curl, gets HTTP/2, which is for gRPC here."""
    async with a_port(tmp_path) as (address, made):
        stream = await dial(address, made, ["h2", "http/1.1"])
        assert stream.selected_alpn_protocol() == "h2"
        connection = H2Connection()
        connection.initiate_connection()
        headers = {":method": "GET", ":path": "/version", ":scheme": "https", ":authority": "127.0.0.1"}
        connection.send_headers(1, list(headers.items()), end_stream=True)
        await stream.send_all(connection.data_to_send())
        answers: list[ResponseReceived] = []
        while not answers:
            events = connection.receive_data(await stream.receive_some(65_536))
            answers += [event for event in events if isinstance(event, ResponseReceived)]
        assert dict(answers[0].headers)[b":status"] == b"415"
        await trio.aclose_forcefully(stream)


async def test_the_stores_own_clients_use_the_same_port(tmp_path: Path) -> None:
    async with a_port(tmp_path) as (address, made), Client([address], tls=Tls(ca=made.ca)) as client:
        await client.put("a", "1")


async def test_clear_text_is_refused(tmp_path: Path) -> None:
    async with a_port(tmp_path) as (address, _):
        host, _, port = address.rpartition(":")
        async with await trio.open_tcp_stream(host, int(port)) as stream:
            await stream.send_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
            answer = b""
            with suppress(trio.BrokenResourceError):
                while data := await stream.receive_some(65_536):
                    answer += data
            assert b"TLS" in answer


async def test_a_member_of_a_cluster_needs_certificates_for_the_other_members(tmp_path: Path) -> None:
    made = Certificates(tmp_path / "certificates")
    ports = free_ports(4)
    members = [Member(f"s{n}", f"127.0.0.1:{ports[n]}", f"127.0.0.1:{ports[n + 1]}") for n in (0, 2)]
    tls = MemberTls(cert=made.issue("port.pem", "127.0.0.1"))
    with trio.fail_after(30), pytest.raises(InvalidConfiguration, match="--ca"):
        async with open_node(tmp_path / "data", node_id="s0", members=members, bootstrap=True, etcd=True, tls=tls):
            pass


async def test_a_missing_library_is_named_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("kvstore.etcd.") or name.split(".")[0] == "google"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "google", None)
    with pytest.raises(EtcdNotInstalled, match="the library protobuf") as refused:
        async with open_node(tmp_path / "data", bootstrap=True, etcd=True):
            pass
    assert refused.value.hint == "pip install 'highwatermark[etcd]'"
    assert not (tmp_path / "data").exists()
