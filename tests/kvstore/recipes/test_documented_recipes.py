"""The examples of docs/concepts/recipes.md run, and their output is the output on the page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from tests.kvstore.support.simulated_store import SimulatedStore

PAGE = Path(__file__).resolve().parents[3] / "docs" / "concepts" / "recipes.md"
EXAMPLES = dict(re.findall(r"^## (.*?)\n.*?```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE))

PRINTED = {
    "Leader election": "b'host-1' leads with fence True\n",
    "Read, compute, write": "left: 7\n",
    "Barrier": "all go on\n",
    "Counting semaphore": "two at once: True\n",
    "Work queue": "b'to: ann'\n",
    "Consumer of a log": "total: b'7'\n",
    "Service registration": "{b'web-1': b'10.0.0.7:8000'}\n{}\n",
    "Counter and rate limiter": "visits: 3\n[True, True, False]\n",
    "A live copy of a prefix": "{b'settings/colour': b'red'}\nput b'settings/colour' b'blue'\n",
}


def test_each_recipe_has_an_example() -> None:
    assert list(EXAMPLES) == list(PRINTED)


@pytest.mark.parametrize("name", PRINTED)
async def test_an_example_prints_what_it_says(
    name: str, autojump_clock: trio.testing.MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    program: dict[str, Any] = {"trio": trio}
    exec(EXAMPLES[name], program)
    async with SimulatedStore() as store:
        with trio.fail_after(1_000):
            await program["main"](store.client())

    assert capsys.readouterr().out == PRINTED[name]
