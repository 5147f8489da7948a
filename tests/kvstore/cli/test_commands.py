"""Commands that wait, show or measure. They run in the main thread, against a store in another thread of this process.

`tests/process` runs the same commands as programs. In this file, the measurement of coverage includes their code.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kvstore import Client, Unavailable
from kvstore.blocking import open_node
from kvstore.cli.common import ExitCode
from kvstore.cli.main import cli

pytestmark = pytest.mark.timeout(60)


class Commands:
    """Runs `hwm` in this thread."""

    def __init__(self, address: str) -> None:
        self._address = address

    def run(self, *arguments: str) -> Result:
        return CliRunner().invoke(cli, [arguments[0], *arguments[1:], "--endpoints", self._address])

    def stdout(self, *arguments: str) -> str:
        done = self.run(*arguments)
        assert done.exit_code == 0, (arguments, done.output, done.exception)
        return done.stdout


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[Commands]:
    with open_node(tmp_path / "data", bootstrap=True, listen_client="127.0.0.1:0") as store:
        yield Commands(store.client_address)


def test_appended_records_are_consumed_by_a_group_in_order(commands: Commands) -> None:
    for value in ("a", "b", "c"):
        commands.stdout("append", "log/", value)
    lines = commands.stdout("consume", "log/", "--from-revision", "1", "--limit", "3").splitlines()
    assert [json.loads(line)["value"] for line in lines] == ["a", "b", "c"]
    taken = [
        json.loads(commands.stdout("consume", "log/", "--group", "g", "--from-revision", "1", "--limit", "1"))["value"]
        for _ in range(3)
    ]
    assert taken == ["a", "b", "c"]
    assert commands.stdout("group") == "g\n"
    assert "group g of log/" in commands.run("group", "g").stderr


def test_a_group_keeps_its_prefix(commands: Commands) -> None:
    commands.stdout("append", "log/", "a")
    commands.stdout("consume", "log/", "--group", "g", "--from-revision", "1", "--limit", "1")
    refused = commands.run("consume", "other/", "--group", "g", "--limit", "1")
    assert refused.exit_code == ExitCode.FAILED
    assert "it consumes b'log/', not b'other/'" in refused.stderr


def test_a_watch_prints_what_is_there_and_what_was_changed(commands: Commands) -> None:
    commands.stdout("put", "a", "1")
    commands.stdout("put", "a", "2")
    initial = commands.stdout("watch", "a", "--initial", "--limit", "1")
    assert "2" in initial
    past = commands.stdout("watch", "--prefix", "a", "--from-revision", "2", "--limit", "2", "--json").splitlines()
    assert [json.loads(line)["value"] for line in past] == ["1", "2"]


def test_top_shows_one_picture_of_the_cluster(commands: Commands) -> None:
    commands.stdout("put", "a", "1")
    picture = commands.stdout("top", "--once", "--interval-seconds", "0.1")
    assert "s1" in picture
    assert "leader" in picture
    nobody = CliRunner().invoke(
        cli, ["top", "--once", "--endpoints", "127.0.0.1:1", "--interval-seconds", "0.1", "--deadline", "0.2"]
    )
    assert nobody.exit_code == ExitCode.UNAVAILABLE


def test_a_status_in_a_pipe_has_titles(commands: Commands) -> None:
    titles, row = (line.split("\t") for line in commands.stdout("status").splitlines())
    assert (titles[0], row[0]) == ("member", "s1")
    assert titles[4] == "commit index = high-water mark"
    assert len(titles) == len(row)
    titles, row = (line.split("\t") for line in commands.stdout("status", "--services").splitlines())
    assert (titles[1], len(titles)) == ("watches", len(row))


def test_the_default_address_is_named_when_nobody_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise Unavailable("nobody answers")

    monkeypatch.setattr(Client, "execute", fail)
    by_default = CliRunner().invoke(cli, ["get", "a"], env={"HWM_ENDPOINTS": None})
    by_option = CliRunner().invoke(cli, ["get", "a", "--endpoints", "127.0.0.1:7101"], env={"HWM_ENDPOINTS": None})
    by_variable = CliRunner().invoke(cli, ["get", "a"], env={"HWM_ENDPOINTS": "127.0.0.1:7101"})

    assert "no HWM_ENDPOINTS named a member, so the default 127.0.0.1:7101 was asked" in by_default.stderr
    for other in (by_option, by_variable):
        assert other.exit_code == by_default.exit_code == ExitCode.UNAVAILABLE
        assert "default" not in other.stderr


def test_members_are_listed_and_changes_that_cannot_work_are_refused(commands: Commands) -> None:
    assert commands.stdout("member", "list").startswith("s1\tvoter")
    assert commands.stdout("member", "promote", "s1", "--wait", "0.1") == "s1 (voter)\n"
    refused = commands.run("member", "remove", "s8", "--wait", "0.1")
    assert (refused.exit_code, "s8 is not a member" in refused.stderr) == (ExitCode.FAILED, True)
    refused = commands.run("member", "replace", "s7", "s6=127.0.0.1:11/127.0.0.1:12", "--wait", "0.1")
    assert refused.exit_code == ExitCode.FAILED
    assert commands.stdout("transfer", "s1") == "s1\n"


def test_a_measurement_prints_rates_and_latencies(commands: Commands) -> None:
    words = commands.stdout("bench", "--seconds", "0.2", "--clients", "2", "--keys", "2", "--in-flight", "2")
    assert words.startswith("ops/s\t")
    measured = json.loads(commands.stdout("bench", "--seconds", "0.2", "--clients", "1", "--keys", "1", "--json"))
    assert measured["operations"] > 0
