"""Users in each world: who is accepted, what a user may do, and what ends when a right is taken away
(docs/concepts/users.md)."""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

import kvstore
import kvstore.blocking
from kvstore import (
    LeaseLost,
    Member,
    PermissionDenied,
    RoleAdd,
    RoleGrant,
    RoleRemove,
    RoleRevoke,
    Unauthenticated,
    UserAdd,
    UserGrant,
    UserRemove,
    UserRevoke,
)
from kvstore.access import calls, tokens
from kvstore.protocol.commands import prefix_range
from tests.kvstore.conftest import MEMORY
from tests.kvstore.support.relay import Relay
from tests.kvstore.support.users import PASSWORDS, commands_to_enable, verifier_of
from tests.kvstore.worlds.world import MemberThread, World, in_each_world, settled

pytestmark = [pytest.mark.timeout(60)]

ROOT: dict[str, Any] = {"user": "root", "password": PASSWORDS["root"]}
ADA: dict[str, Any] = {"user": "ada", "password": PASSWORDS["ada"]}

WATCH_END_SECONDS_MAX = 1.0
"""A watch ends within this time after its user has lost the right to read."""


@pytest.fixture(scope="module")
def relay() -> Iterator[Relay]:
    """A relay in front of a member that has users and uses authentication. The member names the address of the relay as
    its own. All scenarios of this file share the relay and the member."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder, Relay() as relay:
        options = {
            "node_id": "s1",
            "members": [Member("s1", "127.0.0.1:1", relay.address)],
            "listen_peer": "127.0.0.1:0",
        }
        with MemberThread(Path(folder) / "s1", **ROOT, **options) as member:
            relay.target = member.address
            with kvstore.blocking.Client([relay.address], **ROOT) as client:
                for command in commands_to_enable():
                    client.execute(command)
            yield relay


@pytest.fixture(scope="module")
def guarded_address(relay: Relay) -> str:
    """The client address of the member."""
    return relay.address


class Guest:
    """A user with a role of one scenario. The role may read and write the keys with the scenario's prefix."""

    def __init__(self, prefix: str) -> None:
        self.name = self.role = prefix.rstrip("/")
        self.range = prefix_range(prefix.encode())
        self.options = {"user": self.name, "password": PASSWORDS["eve"]}

    async def add(self, root: Any) -> None:
        """Make the user and the role."""
        for command in (
            UserAdd(self.name, verifier_of("eve")),
            RoleAdd(self.role),
            RoleGrant(self.role, 3, *self.range),
            UserGrant(self.name, self.role),
        ):
            await root.execute(command)


@in_each_world
async def test_a_user_does_what_its_roles_allow(world: World, guarded_address: str, name: str) -> None:
    async with world.client([guarded_address], **ADA) as ada:
        await ada.put(f"app/{name}", "1")
        assert (await ada.get(f"app/{name}")).value == b"1"
        with pytest.raises(PermissionDenied) as caught:
            await ada.put(name, "1")
        assert caught.value.args == ("ada", "write", name.encode(), name.encode() + b"\0")
        with pytest.raises(PermissionDenied):
            [_ async for _ in ada.items(prefix=name)]


@in_each_world
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, "missing"),
        ({"user": "ada", "password": "a wrong password"}, "refused"),
        ({"user": "nobody", "password": "x"}, "refused"),
    ],
    ids=["no user", "wrong password", "unknown user"],
)
async def test_a_stranger_is_refused_at_once(
    world: World, guarded_address: str, options: dict[str, str], reason: str
) -> None:
    """The error comes long before the deadline, for calls, watches and locks."""
    async with world.client([guarded_address], deadline_seconds=25.0, **options) as client:
        began = time.monotonic()
        with pytest.raises(Unauthenticated) as caught:
            await client.put("app/a", "1")
        assert caught.value.reason == reason
        with pytest.raises(Unauthenticated):
            await client.get("app/a")
        with pytest.raises(Unauthenticated):
            async with client.watch(prefix="app/") as watch:
                await anext(watch)
        with pytest.raises(Unauthenticated):
            async with client.lock("app/lock"):
                pass
        assert time.monotonic() - began < 20


@in_each_world
async def test_a_client_reconnects_with_its_token_while_the_token_is_valid(
    world: World, relay: Relay, name: str
) -> None:
    """The check of a password takes 50 ms, so a client gives the password once."""
    secret, before = PASSWORDS["ada"].encode(), len(relay.connections)
    async with world.client([relay.address], session=False, **ADA) as ada:
        await ada.put(f"app/{name}", "1")
        first, *_ = relay.connections[before:]
        assert secret in first
        before = len(relay.connections)
        relay.cut()
        assert (await ada.get(f"app/{name}")).value == b"1"
        later = b"".join(relay.connections[before:])
        assert b"ada" in later
        assert secret not in later


