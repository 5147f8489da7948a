"""A short real run with three processes, a killed leader, and a history that passes the local audit."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
from rich.console import Console

from harness.cluster.cluster import running_cluster
from harness.cluster.member_options import MemberOptions
from harness.errors import NodeDied
from harness.nemesis.injection import Nemesis
from harness.nemesis.schedule import Kind, PlannedFault
from harness.recording.clock import RunClock
from harness.recording.corrupt_history import find_stale, make_stale
from harness.recording.history import RunWriter, close_unfinished_run, read_about, read_events, read_rows
from harness.runs.failover import measure_failover
from harness.runs.rolling_restart import measure_rolling
from harness.runs.run import Progress, record_run
from harness.runs.settings import RunSettings
from harness.runs.signals import first_harness_error
from harness.workload.levels import LevelShares
from harness.workload.service_shares import ServiceShares
from kvstore import Client
from spark_audit import check_rows
from spark_audit.testing.levels import LEVEL_FAULT_PROPERTIES, inject_level
from tests.harness.support.volumes import trouble_with_ext4

pytestmark = pytest.mark.process


def against_the_leader(number: int, at: float, kind: Kind) -> PlannedFault:
    return PlannedFault(
        number=number,
        start_seconds=at,
        duration_seconds=1.2,
        kind=kind,
        target="leader",
        direction=None,
        pick=1,
    )


def the_rows(folder: Path) -> list[dict[str, Any]]:
    return list(read_rows(folder))


@pytest.mark.timeout(60)
async def test_a_run_with_a_killed_leader_ends_healed_and_linearizable(tmp_path: Path) -> None:
    """`kill -9` of the leader loses no acknowledged write."""
    settings = RunSettings(
        out=tmp_path / "run",
        nodes=3,
        seconds=5,
        seed=7,
        plan=(against_the_leader(1, 1.5, "kill"),),
        clients=10,
        keys=12,
        operations_per_second=400,
    )
    with trio.fail_after(50):
        report = await record_run(Progress(settings))

    assert report.sound, report
    assert report.leader_changes >= 1
    assert report.final_reads == 12
    assert report.exit_codes == {"n1": 0, "n2": 0, "n3": 0}
    assert report.faults[0].unavailable_seconds is not None
    assert report.by_status["ok"] > 500
    assert set(report.by_operation) == {"put", "get", "delete", "cas", "range", "txn"}
    reads = {row["consistency"] for row in the_rows(settings.out) if row["op"] == "get" and row["status"] == "ok"}
    assert reads == {"linearizable", "lease", "follower", "bounded", "local"}
    kinds = [event["kind"] for event in read_events(settings.out)]
    assert {"fault_started", "fault_stopped", "leader_changed", "healed", "state_hashes"} <= set(kinds)
    assert check_rows(the_rows(settings.out)).exit_code == 0

    make_stale(settings.out, tmp_path / "lie")
    assert find_stale(the_rows(settings.out)) is not None
    assert check_rows(the_rows(tmp_path / "lie")).exit_code == 3
    assert not processes_of(settings.out)


@pytest.mark.timeout(90)
@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not on PATH")
async def test_a_run_with_tls_survives_kills_partitions_and_new_members(tmp_path: Path) -> None:
    """All connections are encrypted, also those through the proxies. The history is linearizable."""
    settings = RunSettings(
        out=tmp_path / "run",
        nodes=3,
        seconds=8,
        seed=7,
        plan=(
            against_the_leader(1, 0.5, "kill"),
            replace(against_the_leader(2, 3.0, "partition"), direction="both"),
            replace(against_the_leader(3, 5.5, "replace"), target="eldest"),
        ),
        clients=8,
        keys=12,
        operations_per_second=200,
        services=ServiceShares(watches=1, leases=1),
        tls=True,
    )
    with trio.fail_after(80):
        report = await record_run(Progress(settings))

    assert report.sound, report
    assert report.kills == 1
    assert report.final_reads == 12
    assert report.by_status["ok"] > 300
    assert read_about(settings.out)["tls"] is True
    verdict = check_rows(the_rows(settings.out))
    assert verdict.exit_code == 0, verdict.to_json()
    assert {path.name for path in (settings.out / "tls").glob("n*.pem")} == {"n1.pem", "n2.pem", "n3.pem", "n4.pem"}
    for log in (settings.out / "nodes").glob("*.log"):
        assert "without TLS" not in log.read_text(encoding="utf-8"), log


@pytest.mark.timeout(90)
async def test_a_run_with_levels_and_a_killed_leader_is_linearizable_and_its_answers_are_true(tmp_path: Path) -> None:
    """A watch of all keys settles the unknown writes. A history that contradicts the answers is refused."""
    settings = RunSettings(
        out=tmp_path / "run",
        nodes=3,
        seconds=5,
        seed=7,
        plan=(against_the_leader(1, 1.5, "kill"),),
        clients=10,
        keys=48,
        operations_per_second=200,
        levels=LevelShares(none=0.05, leader=0.2, in_sync=0.2),
        services=ServiceShares(watches=1),
        small_storage=False,
    )
    with trio.fail_after(80):
        report = await record_run(Progress(settings))

    assert report.sound, report
    assert report.writes_by_level["leader"]["ok"] == report.writes_by_level["none"]["ok"] == 0
    assert report.writes_by_level["leader"]["unknown"] > 20
    assert report.writes_by_level["in_sync"]["ok"] > 20
    assert report.outcomes["committed"] > 20
    rows, limit = the_rows(settings.out), settings.min_in_sync
    assert {len(row["acknowledged_by"]) for row in rows if row.get("acknowledged_by")} <= {2, 3}
    verdict = check_rows(rows, min_in_sync=limit)
    assert verdict.exit_code == 0, verdict.to_json()
    assert verdict.settled > 0
    for fault in ("lost_but_seen", "two_outcomes", "too_few_copies"):
        wrong, _ = inject_level(rows, fault, 7)
        found = {one.property for one in check_rows(wrong, min_in_sync=limit).violations}
        assert LEVEL_FAULT_PROPERTIES[fault] in found, fault


@pytest.mark.slow
@pytest.mark.timeout(90)
@pytest.mark.parametrize("pipelined", [{"in_flight": 16}, {"bulk": 64}], ids=["lanes", "bulks"])
async def test_a_run_under_full_load_with_a_killed_leader_is_linearizable(
    tmp_path: Path, pipelined: dict[str, int]
) -> None:
    """Clients send without waiting for answers, so a hundred times as many requests are open at the kill of the
    leader."""
    settings = RunSettings(
        out=tmp_path / "run",
        nodes=3,
        seconds=3.5,
        plan=(against_the_leader(1, 1.5, "kill"),),
        clients=4,
        keys=100,
        small_storage=False,
        **pipelined,  # type: ignore[arg-type]
    )
    with trio.fail_after(80):
        report = await record_run(Progress(settings))

    assert report.sound, report
    assert report.kills == 1
    assert report.final_reads == 100
    assert check_rows(the_rows(settings.out)).exit_code == 0


@pytest.mark.timeout(60)
async def test_a_member_whose_clock_jumps_goes_on_and_one_whose_log_fails_once_ends_itself(tmp_path: Path) -> None:
    """The member with the failed write ends with exit code 6 (docs/operations/guide.md). No acknowledged write is lost,
    because only one disk had a failed write."""
    kinds: tuple[Kind, ...] = ("clock-jump", "write-error")
    plan = tuple(
        replace(against_the_leader(number, 0.0, kind), target="random", duration_seconds=0.2)
        for number, kind in enumerate(kinds, start=1)
    )
    writer = RunWriter(tmp_path / "run", run_id="r", clock=RunClock(), ops_format="jsonl", about={})
    acknowledged = 0
    with trio.fail_after(50):
        async with (
            running_cluster(
                tmp_path / "nodes", nodes=1, proxied=False, member_options=MemberOptions(tampered=True)
            ) as cluster,
            Client(cluster.endpoints) as client,
        ):

            async def write() -> None:
                nonlocal acknowledged
                while True:
                    acknowledged = int((await client.put("k", str(acknowledged + 1))).revision)

            nemesis = Nemesis(cluster, writer, plan)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(write)
                await nemesis.run()
                nursery.cancel_scope.cancel()
            assert (await client.get("k", deadline_seconds=30)).revision >= acknowledged > 1
    writer.close()
    jumped, failed = nemesis.records
    assert list(jumped.outcome) == ["jumped_ahead_seconds"]
    assert failed.outcome["exit_codes"] == {"n1": 6}
    assert "finding" not in failed.outcome


@pytest.fixture
def _ext4(tmp_path: Path) -> None:
    """Skip the test here, outside of trio, because the exception groups of trio lose the reason for a skip."""
    trouble = trouble_with_ext4(tmp_path / "probe")
    if trouble:
        pytest.skip(f"no ext4 can be mounted here: {trouble}")


@pytest.mark.timeout(60)
@pytest.mark.usefixtures("_ext4")
async def test_a_member_whose_disk_fails_ends_itself_although_no_client_writes(tmp_path: Path) -> None:
    """A disk fails only when it is used. So the harness makes the member write an entry that is in no history."""
    failing = replace(against_the_leader(1, 0.0, "disk-error"), duration_seconds=0.1)
    writer = RunWriter(tmp_path / "run", run_id="r", clock=RunClock(), ops_format="jsonl", about={})
    with trio.fail_after(50):
        async with running_cluster(
            tmp_path / "nodes", nodes=1, proxied=False, member_options=MemberOptions(file_system="ext4")
        ) as cluster:
            nemesis = Nemesis(cluster, writer, (failing,))
            await nemesis.run()
            async with Client(cluster.endpoints) as client:
                # This is the store's first write.
                assert (await client.put("k", "1", deadline_seconds=30)).revision == 2
    writer.close()
    assert nemesis.records[0].outcome == {"exit_codes": {"n1": 6}}


@pytest.mark.timeout(120)
def test_all_faults_that_this_machine_can_make_are_survived_while_members_come_and_go(tmp_path: Path) -> None:
    """This run is the long run of docs/reference/harness.md, shortened to seconds, with its history in Parquet.

    On a Linux machine with every fault, the plan of this seed cuts the leader's power while a member is replaced. It
    also restarts, pauses and partitions the leader, and adds and removes members. On other systems the plan differs,
    and the run must pass, too.
    """
    options = ["--faults", "all", "--seed", "2311", "--seconds", "8", "--fault-every", "0.5", "--nodes", "3"]
    load = ["--clients", "10", "--keys", "12", "--rate", "250", "--format", "parquet"]
    command = [
        sys.executable,
        "-P",
        "-m",
        "harness.cli",
        "run",
        *options,
        *load,
        "--out",
        str(tmp_path / "run"),
        "--json",
    ]
    done = subprocess.run([*command, *options, *load], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)

    assert report["sound"]
    assert len(report["founders_left"]) < 3
    told = {each["fault"] for each in report["unavailability"]}
    assert "replace" in told
    assert told & {"kill", "pause", "partition", "restart", "transfer"}
    assert not told & set(report["unavailable_faults"])
    assert check_rows(the_rows(tmp_path / "run")).exit_code == 0
    assert not processes_of(tmp_path / "run")
    assert str(tmp_path) not in Path("/proc/self/mounts").read_text()


@pytest.mark.timeout(60)
async def test_a_member_that_ends_by_itself_ends_the_run_and_is_named(tmp_path: Path) -> None:
    """No fault of the plan ended this member, so the end of the member is a finding. The rows that were recorded before
    stay readable."""
    progress = Progress(RunSettings(out=tmp_path / "run", nodes=3, seconds=20, clients=10))

    async def kill_one_behind_its_back() -> None:
        while progress.workload is None or progress.workload.tally.total < 50:
            await trio.lowlevel.checkpoint()
        assert progress.cluster is not None
        os.kill(progress.cluster.members["n2"].pid, signal.SIGKILL)

    async def run_and_kill() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(kill_one_behind_its_back)
            await record_run(progress)

    with trio.fail_after(40), pytest.raises(ExceptionGroup) as group:
        await run_and_kill()

    died = first_harness_error(group.value)
    assert isinstance(died, NodeDied)
    assert (died.node_id, died.exit_code) == ("n2", -signal.SIGKILL)
    assert len(the_rows(tmp_path / "run")) >= 50
    assert not processes_of(tmp_path / "run")


@pytest.mark.timeout(60)
async def test_failover_is_measured_from_the_kill_to_a_write_called_after_it(tmp_path: Path) -> None:
    console = Console(file=io.StringIO())
    with trio.fail_after(40):
        result = await measure_failover(kills=1, nodes=3, out=tmp_path / "failover", console=console)

    (with_ms,), (without_ms,) = result.with_hint.unavailable_ms, result.without_hint.unavailable_ms
    assert 0 < with_ms < 20_000
    assert 50 < without_ms < 20_000  # An election needs at least the minimum time-out.
    assert result.without_hint.median_ms == result.without_hint.worst_ms == without_ms
    assert result.ratio_of_medians == with_ms / without_ms
    assert not processes_of(tmp_path / "failover")


@pytest.mark.timeout(60)
async def test_a_rolling_restart_fails_no_write(tmp_path: Path) -> None:
    """A leader that is asked to stop hands its leadership over, so its clients see only a short pause."""
    console = Console(file=io.StringIO())
    with trio.fail_after(40):
        result = await measure_rolling(rounds=1, nodes=3, out=tmp_path / "rolling", console=console)

    assert result.failed == 0, result
    assert result.acknowledged > 0
    assert sorted(restart.node_id for restart in result.restarts) == ["n1", "n2", "n3"]
    assert not processes_of(tmp_path / "rolling")


@pytest.mark.timeout(60)
def test_a_harness_that_is_killed_leaves_no_process_and_a_run_that_can_be_audited(tmp_path: Path) -> None:
    """SIGKILL ends the harness, and its members end with it. Every value in a recorded read was written by a recorded
    write."""
    rows = tmp_path / "run" / "ops" / "rows.jsonl"
    with a_harness(tmp_path / "run") as harness:
        wait_until(lambda: rows.exists() and rows.stat().st_size > 50_000)
        harness.kill()
    wait_until(lambda: not processes_of(tmp_path / "run"))

    assert read_about(tmp_path / "run")["finished"] is False
    assert close_unfinished_run(tmp_path / "run") > 0  # Some write is open, because there are twelve clients.
    assert check_rows(the_rows(tmp_path / "run")).exit_code == 0


@pytest.mark.timeout(60)
def test_a_harness_that_is_asked_to_stop_reaps_its_members(tmp_path: Path) -> None:
    """After SIGTERM the harness prints one sentence, keeps the records, leaves no process running, and ends with exit
    code 128 + 15."""
    events = tmp_path / "run" / "events.jsonl"
    with a_harness(tmp_path / "run") as harness:
        wait_until(lambda: events.exists() and b"load_started" in events.read_bytes())
        harness.send_signal(signal.SIGTERM)
        _, words = harness.communicate(timeout=20)

    assert harness.returncode == 128 + signal.SIGTERM, words
    assert b"stopped by SIGTERM" in words
    assert b"Traceback" not in words
    wait_until(lambda: not processes_of(tmp_path / "run"))
    assert the_rows(tmp_path / "run")


@contextmanager
def a_harness(out: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run `hwm-harness run` as a process. The process is always ended, even if the test fails."""
    options = ["--nodes", "3", "--seconds", "30", "--out", str(out)]
    command = [sys.executable, "-P", "-m", "harness.cli", "run", *options]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as harness:
        try:
            yield harness
        finally:
            harness.kill()


def wait_until(condition: Callable[[], bool]) -> None:
    """Check the condition again and again for up to 30 s."""
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "it did not come true within 30 s"
        time.sleep(0.02)


def processes_of(run: Path) -> list[str]:
    """The ids of member processes: their command line names a data folder below `run`."""
    return [path.name for path in Path("/proc").glob("[0-9]*") if f"serve\0{run}/" in command_line(path)]


def command_line(process: Path) -> str:
    try:
        return (process / "cmdline").read_text()
    except OSError:
        return ""  # The process ended after it was listed.
