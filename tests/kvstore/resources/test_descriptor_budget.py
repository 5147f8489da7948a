"""The number of clients that a member accepts depends on the number of files that its process may open."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import trio

from kvstore.cli.common import ExitCode
from kvstore.cli.daemon.process import failure_of_member
from kvstore.embedded import open_node
from kvstore.limits import ServiceLimits
from kvstore.monitoring import metrics_http
from kvstore.resources.descriptor_budget import (
    DESCRIPTORS_MIN,
    DESCRIPTORS_WANTED,
    METRICS_DESCRIPTORS_RESERVED,
    PROCESS_DESCRIPTORS_RESERVED,
    TooFewDescriptors,
    descriptors_open,
    descriptors_reserved,
    limits_within,
)

pytestmark = [pytest.mark.timeout(30), pytest.mark.skipif(sys.platform == "win32", reason="no such limit")]

RESERVED = descriptors_reserved(ServiceLimits())


@pytest.fixture
def soft_limit() -> Iterator[int]:
    """Give this process a soft limit below the hard limit."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    low = 512
    if hard != resource.RLIM_INFINITY and hard <= low:
        pytest.skip("the hard limit is too low to set a soft one below it")
    resource.setrlimit(resource.RLIMIT_NOFILE, (low, hard))
    yield low
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    ("descriptors", "clients"),
    [
        (None, 1_000),
        (524_288, 1_000),
        (1_000 + RESERVED, 1_000),
        (999 + RESERVED, 999),
        (1_024, 1_024 - RESERVED),
        (256, 64),
        (DESCRIPTORS_MIN, DESCRIPTORS_MIN // 4),
    ],
)
def test_clients_leave_the_reserve_to_log_peers_and_metrics(descriptors: int | None, clients: int) -> None:
    assert limits_within(ServiceLimits(), descriptors).connections_max == clients


def test_a_bound_that_was_set_lower_stays() -> None:
    limits = ServiceLimits(connections_max=10)
    assert limits_within(limits, 1_024) is limits


def test_files_that_the_program_has_open_are_not_given_to_clients() -> None:
    """If a program that embeds a member has more open files than the reserve covers, the places for clients are reduced
    by the difference."""
    clients = [
        limits_within(ServiceLimits(), 1_024, held).connections_max
        for held in (0, PROCESS_DESCRIPTORS_RESERVED, PROCESS_DESCRIPTORS_RESERVED + 300)
    ]
    assert clients == [1_024 - RESERVED, 1_024 - RESERVED, 1_024 - RESERVED - 300]
    with pytest.raises(TooFewDescriptors, match="may open 512 files, and has 480 open"):
        limits_within(ServiceLimits(), 512, 480)


def test_open_files_are_counted() -> None:
    before = descriptors_open()
    with ExitStack() as held:
        for _ in range(20):
            held.enter_context(open(os.devnull))  # noqa: PTH123
        assert descriptors_open() == before + 20


BUDGET = """
import logging, os, resource, sys
from kvstore.limits import ServiceLimits
from kvstore.resources.descriptor_budget import budget_descriptors
logging.basicConfig(format='%(message)s')
held = [open(os.devnull) for _ in range(200)]
bounded = budget_descriptors(ServiceLimits(connections_max=int(sys.argv[1])))
print(bounded.connections_max, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


def budget(limits: str, connections_max: int = 1_000) -> tuple[int, int, str]:
    """Run a process with 200 open files. Return its places for clients, its limit at the end, and its log."""
    shell = ["sh", "-c", f'ulimit {limits}; exec "$@"', "sh"]
    command = [*shell, sys.executable, "-c", BUDGET, str(connections_max)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    clients, soft = map(int, done.stdout.split())
    return clients, soft, done.stderr


def test_a_member_says_what_it_keeps_of_few_files() -> None:
    """The message must not say that the member keeps more files than the limit allows."""
    clients, soft, said = budget("-n 300")
    # Clients get a fourth of the files that the program has not opened, and not a fourth of all files.
    assert (20 < clients < 32, soft) == (True, 300)
    assert f"{300 - clients} are kept" in said


def test_a_huge_hard_limit_is_not_made_the_soft_one() -> None:
    """Child processes inherit the soft limit, and some of them close every descriptor up to this limit. If the bounds
    need more descriptors, the soft limit is still raised as far as they need it."""
    import resource

    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard != resource.RLIM_INFINITY and hard < DESCRIPTORS_WANTED + 1_000:
        pytest.skip("the hard limit is too low")
    assert budget("-Sn 512")[:2] == (1_000, DESCRIPTORS_WANTED)
    higher = DESCRIPTORS_WANTED + 500
    assert budget(f"-Sn {higher}")[:2] == (1_000, higher)
    assert budget("-Sn 512", higher - 1_000)[0] == higher - 1_000


def test_the_reserve_holds_all_connections_of_the_metrics_port() -> None:
    assert metrics_http.CONNECTIONS_MAX < METRICS_DESCRIPTORS_RESERVED


def test_with_too_few_descriptors_a_member_refuses_to_start_and_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(TooFewDescriptors) as raised:
        limits_within(ServiceLimits(), DESCRIPTORS_MIN - 1)
    failure = failure_of_member(raised.value, tmp_path)
    assert failure.exit_code == ExitCode.FAILED
    assert str(DESCRIPTORS_MIN - 1) in failure.message
    assert "ulimit -n" in (failure.hint or "")


async def test_a_member_raises_the_soft_limit_and_says_its_bound(
    tmp_path: Path, soft_limit: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A member inside another program raises the limit, too."""
    import resource

    caplog.set_level(logging.INFO, "kvstore.descriptor_budget")
    with trio.fail_after(20):
        async with open_node(tmp_path / "data", bootstrap=True) as store:
            await store.put("a", "1")
            in_force, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert in_force == hard or in_force >= DESCRIPTORS_WANTED
    assert in_force > soft_limit
    (record,) = [each for each in caplog.records if each.name == "kvstore.descriptor_budget"]
    assert f"{in_force} open files" in record.getMessage()
    assert "connections_max is" in record.getMessage()