@in_each_world
async def test_a_client_renews_an_expired_token_by_itself(
    world: World, relay: Relay, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tokens of this member expire at the moment at which they are made."""
    monkeypatch.setattr(tokens, "TOKEN_NS", 0)
    async with world.client([relay.address], session=False, **ADA) as ada:
        await ada.put(f"app/{name}", "1")
        before = len(relay.connections)
        relay.cut()
        assert (await ada.get(f"app/{name}")).value == b"1"
        assert PASSWORDS["ada"].encode() in b"".join(relay.connections[before:])


@in_each_world
async def test_the_token_of_a_removed_user_is_worth_nothing(world: World, relay: Relay, name: str) -> None:
    guest = Guest(name)
    async with world.client([relay.address], **ROOT) as root:
        await guest.add(root)
        async with world.client([relay.address], session=False, **guest.options) as client:
            await client.put(f"{name}a", "1")
            await root.execute(UserRemove(guest.name))
            relay.cut()
            with pytest.raises(Unauthenticated):
                await client.get(f"{name}a")


def taking_away(guest: Guest) -> dict[str, Any]:
    """The changes after which a guest may no longer read, and the error of its watches."""
    return {
        "the role is revoked": (UserRevoke(guest.name, guest.role), PermissionDenied),
        "the right is revoked": (RoleRevoke(guest.role, *guest.range), PermissionDenied),
        "only the right to write is left": (RoleGrant(guest.role, 2, *guest.range), PermissionDenied),
        "the role is removed": (RoleRemove(guest.role), PermissionDenied),
        "the user is removed": (UserRemove(guest.name), Unauthenticated),
    }


@in_each_world
@pytest.mark.parametrize("what", taking_away(Guest("a/")))
async def test_a_watch_ends_within_a_second_of_its_right(
    world: World, guarded_address: str, name: str, what: str
) -> None:
    """The clock runs from before the change is sent until the watch has raised its error."""
    guest = Guest(name)
    change, error = taking_away(guest)[what]
    async with world.client([guarded_address], **ROOT) as root:
        await guest.add(root)
        async with world.client([guarded_address], **guest.options) as client, client.watch(prefix=name) as watch:
            await root.put(f"{name}a", "seen")
            assert (await anext(watch)).record.value == b"seen"
            began = time.monotonic()
            await root.execute(change)
            await root.put(f"{name}a", "secret")
            with pytest.raises(error):
                await anext(watch)
            assert time.monotonic() - began < WATCH_END_SECONDS_MAX


@in_each_world
async def test_a_view_of_a_user_is_below_the_keys_of_its_role(world: World, guarded_address: str, name: str) -> None:
    """Locks, elections and queues of a view have keys below its prefix, so one range is enough for all of them. Errors
    name whole keys."""
    async with world.client([guarded_address], **ADA) as ada:
        view = await settled(ada.under(f"app/{name}"))
        async with view.lock("report") as lock:
            await (await settled((await settled(lock.guarded())).put("report", "done"))).commit()
        async with view.election("leader") as election:
            await election.campaign("me")
            assert (await view.get("report")).value == b"done"
        inner = await settled(view.under("inner/"))
        await inner.append("log/", "1")
        assert [item.value async for item in inner.items(prefix="log/")] == [b"1"]
        beside = await settled(ada.under("ap"))
        with pytest.raises(PermissionDenied) as caught:
            await beside.range()
        assert caught.value.args == ("ada", "read", b"ap", b"aq")
        with pytest.raises(PermissionDenied):
            async with ada.lock(name):
                pass


@in_each_world
async def test_typed_values_of_a_user_and_their_watch(world: World, guarded_address: str, name: str) -> None:
    guest = Guest(name)
    async with world.client([guarded_address], **ROOT) as root:
        await guest.add(root)
        async with world.client([guarded_address], **guest.options) as client:
            typed = await settled((await settled(client.under(name))).typed(json.dumps, json.loads))
            async with typed.watch(prefix="") as watch:
                await typed.put("a", {"rate": 10})
                assert (await anext(watch)).value == {"rate": 10}
                assert (await typed.get("a")).value == {"rate": 10}
                await root.execute(UserRevoke(guest.name, guest.role))
                with pytest.raises(PermissionDenied):
                    await anext(watch)
            with pytest.raises(PermissionDenied):
                await typed.put("a", 1)
            with pytest.raises(PermissionDenied):
                await typed.get("a")


@in_each_world
async def test_a_lock_is_lost_with_the_right_to_write_its_key(world: World, guarded_address: str, name: str) -> None:
    guest = Guest(name)
    async with world.client([guarded_address], **ROOT) as root:
        await guest.add(root)
        async with world.client([guarded_address], **guest.options) as client:
            view = await settled(client.under(name))

            async def hold_the_lock_without_the_right() -> None:
                async with view.lock("report", ttl_seconds=1.0) as lock:
                    await root.execute(UserRevoke(guest.name, guest.role))
                    while True:
                        await settled(lock.check())
                        await world.sleep(0.01)

            with pytest.raises(LeaseLost):
                await hold_the_lock_without_the_right()


ASYNC_WORLDS = {"trio": trio.to_thread.run_sync, "asyncio": asyncio.to_thread}
"""For each event loop, the function that computes a password's verifier in a thread. A blocking client computes it in
its own thread."""


@in_each_world
async def test_the_calls_about_users_exist_in_each_world(world: World, guarded_address: str, name: str) -> None:
    user, role = name.rstrip("/"), "apps"
    async with world.client([guarded_address], **ROOT) as root:
        if world.name in ASYNC_WORLDS:
            in_thread: Any = ASYNC_WORLDS[world.name]
            await calls.add_user(root, user, "one", in_thread)
            await calls.change_access(root, UserGrant(user, role))
            await calls.change_password(root, user, "two", in_thread)
            users, roles = await calls.list_users(root), await calls.list_roles(root)
            switch = await calls.auth_switch(root)
        else:
            plain = root._inner
            kvstore.blocking.add_user(plain, user, "one")
            kvstore.blocking.change_access(plain, UserGrant(user, role))
            kvstore.blocking.change_password(plain, user, "two")
            users, roles = kvstore.blocking.list_users(plain), kvstore.blocking.list_roles(plain)
            switch = kvstore.blocking.auth_switch(plain)
    assert [each.roles for each in users if each.name == user] == [(role,)]
    assert role in {each.name for each in roles}
    assert (switch.is_enabled, switch.user) == (True, "root")
    async with world.client([guarded_address], user=user, password="two") as client:
        await client.put(f"app/{name}", "1")


@in_each_world
async def test_a_blocking_or_asynchronous_client_may_turn_authentication_on(world: World, tmp_path: Path) -> None:
    with MemberThread(tmp_path / "s1") as member:
        async with world.client([member.address], **ROOT) as root, world.client([member.address]) as nobody:
            await nobody.put("a", "1")
            for command in commands_to_enable()[:-1]:
                await root.execute(command)
            if world.name in ASYNC_WORLDS:
                await calls.enable_auth(root)
            else:
                kvstore.blocking.enable_auth(root._inner)
            await root.put("a", "2")
            with pytest.raises(Unauthenticated):
                await nobody.put("a", "3")


# Connection URLs.


@pytest.fixture
def password_file(tmp_path: Path) -> Path:
    path = tmp_path / "ada.password"
    path.write_text(PASSWORDS["ada"] + "\n")
    return path


@in_each_world
async def test_a_url_names_the_user_and_the_file_of_the_password(
    world: World, guarded_address: str, name: str, password_file: Path
) -> None:
    url = f"hwm://ada@{guarded_address}/app/{name}?password_file={password_file}"
    async with world.connect(url) as view:
        await view.put("a", "1")
        assert (await view.get("a")).value == b"1"


@in_each_world
async def test_the_password_of_a_url_may_be_in_the_environment(
    world: World, guarded_address: str, name: str, password_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A password file that the environment names takes precedence over a password in the environment, as in `hwm`."""
    url = f"hwm://ada@{guarded_address}/app/{name}"
    monkeypatch.setenv("HWM_PASSWORD", PASSWORDS["ada"])
    async with world.connect(url) as view:
        await view.put("a", "1")
    monkeypatch.setenv("HWM_PASSWORD", "a wrong password")
    monkeypatch.setenv("HWM_PASSWORD_FILE", str(password_file))
    async with world.connect(url) as view:
        await view.put("a", "2")


@in_each_world
async def test_the_password_of_a_url_may_be_an_argument(
    world: World, guarded_address: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HWM_PASSWORD", "a wrong password")
    async with world.connect(f"hwm://ada@{guarded_address}/app/{name}", password=PASSWORDS["ada"]) as view:
        await view.put("a", "1")


@in_each_world
async def test_a_url_without_a_user_takes_no_password_from_the_environment(
    world: World, guarded_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HWM_PASSWORD", PASSWORDS["ada"])
    async with world.connect(f"hwm://{guarded_address}") as client:
        with pytest.raises(Unauthenticated):
            await client.get("app/a")
