"""Users at the ports of real members: certificates as users, and a new member that has to name its user."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path
from typing import Any

import pytest
import trio

from kvstore import (
    AuthDisable,
    Client,
    Member,
    MemberTls,
    PermissionDenied,
    Tls,
    Unauthenticated,
    UserGrant,
    add_user,
    auth_switch,
    change_access,
    enable_auth,
    open_node,
)
from kvstore.embedded import EmbeddedStore
from tests.raft.support.certificates import Certificates

pytestmark = pytest.mark.timeout(90)

in_thread = trio.to_thread.run_sync


async def enable_as_root(store: EmbeddedStore) -> None:
    """Make the user root with the password of the store's own client, and turn authentication on."""
    await add_user(store, "root", "one", in_thread)
    await change_access(store, UserGrant("root", "root"))
    await enable_auth(store)


async def test_the_common_name_of_a_verified_certificate_is_a_user(tmp_path: Path) -> None:
    made = Certificates(tmp_path / "certificates")
    port = made.issue("port.pem", "127.0.0.1")

    def tls(name: str | None) -> Tls:
        return Tls(ca=made.ca, cert=made.issue(f"{name}.pem", "a-name", common_name=name))

    async with open_node(
        tmp_path / "data",
        bootstrap=True,
        listen_client="127.0.0.1:0",
        tls=MemberTls(cert=port, client_ca=made.ca),
        user="root",
        password="one",
    ) as store:
        await enable_as_root(store)
        await add_user(store, "ada", None, in_thread)
        async with Client([store.client_address], tls=tls("ada")) as ada:
            assert (await auth_switch(ada)).user == "ada"
            with pytest.raises(PermissionDenied):
                await ada.get("a")
            await change_access(store, UserGrant("ada", "root"))
            await ada.put("a", "1")
        for name in ("a-stranger", None):
            async with Client([store.client_address], tls=tls(name)) as stranger:
                with pytest.raises(Unauthenticated):
                    await stranger.get("a")
        async with Client([store.client_address], tls=tls("a-stranger"), user="root", password="one") as root:
            assert (await auth_switch(root)).user == "root"


async def test_the_name_in_a_certificate_that_nobody_has_verified_is_no_user(tmp_path: Path) -> None:
    """Without `client_ca`, the member asks for no certificate."""
    made = Certificates(tmp_path / "certificates")
    async with open_node(
        tmp_path / "data",
        bootstrap=True,
        listen_client="127.0.0.1:0",
        tls=MemberTls(cert=made.issue("port.pem", "127.0.0.1")),
        user="root",
        password="one",
    ) as store:
        await enable_as_root(store)
        tls = Tls(ca=made.ca, cert=made.issue("root.pem", "a-name", common_name="root"))
        async with Client([store.client_address], tls=tls) as client:
            with pytest.raises(Unauthenticated):
                await client.get("a")


async def test_a_new_member_names_a_user_to_fetch_its_first_state(tmp_path: Path) -> None:
    async with open_node(
        tmp_path / "s1",
        bootstrap=True,
        listen_client="127.0.0.1:0",
        listen_peer="127.0.0.1:0",
        user="root",
        password="one",
    ) as store:
        await store.put("a", "1")
        await enable_as_root(store)
        new = Member("s2", "127.0.0.1:1", "127.0.0.1:2")  # Nobody dials these, as s2 is never added.

        def joined(**credentials: str) -> open_node:
            return open_node(
                tmp_path / "s2",
                node_id="s2",
                members=[new],
                join=[store.client_address],
                listen_client="127.0.0.1:0",
                listen_peer="127.0.0.1:0",
                **credentials,  # type: ignore[arg-type]
            )

        with pytest.raises(Unauthenticated):
            async with joined():
                pass
        with trio.move_on_after(20) as patience:
            async with joined(user="root", password="one") as other:
                assert other.node_id == "s2"
                patience.cancel()
        assert (tmp_path / "s2").is_dir()
        await change_access(store, AuthDisable())


async def test_a_password_is_checked_in_a_thread_while_the_member_serves_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check waits until the member has served another client. On the loop of the member it would fail at once,
    because `from_thread` refuses a call from the thread of the loop."""
    is_checked, goes_on, scrypt = trio.Event(), threading.Event(), hashlib.scrypt
    threads: list[threading.Thread] = []

    def slow_scrypt(*arguments: Any, **options: Any) -> bytes:
        threads.append(threading.current_thread())
        trio.from_thread.run_sync(is_checked.set)
        assert goes_on.wait(20)
        return scrypt(*arguments, **options)

    async def ask_as_ada(address: str) -> None:
        async with Client([address], user="ada", password="two") as ada:
            assert (await auth_switch(ada)).user == "ada"

    with trio.fail_after(60):
        async with open_node(
            tmp_path / "data", bootstrap=True, listen_client="127.0.0.1:0", user="root", password="one"
        ) as store:
            await enable_as_root(store)
            await add_user(store, "ada", "two", in_thread)
            await store.put("a", "1")  # The store's own client has given its password.
            monkeypatch.setattr("hashlib.scrypt", slow_scrypt)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask_as_ada, store.client_address)
                try:
                    await is_checked.wait()
                    await store.put("a", "2")
                finally:
                    goes_on.set()
    assert threads
    assert threading.current_thread() not in threads
