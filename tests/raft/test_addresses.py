"""An address is split at its last colon, with or without brackets. One function does this for the whole project."""

from __future__ import annotations

import pytest

from raft import split_address


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("localhost:7001", ("localhost", 7001, False)),
        ("[::1]:0", ("::1", 0, True)),
        ("::1:7001", ("::1", 7001, False)),
        ("[::1:7001", ("[::1", 7001, False)),
        ("[]:65535", ("", 65535, True)),
        ("s1:00080", ("s1", 80, False)),
    ],
)
def test_an_address_is_a_host_and_a_port(text: str, parts: tuple[str, int, bool]) -> None:
    """The host can be any text. The callers decide which hosts are valid."""
    assert split_address(text) == parts


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "it has no host or no port"),
        ("s1", "it has no host or no port"),
        (":7001", "it has no host or no port"),
        ("s1:", "its port is not a number from 0 to 65535"),
        ("s1:x", "its port is not a number from 0 to 65535"),
        ("s1:-1", "its port is not a number from 0 to 65535"),
        ("s1:٣", "its port is not a number from 0 to 65535"),
        ("s1:65536", "its port is not a number from 0 to 65535"),
        ("s1:000080", "its port is not a number from 0 to 65535"),
    ],
)
def test_what_has_no_host_or_no_port_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(ValueError) as refused:
        split_address(text)

    assert str(refused.value) == reason


def test_zeros_in_front_of_a_port_are_taken_up_to_a_bound() -> None:
    assert split_address("s1:000080", port_digits_max=6).port == 80
    with pytest.raises(ValueError):
        split_address("s1:0000080", port_digits_max=6)
