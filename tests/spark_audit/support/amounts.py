"""The number of random histories that a test tries. It is small in `make test` and large in `make test-slow`."""

from __future__ import annotations

import os

import pytest


def amounts(few: int, many: int, *, slow_seconds: int = 600) -> pytest.MarkDecorator:
    """The parameter `histories` is `few`, and `many` in the slow run. HWM_AUDIT_HISTORIES=N sets both to N."""
    wanted = int(os.environ.get("HWM_AUDIT_HISTORIES", "0"))
    slow = [pytest.mark.slow, pytest.mark.timeout(slow_seconds)]
    return pytest.mark.parametrize(
        "histories",
        [pytest.param(wanted or few, id="few"), pytest.param(wanted or many, id="many", marks=slow)],
    )
