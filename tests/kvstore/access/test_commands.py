"""`hwm user`, `hwm role` and `hwm auth` against a running store, and the audit trail that these commands leave."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import trio
from click.testing import CliRunner, Result

from kvstore import Client, PermissionDenied, Unauthenticated, open_node
from kvstore.cli.common import ExitCode
from kvstore.cli.main import cli

pytestmark = pytest.mark.timeout(90)


class Commands:
    """Runs `hwm` against the store in a separate thread, with or without a user."""

    def __init__(self, address: str, folder: Path) -> None:
        self.address, self.folder = address, folder
        self.user: list[str] = []

    def become(self, name: str, password: str = "") -> None:
        path = self.folder / f"{name}.password"
        path.write_text(f"{password or name}\n")
        self.user = ["--user", name, "--password-file", str(path)]

    def hwm(self, *arguments: str) -> Result:
        return CliRunner().invoke(cli, [*arguments, "--endpoints", self.address, *self.user])

    def done(self, *arguments: str) -> str:
        result = self.hwm(*arguments)
        assert result.exit_code == 0, result.output
        return result.stdout

    def json(self, *arguments: str) -> Any:
        return json.loads(self.done(*arguments, "--json"))


def with_store(folder: Path, work: Any) -> None:
    async def main() -> None:
        async with open_node(folder / "data", bootstrap=True, listen_client="127.0.0.1:0") as store:
            await trio.to_thread.run_sync(work, Commands(store.client_address, folder))

    trio.run(main)


def test_users_and_roles_are_made_shown_and_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def work(shell: Commands) -> None:
        for name in ("root", "ada"):
            (tmp_path / "new").write_text(name)
            shell.done("user", "add", name, "--new-password-file", str(tmp_path / "new"))
        shell.done("user", "add", "by-certificate", "--no-password")
        assert shell.done("auth", "status") == "authentication off\nauth_revision 4\n"
        refused = shell.hwm("auth", "enable")
        assert refused.exit_code == ExitCode.FAILED
        assert "a user 'root' with the role 'root'" in refused.stderr
        for command in (
            "user grant root root",
            "role add apps",
            "role grant apps readwrite app/ --prefix",
            "role grant apps read config",
            "role grant apps write a --end b",
            "user grant ada apps",
            "user limits ada requests_per_second=1000 watches_max=5",
            "auth enable",
        ):
            shell.done(*command.split())
        nobody = shell.hwm("put", "app/a", "1")
        assert nobody.exit_code == ExitCode.FAILED
        assert "not authenticated" in nobody.stderr
        assert "--password-file" in nobody.stderr
        status = shell.hwm("status")
        assert status.exit_code == ExitCode.NEGATIVE
        assert status.stdout.splitlines()[-1].split()[:2] == ["s1", "refused"]
        assert "s1 refuses: not authenticated" in status.stderr
        assert "hint: name a user" in status.stderr
        (shown,) = json.loads(shell.hwm("status", "--json").stdout)
        assert shown["reachable"] is True
        assert "not authenticated" in shown["error"]

        shell.become("ada")
        shell.done("put", "app/a", "1")
        denied = shell.hwm("put", "other", "1")
        assert denied.exit_code == ExitCode.FAILED
        assert "user 'ada' has no right to write b'other'" in denied.stderr
        assert shell.json("auth", "status") == {
            "is_enabled": True, "auth_revision": 12, "user": "ada", "roles": ["apps"],
        }  # fmt: skip
        assert [each["user"] for each in shell.json("user", "list")["users"]] == ["ada"]
        assert shell.hwm("user", "add", "eve", "--no-password").exit_code == ExitCode.FAILED

        shell.become("ada", "wrong")
        wrong = shell.hwm("put", "app/a", "1")
        assert wrong.exit_code == ExitCode.FAILED
        assert "there is no user 'ada', or the password is wrong" in wrong.stderr

        shell.become("root")
        assert (
            shell.done("role", "list")
            == "apps\twrite\ta\tb\napps\treadwrite\tapp/\tapp0\napps\tread\tconfig\tconfig\\x00\n"
        )
        users = {each["user"]: each for each in shell.json("user", "list")["users"]}
        assert users["ada"] == {
            "user": "ada", "has_password": True, "roles": ["apps"], "requests_per_second": 1000,
            "bytes_per_second": 0, "connections_max": 0, "watches_max": 5,
        }  # fmt: skip
        assert users["by-certificate"]["has_password"] is False
        for command in ("user revoke ada apps", "role revoke apps config", "role remove apps", "user remove ada"):
            shell.done(*command.split())
        assert shell.hwm("user", "remove", "ada").exit_code == ExitCode.FAILED
        shell.done("auth", "disable")
        shell.user = []
        shell.done("put", "app/a", "2")

    with caplog.at_level(logging.WARNING, "kvstore.audit"):
        with_store(tmp_path, work)
    trail: list[Any] = [record.args for record in caplog.records if record.name == "kvstore.audit"]
    changes = [each["fields"] for each in trail if each["event"] == "access_changed"]
    assert [each["auth_revision"] for each in changes] == list(range(2, 18))
    assert changes[0] == {"what": "UserAdd(name='root')", "user": "", "auth_revision": 2}
    assert changes[-1] == {"what": "AuthDisable()", "user": "root", "auth_revision": 17}
    refused = [each["fields"] for each in trail if each["event"] == "password_refused"]
    assert refused
    assert {(each["user"], each["origin"]) for each in refused} == {("ada", "127.0.0.1")}
    assert "verifier" not in caplog.text
    assert "token_key" not in caplog.text


def test_a_granted_right_is_said(tmp_path: Path) -> None:
    def work(shell: Commands) -> None:
        shell.done("role", "add", "shop")
        for arguments, words in (
            ("readwrite shop/ --prefix", "role shop may readwrite shop/…"),
            ("read config", "role shop may read config"),
            ("write a --end b", "role shop may write a to before b"),
        ):
            assert shell.hwm("role", "grant", "shop", *arguments.split()).stderr == f"{words}\n"
        assert "may read all keys" in shell.hwm("role", "grant", "shop", "read", "", "--prefix").stderr

    with_store(tmp_path, work)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("put a b --user ada", "no terminal to ask"),
        ("put a b --password-file nowhere", "of no use without --user"),
        ("put a b --user ada --password-file nowhere", "cannot be read"),
        ("user add ada --no-password --new-password-file x", "exclude each other"),
        ("user limits ada size=3", "There is no bound"),
        ("user limits ada watches_max=-3", "whole number"),
        ("role grant apps read a --prefix --end b", "exclude each other"),
        ("role grant apps read b --end a", "above KEY"),
        ("role grant apps delete b", "is not one of"),
    ],
)
def test_a_wrong_use_is_refused_before_anything_is_sent(arguments: str, words: str) -> None:
    result = CliRunner().invoke(cli, arguments.split())
    assert result.exit_code == ExitCode.USAGE, result.output
    assert words in result.stderr


async def test_a_program_names_its_user_and_gets_errors_that_say_what_is_missing(tmp_path: Path) -> None:
    from kvstore.access.calls import add_user, auth_switch, change_access, change_password, enable_auth, list_roles
    from kvstore.protocol.access_commands import RoleAdd, RoleGrant, UserGrant

    in_thread = trio.to_thread.run_sync
    async with open_node(tmp_path / "data", bootstrap=True, user="root", password="one") as store:
        await add_user(store, "root", "one", in_thread)
        await add_user(store, "ada", "two", in_thread)
        for command in (
            UserGrant("root", "root"),
            RoleAdd("apps"),
            RoleGrant("apps", 3, b"a", b"b"),
            UserGrant("ada", "apps"),
        ):
            await change_access(store, command)
        await enable_auth(store)
        await store.put("b", "1")
        assert (await auth_switch(store)).user == "root"
        assert [role.name for role in await list_roles(store)] == ["apps"]
        dial = store._dial_here_or_there
        async with Client(["in-process:0"], user="ada", password="two", dialer=dial) as ada:
            async with ada.lock("a/lock"):
                await ada.put("a", "1")
            with pytest.raises(PermissionDenied):
                await ada.get("b")
            await change_password(ada, "ada", "three", in_thread)
            with pytest.raises(Unauthenticated):
                await ada.get("a")
        async with Client(["in-process:0"], dialer=dial) as nobody:
            with pytest.raises(Unauthenticated):
                await nobody.get("a")
