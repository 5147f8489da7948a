"""docs/internals/raft-map.md names functions and tests. This test checks that all of them exist."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from types import ModuleType

import pytest

import raft

PROJECT = Path(__file__).parents[2]
MAP = (PROJECT / "docs" / "internals" / "raft-map.md").read_text(encoding="utf-8")
NAMES = sorted(set(re.findall(r"`([\w.]+)`", MAP)))
TESTS = [name for name in NAMES if name.startswith("test_")]
FUNCTIONS = [name for name in NAMES if "." in name and name != "module.Class.function"]


def test_the_map_is_not_empty() -> None:
    """If the layout of the page changes, the checks below must not pass because they find nothing."""
    assert len(TESTS) > 60
    assert len(FUNCTIONS) > 30


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_of_the_map_exists(name: str) -> None:
    """A developer who renames a function must also rename it in the map."""
    found: object = raft
    for part in name.split("."):
        if isinstance(found, ModuleType) and hasattr(found, "__path__"):
            found = importlib.import_module(f"{found.__name__}.{part}")
        else:
            found = getattr(found, part)

    assert callable(found) or isinstance(found, property | ModuleType)


def test_the_tests_of_the_map_exist() -> None:
    """A developer who renames a test must also rename it in the map."""
    files = [*(PROJECT / "tests" / "raft").rglob("test_*.py"), *(PROJECT / "tests" / "conformance").glob("test_*.py")]
    written = set(re.findall(r"def (test_\w+)\(", "\n".join(file.read_text(encoding="utf-8") for file in files)))

    assert set(TESTS) - written == set()
