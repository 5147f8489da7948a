"""Fixtures and options of all tests. The tests must test this checkout and not a package of the same name from
elsewhere."""

from __future__ import annotations

import signal
from pathlib import Path

import hypothesis
import pytest

import harness
import kvstore
import raft
import spark_audit
import storage
from raft.runtime import FAST_PATHS

ROOT = Path(__file__).resolve().parent.parent

for _package in (raft, storage, kvstore, harness, spark_audit):
    assert _package.__file__ is not None, _package
    assert Path(_package.__file__).resolve().parent.parent == ROOT, (
        f"{_package.__name__} comes from {_package.__file__}, not from {ROOT}: tests would prove nothing"
    )

# The time of a hypothesis example depends on how busy the machine is, so examples have no deadline. A test that must
# end in time has its own limit.
hypothesis.settings.register_profile("busy", hypothesis.settings.default, deadline=None)
hypothesis.settings.load_profile("busy")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the tests that take minutes, and no others")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if not FAST_PATHS and item.get_closest_marker("fast_path") is not None:
            item.add_marker(pytest.mark.skip(reason="HWM_FAST_PATHS=0 turns off what it tests"))
    wanted = config.getoption("slow")
    others = [item for item in items if (item.get_closest_marker("slow") is not None) != wanted]
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in set(others)]


def pytest_configure() -> None:
    """Let SIGINT interrupt the processes that tests start. A shell that runs the tests in the background makes them
    ignore SIGINT, and a child process inherits an ignored signal. A child does not inherit a handler, so this function
    sets one."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
