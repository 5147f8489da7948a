"""Every option of `hwm serve` can come from the command line, the environment and a file."""

from __future__ import annotations

import contextlib
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import tomli_w
from click.testing import CliRunner, Result

from kvstore.cli.common import ExitCode
from kvstore.cli.daemon.configuration import CONFIGURATION_BYTES_MAX, ConfiguredCommand, name_of, variable_of
from kvstore.cli.daemon.serve import serve_command
from tests.raft.support.certificates import Certificates

ONE = "a=127.0.0.1:1/127.0.0.1:2"
OTHER_VALUES: dict[str, Any] = {
    "dir": "elsewhere",
    "node-id": "a",
    "member": [ONE, "b=127.0.0.1:3/127.0.0.1:4"],
    "cluster-token": "blue",
    "feature-level": 1,
    "join": "127.0.0.1:5,127.0.0.1:6",
    "cluster-id": "0123456789abcdef" * 2,
    "bootstrap": True,
    "listen-peer": "127.0.0.1:0",
    "listen-client": "127.0.0.1:0",
    "dial": ["b=127.0.0.1:7"],
    "metrics": "127.0.0.1:0",
    "etcd": True,
    "http2": "library",
    "ca": "ca.pem",
    "cert": "client.pem",
    "key": "client.key",
    "tls-cert": "s1.pem",
    "tls-key": "s1.key",
    "client-ca": "ca.pem",
    "peer-cert": "s1.pem",
    "peer-key": "s1.key",
    "peer-ca": "ca.pem",
    "tls-mixed": True,
    "name": "hwm-0",
    "advertise": "hwm-0:7201/hwm-0:7101",
    "begin-with": 2,
    "user": "root",
    "password-file": "root.password",
    "reset-root-password": str(Path(__file__)),  # This file is read immediately.
    "insecure": True,
    "ready-file": "ready",
    "heartbeat-ms": 60,
    "election-timeout-ms": 900,
    "lease-reads": True,
    "election-priority": 3,
    "no-leader-loss-hint": True,
    "snapshot-log-bytes": 1 << 20,
    "snapshot-bytes-per-second": 1 << 21,
    "retention-bytes": 1 << 22,
    "segment-bytes": 1 << 23,
    "session-ttl-max": 60,
    "history-minutes": 5,
    "log-level": "debug",
    "log-format": "json",
}
"""For each option, a valid value that is not the default, in the form in which the configuration file contains it."""
NEEDED = {"dir": "data", "node-id": "a", "member": [ONE]}
"""The options that a configuration has besides the option under test."""
BY_NAME = {
    "dir": "data",
    "name": "hwm-0",
    "advertise": "hwm-0:7201/hwm-0:7101",
    "join": "hwm-0:7101,hwm-1:7101",
    "insecure": True,
}
"""The options of a member that is started by name."""
ALONE: dict[str, dict[str, Any]] = {
    "name": BY_NAME,
    "advertise": BY_NAME,
    "begin-with": BY_NAME,
    "join": {"dir": "data", "member": [ONE]},
    "dial": NEEDED | {"member": [ONE, "b=127.0.0.1:3/127.0.0.1:4"]},
    "cluster-id": {"dir": "data", "node-id": "a", "member": [ONE, "b=127.0.0.1:3/127.0.0.1:4"]},
    "cert": NEEDED | {"ca": "ca.pem"},
    "key": NEEDED | {"ca": "ca.pem", "cert": "client.pem"},
    "tls-key": NEEDED | {"tls-cert": "s1.pem"},
    "client-ca": NEEDED | {"tls-cert": "s1.pem"},
    "peer-cert": NEEDED | {"peer-ca": "ca.pem"},
    "peer-key": NEEDED | {"peer-cert": "s1.pem", "peer-ca": "ca.pem"},
    "peer-ca": NEEDED | {"peer-cert": "s1.pem"},
    "tls-mixed": NEEDED | {"tls-cert": "s1.pem"},
}
"""For some options, the other options that a valid configuration needs instead of NEEDED."""

assert isinstance(serve_command, ConfiguredCommand)
PARAMETERS = {name_of(each): each for each in serve_command.configurable if each.name != "config"}


