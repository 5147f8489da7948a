"""The JSON gateway and the plain pages, over HTTP/1.1."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import h11
import pytest
import trio

from tests.kvstore.etcd.member import Etcd, serving


class Http:
    """One connection to the gateway."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.http = h11.Connection(h11.CLIENT)

    async def request(self, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, Any]:
        """Make a request. Returns the status, and the body: as JSON if it is JSON."""
        await self.begin(method, path, body, **headers)
        response = await self.event()
        assert isinstance(response, h11.Response), response
        data = b""
        while isinstance(event := await self.event(), h11.Data):
            data += event.data
        if self.http.our_state is h11.DONE and self.http.their_state is h11.DONE:
            self.http.start_next_cycle()
        is_json = dict(response.headers)[b"content-type"] == b"application/json"
        return response.status_code, json.loads(data) if is_json else data

    async def begin(self, method: str, path: str, body: bytes = b"", **headers: str) -> None:
        """Send a request."""
        lines = [("Host", "localhost"), ("Content-Length", str(len(body))), *headers.items()]
        lines = list(dict(lines).items())
        data = self.http.send(h11.Request(method=method, target=path, headers=lines)) or b""
        data += self.http.send(h11.Data(data=body)) or b""
        data += self.http.send(h11.EndOfMessage()) or b""
        await self.stream.send_all(data)

    async def event(self) -> Any:
        """The next event of the response."""
        while (event := self.http.next_event()) is h11.NEED_DATA:
            self.http.receive_data(await self.stream.receive_some(65_536))
        return event

    async def post(self, path: str, **fields: Any) -> tuple[int, Any]:
        """Make a call."""
        return await self.request("POST", path, json.dumps(fields).encode())


def text(value: bytes) -> str:
    return b64encode(value).decode()


@asynccontextmanager
async def gateway(folder: Path, **options: Any) -> AsyncIterator[tuple[Etcd, Http]]:
    async with serving(folder, **options) as etcd:
        host, _, port = etcd.address.rpartition(":")
        async with await trio.open_tcp_stream(host, int(port)) as stream:
            yield etcd, Http(stream)


async def test_numbers_are_texts_bytes_are_base64_and_zero_fields_are_left_out(tmp_path: Path) -> None:
    async with gateway(tmp_path / "data") as (_, http):
        status, put = await http.post("/v3/kv/put", key=text(b"a"), value=text(b"1"))
        assert status == 200
        assert put["header"]["revision"] == "2"
        status, found = await http.post("/v3/kv/range", key=text(b"a"), range_end=text(b"b"))
        assert found["count"] == "1"
        assert found["kvs"] == [
            {"key": text(b"a"), "value": text(b"1"), "create_revision": "2", "mod_revision": "2", "version": "1"}
        ]
        status, other = await http.post("/v3beta/kv/range", key=text(b"a"), rangeEnd=text(b"b"), unknown=[1])
        assert other["kvs"] == found["kvs"]
        status, none = await http.post("/v3/kv/range", key=text(b"z"))
        assert set(none) == {"header"}
        status, txn = await http.post(
            "/v3/kv/txn",
            compare=[{"result": "EQUAL", "target": "VERSION", "key": text(b"a"), "version": 9}],
            failure=[{"requestRange": {"key": text(b"a")}}],
        )
        assert "succeeded" not in txn
        assert txn["responses"][0]["response_range"]["count"] == "1"


@pytest.mark.parametrize(
    ("path", "fields", "status", "code", "words"),
    [
        ("/v3/kv/range", {}, 400, 3, "etcdserver: key is not provided"),
        ("/v3/kv/range", {"key": "YQ==", "revision": 99}, 400, 11, "future revision"),
        ("/v3/kv/put", {"key": "YQ==", "lease": 5}, 404, 5, "etcdserver: requested lease not found"),
        ("/v3/cluster/member/add", {"peerURLs": ["http://x:1"]}, 501, 12, "hwm member add"),
        ("/v3/kv/put", {"key": 7.5}, 400, 3, ""),
    ],
)
async def test_errors_have_a_status_a_code_and_the_text_twice(
    tmp_path: Path, path: str, fields: dict[str, Any], status: int, code: int, words: str
) -> None:
    async with gateway(tmp_path / "data") as (_, http):
        found, body = await http.post(path, **fields)
        assert found == status, body
        assert body["code"] == code
        assert body["error"] == body["message"]
        assert words in body["error"]
        assert (await http.post("/v3/kv/put", key="YQ=="))[0] == 200  # The connection goes on.


