"""Two builds: while clients write, a cluster changes from one build to the next, member by member
(docs/reference/versions.md).
"""

from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path

import pytest
import trio

from kvstore import Client, LevelRefused, MemberStatus, raise_feature_level
from kvstore.errors import Reason, ResultCode
from kvstore.protocol.messages import Response, decode_response, encode_client_hello
from raft import FrameSplitter, Hello, decode_hello, encode_item, frame
from tests.process.guides.next_build import NEWER_MEMBERS, NEXT_LEVEL, NOTE_KIND, make_next_build
from tests.process.servers import Server, ServerCluster, hwm, in_build, running_cluster
from tests.process.test_server_kills import Ledger

pytestmark = [pytest.mark.process, pytest.mark.timeout(100)]

GUIDE = (Path(__file__).resolve().parents[3] / "docs" / "operations" / "guide.md").read_text(encoding="utf-8")
(UPGRADE_RECIPE,) = re.findall(r"```sh\n(.*?)```", GUIDE.partition("## Upgrade")[2], re.DOTALL)

WRITERS = 2


async def replaced(server: Server, build: Path | None) -> None:
    """Ask the server's process to end, and start the other build on its folder."""
    server.send_signal(signal.SIGTERM)
    assert await trio.to_thread.run_sync(server.wait) == 0, server.log.read_text()
    server.build = build
    server.start()
    assert await trio.to_thread.run_sync(server.wait_ready), server.log.read_text()


async def the_leader(client: Client) -> str:
    while True:
        if address := (await client.members()).leader_address:
            return address
        await trio.sleep(0.01)


async def note(client: Client) -> Response:
    """Send the leader the command that only the next build has, in the way in which the clients of the next build send
    it."""
    address = await the_leader(client)
    host, _, port = address.rpartition(":")
    splitter = FrameSplitter(1 << 20)
    bodies: list[bytes] = []
    async with await trio.open_tcp_stream(host, int(port)) as stream:
        await stream.send_all(frame(encode_client_hello()) + frame(encode_item([1, 2, [0, 0, 0, NOTE_KIND]])))
        while len(bodies) < 2:
            data = await stream.receive_some(1 << 16)
            assert data, "it hung up"
            bodies += splitter.feed(data)
    assert isinstance(decode_hello(bodies[0]), Hello)
    return decode_response(bodies[1])


async def is_not_taken(client: Client) -> None:
    """No matter which member leads, a command that the older build could not apply is refused before it gets into a
    log."""
    answer = await note(client)
    assert (answer.code, answer.fields[0]) == (ResultCode.INVALID_REQUEST, Reason.UNKNOWN_KIND)
    with pytest.raises(LevelRefused):
        await raise_feature_level(client, NEXT_LEVEL)


async def run(line: str, cluster: ServerCluster, build: Path) -> subprocess.CompletedProcess[bytes]:
    """Run a line of a recipe with the new build."""
    program, *words = line.split()
    assert program == "hwm"
    options = in_build(build)
    options["env"]["HWM_ENDPOINTS"] = ",".join(cluster.endpoints)
    return await trio.run_process(hwm(*words), capture_stdout=True, capture_stderr=True, **options)


async def levels(client: Client) -> dict[str, tuple[int, int]]:
    """For each member: the level in force, and the highest level that its build knows."""
    found = await client.cluster_status()
    return {
        node_id: (status.feature_level, status.feature_level_max)
        for node_id, status in found.items()
        if isinstance(status, MemberStatus)
    }


async def until_all_are_at(client: Client, level: int) -> None:
    while True:
        if set((await levels(client)).values()) == {(level, NEXT_LEVEL)}:
            return
        await trio.sleep(0.02)


