"""`--services` sets the number of workers of each kind."""

from __future__ import annotations

import pytest

from harness.errors import BadInput
from harness.workload.service_shares import NO_SERVICES, ServiceShares


@pytest.mark.parametrize("text", ["watches=100,leases=4,locks=3,ranges=2", "locks=1", "none"])
def test_numbers_are_read_and_written_alike(text: str) -> None:
    assert str(ServiceShares.parse(text)) == text


def test_without_workers_there_are_no_services() -> None:
    assert not NO_SERVICES
    assert not ServiceShares.parse("watches=0")
    assert ServiceShares.parse("watches=1")


@pytest.mark.parametrize("text", ["watch=1", "watches", "watches=x", "watches=-1", "watches=1001", "locks=1,locks=2"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="--services"):
        ServiceShares.parse(text)
