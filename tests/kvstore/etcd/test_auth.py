"""Users, roles and tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvstore.etcd.errors import Status
from kvstore.etcd.schema import Message, make
from tests.kvstore.etcd.grpc_client import Call, CallFailed
from tests.kvstore.etcd.member import KV, WATCH, Etcd, serving

AUTH = "/etcdserverpb.Auth"


async def auth(etcd: Etcd, method: str, token: str = "", /, **fields: Any) -> Message:
    name = method if method.startswith("Auth") else f"Auth{method}"
    headers = [("token", token)] if token else []
    return await etcd.grpc.call(f"{AUTH}/{method}", make(f"{name}Request", **fields), headers=headers)


async def token_of(etcd: Etcd, name: str, password: str) -> str:
    return str((await auth(etcd, "Authenticate", name=name, password=password)).token)


async def enable(etcd: Etcd) -> str:
    """Turn authentication on, with the users root and alice, who may read and write keys from `a/` to `a0`."""
    await auth(etcd, "UserAdd", name="root", password="r00t")
    await auth(etcd, "RoleAdd", name="root")
    await auth(etcd, "UserGrantRole", user="root", role="root")
    await auth(etcd, "UserAdd", name="alice", password="secret")
    await auth(etcd, "RoleAdd", name="a")
    permission = make("authpb.Permission", permType=2, key=b"a/", range_end=b"a0")
    await auth(etcd, "RoleGrantPermission", name="a", perm=permission)
    await auth(etcd, "UserGrantRole", user="alice", role="a")
    await auth(etcd, "AuthEnable")
    return await token_of(etcd, "root", "r00t")


async def put_as(etcd: Etcd, token: str, key: bytes) -> Message:
    headers = [("token", token)] if token else []
    return await etcd.grpc.call(f"{KV}/Put", make("PutRequest", key=key), headers=headers)


async def test_users_and_roles_are_made_told_and_removed(tmp_path: Path) -> None:
    async with serving(tmp_path / "data") as etcd:
        root = await enable(etcd)
        assert list((await auth(etcd, "UserList", root)).users) == ["alice", "root"]
        assert list((await auth(etcd, "UserGet", root, name="alice")).roles) == ["a"]
        (permission,) = (await auth(etcd, "RoleGet", root, role="a")).perm
        assert (permission.permType, permission.key, permission.range_end) == (2, b"a/", b"a0")
        assert list((await auth(etcd, "RoleList", root)).roles) == ["a"]
        assert (await auth(etcd, "AuthStatus", root)).enabled
        await auth(etcd, "RoleRevokePermission", root, role="a", key=b"a/", range_end=b"a0")
        assert not (await auth(etcd, "RoleGet", root, role="a")).perm
        await auth(etcd, "UserRevokeRole", root, name="alice", role="a")
        await auth(etcd, "UserDelete", root, name="alice")
        await auth(etcd, "RoleDelete", root, role="a")
        await auth(etcd, "AuthDisable", root)
        assert not (await auth(etcd, "AuthStatus")).enabled


@pytest.mark.parametrize(
    ("method", "fields", "text"),
    [
        ("UserGet", {"name": "nobody"}, "user name not found"),
        ("UserAdd", {"name": "alice", "password": "x"}, "user name already exists"),
        ("RoleAdd", {"name": "a"}, "role name already exists"),
        ("RoleGet", {"role": "none"}, "role name not found"),
        ("UserGrantRole", {"user": "alice", "role": "none"}, "role name not found"),
        ("UserRevokeRole", {"name": "root", "role": "a"}, "role is not granted to the user"),
        ("RoleRevokePermission", {"role": "a", "key": b"z"}, "permission is not granted to the role"),
        ("UserAdd", {"name": ""}, "user name is empty"),
        ("UserChangePassword", {"name": "nobody", "password": "x"}, "user name not found"),
        ("UserChangePassword", {"name": "alice"}, "password is empty"),
    ],
)
async def test_refusals_have_the_texts_that_clients_compare(
    tmp_path: Path, method: str, fields: dict[str, Any], text: str
) -> None:
    async with serving(tmp_path / "data") as etcd:
        root = await enable(etcd)
        with pytest.raises(CallFailed) as failed:
            await auth(etcd, method, root, **fields)
        assert failed.value.text == f"etcdserver: {text}"


async def test_rights_are_judged_by_the_token(tmp_path: Path) -> None:
    async with serving(tmp_path / "data") as etcd:
        root = await enable(etcd)
        alice = await token_of(etcd, "alice", "secret")
        await put_as(etcd, root, b"anything")
        await put_as(etcd, alice, b"a/1")
        for token, status, text in (
            (alice, 7, "permission denied"),
            ("", 3, "user name is empty"),
            ("alice.00ff", 16, "invalid auth token"),
            ("nonsense", 16, "invalid auth token"),
        ):
            with pytest.raises(CallFailed) as failed:
                await put_as(etcd, token, b"b")
            assert (failed.value.status, failed.value.text) == (status, f"etcdserver: {text}"), token


async def test_a_wrong_password_and_authentication_that_is_off_are_told(tmp_path: Path) -> None:
    async with serving(tmp_path / "data") as etcd:
        with pytest.raises(CallFailed) as failed:
            await token_of(etcd, "root", "x")
        assert (failed.value.status, failed.value.text) == (9, "etcdserver: authentication is not enabled")
        await enable(etcd)
        for name, password in (("root", "wrong"), ("nobody", "x"), ("root", "")):
            with pytest.raises(CallFailed) as failed:
                await token_of(etcd, name, password)
            text = "etcdserver: authentication failed, invalid user ID or password"
            assert (failed.value.status, failed.value.text) == (3, text)


async def test_authentication_is_not_turned_on_without_root(tmp_path: Path) -> None:
    async with serving(tmp_path / "data") as etcd:
        with pytest.raises(CallFailed) as failed:
            await auth(etcd, "AuthEnable")
        assert failed.value.text == "etcdserver: root user does not exist"
        await auth(etcd, "UserAdd", name="root", password="x")
        with pytest.raises(CallFailed) as failed:
            await auth(etcd, "AuthEnable")
        assert failed.value.text == "etcdserver: root user does not have root role"


async def test_a_token_ends_with_the_password_that_it_proves(tmp_path: Path) -> None:
    async with serving(tmp_path / "data") as etcd:
        root = await enable(etcd)
        alice = await token_of(etcd, "alice", "secret")
        await put_as(etcd, alice, b"a/1")
        await auth(etcd, "UserChangePassword", root, name="alice", password="other")
        with pytest.raises(CallFailed) as failed:
            await put_as(etcd, alice, b"a/1")
        assert failed.value.status == 16
        await put_as(etcd, await token_of(etcd, "alice", "other"), b"a/1")


async def watch_as(etcd: Etcd, token: str) -> Call:
    watch = await etcd.grpc.open(f"{WATCH}/Watch", headers=[("token", token)])
    await watch.send(make("WatchRequest", create_request=make("WatchCreateRequest", key=b"a/1")))
    assert (await watch.receive()) is not None
    return watch


async def test_many_tokens_of_users_replace_one_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound is on tokens: the anonymous client has none."""
    monkeypatch.setattr("kvstore.etcd.identities.IDENTITIES_MAX", 2)
    async with serving(tmp_path / "data") as etcd:
        root = await enable(etcd)
        alice = await token_of(etcd, "alice", "secret")
        watches = [await watch_as(etcd, token) for token in (root, alice)]
        await auth(etcd, "UserAdd", root, name="bob", password="b0b")  # Now alice has called least recently.
        await token_of(etcd, "bob", "b0b")
        with pytest.raises(CallFailed) as replaced:
            await watches[1].receive()
        assert (replaced.value.status, "try again" in replaced.value.text) == (Status.UNAVAILABLE, True)
        await put_as(etcd, alice, b"a/2")  # Its client is made again from the token, and replaces that of root.
        with pytest.raises(CallFailed, match="try again"):
            await watches[0].receive()


async def test_a_token_that_is_made_twice_keeps_its_calls(tmp_path: Path) -> None:
    """Tokens end at a time, and those of one user for the same time are the same."""
    async with serving(tmp_path / "data") as etcd:
        await enable(etcd)
        watches = {token: await watch_as(etcd, token) for token in [await token_of(etcd, "alice", "secret")]}
        while (again := await token_of(etcd, "alice", "secret")) not in watches:
            watches[again] = await watch_as(etcd, again)
        await put_as(etcd, again, b"a/1")
        for watch in watches.values():
            response = await watch.receive()
            assert response is not None
            assert response.events
