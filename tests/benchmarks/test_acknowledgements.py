"""The benchmark of acknowledgement levels fails if puts were lost or carried out twice."""

from __future__ import annotations

import pytest

from benchmarks.single.acknowledgements import is_carried_out


@pytest.mark.parametrize(
    ("level", "share", "expected"),
    [
        ("majority", 1.0, True),
        ("majority", 0.99, False),
        ("in_sync", 1.01, False),
        ("leader", 0.99, True),  # The last puts were answered before they were applied.
        ("leader", 1.01, False),
        ("none", 0.75, True),
        ("none", 1.01, False),
    ],
)
def test_a_window_is_right_if_its_puts_were_carried_out_as_their_level_promises(
    level: str, share: float, expected: bool
) -> None:
    assert is_carried_out({"level": level, "carried_out": share}) is expected
