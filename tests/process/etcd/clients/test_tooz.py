"""tooz: coordination of services, with its driver for the JSON gateway of etcd."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, Protocol

import pytest

pytest.importorskip("etcd3gw", reason="etcd3gw is not installed: pip install etcd3gw")
coordination = pytest.importorskip("tooz.coordination", reason="tooz is not installed: pip install tooz")

pytestmark = [pytest.mark.process, pytest.mark.timeout(100)]

SECONDS = 20.0


class Join(Protocol):
    """Starts a coordinator for a member of this name."""

    def __call__(self, name: bytes, **options: int) -> Any: ...


@pytest.fixture
def coordinator(etcd_endpoint: str) -> Iterator[Join]:
    with ExitStack() as stack:

        def start(name: bytes, **options: int) -> Any:
            query = "&".join(f"{key}={value}" for key, value in {"timeout": 20, **options}.items())
            started = coordination.get_coordinator(f"etcd3+http://{etcd_endpoint}/?{query}", name)
            started.start()
            stack.callback(started.stop)
            return started

        yield start


def test_a_lock_has_one_holder(coordinator: Join, prefix: str) -> None:
    ann, bob = coordinator(b"ann"), coordinator(b"bob")
    name = prefix.encode()
    first, second = ann.get_lock(name), bob.get_lock(name)

    assert first.acquire(blocking=False) is True
    assert first.acquired
    assert second.acquire(blocking=False) is False
    assert first.heartbeat() is True
    assert second.release() is False
    assert first.release() is True
    assert second.acquire(blocking=10) is True
    assert second.break_() is True
    assert first.acquire(blocking=False) is True
    assert first.release() is True


def test_a_lock_without_heartbeats_is_lost(coordinator: Join, prefix: str) -> None:
    ann, bob = coordinator(b"ann", lock_timeout=2), coordinator(b"bob")
    name = prefix.encode()
    assert ann.get_lock(name).acquire(blocking=False) is True

    assert bob.get_lock(name).acquire(blocking=SECONDS) is True


def test_members_of_a_group(coordinator: Join, prefix: str) -> None:
    ann, bob = coordinator(b"ann"), coordinator(b"bob")
    group = prefix.rstrip("/").encode()

    ann.create_group(group).get(SECONDS)
    with pytest.raises(coordination.GroupAlreadyExist):
        bob.create_group(group).get(SECONDS)
    assert group in ann.get_groups().get(SECONDS)
    ann.join_group(group, capabilities={"speed": 1}).get(SECONDS)
    bob.join_group(group).get(SECONDS)
    with pytest.raises(coordination.MemberAlreadyExist):
        bob.join_group(group).get(SECONDS)
    assert ann.get_members(group).get(SECONDS) == {b"ann", b"bob"}
    assert bob.get_member_capabilities(group, b"ann").get(SECONDS) == {"speed": 1}
    ann.update_capabilities(group, {"speed": 2}).get(SECONDS)
    assert bob.get_member_capabilities(group, b"ann").get(SECONDS) == {"speed": 2}
    with pytest.raises(coordination.GroupNotEmpty):
        ann.delete_group(group).get(SECONDS)
    bob.leave_group(group).get(SECONDS)
    with pytest.raises(coordination.MemberNotJoined):
        bob.leave_group(group).get(SECONDS)
    assert ann.get_members(group).get(SECONDS) == {b"ann"}


def test_a_group_that_is_not_there(coordinator: Join, prefix: str) -> None:
    ann = coordinator(b"ann")
    group = prefix.rstrip("/").encode()

    with pytest.raises(coordination.GroupNotCreated):
        ann.join_group(group).get(SECONDS)
    with pytest.raises(coordination.GroupNotCreated):
        ann.delete_group(group).get(SECONDS)
    ann.create_group(group).get(SECONDS)
    ann.delete_group(group).get(SECONDS)
    assert group not in ann.get_groups().get(SECONDS)


def test_heartbeats_keep_a_member(coordinator: Join, prefix: str) -> None:
    """The membership of bob, who sends no heartbeats, ends with its lease. Each heartbeat of ann renews hers."""
    ann, bob = coordinator(b"ann", membership_timeout=3), coordinator(b"bob", membership_timeout=3)
    group = prefix.rstrip("/").encode()
    ann.create_group(group).get(SECONDS)
    ann.join_group(group).get(SECONDS)
    bob.join_group(group).get(SECONDS)

    members = {b"ann", b"bob"}
    while members == {b"ann", b"bob"}:
        assert ann.heartbeat() == 3
        members = ann.get_members(group).get(SECONDS)

    assert members == {b"ann"}


def test_watchers_are_told_who_joins_and_leaves(coordinator: Join, prefix: str) -> None:
    ann, bob = coordinator(b"ann"), coordinator(b"bob")
    group = prefix.rstrip("/").encode()
    ann.create_group(group).get(SECONDS)
    told: list[tuple[str, bytes]] = []
    ann.watch_join_group(group, lambda event: told.append(("join", event.member_id)))
    ann.watch_leave_group(group, lambda event: told.append(("leave", event.member_id)))

    bob.join_group(group).get(SECONDS)
    ann.run_watchers()
    bob.leave_group(group).get(SECONDS)
    ann.run_watchers()

    assert told == [("join", b"bob"), ("leave", b"bob")]
