"""A cluster of real processes is saved while clients write, and is killed. A new cluster is restored from the
backup."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import trio

from kvstore import Client, StoreError, open_node
from tests.process.servers import Server, hwm, running_cluster
from tests.process.test_server_kills import WRITERS, Ledger

pytestmark = [pytest.mark.process, pytest.mark.timeout(100)]


ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "docs" / "operations" / "guide.md").read_text(encoding="utf-8")


def ended(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(hwm(*arguments), capture_output=True, text=True, timeout=50, check=False)


def run(*arguments: str | Path) -> str:
    done = ended(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


async def everything(client: Client) -> dict[bytes, bytes]:
    found = {}
    async for item in client.items():
        assert item.value is not None, item
        found[item.key] = item.value
    return found


@pytest.mark.parametrize("who", [pytest.param("leader", marks=pytest.mark.slow), "follower"])
async def test_all_that_was_acknowledged_before_a_save_is_in_the_restored_cluster(tmp_path: Path, who: str) -> None:
    """The new members have the addresses of the old members. If an old member is started again, it is refused."""
    ledger, file = Ledger(), tmp_path / "backup"
    with trio.fail_after(90), running_cluster(tmp_path, 3) as old:
        async with old.client() as client:
            async with trio.open_nursery() as nursery:
                for writer in range(WRITERS):
                    nursery.start_soon(ledger.write_forever, client, writer)
                await ledger.wait_for(200)
                leader_id = (await client.members()).leader_id
                follower_id = next(node_id for node_id in old.servers if node_id != leader_id)
                before = dict(ledger.acknowledged)
                choice = ["--member", follower_id] if who == "follower" else []
                save: tuple[str | Path, ...] = (
                    "snapshot",
                    "save",
                    file,
                    "--endpoints",
                    ",".join(old.endpoints),
                    *choice,
                )
                await trio.to_thread.run_sync(partial(run, *save))
                await ledger.wait_for(50)
                nursery.cancel_scope.cancel()
            later = dict(ledger.acknowledged)
        old.kill_all()

        members = [each for each in old.servers["s1"].arguments if each.startswith("--member=")]
        new = {node_id: Server(tmp_path / f"new-{node_id}", node_id, []) for node_id in old.servers}
        for node_id, server in new.items():
            options = ("--node-id", node_id, "--cluster-token", "after the fire", *members)
            await trio.to_thread.run_sync(partial(run, "snapshot", "restore", file, server.folder, *options))
        stranger = old.servers["s3"]
        try:
            for server in (new["s1"], new["s2"], stranger):
                server.start()
            assert all(server.wait_ready() for server in (new["s1"], new["s2"], stranger))
            async with Client(old.endpoints[:2], deadline_seconds=20.0) as client:
                await client.put("new", "life")
                found = await everything(client)
                assert {key: found.get(key) for key in before} == before
                known = later | ledger.unknown | {b"new": b"life"}
                assert {key: known.get(key) for key in found} == found
                peers = (await client.cluster_status())["s3"]
                assert isinstance(peers, StoreError), "an old member answered as if it were of the new cluster"
            async with Client(old.endpoints[2:], deadline_seconds=20.0) as client:
                assert (await client.members()).leader_id is None

            stranger.kill()
            new["s3"].start()
            assert new["s3"].wait_ready()
            new["s1"].kill()
            async with Client(old.endpoints, deadline_seconds=20.0) as client:
                await client.put("new", "majority")
                assert await everything(client) == found | {b"new": b"majority"}
        finally:
            for server in new.values():
                server.kill()
    for server in new.values():
        run("check", server.folder)


async def applied_everywhere(client: Client, revision: int) -> None:
    """Wait until all members have applied the revision. A follower learns of a commit later than the client that
    wrote."""
    while True:
        found = (await client.cluster_status()).values()
        if all(not isinstance(each, StoreError) and each.revision >= revision for each in found):
            return
        await trio.sleep(0.02)


async def test_the_last_member_that_is_left_gives_all_that_it_has_applied(tmp_path: Path) -> None:
    """The member must not send the old snapshot on its disk. In this test that snapshot contains an empty store."""
    file, keys = tmp_path / "backup", [f"key{number}" for number in range(5)]
    with trio.fail_after(90), running_cluster(tmp_path, 3) as old:
        async with old.client() as client:
            for key in keys:
                revision = (await client.put(key, "v")).revision
            await applied_everywhere(client, revision)
        old.servers["s1"].kill()
        old.servers["s2"].kill()
        endpoints = ("--endpoints", ",".join(old.endpoints))
        refused = await trio.to_thread.run_sync(
            partial(ended, "snapshot", "save", file, "--member", "s3", "--deadline", "1", *endpoints)
        )
        assert (refused.returncode, "--existing --member" in refused.stderr) == (5, True), refused.stderr
        saved = await trio.to_thread.run_sync(
            partial(ended, "snapshot", "save", file, "--existing", "--member", "s3", *endpoints)
        )
        assert (saved.returncode, f"revision {revision}, 5 keys" in saved.stdout) == (0, True), saved
        assert "not in this file if s3 did not know that they were committed" in saved.stderr
        members = [each for each in old.servers["s1"].arguments if each.startswith("--member=")]
        old.kill_all()

        new = {node_id: Server(tmp_path / f"new-{node_id}", node_id, []) for node_id in old.servers}
        for node_id, server in new.items():
            options = ("--node-id", node_id, "--cluster-token", "after the fire", *members)
            await trio.to_thread.run_sync(partial(run, "snapshot", "restore", file, server.folder, *options))
        try:
            for server in new.values():
                server.start()
            assert all(server.wait_ready() for server in new.values())
            async with old.client() as client:
                assert await everything(client) == {key.encode(): b"v" for key in keys}
        finally:
            for server in new.values():
                server.kill()


def in_a_shell(lines: str, folder: Path, endpoint: str = "") -> None:
    """Run these lines in a shell, unchanged. The command `hwm` is that of this interpreter."""
    shim = folder / "bin" / "hwm"
    shim.parent.mkdir(exist_ok=True)
    shim.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m kvstore.cli.main "$@"\n')
    shim.chmod(0o755)
    path = f"{shim.parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "HWM_ENDPOINTS": endpoint}
    command = ["/bin/sh", "-e", "-c", lines]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def value_served_by(line: str, folder: Path) -> str:
    """Start a member with this line, but on a free port. Return the value of `key`."""
    words = line.replace(":7101", ":0").split()
    assert words[0] == "hwm"
    with subprocess.Popen(hwm(*words[1:]), cwd=folder, stderr=subprocess.PIPE, text=True) as member:
        try:
            assert member.stderr is not None
            ready = re.match("ready node=s1 client=(.*) peer=", member.stderr.readline())
            assert ready
            return run("get", "key", "--endpoints", ready[1])
        finally:
            member.terminate()


async def test_the_recipes_of_the_guide_run_as_they_are_written(tmp_path: Path) -> None:
    """The test runs these commands of docs/operations/guide.md. It changes only the port of `serve`."""
    save, export, line, check, alone, several, *_ = re.findall(
        r"```sh\n(.*?)```", GUIDE, re.DOTALL
    )  # test_upgrade.py tests the last recipe.
    async with open_node(tmp_path / "data", bootstrap=True, listen_client="127.0.0.1:0") as store:
        await store.put("key", "value")
        await trio.to_thread.run_sync(in_a_shell, save, tmp_path, store.client_address)
        await trio.to_thread.run_sync(in_a_shell, export, tmp_path, store.client_address)
        await trio.to_thread.run_sync(in_a_shell, line, tmp_path, store.client_address)
        colour = await store.get("config/colour")
        assert colour.record is not None
        assert colour.record.value == b"green"
    in_a_shell(check, tmp_path)

    restore, serve = alone.splitlines()
    in_a_shell(restore, tmp_path)
    assert await trio.to_thread.run_sync(value_served_by, serve, tmp_path) == "value\n"

    in_a_shell(several, tmp_path)
    for node_id in ("s1", "s2", "s3"):
        assert f"member {node_id} of cluster" in run("check", tmp_path / f"restored-{node_id}")


def test_a_backup_can_go_through_a_pipe(tmp_path: Path) -> None:
    """`hwm snapshot save - | ssh … 'cat > file'`: the backup is verified before its first byte is written. Messages go
    to stderr."""
    with running_cluster(tmp_path, 1) as cluster:
        endpoint = ["--endpoints", cluster.endpoints[0]]
        for name in ("put", "put"):
            subprocess.run(hwm(name, "a", "b", *endpoint), check=True, capture_output=True, timeout=40)
        saved = subprocess.run(hwm("snapshot", "save", "-", *endpoint), check=True, capture_output=True, timeout=40)
        with Path("/dev/full").open("wb") as full:
            lost = subprocess.run(hwm("snapshot", "save", "-", *endpoint), stdout=full, timeout=40, check=False)
        both = subprocess.run(
            hwm("snapshot", "save", "-", "--json", *endpoint), capture_output=True, timeout=40, check=False
        )
    status, restored = (
        subprocess.run(hwm(*words), input=saved.stdout, capture_output=True, timeout=40, check=True)
        for words in (("snapshot", "status", "-", "--json"), ("snapshot", "restore", "-", tmp_path / "restored"))
    )

    assert b"1 keys" in saved.stderr
    assert (lost.returncode, both.returncode, both.stdout) == (74, 2, b"")
    found = json.loads(status.stdout)
    assert (found["file"], found["keys"], found["size_bytes"]) == ("-", 1, len(saved.stdout))
    assert b"1 keys" in restored.stderr
    assert not Path("-").exists()


def test_standard_output_by_its_name_gets_the_backup_and_no_word(tmp_path: Path) -> None:
    """A message on stdout would come after the backup, or overwrite its beginning if stdout is a file."""
    names = ["/dev/stdout", "/dev/fd/1"]
    with running_cluster(tmp_path, 1) as cluster:
        endpoint = ("--endpoints", cluster.endpoints[0])
        for number, name in enumerate(names):
            with (tmp_path / f"saved{number}").open("wb") as file:
                save = hwm("snapshot", "save", name, *endpoint)
                done = subprocess.run(save, stdout=file, stderr=subprocess.PIPE, text=True, timeout=40, check=True)
            assert done.stderr.startswith("standard output: revision ")
        piped = subprocess.run(
            hwm("snapshot", "save", names[0], *endpoint), capture_output=True, timeout=40, check=True
        )
        both = ended("snapshot", "save", "--json", names[0], *endpoint)
    (tmp_path / "piped").write_bytes(piped.stdout)
    for name in ("saved0", "saved1", "piped"):
        assert run("snapshot", "status", tmp_path / name).endswith("sound: every checksum and every row\n")
    assert (both.returncode, both.stdout) == (2, "")


def test_a_pipe_that_nobody_writes_to_is_no_saved_file(tmp_path: Path) -> None:
    """If the commands opened the pipe, they would wait forever."""
    os.mkfifo(tmp_path / "pipe")
    pipe, made = str(tmp_path / "pipe"), str(tmp_path / "made")
    for words, code in ((["status", pipe], 2), (["restore", pipe, made], 3)):
        done = subprocess.run(hwm("snapshot", *words), capture_output=True, text=True, timeout=40, check=False)

        assert (done.returncode, "this is a pipe" in done.stderr) == (code, True), done.stderr
