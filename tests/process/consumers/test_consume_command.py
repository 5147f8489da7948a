"""`hwm append`, `hwm consume` and `hwm group` against a running member."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from click.testing import CliRunner

from kvstore.cli.common import ExitCode
from kvstore.cli.main import cli
from kvstore.cli.standard_streams import EXIT_OUTPUT_LOST
from tests.process.servers import ServerCluster, hwm, running_cluster

pytestmark = [pytest.mark.process, pytest.mark.timeout(100)]

PATIENCE_SECONDS = 60.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerCluster]:
    """One member for all tests; each test uses a separate prefix and group."""
    with running_cluster(tmp_path_factory.mktemp("members"), 1) as members:
        yield members


def environment(cluster: ServerCluster) -> dict[str, str]:
    return {**os.environ, "HWM_ENDPOINTS": ",".join(cluster.endpoints)}


def run(cluster: ServerCluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        hwm(*arguments), env=environment(cluster), capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )


def append(cluster: ServerCluster, prefix: str, *values: str) -> list[int]:
    """Append values; return their revisions."""

    async def main() -> list[int]:
        async with cluster.client() as client:
            return [(await client.append(prefix, value)).revision for value in values]

    return trio.run(main)


def values_in(text: str) -> list[str]:
    return [json.loads(line)["value"] for line in text.splitlines()]


def test_append_prints_the_key_and_the_revision(cluster: ServerCluster) -> None:
    done = run(cluster, "append", "one/", "x")
    key, revision = done.stdout.rstrip("\n").split("\t")
    assert (done.returncode, done.stderr) == (0, "")
    assert run(cluster, "range", "--prefix", "one/", "--keys-only").stdout == key + "\n"
    shown = json.loads(run(cluster, "append", "one/", "y", "--json").stdout)
    assert shown["revision"] == int(revision) + 1
    assert shown["op"] == "append"


def test_a_group_goes_on_where_its_last_consumer_ended(cluster: ServerCluster) -> None:
    appended = append(cluster, "two/", "a", "b", "c")
    first = run(cluster, "consume", "two/", "--group", "g2", "--from-revision", "1", "--limit", "2")
    assert (first.returncode, values_in(first.stdout)) == (0, ["a", "b"])
    assert first.stderr == f"position {appended[1]} of group g2\n"
    shown = json.loads(run(cluster, "group", "g2", "--json").stdout)
    assert (shown["prefix"], shown["position"]) == ("two/", appended[1])
    assert shown["shares"][0]["active"] is None
    assert shown["lag_revisions"] == shown["revision"] - shown["position"] > 0
    second = run(cluster, "consume", "two/", "--group", "g2", "--limit", "1", "--commit-every", "10")
    assert values_in(second.stdout) == ["c"]
    assert "g2" in run(cluster, "group").stdout.splitlines()


def test_without_a_group_no_position_is_kept(cluster: ServerCluster) -> None:
    append(cluster, "three/", "a")
    for _ in range(2):
        done = run(cluster, "consume", "three/", "--from-revision", "1", "--limit", "1")
        assert (done.returncode, values_in(done.stdout)) == (0, ["a"])
        assert "goes on there" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("consume", "", "--group", "g"), "name a narrower prefix"),
        (("consume", "x/", "--group", "a/b"), "no slash"),
        (("consume", "x/", "--present"), "need --group"),
        (("consume", "x/", "--commit-every", "2"), "need --group"),
        (("group", "a/b"), "no slash"),
    ],
)
def test_a_wrong_name_or_prefix_is_wrong_usage(arguments: tuple[str, ...], words: str) -> None:
    """The command sends nothing to a member."""
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == ExitCode.USAGE
    assert words in " ".join(done.output.split())


def test_a_group_that_is_not_there(cluster: ServerCluster) -> None:
    done = run(cluster, "group", "nobody")
    assert (done.returncode, done.stdout, done.stderr) == (ExitCode.NEGATIVE, "", "not found: nobody\n")


def test_another_prefix_is_refused(cluster: ServerCluster) -> None:
    append(cluster, "four/", "a")
    run(cluster, "consume", "four/", "--group", "g4", "--from-revision", "1", "--limit", "1")
    done = run(cluster, "consume", "five/", "--group", "g4")
    assert done.returncode == ExitCode.FAILED
    assert "it consumes b'four/', not b'five/'" in done.stderr


def test_an_interrupt_commits_what_was_printed_and_lets_the_next_go_on(cluster: ServerCluster) -> None:
    appended = append(cluster, "six/", "a", "b")
    process = subprocess.Popen(
        hwm("consume", "six/", "--group", "g6", "--from-revision", "1", "--commit-every", "100", "--ttl", "60"),
        env=environment(cluster), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert [json.loads(process.stdout.readline())["value"] for _ in range(2)] == ["a", "b"]
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_SECONDS)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, out) == (0, b"")
    assert err.decode() == f"position {appended[1]} of group g6\n"
    append(cluster, "six/", "c")
    after = run(cluster, "consume", "six/", "--group", "g6", "--limit", "1", "--wait", "5")
    assert values_in(after.stdout) == ["c"]


def test_records_that_could_not_be_written_are_not_committed(cluster: ServerCluster, tmp_path: Path) -> None:
    """The reader of the pipe has ended."""
    append(cluster, "seven/", "a", "b")
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            hwm("consume", "seven/", "--group", "g7", "--from-revision", "1"),
            env=environment(cluster), stdout=writer, stderr=subprocess.PIPE, timeout=PATIENCE_SECONDS, check=False,
        )  # fmt: skip
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (EXIT_OUTPUT_LOST, b"")
    again = run(cluster, "consume", "seven/", "--group", "g7", "--limit", "2")
    assert values_in(again.stdout) == ["a", "b"]


def test_a_consumer_behind_the_history_prints_the_present_if_asked(cluster: ServerCluster) -> None:
    (revision,) = append(cluster, "eight/", "a", "b")[1:]
    assert run(cluster, "compact", str(revision)).returncode == 0
    options = ("--group", "g8", "--from-revision", "1")
    refused = run(cluster, "consume", "eight/", *options, "--limit", "1")
    assert refused.returncode == ExitCode.FAILED
    assert f"the oldest that can be read is {revision}" in refused.stderr
    done = run(cluster, "consume", "eight/", *options, "--present", "--limit", "2")
    assert (done.returncode, values_in(done.stdout)) == (0, ["a", "b"])
    append(cluster, "eight/", "c")
    after = run(cluster, "consume", "eight/", "--group", "g8", "--limit", "1")
    assert values_in(after.stdout) == ["c"]


def test_a_reader_that_stops_reading_does_not_cost_the_lease(cluster: ServerCluster) -> None:
    """The pipe is full, so `hwm consume` waits for its reader, and renews its lease meanwhile."""
    values = [f"{number:03}" + "x" * 5_000 for number in range(60)]
    first, *_ = append(cluster, "nine/", *values)
    process = subprocess.Popen(
        hwm("consume", "nine/", "--group", "g9", "--from-revision", str(first), "--limit", "60", "--ttl", "3"),
        env=environment(cluster), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip

    async def until_a_lease_would_be_over() -> None:
        async with cluster.client() as client, client.watch(prefix="consumers/g9/", from_revision=first) as changes:
            with trio.fail_after(PATIENCE_SECONDS):
                while b"/positions/" not in (await anext(changes)).key:
                    pass
            with trio.move_on_after(7):
                async for change in changes:
                    assert change.kind == "put", change

    try:
        trio.run(until_a_lease_would_be_over)
        out, err = process.communicate(timeout=PATIENCE_SECONDS)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, values_in(out.decode())) == (0, values), err
