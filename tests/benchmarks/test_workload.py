"""Every system gets the same keys and values, and exactly as many as the workload says."""

from __future__ import annotations

from itertools import islice

from benchmarks.load.plan import KEY_BYTES
from benchmarks.load.workload import drawn, filling, key_of, values_of


def test_keys_have_one_length_and_sort_like_their_numbers() -> None:
    keys = [key_of(number) for number in (0, 1, 99_999, 999_999)]
    assert {len(key) for key in keys} == {KEY_BYTES}
    assert keys == sorted(keys)


def test_filling_puts_every_key_exactly_once_over_all_connections() -> None:
    operations = [each for connection in range(8) for each in filling(1_001, connection, 8)]
    assert sorted(key for key, _ in operations) == [key_of(number) for number in range(1_001)]
    assert all(is_put for _, is_put in operations)


def test_one_seed_draws_the_same_operations_for_every_system() -> None:
    assert list(islice(drawn("mixed", 1_000, 7, 3), 500)) == list(islice(drawn("mixed", 1_000, 7, 3), 500))
    assert list(islice(drawn("put", 1_000, 7, 0), 50)) != list(islice(drawn("put", 1_000, 8, 0), 50))


def test_connections_do_not_follow_each_other_over_the_same_keys() -> None:
    assert list(islice(drawn("put", 1_000, 7, 0), 50)) != list(islice(drawn("put", 1_000, 7, 1), 50))


def test_drawn_keys_vary_and_exist() -> None:
    keys = {key for key, _ in islice(drawn("put", 100, 1, 0), 5_000)}
    assert keys == {key_of(number) for number in range(100)}


def test_mixed_work_is_ninety_reads_in_a_hundred() -> None:
    puts = sum(is_put for _, is_put in islice(drawn("mixed", 100, 1, 0), 20_000))
    assert 0.08 < puts / 20_000 < 0.12
    assert not any(is_put for _, is_put in islice(drawn("get", 100, 1, 0), 100))


def test_values_have_the_size_asked_for_and_differ() -> None:
    values = values_of(16, seed=1)
    assert {len(value) for value in values} == {16}
    assert len(set(values)) == len(values)
