"""The rules of a program that watches keys as a user can fail.

See docs/reference/specification.md#816-users-and-roles.
"""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from harness.sim.checks.access.rules import AccessChecker
from harness.sim.engine.errors import Violation
from harness.sim.load.access.watcher import EVENTS, WATCH_ID, AccessWatcher
from kvstore import Code


def nothing(*_: object) -> None:
    """Do nothing."""


def a_watcher() -> AccessWatcher:
    """A watcher that has dialled a member, in a world that does nothing."""
    world = SimpleNamespace(
        cover=nothing, note_client=nothing, queue=SimpleNamespace(after=nothing), members={"n1": None}
    )
    connections = SimpleNamespace(dial=nothing, send=nothing, hang_up=nothing)
    passwords = SimpleNamespace(of=lambda user: f"the password of {user}")
    checker = AccessChecker(lambda _: True, nothing)
    watcher = AccessWatcher(
        "w1", cast(Any, world), cast(Any, connections), checker, ["ada"], cast(Any, passwords), Random(1)
    )
    watcher.begin()
    return watcher


def test_an_event_of_a_key_outside_of_the_watch_is_seen() -> None:
    watcher = a_watcher()
    with pytest.raises(Violation) as caught:
        watcher._receive([WATCH_ID, Code.OK, 0, 0, 0, EVENTS, 0, 2, [[b"\xff", 2]]])
    assert caught.value.rule == "a watch has its keys"


def test_a_member_that_closes_the_connection_of_a_watch_is_seen() -> None:
    watcher = a_watcher()
    watcher.disconnected(1, "a fault")
    with pytest.raises(Violation) as caught:
        watcher.disconnected(2, "closed by the member")
    assert caught.value.rule == "a watch and its member understand each other"
