"""A plugin of pytest by which two runs at once share all tests: `pytest -p tests.sharing --claims=DIR [--waiting]`.

Tests of one file stay together. Whoever makes a file's mark in DIR first runs it, so neither is idle before the last
files. Tests of servers and of Spark mind each other: only the run that is given `--waiting` takes them, before all
others.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

MARKS = ("process", "spark")
"""What starts servers or Spark waits much, and two of them at once vie with each other."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("sharing")
    group.addoption("--claims", type=Path, default=None, help="folder, shared by both runs, of files already taken")
    group.addoption("--waiting", action="store_true", help="run the tests of servers and Spark, before others")


def pytest_runtestloop(session: pytest.Session) -> bool | None:
    claims: Path | None = session.config.getoption("claims")
    if claims is None or session.config.option.collectonly or session.testsfailed:
        return None  # As pytest does it.
    items = claimed(session.items, claims, waiting=session.config.getoption("waiting"))
    item = next(items, None)
    while item is not None:
        following = next(items, None)  # What is torn down after a test depends on which one is next.
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
        item = following
    return True


def claimed(items: list[pytest.Item], claims: Path, *, waiting: bool) -> Iterator[pytest.Item]:
    """The tests that this run may have, each file claimed when its turn has come."""
    rooms: dict[tuple[Path, bool], list[pytest.Item]] = {}
    for item in items:
        rooms.setdefault((item.path, waits(item)), []).append(item)
    computing = [key for key in rooms if not key[1]]
    # From opposite ends: the last files are the ones in the middle.
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
