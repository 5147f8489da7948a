"""Leases and locks of real processes. Holders are killed, stopped, or informed that they lost the lock. Leaders are
killed."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
import trio

from kvstore import Client
from kvstore.cli.common import ExitCode
from kvstore.recipes.lease_term import LeaseTerm
from tests.process.servers import ServerCluster, hwm, running_cluster

pytestmark = [pytest.mark.process, pytest.mark.timeout(100)]

PATIENCE_SECONDS = 60.0
"""If something does not happen within this time, a test fails instead of hanging."""


class Holder:
    """A process `hwm lock NAME -- sh -c SCRIPT`. The script writes a file when it begins."""

    def __init__(self, folder: Path, cluster: ServerCluster, script: str, *options: str) -> None:
        self.begun = folder / "begun"
        self.has_ended = False
        self.process = subprocess.Popen(
            hwm("lock", "job", *options, "--", "sh", "-c", f'echo "$HWM_LOCK_FENCE $$" > {self.begun}.new; '
                f"mv {self.begun}.new {self.begun}; {script}"),
            env={**os.environ, "HWM_ENDPOINTS": ",".join(cluster.endpoints)},
            stderr=subprocess.PIPE,
        )  # fmt: skip

    async def holds(self) -> tuple[int, int]:
        """Wait until the script runs. Returns the fence, and the process id of the script."""
        with trio.fail_after(PATIENCE_SECONDS):
            while not self.begun.exists():
                assert self.process.poll() is None, self.process.communicate()
                await trio.sleep(0.01)
        fence, pid = self.begun.read_text().split()
        return int(fence), int(pid)

    async def ends(self) -> tuple[int, str]:
        """Wait until `hwm` has ended. Returns its exit code and its stderr."""
        with trio.fail_after(PATIENCE_SECONDS):
            _, err = await trio.to_thread.run_sync(self.process.communicate, abandon_on_cancel=True)
        self.has_ended = True
        return self.process.returncode, err.decode()

    def kill(self, pid: int) -> None:
        """Kill `hwm` and the script in any state."""
        if is_running(pid):
            os.kill(pid, signal.SIGKILL)
        if not self.has_ended:
            self.process.kill()
            self.process.communicate()


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_lock_of_a_killed_process_goes_to_the_one_who_waits(tmp_path: Path) -> None:
    """When the lease's time to live has passed, the waiting process gets the lock, with a greater fence."""

    async def main() -> None:
        async with cluster.client() as client:
            holder = Holder(tmp_path, cluster, "exec sleep 1000", "--ttl", "2")
            fence, pid = await holder.holds()
            try:
                obtained = trio.Event()

                async def wait() -> None:
                    async with client.lock("job", ttl_seconds=30) as lock:
                        assert lock.fence > fence
                        obtained.set()

                async with trio.open_nursery() as nursery:
                    nursery.start_soon(wait)
                    await trio.sleep(4)  # The holder keeps its lease alive for twice its time to live.
                    assert not obtained.is_set()
                    holder.process.kill()
                    with trio.fail_after(PATIENCE_SECONDS):
                        await obtained.wait()
            finally:
                holder.kill(pid)

    with running_cluster(tmp_path, 1) as cluster:
        trio.run(main)


def test_the_command_under_a_lock_ends_when_the_lock_is_lost(tmp_path: Path) -> None:
    """An operator revokes the lease. The exit code means that the command may have done its work."""

    async def main() -> None:
        async with cluster.client() as client:
            holder = Holder(tmp_path, cluster, "exec sleep 1000", "--ttl", "3")
            _, pid = await holder.holds()
            try:
                (lease,) = (await client.leases()).items
                await client.lease_revoke(lease.lease_id)
                code, err = await holder.ends()
                assert code == ExitCode.UNKNOWN
                assert f"error: lock b'job' is lost, with its lease {lease.lease_id}: " in err
                assert not is_running(pid)
            finally:
                holder.kill(pid)

    with running_cluster(tmp_path, 1) as cluster:
        trio.run(main)