@pytest.fixture(autouse=True, scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The files that the options above name, in the working directory."""
    made = Certificates(tmp_path_factory.mktemp("certificates"))
    made.issue("client.pem", "client")
    made.issue("s1.pem", "a", "127.0.0.1")
    for name in ("client", "s1"):
        (made.folder / f"{name}.key").write_bytes((made.folder / f"{name}.pem").read_bytes())
    with contextlib.chdir(made.folder):
        yield


def check(*arguments: str, environment: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(serve_command, ["--check-config", *arguments], env=environment or {})


def on_command_line(parameter: click.Parameter, value: Any) -> list[str]:
    if isinstance(parameter, click.Argument):
        return [value]
    option = f"--{name_of(parameter)}"
    if value is True:
        return [option]
    return [word for each in (value if isinstance(value, list) else [value]) for word in (option, str(each))]


def in_environment(value: Any) -> str:
    return " ".join(value) if isinstance(value, list) else str(value)


def line_of(result: Result, name: str) -> tuple[Any, str]:
    """The value of an option and its source, as `--check-config` prints them."""
    assert result.exit_code == 0, result.output
    (line,) = [each for each in result.stdout.splitlines() if each.startswith(f"{name} = ")]
    assignment, _, source = line.rpartition("  # ")
    return tomllib.loads(assignment)[name], source


def test_every_option_has_an_example_here() -> None:
    assert set(OTHER_VALUES) == set(PARAMETERS)


@pytest.mark.parametrize("name", OTHER_VALUES)
def test_an_option_can_come_from_each_source(name: str, tmp_path: Path) -> None:
    value, parameter = OTHER_VALUES[name], PARAMETERS[name]
    others = {key: each for key, each in ALONE.get(name, NEEDED).items() if key != name}
    base = [word for key, each in others.items() for word in on_command_line(PARAMETERS[key], each)]
    file = tmp_path / "member.toml"
    file.write_text(tomli_w.dumps({name: value}), encoding="utf-8")

    assert line_of(check(*base, *on_command_line(parameter, value)), name) == (value, "command line")
    variable = variable_of(parameter)
    assert line_of(check(*base, environment={variable: in_environment(value)}), name) == (
        value,
        f"environment, {variable}",
    )
    assert line_of(check(*base, "--config", str(file)), name) == (value, "file")


def test_the_command_line_precedes_the_environment_and_the_environment_precedes_the_file(tmp_path: Path) -> None:
    file = tmp_path / "member.toml"
    file.write_text("heartbeat-ms = 10\nelection-timeout-ms = 1000\nlog-level = 'error'\n", encoding="utf-8")
    environment = {"HWM_CONFIG": str(file), "HWM_HEARTBEAT_MS": "20", "HWM_ELECTION_TIMEOUT_MS": "2000"}

    result = check("data", "--heartbeat-ms", "30", environment=environment)

    assert line_of(result, "heartbeat-ms") == (30, "command line")
    assert line_of(result, "election-timeout-ms") == (2000, "environment, HWM_ELECTION_TIMEOUT_MS")
    assert line_of(result, "log-level") == ("error", "file")
    assert line_of(result, "log-format") == ("text", "default")


def test_an_empty_variable_counts_as_unset() -> None:
    assert line_of(check("data", environment={"HWM_HEARTBEAT_MS": ""}), "heartbeat-ms") == (50, "default")


def test_the_printed_configuration_is_a_file_with_the_same_meaning(tmp_path: Path) -> None:
    first = check("data", "--node-id", "a", "--member", ONE, "--metrics", "127.0.0.1:0", "--insecure")
    file = tmp_path / "member.toml"
    file.write_text(first.stdout, encoding="utf-8")

    second = check("--config", str(file))

    assert tomllib.loads(second.stdout) == tomllib.loads(first.stdout)


def test_checking_a_configuration_starts_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "data"

    assert check(str(folder), "--bootstrap").exit_code == 0
    assert not folder.exists()


MEMBERS = ["--node-id", "a", "--member", ONE, "--member", "b=127.0.0.1:3/127.0.0.1:4"]


@pytest.mark.parametrize(
    ("arguments", "exit_code", "words"),
    [
        ([*MEMBERS, "--tls-cert", "nowhere.pem"], ExitCode.FAILED, "nowhere.pem: no such file"),
        (["--peer-cert", "s1.pem", "--peer-ca", "nowhere.pem"], ExitCode.FAILED, "nowhere.pem: no such file"),
        ([*MEMBERS, "--peer-cert", "client.pem", "--peer-ca", "ca.pem"], ExitCode.FAILED, "this member is a"),
        (["--join", "127.0.0.1:5", "--member", ONE, "--ca", "nowhere.pem"], ExitCode.FAILED, "nowhere.pem: no such"),
        ([*MEMBERS[2:], "--node-id", "c"], ExitCode.USAGE, "node c is not in the member list, which has a, b"),
        (["--listen-client", "0.0.0.0:7101"], ExitCode.FAILED, "would listen on 0.0.0.0:7101"),
        (["--metrics", "0.0.0.0:7101", "--tls-cert", "s1.pem", "--tls-mixed"], ExitCode.FAILED, "--insecure"),
        (["--node-id", "a", "--member", "a=10.0.0.1:1/127.0.0.1:2"], ExitCode.FAILED, "would listen on 10.0.0.1:1"),
    ],
)
def test_options_that_do_not_fit_together_are_refused_by_a_check_and_by_a_start(
    arguments: list[str], exit_code: ExitCode, words: str, tmp_path: Path
) -> None:
    """The refused start leaves no data folder behind."""
    folder = tmp_path / "data"
    checked = check(str(folder), *arguments)
    assert (checked.exit_code, words in checked.output) == (exit_code, True), checked.output
    if "--join" not in arguments:
        started = CliRunner().invoke(serve_command, [str(folder), "--bootstrap", *arguments])
        assert (started.exit_code, words in started.output) == (exit_code, True), started.output
        assert not folder.exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("heartbeat_ms = 5", "there is no option 'heartbeat_ms'. Did you mean 'heartbeat-ms'?"),
        ("check-config = true", "there is no option 'check-config'"),
        ("config = 'x'", "there is no option 'config'"),
        ("xyzzy = 1", "there is no option 'xyzzy'. See `hwm serve --help`."),
        ("heartbeat-ms = '5'", "heartbeat-ms must be a whole number, not '5'"),
        ("heartbeat-ms = true", "heartbeat-ms must be a whole number, not True"),
        ("heartbeat-ms = 0", "0 is not in the range 1<=x<=30000. (from the file)"),
        ("insecure = 1", "insecure must be true or false, not 1"),
        ("node-id = 1", "node-id must be a text in quotes, not 1"),
        ("member = 'a=h:1/h:2'", "member must be a list of texts"),
        ("member = ['nonsense']", "must be id=peerhost:port/clienthost:port (from the file)"),
        ("[serve]\nheartbeat-ms = 5", "[serve] is a table, and this file has no tables: write its options without"),
        ("heartbeat-ms = ", "is not TOML: Invalid value"),
        ("heartbeat-ms = 1000", "--election-timeout-ms 300 must be at least twice --heartbeat-ms 1000"),
    ],
)
def test_a_bad_file_is_refused_with_the_reason(content: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "member.toml"
    file.write_text(content, encoding="utf-8")

    result = check("data", "--config", str(file))

    assert result.exit_code == 2
    assert words in result.output


def test_a_file_that_cannot_be_a_configuration_is_not_read_whole(tmp_path: Path) -> None:
    file = tmp_path / "member.toml"
    file.write_bytes(b"#" * (CONFIGURATION_BYTES_MAX + 1))

    result = check("data", "--config", str(file))

    assert result.exit_code == 2
    assert "more than 1048576 bytes" in result.output


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "member.toml"
    file.write_bytes(b"\xff\xfe")

    assert "is not TOML" in check("data", "--config", str(file)).output


def test_an_invalid_variable_is_named_in_the_error() -> None:
    result = check("data", environment={"HWM_HEARTBEAT_MS": "fast"})

    assert result.exit_code == 2
    assert "from the environment, HWM_HEARTBEAT_MS" in result.output
