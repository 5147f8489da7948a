"""`hwm session` and `hwm limits` against a running store: their output, their changes, and their exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from click.testing import CliRunner, Result

from kvstore import Client, RaiseFeatureLevel, open_node
from kvstore.cli.common import ExitCode
from kvstore.cli.main import cli
from kvstore.errors import LimitsRefused, OutcomeUnknown, Unsupported

pytestmark = pytest.mark.timeout(60)

Work = Callable[["Commands"], None]


class Commands:
    """Runs `hwm` against the store, in a separate thread."""

    def __init__(self, address: str) -> None:
        self.address = address

    def hwm(self, *arguments: str) -> Result:
        return CliRunner().invoke(cli, [*arguments, "--endpoints", self.address])

    def json(self, *arguments: str) -> Any:
        done = self.hwm(*arguments, "--json")
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)


def with_store(folder: Path, clients: int, work: Work) -> None:
    """Do `work` while `clients` clients are connected. Each client has put a key, under the sessions 1, 2, …."""

    async def main() -> None:
        async with (
            open_node(folder / "data", bootstrap=True, listen_client="127.0.0.1:0") as store,
            trio.open_nursery() as nursery,
        ):
            for number in range(clients):
                client = Client([store.client_address])
                await nursery.start(_stay, client, number)
            await trio.to_thread.run_sync(work, Commands(store.client_address))
            nursery.cancel_scope.cancel()

    trio.run(main)


async def _stay(client: Client, number: int, *, task_status: trio.TaskStatus[None]) -> None:
    async with client:
        await client.put(f"key{number}", "value")
        task_status.started()
        await trio.sleep_forever()


def test_sessions_are_listed_and_closed(tmp_path: Path) -> None:
    def work(commands: Commands) -> None:
        rows = [line.split("\t") for line in commands.hwm("session", "list").stdout.splitlines()]
        assert [[row[0], row[1], *row[4:]] for row in rows] == [[str(i), "60.0", "yes", "1", "128"] for i in (1, 2, 3)]
        (second,) = commands.json("session", "list", "--after", "1", "--limit", "1")["sessions"]
        assert (second["session_id"], second["ttl_ns"], second["is_unused"]) == (2, 60 * 10**9, False)
        assert second["idle_ns"] + second["expires_ns"] == second["ttl_ns"]

        assert commands.json("session", "close", "--never-used") == {"closed": [], "missing": []}
        assert commands.json("session", "close", "2", "77", "2") == {"closed": [2], "missing": [77]}
        again = commands.hwm("session", "close", "2")
        assert (again.exit_code, again.stdout, again.stderr) == (0, "0\n", "no such session: 2\n")
        assert commands.hwm("session", "close", "--all", "--yes").stdout == "2\n"
        assert commands.hwm("session", "list").stdout == ""

    with_store(tmp_path, 3, work)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["session", "close"], "Give some IDs"),
        (["session", "close", "1", "--never-used"], "Give some IDs"),
        (["session", "close", "--all"], "add --yes"),
        (["session", "close", "0"], "x>=1"),
        (["limits", "set"], "Missing argument"),
        (["limits", "set", "sessions=5"], "There is no limit 'sessions'. There are: quota_bytes, sessions_max,"),
        (["limits", "set", "sessions_max=0"], "a whole number from 1"),
        (["limits", "set", "sessions_max"], "a whole number from 1"),
        (["limits", "set", "sessions_max=5", "sessions_max=6"], "named twice"),
        (["limits", "--json", "set", "sessions_max=5"], "Options belong behind"),
        (["sessions"], "Did you mean `hwm session`?"),
    ],
)
def test_what_makes_no_sense_is_wrong_usage_and_asks_nobody(arguments: list[str], words: str) -> None:
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == ExitCode.USAGE
    assert words in " ".join(done.stderr.split())


def test_limits_are_shown_and_changed_though_sessions_are_full(tmp_path: Path) -> None:
    def work(commands: Commands) -> None:
        assert commands.json("limits")["sessions_max"] == {"limit": 10_000, "used": 2}
        assert commands.json("limits", "set", "sessions_max=2")["sessions_max"] == {"limit": 2, "used": 2}
        assert commands.hwm("put", "a", "1", "--deadline", "0.3").exit_code == ExitCode.FAILED

        refused = commands.hwm("limits", "set", "sessions_max=1", "quota_bytes=10", "--json")
        assert refused.exit_code == ExitCode.FAILED
        error = json.loads(refused.stdout)["error"]
        assert error["code"] == "limits_refused"
        assert "sessions_max 1 is below the 2 in use; quota_bytes 10 is below the 146 in use" in error["text"]
        assert "--force" in error["hint"]
        assert commands.json("limits")["sessions_max"]["limit"] == 2

        assert commands.json("limits", "set", "sessions_max=1", "--force")["sessions_max"] == {"limit": 1, "used": 2}
        assert "sessions_max\t3\t2\n" in commands.hwm("limits", "set", "sessions_max=3").stdout
        assert commands.hwm("put", "a", "1").exit_code == 0

    with_store(tmp_path, 2, work)


def test_a_client_changes_limits_without_a_session_of_its_own(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            open_node(tmp_path / "data", bootstrap=True, listen_client="127.0.0.1:0") as store,
            Client([store.client_address]) as client,
        ):
            for wrong in ({"quota": 5}, {"sessions_max": 0}, {"sessions_max": True}):
                with pytest.raises(LimitsRefused):
                    await client.set_limits(**wrong)
            await client.set_limits(sessions_max=5)
            assert (await client.limits()).limits.sessions_max == 5
            assert (await client.sessions()).items == ()
            await client.put("a", "1")
            assert await client.close_sessions([1, 2]) == [True, False]
            assert not await client.close_session(1)

    trio.run(main)


def test_the_history_is_switched_off_by_a_0_and_shrinks_without_force(tmp_path: Path) -> None:
    """Only the bounds of the history may be lowered below the current use, because the store can then drop the oldest
    events."""

    async def main() -> None:
        async with (
            open_node(tmp_path / "data", bootstrap=True, listen_client="127.0.0.1:0") as store,
            Client([store.client_address]) as client,
        ):
            await client.execute(RaiseFeatureLevel(2))
            for value in "123":
                await client.put("a", value)
            await client.set_limits(history_events_max=2)
            assert (await client.limits()).used["history_events_max"] == 2
            await client.set_limits(history_bytes_max=0)
            assert (await client.limits()).used["history_events_max"] == 0
            with pytest.raises(LimitsRefused):
                await client.set_limits(leases_max=0)

    trio.run(main)


@pytest.mark.parametrize(
    ("error", "exit_code", "words"),
    [
        (Unsupported("request kind 10"), ExitCode.FAILED, "the leader runs an older build"),
        (OutcomeUnknown("the answer was lost"), ExitCode.UNKNOWN, "repeat the command"),
    ],
)
def test_a_failure_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, error: Exception, exit_code: ExitCode, words: str
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(Client, "sessions", fail)
    done = CliRunner().invoke(cli, ["session", "close", "--never-used"])
    assert done.exit_code == exit_code
    assert words in done.stderr
