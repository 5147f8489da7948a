"""Watches over real servers: they move from member to member, and `hwm watch` prints the changes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from functools import partial
from pathlib import Path

import pytest
import trio

from kvstore import Client
from kvstore.protocol.watches import Change
from tests.process.servers import hwm, running_cluster
from tests.process.test_server_kills import Ledger, leader_of

pytestmark = [pytest.mark.process, pytest.mark.timeout(100)]

KILLS = 2


async def follow(client: Client, seen: list[Change], *, initial: bool) -> None:
    """Watch everything until the key `last` is written."""
    async with client.watch(initial=initial) as watch:
        async for change in watch:
            seen.append(change)
            if change.key == b"last":
                return


async def test_watches_go_on_without_gap_or_repeat_while_leaders_are_killed(tmp_path: Path) -> None:
    """The watch gets every revision of the store once, in order. So it gets every acknowledged write."""
    ledger = Ledger()
    plain, listing = list[list[Change]]([[], []]), list[list[Change]]([[], []])
    with running_cluster(tmp_path, 3) as cluster, trio.fail_after(80):
        async with cluster.client() as client, cluster.client() as other:
            await client.put("first", "1")
            async with trio.open_nursery() as nursery:
                for place, watcher in enumerate((client, other)):
                    nursery.start_soon(partial(follow, watcher, plain[place], initial=False))
                    nursery.start_soon(partial(follow, watcher, listing[place], initial=True))
                async with trio.open_nursery() as writers:
                    for writer in range(4):
                        writers.start_soon(ledger.write_forever, client, writer)
                    await ledger.wait_for(50)
                    for _ in range(KILLS):
                        leader = cluster.servers[await leader_of(client)]
                        leader.kill()
                        await ledger.wait_for(100)
                        leader.start()
                        await trio.to_thread.run_sync(leader.wait_ready)
                    writers.cancel_scope.cancel()
                last = (await client.put("last", "1")).revision

    for seen in plain:
        assert [change.revision for change in seen] == list(range(seen[0].revision, last + 1))
    for seen in listing:
        listed = seen[0].revision
        following = [change.revision for change in seen if change.revision != listed]
        assert following == list(range(listed + 1, last + 1))
        assert {change.key for change in seen} >= {b"first", *ledger.acknowledged}
        assert len({change.key for change in seen}) == len(seen), "no write came twice"


def test_the_command_prints_changes_and_says_where_to_go_on_when_it_is_interrupted(tmp_path: Path) -> None:
    with running_cluster(tmp_path, 1) as cluster:
        environment = {**os.environ, "HWM_ENDPOINTS": ",".join(cluster.endpoints)}

        def run(*arguments: str) -> None:
            subprocess.run(hwm(*arguments), env=environment, check=True, timeout=30, capture_output=True)

        run("upgrade")
        run("put", "a", "1")
        watch = subprocess.Popen(
            hwm("watch", "--prefix", "a", "--initial", "--previous"),
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            assert watch.stdout is not None
            lines = [json.loads(watch.stdout.readline())]
            run("put", "a", "2")
            run("del", "a")
            lines += [json.loads(watch.stdout.readline()) for _ in range(2)]
            watch.send_signal(signal.SIGINT)
            _, messages = watch.communicate(timeout=30)
        finally:
            watch.kill()
            watch.wait()

    assert [(line["op"], line["key"], line["revision"], line.get("value")) for line in lines] == [
        ("put", "a", 2, "1"), ("put", "a", 3, "2"), ("delete", "a", 4, None),
    ]  # fmt: skip
    assert lines[2]["previous"]["value"] == "2"
    assert watch.returncode == 0
    assert "watched up to revision 4; --from-revision 5 goes on there" in messages
