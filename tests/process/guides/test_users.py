"""The recipes of docs/operations/users.md, exactly as they are written there, with real processes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest
import trio

from kvstore import Client, LeaseLost, PermissionDenied, StoreError, Unauthenticated, UserRevoke, change_access
from tests.process.servers import ServerCluster, hwm, running_cluster
from tests.process.test_harness_run import wait_until

pytestmark = [pytest.mark.process, pytest.mark.timeout(100)]

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "operations" / "users.md").read_text(encoding="utf-8")
MAKE, USE, ENABLE, LIMIT, RESET = re.findall(r"^ *```sh\n(.*?)^ *```", PAGE, re.DOTALL | re.MULTILINE)


class Shell:
    """Runs recipes of the page in a folder with the files of passwords."""

    def __init__(self, folder: Path, cluster: ServerCluster) -> None:
        self._folder, self._environment = folder, os.environ | {"HWM_ENDPOINTS": ",".join(cluster.endpoints)}
        for name in ("root", "shop"):
            (folder / f"{name}.password").write_text(f"password of {name}\n")

    def run(self, recipe: str) -> subprocess.CompletedProcess[str]:
        script = f'hwm() {{ {" ".join(hwm())} "$@"; }}\n{recipe}'
        return subprocess.run(
            ["bash", "-e", "-c", script],
            cwd=self._folder, env=self._environment, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    def done(self, recipe: str) -> str:
        result = self.run(recipe)
        assert result.returncode == 0, result.stderr
        return result.stdout


async def write_on(client: Client, written: list[int], *, task_status: trio.TaskStatus[None]) -> None:
    """Write without a pause until cancelled. Every write must succeed."""
    while True:
        await client.put("shop/counter", str(len(written)))
        written.append(len(written))
        if len(written) == 5:
            task_status.started()


def test_authentication_is_turned_on_under_writes_and_a_lost_right_ends_what_it_gave(tmp_path: Path) -> None:
    with running_cluster(tmp_path, 3) as cluster:
        shell = Shell(tmp_path, cluster)
        shell.done(MAKE)

        async def work() -> None:
            written: list[int] = []
            async with (
                Client(cluster.endpoints, user="shop", password="password of shop") as shop,
                Client(cluster.endpoints, user="root", password="password of root") as root,
                Client(cluster.endpoints) as nobody,
                trio.open_nursery() as nursery,
            ):
                await nobody.put("shop/apples", "1")
                await nursery.start(write_on, shop, written)
                await trio.to_thread.run_sync(shell.done, USE)
                told = await trio.to_thread.run_sync(shell.done, ENABLE)
                assert "authentication on" in told
                assert "user root" in told
                await trio.to_thread.run_sync(shell.done, LIMIT)
                count = len(written)
                async with root.watch("shop/counter") as puts:
                    with trio.fail_after(20):
                        while len(written) < count + 20:
                            await anext(puts)
                nursery.cancel_scope.cancel()
            async with (
                Client(cluster.endpoints, user="shop", password="password of shop") as shop,
                Client(cluster.endpoints, user="root", password="password of root") as root,
                Client(cluster.endpoints) as nobody,
            ):
                with pytest.raises(Unauthenticated):
                    await nobody.put("shop/apples", "2")
                with pytest.raises(PermissionDenied):
                    await shop.put("prices", "2")
                await shop.get("prices")
                await lose_the_right(shop, root)

        trio.run(work)


async def lose_the_right(shop: Client, root: Client) -> None:
    """After the loss of the right, a watch ends within a second, and a leadership ends with its lease."""
    ends: list[StoreError] = []
    async with root.watch(prefix="shop/leader") as keys, trio.open_nursery() as nursery:
        leads = trio.Event()

        async def lead() -> None:
            try:
                async with shop.election("shop/leader", ttl_seconds=2) as election:
                    await election.campaign("shop")
                    leads.set()
                    await trio.sleep_forever()
            except StoreError as error:
                ends.append(error)

        nursery.start_soon(lead)
        with trio.fail_after(20):
            await leads.wait()
        assert (await anext(keys)).kind == "put"
        async with shop.watch(prefix="shop/a") as changes:
            await root.put("shop/a", "seen")
            assert (await anext(changes)).key == b"shop/a"
            await change_access(root, UserRevoke("shop", "shop"))
            await root.put("shop/a", "secret")
            with trio.fail_after(1), pytest.raises(PermissionDenied):
                await anext(changes)
        with trio.fail_after(20):
            while (await anext(keys)).kind != "delete":
                pass
    assert [type(error) for error in ends] == [LeaseLost]


def test_the_audit_trail_is_lines_of_json_with_their_times(tmp_path: Path) -> None:
    began = datetime.now(UTC)
    with running_cluster(tmp_path, 1, "--log-format", "json", "--log-level", "warning") as cluster:
        shell = Shell(tmp_path, cluster)
        shell.done(MAKE)
        shell.done(ENABLE)
        (tmp_path / "shop.password").write_text("a wrong password\n")
        refused = shell.run("hwm get shop/apples --user shop --password-file shop.password")
        assert (refused.returncode, "the password is wrong" in refused.stderr) == (3, True)
        shell.done("hwm role revoke shop prices --user root --password-file root.password")
        server = cluster.servers["s1"]
        server.send_signal(signal.SIGTERM)
        assert server.wait() == 0
        log = server.log.read_text(encoding="utf-8")
    ready, *lines, stopping = log.splitlines()  # These two lines are words in each format of the log.
    assert (ready[:5], stopping) == ("ready", "s1: stopping")
    trail = [event for event in map(json.loads, lines) if event["logger"] == "kvstore.audit"]
    times = [datetime.fromisoformat(event["time"]) for event in trail]

    assert began <= times[0]
    assert times == sorted(times)
    assert times[-1] <= datetime.now(UTC)
    assert {(event["node_id"], event["level"]) for event in trail} == {("s1", "warning")}
    told = [(event["event"], event["fields"]["user"], event["fields"].get("what", "")) for event in trail]
    assert told[0] == ("access_changed", "", "UserAdd(name='root')")
    enabled = told.index(("access_changed", "", "AuthEnable()"))
    assert [each[:2] for each in told[enabled + 1 :]] == [("password_refused", "shop"), ("access_changed", "root")]
    assert told[-1][2].startswith("RoleRevoke(")
    assert trail[-2]["fields"]["origin"] == "127.0.0.1"
    assert not [secret for secret in ("password of root", "password of shop", "a wrong password") if secret in log]


def test_a_lost_password_of_root_is_replaced(tmp_path: Path) -> None:
    with running_cluster(tmp_path, 3) as cluster:
        shell = Shell(tmp_path, cluster)
        shell.done(MAKE)
        shell.done(ENABLE)
        (tmp_path / "root.password").write_text("a new password\n")
        refused = shell.run("hwm auth status --user root --password-file root.password")
        assert (refused.returncode, "the password is wrong" in refused.stderr) == (3, True)
        (line,) = RESET.strip().splitlines()
        words = line.split()
        assert words[:5] == ["hwm", "serve", "data/$ID", "--node-id", "$ID"]
        server = cluster.servers["s2"]
        server.send_signal(signal.SIGTERM)
        assert server.wait() == 0
        server.arguments = [
            *server.arguments,
            *(str(tmp_path / word) if word == "root.password" else word for word in words[5:]),
            "--log-level=warning",
        ]
        server.start()
        assert server.wait_ready()
        status = "hwm auth status --user root --password-file root.password"
        wait_until(lambda: shell.run(status).returncode == 0)
        assert "user root" in shell.done(status)
        assert "root has the password of --reset-root-password" in server.log.read_text(encoding="utf-8")