async def test_a_body_that_is_no_json_object_is_refused(tmp_path: Path) -> None:
    async with gateway(tmp_path / "data") as (_, http):
        for body in (b"{", b"[]", b'"a"', b"\xff", b"{} {}"):
            assert (await http.request("POST", "/v3/kv/put", body))[0] == 400, body
        assert (await http.request("POST", "/v3/kv/range"))[1]["message"] == "etcdserver: key is not provided"


async def test_each_message_of_a_stream_is_one_chunk_with_one_line(tmp_path: Path) -> None:
    async with gateway(tmp_path / "data") as (etcd, http):
        request = {"create_request": {"key": text(b"a"), "prev_kv": True}}
        await http.begin("POST", "/v3/watch", json.dumps(request).encode())
        response = await http.event()
        assert response.status_code == 200
        created = await http.event()
        assert json.loads(created.data)["result"]["created"] is True
        await etcd.put(b"a", b"1")
        event = await http.event()
        assert event.data.endswith(b"\n")
        (change,) = json.loads(event.data)["result"]["events"]
        assert change["kv"]["value"] == text(b"1")
        assert "type" not in change  # PUT is the zero of its enum.
        await etcd.delete(b"a")
        event = await http.event()
        assert json.loads(event.data)["result"]["events"][0]["type"] == "DELETE"
        assert (await etcd.store.status()).watches == 1
        await http.stream.aclose()
        while (await etcd.store.status()).watches:
            pass


async def test_a_keep_alive_of_the_gateway_ends_after_its_answer(tmp_path: Path) -> None:
    async with gateway(tmp_path / "data") as (_, http):
        _, granted = await http.post("/v3/lease/grant", TTL=10)
        status, kept = await http.post("/v3/lease/keepalive", ID=granted["ID"])
        assert status == 200
        assert kept["result"]["TTL"] == "10"
        assert (await http.post("/v3/kv/lease/timetolive", ID=granted["ID"]))[1]["grantedTTL"] == "10"
        assert (await http.post("/v3/lease/revoke", ID=granted["ID"]))[0] == 200


async def test_plain_pages_tell_version_and_health(tmp_path: Path) -> None:
    async with gateway(tmp_path / "data") as (_, http):
        await http.post("/v3/kv/put", key="YQ==")  # From now on the member is known to lead.
        assert await http.request("GET", "/version") == (200, {"etcdserver": "3.5.21", "etcdcluster": "3.5.0"})
        assert await http.request("GET", "/health") == (200, b'{"health":"true","reason":""}')
        assert await http.request("GET", "/readyz") == (200, b"ok")
        assert await http.request("GET", "/nothing") == (404, b"404 page not found\n")
        assert await http.request("POST", "/v3/nothing") == (404, b"Not Found\n")
        assert (await http.request("GET", "/v3/kv/range"))[0] == 405


@pytest.mark.parametrize("host", ["localhost", "localhost:2379", "127.0.0.1", "[::1]:2379", "x.localhost"])
async def test_a_local_host_is_served_at_a_loopback_address(tmp_path: Path, host: str) -> None:
    async with gateway(tmp_path / "data") as (_, http):
        assert (await http.request("GET", "/version", Host=host))[0] == 200


async def test_a_foreign_host_is_refused_at_a_loopback_address(tmp_path: Path) -> None:
    """A web page whose name leads to 127.0.0.1 must not reach the store."""
    async with gateway(tmp_path / "data") as (_, http):
        status, _ = await http.request("GET", "/version", Host="evil.example:2379")
        assert status == 421


@pytest.mark.parametrize(
    "attack",
    [
        b"POST /v3/kv/put HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999\r\n\r\n" + bytes(4_000_000),
        b"POST /v3/kv/put HTTP/1.1\r\n" + b"X: " + b"y" * 100_000 + b"\r\n\r\n",
        b"GET \0 HTTP/1.1\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
async def test_a_bad_request_ends_its_connection_only(tmp_path: Path, attack: bytes) -> None:
    async with gateway(tmp_path / "data") as (etcd, http):
        answer = b""
        try:
            await http.stream.send_all(attack)
            while data := await http.stream.receive_some(65_536):
                answer += data
        except trio.BrokenResourceError:
            pass
        assert not answer or answer.split()[1] in (b"400", b"413", b"431", b"501", b"505"), answer[:200]
        assert (await etcd.put(b"a")).header.revision == 2
