"""`hwm bench` against real servers: it counts only operations that took place, and leaves no keys behind."""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random

import pytest
import trio
from click.testing import CliRunner, Result

from harness.cluster.ports import free_ports
from harness.reports.percentile import percentile
from kvstore import Client
from kvstore.cli.bench import BOUNDS_SECONDS, GROWTH
from kvstore.cli.main import cli
from raft.runtime import Histogram
from tests.process.servers import running_cluster

pytestmark = [pytest.mark.process, pytest.mark.timeout(60)]
SHORT = ["--seconds", "0.5", "--keys", "50", "--in-flight", "8", "--clients", "2"]


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a store with one member."""
    with running_cluster(tmp_path_factory.mktemp("bench"), 1) as cluster:
        yield cluster.endpoints[0]


def bench(endpoint: str, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["bench", "--endpoints", endpoint, *arguments])


def count_and_revision(endpoint: str, prefix: str) -> tuple[int, int]:
    async def ask() -> tuple[int, int]:
        async with Client([endpoint]) as client:
            page = await client.range(prefix=prefix, deadline_seconds=20)
            return page.count, page.revision

    return trio.run(ask)


def test_a_short_run_tells_its_figures_and_leaves_no_key(endpoint: str) -> None:
    """The store's revision rises by one for each put that the command counts."""
    _, before = count_and_revision(endpoint, "bench/")
    result = bench(endpoint, *SHORT, "--json")

    assert result.exit_code == 0, result.output
    tally = json.loads(result.stdout)
    assert tally["operations"] > 0
    assert 0 < tally["p50_ms"] <= tally["p99_ms"] <= tally["p99_9_ms"] <= tally["max_ms"]
    assert tally["client_cpu_us_per_op"] > 0
    assert tally["errors"] == {}
    left, after = count_and_revision(endpoint, "bench/")
    assert left == 0
    assert after - before >= tally["operations"]


def test_reads_find_what_was_written_first_and_keys_can_be_kept(endpoint: str) -> None:
    """Without --json the result is a table. With --keep all keys stay in the store."""
    result = bench(endpoint, *SHORT, "--reads", "0.9", "--prefix", "kept/", "--keep", "--value-bytes", "7")

    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("ops/s\t")
    assert count_and_revision(endpoint, "kept/")[0] == 50


def test_an_open_loop_asks_no_more_than_its_rate(endpoint: str) -> None:
    """At 40 operations per second, at most 20 operations are allowed in half a second."""
    result = bench(endpoint, *SHORT, "--rate", "40", "--json")

    assert result.exit_code == 0, result.output
    assert 0 < json.loads(result.stdout)["operations"] <= 20


def test_where_nobody_is_the_exit_code_is_that_of_unavailable() -> None:
    """Every other command ends with the same exit code if no member answers."""
    result = bench(f"127.0.0.1:{free_ports(1)[0]}", *SHORT, "--deadline", "0.3")

    assert result.exit_code == 5
    assert "unavailable" in result.stderr


def test_percentiles_are_those_of_the_sorted_list_within_a_step() -> None:
    """The test compares the histogram with a sorted list of all values."""
    random = Random(1)
    for count in (1, 2, 100, 5_000):
        seconds = sorted(random.lognormvariate(-6, 1.5) for _ in range(count))
        latencies = Histogram(BOUNDS_SECONDS)
        for each in seconds:
            latencies.observe(round(each * 1e9))
        for share in (0.01, 0.5, 0.99, 0.999, 1):
            exact = percentile(seconds, share)
            assert exact / GROWTH <= latencies.percentile_seconds(share) <= exact * GROWTH**2, (count, share)
        assert latencies.count == count
        assert latencies.max_seconds == pytest.approx(seconds[-1], abs=1e-9)
    assert Histogram(BOUNDS_SECONDS).percentile_seconds(0.5) == 0
