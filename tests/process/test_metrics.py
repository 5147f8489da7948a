"""The answers of the metrics port of real members to a scraper under load, to a probe, and to garbage."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families

from kvstore import Client, Put
from kvstore.monitoring.metrics_http import CONNECTIONS_MAX, HEAD_BYTES_MAX
from kvstore.protocol.messages import command_request, encode_client_hello, encode_request
from raft import FRAME_BYTES_MAX_CLIENT, FrameSplitter, frame
from tests.process.servers import Server, ServerCluster, running_cluster

pytestmark = [pytest.mark.process, pytest.mark.timeout(100)]

SECONDS_MAX = 60
REVISION, SYNCS = "highwatermark_revision", "highwatermark_log_sync_seconds_count"


def metrics_address(server: Server) -> str:
    """The port was given as 0, so the address is in the ready line."""
    line = server._ready.read_text(encoding="utf-8")
    return line.split("metrics=")[1].strip()


async def say(address: str, data: bytes) -> bytes:
    """Send these bytes. Returns all bytes that the member answers before it closes the connection. The result is empty
    if the member closes the connection without an answer."""
    host, _, port = address.rpartition(":")
    answer = b""
    async with await trio.open_tcp_stream(host, int(port)) as stream:
        with contextlib.suppress(trio.BrokenResourceError):  # The member closed early, before it had read all bytes.
            await stream.send_all(data)
            async for part in stream:
                answer += part
    return answer


async def get(address: str, path: str) -> tuple[int, str]:
    """The status and the body. The status is 0 if there are too many connections, or were too many a moment before."""
    answer = await say(address, f"GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n".encode())
    if not answer:
        return 0, ""
    head, _, body = answer.partition(b"\r\n\r\n")
    length = re.search(rb"Content-Length: (\d+)", head)
    assert length is not None, head
    assert int(length[1]) == len(body), head
    return int(head.split()[1]), body.decode()


async def scrape(address: str) -> dict[str, float]:
    """The samples by name, or by `name{value}` if they have one label."""
    status, body = await get(address, "/metrics")
    assert status == 200, body
    return {
        sample.name + "".join(f"{{{value}}}" for value in sample.labels.values()): sample.value
        for family in text_string_to_metric_families(body)
        for sample in family.samples
        if len(sample.labels) < 2
    }


async def scrape_all(cluster: ServerCluster) -> dict[str, dict[str, float]]:
    return {name: await scrape(metrics_address(server)) for name, server in cluster.servers.items()}


async def wait_for(address: str, status: int) -> str:
    """Wait until `/readyz` answers with this status. Returns the reason."""
    while True:
        answer = await get(address, "/readyz")
        if answer[0] == status:
            return answer[1]
        await trio.sleep(0.02)


async def ready_all(cluster: ServerCluster) -> None:
    """Wait until `/readyz` of every member reports that the member is ready."""
    for server in cluster.servers.values():
        await wait_for(metrics_address(server), 200)


async def load_forever(client: Client) -> None:
    while True:
        await client.put_many([(f"key-{i}", b"value") for i in range(200)])


async def test_the_values_move_under_load_and_every_member_tells_its_own(tmp_path: Path) -> None:
    with trio.fail_after(SECONDS_MAX), running_cluster(tmp_path, 3, "--metrics", "127.0.0.1:0") as cluster:
        await ready_all(cluster)
        async with cluster.client() as client, trio.open_nursery() as nursery:
            before = after = await scrape_all(cluster)
            nursery.start_soon(load_forever, client)
            while min(after[name][REVISION] - before[name][REVISION] for name in after) < 400:
                after = await scrape_all(cluster)  # The member answers scrapes while it processes the load.
            nursery.cancel_scope.cancel()
        (leader,) = [name for name, each in after.items() if each["highwatermark_is_leader"]]
        for name, samples in after.items():
            assert samples["highwatermark_commit_index"] > before[name]["highwatermark_commit_index"]
            assert samples["highwatermark_last_applied_index"] <= samples["highwatermark_commit_index"]
            assert samples[SYNCS] > before[name][SYNCS]
            assert samples["highwatermark_log_segments"] >= 1
        peers = sorted(set(after) - {leader})
        assert [name for name in after if f"highwatermark_peer_match_lag_entries{{{name}}}" in after[leader]] == peers
        assert after[leader]["highwatermark_commands_applied_total"] >= 400
        assert after[leader]["highwatermark_commit_latency_seconds_count"] > 0
        assert all(after[name]["highwatermark_commit_latency_seconds_count"] == 0 for name in peers)


async def test_a_member_without_its_quorum_is_alive_but_not_ready_until_it_is_back(
    tmp_path: Path,
) -> None:
    with trio.fail_after(SECONDS_MAX), running_cluster(tmp_path, 3, "--metrics", "127.0.0.1:0") as cluster:
        await ready_all(cluster)
        last, *others = cluster.servers.values()
        address = metrics_address(last)
        for server in others:
            server.kill()
        reason = await wait_for(address, 503)
        assert re.match(r"not ready: it (hears no leader|leads, but of the voters s1, s2, s3 it hears only )", reason)
        assert await get(address, "/livez") == (200, "alive\n")

        others[0].start()
        assert await trio.to_thread.run_sync(others[0].wait_ready)
        await wait_for(address, 200)


async def test_garbage_gets_400_and_a_crowd_makes_room_and_neither_does_any_harm(tmp_path: Path) -> None:
    with trio.fail_after(SECONDS_MAX), running_cluster(tmp_path, 1, "--metrics", "127.0.0.1:0") as cluster:
        (server,) = cluster.servers.values()
        address = metrics_address(server)
        await ready_all(cluster)
        for garbage in (
            b"\x00\x01\x02", b"\x16\x03\x01\x02\x00\r\n", b"hello\r\n\r\n", b"GET /metrics\r\n\r\n",
            b"GET /metrics HTTP/1.1\r\n\r\n", b"GET /metrics HTTP/1.1\r\nHost: a\r\nno header\r\n\r\n",
            b"GET http://other/ HTTP/1.1\r\nHost: other\r\n\r\n",
            b"GET / HTTP/1.1\r\nX: " + b"x" * 2 * HEAD_BYTES_MAX,
        ):  # fmt: skip
            assert (await say(address, garbage)).startswith(b"HTTP/1.1 400 "), garbage
        assert (await say(address, b"POST /metrics HTTP/1.1\r\nHost: a\r\n\r\nbody")).startswith(b"HTTP/1.1 405 ")
        assert (await get(address, "/other"))[0] == 404

        host, _, port = address.rpartition(":")
        crowd = [await trio.open_tcp_stream(host, int(port)) for _ in range(CONNECTIONS_MAX)]
        # This connection exceeds the bound, so the member closes the oldest one.
        assert await get(address, "/livez") == (200, "alive\n")
        with contextlib.suppress(trio.BrokenResourceError):
            assert await crowd[0].receive_some() == b""
        for stream in crowd:
            await stream.aclose()
        await ready_all(cluster)
        async with cluster.client() as client:
            await client.put("key", "value")
        assert server._process is not None
        assert server._process.poll() is None


async def test_a_follower_counts_whom_it_has_sent_to_the_leader(tmp_path: Path) -> None:
    with trio.fail_after(SECONDS_MAX), running_cluster(tmp_path, 3, "--metrics", "127.0.0.1:0") as cluster:
        await ready_all(cluster)
        before = await scrape_all(cluster)
        follower = next(name for name, each in before.items() if not each["highwatermark_is_leader"])
        address = cluster.endpoints[list(cluster.servers).index(follower)]
        host, _, port = address.rpartition(":")
        async with await trio.open_tcp_stream(host, int(port)) as stream:
            await stream.send_all(
                frame(encode_client_hello()) + frame(encode_request(1, command_request(Put(b"k", b"v"))))
            )
            splitter, bodies = FrameSplitter(FRAME_BYTES_MAX_CLIENT), list[bytes]()
            while len(bodies) < 2:  # The first frame is the member's hello; the second is the refusal.
                bodies += splitter.feed(bytes(await stream.receive_some()))

        name = "highwatermark_refusals_total{not_leader}"
        after = await scrape(metrics_address(cluster.servers[follower]))
        assert after[name] == before[follower][name] + 1


def test_another_machine_is_not_served_unless_it_is_said(tmp_path: Path) -> None:
    server = Server(tmp_path / "s1", "s1", ["--bootstrap", "--metrics", "0.0.0.0:0"])
    server.start()
    assert not server.wait_ready()
    assert "the port for metrics would listen on 0.0.0.0:0" in server.log.read_text(encoding="utf-8")