async def upgraded_under_writes(cluster: ServerCluster, build: Path, client: Client, ledger: Ledger) -> None:
    _, s2, s3 = cluster.servers.values()
    await is_not_taken(client)
    await replaced(s2, build)
    await ledger.wait_for(10)
    await is_not_taken(client)

    await replaced(s2, None)  # The level is not raised yet, so every member can go back to the older build.
    await ledger.wait_for(10)
    assert {status[0] for status in (await levels(client)).values()} == {1}
    for server in (s2, s3):
        await replaced(server, build)
        await ledger.wait_for(10)

    look, raise_it = UPGRADE_RECIPE.splitlines()
    told = await run(look, cluster, build)
    assert told.stdout.count(b"1 (%d)" % NEXT_LEVEL) == 3
    assert b"every member knows feature level %d; `hwm upgrade`" % NEXT_LEVEL in told.stderr
    assert (await run(raise_it, cluster, build)).stdout == b"%d\n" % NEXT_LEVEL
    assert (await note(client)).code == 0
    await until_all_are_at(client, NEXT_LEVEL)
    await ledger.wait_for(10)


async def is_refused_from_now_on(server: Server, build: Path, client: Client, ledger: Ledger) -> None:
    """The older build stops when it reads the entry that raised the level, and reports the reason. Its data folder
    stays intact."""
    server.send_signal(signal.SIGTERM)
    await trio.to_thread.run_sync(server.wait)
    said_before = len(server.log.read_text())
    server.build = None
    server.start()
    code = await trio.to_thread.run_sync(server.wait)
    words = server.log.read_text()[said_before:]
    final = f"feature level {NEXT_LEVEL}, which is final; this build knows 1 to {NEXT_LEVEL - 1}"
    assert (code, final in words) == (6, True), words
    assert "Start this member with the build of the other members" in words
    await ledger.wait_for(10)

    server.build = build
    server.start()
    assert await trio.to_thread.run_sync(server.wait_ready), server.log.read_text()
    await until_all_are_at(client, NEXT_LEVEL)


def test_a_cluster_is_upgraded_member_by_member_under_writes(tmp_path: Path) -> None:
    """The upgrade loses no write. The new command is refused until every member knows it. After that, the older build
    is refused."""
    build = make_next_build(tmp_path / "next")

    async def main(cluster: ServerCluster) -> None:
        ledger = Ledger()
        with trio.fail_after(80):
            async with cluster.client() as client:
                async with trio.open_nursery() as nursery:
                    for writer in range(WRITERS):
                        nursery.start_soon(ledger.write_forever, client, writer)
                    await ledger.wait_for(20)
                    await upgraded_under_writes(cluster, build, client, ledger)
                    await is_refused_from_now_on(cluster.servers["s2"], build, client, ledger)
                    nursery.cancel_scope.cancel()
                await ledger.check(client)

    # The founders run two builds and agree on a level. Member s1 runs the new build from its first start.
    with running_cluster(tmp_path, 3, "--feature-level=1", builds={"s1": build}) as cluster:
        trio.run(main, cluster)


def test_a_member_that_is_sent_members_of_a_newer_form_ends_with_the_remedy_and_goes_on_as_that_build(
    tmp_path: Path,
) -> None:
    """The member ends completely instead of only closing the connection. The member stores nothing of the unknown form,
    so the newer build can start."""
    build = make_next_build(tmp_path / "next", NEWER_MEMBERS)

    async def main(cluster: ServerCluster) -> None:
        s2 = cluster.servers["s2"]
        with trio.fail_after(80):
            async with cluster.client() as client:
                code = await trio.to_thread.run_sync(s2.wait)
                words = s2.log.read_text()
                assert (code, "a member list of form 4; this build knows up to 3" in words) == (6, True), words
                assert "Start this member with the build of the other members" in words

                s2.build = build
                s2.start()
                assert await trio.to_thread.run_sync(s2.wait_ready), s2.log.read_text()
                await client.put(b"a", b"c")
                assert (await client.get(b"a")).record is not None

    options = {"s1": ("--lease-reads", "--election-priority", "9")}
    with running_cluster(tmp_path, 2, builds={"s1": build}, options=options) as cluster:
        trio.run(main, cluster)
