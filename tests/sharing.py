"""A pytest plugin with which concurrent runs share all tests: `pytest -p tests.sharing --claims=DIR [--waiting]`.

Tests of one file stay together. The run that first makes a file's mark in DIR runs the file. So no run is idle until
all files are taken. Tests of servers and tests of Spark disturb each other. So only the run with `--waiting`
takes these tests, and runs them first.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

MARKS = ("process", "spark")
"""Tests with these marks start servers or Spark. They mostly wait. Two such tests at the same time slow each other
down."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("sharing")
    group.addoption("--claims", type=Path, default=None, help="folder, shared by all runs, of files already taken")
    group.addoption("--waiting", action="store_true", help="run the tests of servers and Spark, before others")


def pytest_runtestloop(session: pytest.Session) -> bool | None:
    claims: Path | None = session.config.getoption("claims")
    if claims is None or session.config.option.collectonly or session.testsfailed:
        return None  # With None, pytest runs the tests as usual.
    items = claimed(session.items, claims, waiting=session.config.getoption("waiting"))
    item = next(items, None)
    while item is not None:
        following = next(items, None)  # The next test decides which fixtures are torn down after this test.
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
        item = following
    return True


def claimed(items: list[pytest.Item], claims: Path, *, waiting: bool) -> Iterator[pytest.Item]:
    """The tests that this run carries out. The run claims each file when it reaches the file."""
    rooms: dict[tuple[Path, bool], list[pytest.Item]] = {}
    for item in items:
        rooms.setdefault((item.path, waits(item)), []).append(item)
    computing = [key for key in rooms if not key[1]]
    # The run with `--waiting` begins at the other end, and meets the others in the middle.
    order = [*(key for key in rooms if key[1]), *reversed(computing)] if waiting else computing
    for path, is_waiting in order:
        name = "--".join(path.relative_to(items[0].config.rootpath).parts)
        try:
            (claims / f"{name}--{is_waiting}").touch(exist_ok=False)
        except FileExistsError:
            continue
        yield from rooms[path, is_waiting]


def waits(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(mark) for mark in MARKS)
