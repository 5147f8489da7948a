"""The names of members, and the ids that are made of them."""

from __future__ import annotations

import pytest

from raft import NODE_ID_PATTERN, InvalidConfiguration, check_name, id_with_name, name_of


@pytest.mark.parametrize("name", ["s-0", "a", "hwm-12", "deadbeef", "x" * 55, "db-deadbeef-0"])
def test_an_id_is_a_name_and_random_digits_and_gives_the_name_back(name: str) -> None:
    node_id = id_with_name(name, b"\x00\x0f\xa0\xff")
    assert node_id == f"{name}-000fa0ff"
    assert NODE_ID_PATTERN.fullmatch(node_id)
    assert name_of(node_id) == name


@pytest.mark.parametrize("node_id", ["s1", "s-1", "deadbeef", "s1-DEADBEEF", "s1-deadbee", "s1-deadbeef0", "-deadbeef"])
def test_an_id_that_an_operator_has_given_is_its_own_name(node_id: str) -> None:
    assert name_of(node_id) == node_id


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("s1-deadbeef", "ends like an id"),
        ("x" * 56, "must match"),
        ("", "must match"),
        ("S1", "must match"),
        ("hwm-0.hwm", "must match"),
    ],
)
def test_a_name_that_would_be_mistaken_for_an_id_is_refused(name: str, words: str) -> None:
    with pytest.raises(InvalidConfiguration, match=words):
        check_name(name)
