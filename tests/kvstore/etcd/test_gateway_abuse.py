"""Abuse of the JSON gateway: the member goes on, and the attacker is bounded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import trio

from kvstore.etcd.gateway import CHUNK_BYTES, CHUNKS_MAX, JSON_MESSAGES_MAX, WAITING_BYTES_MAX
from kvstore.etcd.transaction_size import ALL_OPERATIONS_MAX
from tests.kvstore.etcd.member import serving
from tests.kvstore.etcd.test_gateway import gateway, text
from tests.kvstore.etcd.test_transport import raw, read_to_end

NESTED_TXN = b'{"success":[{"request_txn":'


def request(path: str, body: bytes, *headers: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"[" * 1_000_000, id="arrays"),
        pytest.param(b'{"a":' * 200_000, id="objects"),
        pytest.param(NESTED_TXN * 450 + b"{}" + b"}]}" * 450, id="transactions"),
        pytest.param(NESTED_TXN * 20 + b"{}" + b"}]}" * 20, id="transactions that the library reads"),
        pytest.param(b'{"compare":%s}' % json.dumps([{"key": "YQ=="}] * (ALL_OPERATIONS_MAX + 1)).encode(), id="wide"),
        pytest.param(b'{"success":1e999}', id="an infinite number"),
        pytest.param(b'{"success":[{"request_range":{"limit":1e308}}]}', id="a huge float"),
        pytest.param(b'{"success":[{"request_range":{"limit":%s}}]}' % (b"9" * 4_000), id="a huge number"),
        pytest.param(b'{"success":[{"request_range":{"limit":%s}}]}' % (b"9" * 100_000), id="a number too long"),
        pytest.param(b" " * 3_000_000 + b"\xff", id="blanks"),
    ],
)
async def test_json_that_nobody_should_write_is_refused(tmp_path: Path, body: bytes) -> None:
    async with gateway(tmp_path / "data") as (etcd, http):
        status, answer = await http.request("POST", "/v3/kv/txn", body)
        assert status == 400, answer
        assert (await etcd.put(b"a")).header.revision == 2


async def test_thousands_of_unknown_fields_are_ignored_and_too_many_refused(tmp_path: Path) -> None:
    async with gateway(tmp_path / "data") as (_, http):
        for count, status in ((20_000, 200), (300_000, 400)):
            fields = b",".join(b'"%x":0' % number for number in range(count))
            assert (await http.request("POST", "/v3/kv/put", b'{"key":"YQ==",' + fields + b"}"))[0] == status


async def test_a_body_has_a_bounded_number_of_messages_and_of_parts(tmp_path: Path) -> None:
    async with gateway(tmp_path / "data") as (etcd, http):
        status, answer = await http.request("POST", "/v3/watch", b"{}" * (JSON_MESSAGES_MAX + 1))
        assert (status, f"more than {JSON_MESSAGES_MAX} messages" in answer["message"]) == (400, True)
        async with await raw(etcd.address) as stream:
            head = b"POST /v3/kv/put HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
            await stream.send_all(head + b"1\r\n \r\n" * (CHUNKS_MAX + 2))
            assert (await read_to_end(stream)).startswith(b"HTTP/1.1 413")
        async with await raw(etcd.address) as stream:  # Parts of a usual size may be many.
            usual = b"%x\r\n%s\r\n" % (CHUNK_BYTES, b" " * CHUNK_BYTES)
            await stream.send_all(head.replace(b"chunked\r\n", b"chunked\r\nConnection: close\r\n") + usual * 4_000)
            await stream.send_all(b"1f\r\n" + b'{"key": "YQ==", "value": "YQ=="}'[:31] + b"\r\n1\r\n}\r\n0\r\n\r\n")
            assert (await read_to_end(stream)).startswith(b"HTTP/1.1 200")


async def test_thousands_of_requests_may_wait_behind_one_another(tmp_path: Path) -> None:
    """Calls that end at once follow one another in a loop, not deeper and deeper in the stack."""
    async with serving(tmp_path / "data") as etcd, await raw(etcd.address) as stream:
        await stream.send_all(request("/v3/kv/put", b"{}") * 2_000 + request("/v3/kv/put", b"{}", "Connection: close"))
        assert (await read_to_end(stream)).count(b"HTTP/1.1 400") == 2_001


async def test_the_last_response_closes_the_connection(tmp_path: Path) -> None:
    async with serving(tmp_path / "data") as etcd, await raw(etcd.address) as stream:
        body = json.dumps({"key": text(b"a")}).encode()
        await stream.send_all(request("/v3/kv/put", body, "Connection: close"))
        assert (await read_to_end(stream)).startswith(b"HTTP/1.1 200 OK")


async def test_a_client_may_not_send_without_end_behind_a_stream(tmp_path: Path) -> None:
    async with serving(tmp_path / "data") as etcd, await raw(etcd.address) as stream:
        await stream.send_all(request("/v3/watch", b'{"create_request":{"key":"YQ=="}}'))
        assert b'"created":true' in await stream.receive_some(65_536)
        with pytest.raises(trio.BrokenResourceError):
            await stream.send_all(bytes(100 * WAITING_BYTES_MAX))  # Far more than the buffers of both sockets.
        assert (await etcd.put(b"a")).header.revision == 2
