"""The examples of docs/concepts/consumers.md run, and their output is the output on the page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from tests.kvstore.support.simulated_store import SimulatedStore

PAGE = Path(__file__).resolve().parents[4] / "docs" / "concepts" / "consumers.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)

PRINTED = [
    "b'bill for three apples' True\n",
    "behind the history: True\n{b'stock/apples': b'2'} True\n",
    "3 b'jobs/c1'\n",
]


def test_each_example_is_run() -> None:
    assert len(EXAMPLES) == len(PRINTED)


@pytest.mark.parametrize("number", range(len(PRINTED)))
async def test_an_example_prints_what_it_says(
    number: int, autojump_clock: trio.testing.MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    program: dict[str, Any] = {"trio": trio}
    exec(EXAMPLES[number], program)
    async with SimulatedStore() as store:
        with trio.fail_after(1_000):
            await program["main"](store.client())

    assert capsys.readouterr().out == PRINTED[number]
