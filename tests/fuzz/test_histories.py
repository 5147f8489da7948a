"""Recorded histories that a faulty recorder could have written. The audit either gives a verdict or names the bad
row."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

from spark_audit import AuditError, Shape, check_rows, generate
from spark_audit.history.rows import problem, row_of_line
from tests.fuzz.campaign import RecordProperty, campaign, sizes
from tests.fuzz.structures import Structures

ROWS_PER_HISTORY = 6
SURPRISES: tuple[object, ...] = (
    None,
    True,
    -1,
    0,
    2**63,
    2**64,
    1e308,
    float("nan"),
    "",
    "x" * 300,
    "\x00",
    [],
    {},
    [[]],
    {"a": []},
    "ok",
)


@sizes
def test_rows_of_any_shape_are_judged_or_refused_in_words(
    inputs: int, record_property: RecordProperty, tmp_path: Path
) -> None:
    outcomes: Counter[str] = Counter()
    with campaign(record_property, surface="rows of a history", seed=20, inputs=inputs) as random:
        histories = [_small_history(seed) for seed in range(40)]
        for number in range(inputs):
            rows = _changed_rows(random.choice(histories), random)
            try:
                outcomes[check_rows(rows).status] += 1
            except AuditError as error:
                outcomes["refused" if str(error) else "refused without a word"] += 1
            except Exception as error:
                raise AssertionError(f"input {number}: {type(error).__name__}: {error}: {rows!r}") from error
    assert {"linearizable", "refused"} <= set(outcomes), outcomes
    assert "refused without a word" not in outcomes


@sizes
def test_lines_of_any_bytes_are_a_row_or_refused_in_words(inputs: int, record_property: RecordProperty) -> None:
    outcomes: Counter[str] = Counter()
    with campaign(record_property, surface="lines of a history", seed=21, inputs=inputs) as random:
        structures = Structures(random)
        lines = [json.dumps(row).encode() for seed in range(10) for row in _small_history(seed)]
        for number in range(inputs):
            line = random.choice(lines)
            for _ in range(random.choice((0, 1, 1, 2, 5))):
                line = structures.changed_bytes(line)
            line = line.replace(b"\n", b" ")
            try:
                row, reason = row_of_line(line, problem)
            except Exception as error:
                raise AssertionError(f"input {number}: {type(error).__name__}: {error}: {line!r}") from error
            assert bool(row) != bool(reason), f"input {number}: {line!r}"
            outcomes["refused" if reason else "a row"] += 1
    assert len(outcomes) == 2, outcomes


def _small_history(seed: int) -> list[dict[str, Any]]:
    shape = Shape(operations=ROWS_PER_HISTORY, keys=2, clients=2)
    return [dict(row) for row in generate(shape, seed=seed)]


def _changed_rows(rows: list[dict[str, Any]], random: Random) -> list[dict[str, Any]]:
    """The same rows with a change: one to three fields are replaced, removed or swapped, or a row is doubled or
    lost."""
    changed = [dict(row) for row in rows]
    for _ in range(random.choice((1, 1, 2, 3))):
        if not changed:
            break
        row = random.choice(changed)
        name = random.choice(list(row)) if row else "op"
        match random.randrange(7):
            case 0 | 1:
                row[name] = random.choice(SURPRISES)
            case 2:
                row.pop(name, None)
            case 3:
                row[name] = random.choice(changed).get(name)
            case 4 if isinstance(row.get(name), int):
                row[name] += random.choice((-1, 1, 2**32, -(2**40)))
            case 5:
                changed.insert(random.randrange(len(changed)), dict(row))
            case _:
                changed.remove(row)
    return changed
