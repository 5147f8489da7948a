"""Compares block-wise arithmetic on the positions of an order with the same arithmetic position by position."""

from __future__ import annotations

from itertools import accumulate
from random import Random

import numpy as np

from spark_audit.columnar.blocks import first_places, last_of, last_place, places_of, so_far
from spark_audit.columnar.columns import NOTHING, PRESENT
from spark_audit.columnar.unplaced_writes import _taken_in_turn, _within

SEEDS = range(200)


def test_tokens_are_found_where_they_stand_and_what_is_no_token_nowhere() -> None:
    for seed in SEEDS:
        random = Random(seed)
        tokens = random.randrange(1, 8)
        column = [random.choice((PRESENT, NOTHING, *range(tokens))) for _ in range(random.randrange(12))]
        wanted = [random.randrange(tokens) for _ in range(random.randrange(4))]
        given = np.array(column, np.int64), np.array(wanted, np.int64), tokens

        assert places_of(*given).tolist() == [place for place, token in enumerate(column) if token in wanted]
        first = [column.index(token) if token in column else len(column) for token in wanted]
        assert first_places(*given).tolist() == first


def test_the_last_place_up_to_each_is_itself_or_that_of_the_one_before_it() -> None:
    for seed in SEEDS:
        random = Random(seed)
        where = np.array([random.random() < 0.4 for _ in range(random.randrange(12))], np.bool_)
        last, expected = NOTHING, []
        for place, there in enumerate(where.tolist()):
            last = place if there else last
            expected.append(last)

        assert last_place(where).tolist() == expected
        assert last_of(np.flatnonzero(where), len(where)).tolist() == expected


def test_places_are_counted_up_to_each_as_often_as_they_are_named() -> None:
    for seed in SEEDS:
        random = Random(seed)
        count = random.randrange(1, 12)
        places = sorted(random.randrange(count) for _ in range(random.randrange(5)))
        expected = [sum(place <= here for place in places) for here in range(count)]

        assert so_far(np.array(places, np.int64), count).tolist() == expected


def test_each_slot_takes_the_first_put_of_its_key_that_is_left_if_that_was_called_no_later() -> None:
    """All calls of a key are above those of earlier keys, as in a block."""
    for seed in SEEDS:
        random = Random(seed)
        puts = sorted((random.randrange(3), random.randrange(6)) for _ in range(random.randrange(6)))
        slots = sorted((random.randrange(3), random.randrange(6)) for _ in range(random.randrange(6)))
        used: list[int] = []
        expected: list[tuple[int, int]] = []
        for slot, (key, call) in enumerate(slots):
            left = [put for put, (owner, _) in enumerate(puts) if owner == key and put not in used]
            if left and puts[left[0]][1] <= call:
                used.append(left[0])
                expected.append((slot, left[0]))

        both = [np.array([key for key, _ in some], np.int64) for some in (puts, slots)]
        calls = [np.array([key * 10 + call for key, call in some], np.int64) for some in (puts, slots)]
        taken, chosen = _taken_in_turn(both[0], calls[0], both[1], calls[1])
        assert list(zip(taken.tolist(), chosen.tolist(), strict=True)) == expected


def test_places_of_stretches_that_overlap_are_named_once() -> None:
    for seed in SEEDS:
        random = Random(seed)
        count = random.randrange(5)
        begins = sorted(random.randrange(20) for _ in range(count))
        ends = list(accumulate((begin + random.randrange(1, 8) for begin in begins), max))
        expected = sorted({place for begin, end in zip(begins, ends, strict=True) for place in range(begin, end)})

        assert _within(np.array(begins, np.int64), np.array(ends, np.int64)).tolist() == expected
