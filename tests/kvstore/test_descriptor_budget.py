"""How many clients a member takes follows from how many files its process may open."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from kvstore import metrics_http
from kvstore.cli_common import ExitCode
from kvstore.descriptor_budget import (
    DESCRIPTORS_MIN,
    METRICS_DESCRIPTORS_RESERVED,
    TooFewDescriptors,
    descriptors_reserved,
    limits_within,
)
from kvstore.embedded import open_node
from kvstore.server import failure_of_member
from kvstore.service import ServiceLimits

pytestmark = [pytest.mark.timeout(30), pytest.mark.skipif(sys.platform == "win32", reason="no such limit")]

RESERVED = descriptors_reserved(ServiceLimits())


@pytest.fixture
def soft_limit() -> Iterator[int]:
    """A soft limit below the hard one, in this process."""
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
    """Also inside another program."""
    import resource

    caplog.set_level(logging.INFO, "kvstore.descriptor_budget")
    with trio.fail_after(20):
        async with open_node(tmp_path / "data", bootstrap=True) as store:
            await store.put("a", "1")
            in_force, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert in_force == hard
    assert in_force > soft_limit
    (record,) = [each for each in caplog.records if each.name == "kvstore.descriptor_budget"]
    assert f"{in_force} open files" in record.getMessage()
    assert "connections_max is" in record.getMessage()