def test_the_exit_code_is_that_of_the_command_and_a_signal_ends_it(tmp_path: Path) -> None:
    """The lock becomes free as soon as the command ends, by itself or by a signal."""

    async def main() -> None:
        async with cluster.client() as client:
            holder = Holder(tmp_path, cluster, "exit 7")
            await holder.holds()
            assert (await holder.ends())[0] == 7
            holder.begun.unlink()
            holder = Holder(tmp_path, cluster, "exec sleep 1000")
            _, pid = await holder.holds()
            try:
                holder.process.send_signal(signal.SIGTERM)
                assert (await holder.ends())[0] == 128 + signal.SIGTERM
                assert not is_running(pid)
                async with client.lock("job", wait_seconds=0):
                    pass
            finally:
                holder.kill(pid)

    with running_cluster(tmp_path, 1) as cluster:
        trio.run(main)


async def leader_of(client: Client) -> str:
    view = await client.members()
    assert view.leader_id is not None
    return view.leader_id


def test_a_lease_outlives_its_leader_and_its_owner_keeps_it(tmp_path: Path) -> None:
    """The leader is killed twice. The client holds a lock with a time to live of 5 s all the time, and releases the
    lock at the end of its block."""

    async def main() -> None:
        async with cluster.client() as client, client.lock("x", ttl_seconds=5) as lock:
            for _ in range(2):
                leader_id = await leader_of(client)
                cluster.servers[leader_id].kill()
                await trio.sleep(3)
                lock.check()
                await lock.guarded().put("a", leader_id).commit()
                cluster.servers[leader_id].start()
                assert await trio.to_thread.run_sync(cluster.servers[leader_id].wait_ready)
            await trio.sleep(3)
            lock.check()
        async with cluster.client() as client:
            assert (await client.range(prefix="x/")).count == 0

    with running_cluster(tmp_path, 3) as cluster:
        trio.run(main)


def test_a_lease_never_ends_before_its_owner_may_believe_it_across_a_leader_kill(tmp_path: Path) -> None:
    """No client renews the lease, and the leader is killed several times. The key is deleted late, but never early."""

    async def main() -> None:
        async with cluster.client() as client:
            for moment in (0.0, 1.0, 1.9):
                sent_at = trio.current_time()
                lease = await client.lease_grant(2)
                written = await client.put("a", "1", lease=lease.lease_id)
                term = LeaseTerm(2, sent_at)
                async with client.watch("a", from_revision=written.revision + 1) as changes:
                    await trio.sleep_until(sent_at + moment)
                    leader_id = await leader_of(client)
                    cluster.servers[leader_id].kill()
                    with trio.fail_after(PATIENCE_SECONDS):
                        change = await anext(aiter(changes))
                    assert change.kind == "delete"
                    assert trio.current_time() >= term.expires_at
                cluster.servers[leader_id].start()
                assert await trio.to_thread.run_sync(cluster.servers[leader_id].wait_ready)

    with running_cluster(tmp_path, 3) as cluster:
        trio.run(main)


def test_candidates_of_an_election_lead_one_after_the_other(tmp_path: Path) -> None:
    """Each `hwm elect` prints its fence when it is elected. A listener sees both fences."""

    def start(*arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            hwm("elect", "boss", *arguments),
            env={**os.environ, "HWM_ENDPOINTS": cluster.endpoints[0]},
            stdout=subprocess.PIPE,
            text=True,
        )

    def line_of(process: subprocess.Popen[str]) -> list[str]:
        assert process.stdout is not None
        return process.stdout.readline().rstrip("\n").split("\t")

    with running_cluster(tmp_path, 1) as cluster:
        processes: list[subprocess.Popen[str]] = []
        try:
            listener, first = start("--listen"), start("a")
            processes += [listener, first]
            key, fence = line_of(first)
            assert line_of(listener) == [key, fence, "a"]
            second = start("b", "--ttl", "5")
            processes.append(second)
            first.send_signal(signal.SIGINT)
            assert first.wait(PATIENCE_SECONDS) == 130
            next_key, next_fence = line_of(second)
            assert int(next_fence) > int(fence)
            assert line_of(listener) == [next_key, next_fence, "b"]
        finally:
            for process in processes:
                process.kill()
                process.communicate()
