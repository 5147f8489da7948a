"""docs/reference/semantics.md and the docstrings agree with the code."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

import kvstore.protocol.commands
from kvstore.errors import REFUSALS
from kvstore.limits import AdmissionLimits, StoreLimits
from tests.kvstore.support import benchmark_machine as bench_machine

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "reference" / "semantics.md").read_text()


def rows(pattern: str) -> dict[str, int]:
    """Table rows whose first cell begins with a name in backquotes and whose second cell has a number."""
    return {name: int(number) for name, number in re.findall(pattern, PAGE, re.MULTILINE)}


def test_every_error_is_listed_with_its_code() -> None:
    """The codes are promises to programs of other people."""
    assert rows(r"^\| `([A-Z]\w+)` \| (\d+) \|") == {error.__name__: int(code) for code, error in REFUSALS.items()}


def test_every_bound_is_listed_with_its_default() -> None:
    """The page lists exactly the bounds of admission and the bounds of the store."""
    admission = {name: getattr(AdmissionLimits(), name) for name in AdmissionLimits.__dataclass_fields__}
    assert rows(r"^\| `([a-z]\w+)` \| (\d+) \|") == admission | StoreLimits().to_map()


def test_the_examples_in_docstrings_run() -> None:
    """Documentation is tested."""
    assert doctest.testmod(kvstore.protocol.commands).attempted >= 1
    assert doctest.testmod(kvstore.protocol.commands).failed == 0


def test_the_benchmark_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """Readers can repeat the measurements of the page."""
    bench_machine.main(500)
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 9
    assert all(re.search(r"\d+\.\d\d (µs|s)", line) for line in printed)
