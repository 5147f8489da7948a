"""`hwm` from the view of a new user: working commands, typing mistakes, and other obstacles. No case prints a
traceback."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import socket
import stat
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from harness.cluster.ports import free_ports
from kvstore.cli.main import cli
from kvstore.protocol.messages import encode_client_hello
from kvstore.protocol.text import from_text
from raft import Hello, HelloRole, Refusal, decode_hello, frame
from tests.process.servers import Server, hwm, running_cluster

Run = Callable[..., Result]
pytestmark = [pytest.mark.process, pytest.mark.timeout(60)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, str]]:
    """A store with one member. All tests of this file that do not disturb each other share this store."""
    with running_cluster(tmp_path_factory.mktemp("cli"), 1) as cluster:
        yield cluster.servers["s1"], cluster.endpoints[0]


@pytest.fixture
def run(server: tuple[Server, str]) -> Run:
    def call(*arguments: str, stdin: str | bytes | None = None) -> Result:
        return invoke(arguments, {"HWM_ENDPOINTS": server[1]}, stdin)

    return call


def invoke(arguments: Sequence[str], env: dict[str, str] | None = None, stdin: str | bytes | None = None) -> Result:
    result = CliRunner().invoke(cli, [*arguments], env=env, input=stdin)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_put_get_delete_and_their_exit_codes(run: Run) -> None:
    """Data goes to stdout, messages to stderr; exit code 1 means that the key is absent."""
    put, got = run("put", "a", "hello"), run("get", "a")
    assert (put.exit_code, put.stdout) == (0, "")
    assert "revision" in put.stderr
    assert (got.exit_code, got.stdout, got.stderr) == (0, "hello\n", "")

    assert run("del", "a").exit_code == 0
    missing = run("get", "a")
    assert (missing.exit_code, missing.stdout) == (1, "")
    assert "not found: a" in missing.stderr
    assert run("del", "a").exit_code == 1


def test_bytes_that_are_no_text_travel_as_base64(run: Run) -> None:
    """Arguments and output use base64. With `--raw` the command prints the bytes unchanged."""
    assert run("put", "base64:/wA=", "base64:AAH/").exit_code == 0

    assert run("get", "base64:/wA=").stdout == "base64:AAH/\n"
    assert run("get", "base64:/wA=", "--raw").stdout_bytes == b"\0\x01\xff"
    wrong = run("put", "base64:!!!", "x")
    assert wrong.exit_code == 2
    assert "not base64" in wrong.stderr


def test_a_value_can_come_from_standard_input(run: Run) -> None:
    """The value is stored byte for byte, including line ends."""
    assert run("put", "a", "-", stdin=b"line\nline\xff").exit_code == 0

    assert run("get", "a", "--raw").stdout_bytes == b"line\nline\xff"


def test_compare_and_set_names_what_it_saw(run: Run) -> None:
    """Exit code 1 means that the condition does not hold. Exactly one condition must be given."""
    run("del", "c")
    assert run("cas", "c", "1", "--absent").exit_code == 0
    assert run("cas", "c", "2", "--expect", "1").exit_code == 0
    refused = run("cas", "c", "3", "--expect", "1")
    assert refused.exit_code == 1
    assert "it is '2'" in refused.stderr
    seen = json.loads(run("cas", "c", "3", "--absent", "--json").stdout)
    assert run("cas", "c", "3", "--revision", str(seen["seen"]["mod_revision"])).exit_code == 0

    assert run("cas", "c", "4").exit_code == 2
    assert run("cas", "c", "4", "--absent", "--expect", "3").exit_code == 2


def test_ranges_for_people_and_for_programs(run: Run) -> None:
    """If stdout is not a terminal, the output is lines with tabs. With --json it is one JSON object."""
    for key in ("r/1", "r/2", "r/3"):
        run("put", key, f"value of {key}")

    assert run("range", "--prefix", "r/").stdout == "r/1\tvalue of r/1\nr/2\tvalue of r/2\nr/3\tvalue of r/3\n"
    assert run("range", "--prefix", "r/", "--keys-only", "--reverse", "--limit", "2").stdout == "r/3\nr/2\n"
    assert run("range", "--from", "r/2", "--to", "r/3", "--keys-only").stdout == "r/2\n"
    assert run("range", "--prefix", "r/", "--count").stdout == "3\n"
    shown = json.loads(run("range", "--prefix", "r/", "--limit", "1", "--json").stdout)
    assert (shown["count"], shown["more"], shown["items"][0]["key"]) == (3, True, "r/1")
    assert run("range", "--prefix", "r/", "--from", "x").exit_code == 2


@pytest.mark.parametrize("key", ["x\ty\nz", "\x1b[31mred", "a\u202eb", "\x9b"])
def test_one_key_is_one_line_whatever_is_in_it(run: Run, key: str) -> None:
    """The command accepts `base64:...` as input. A single value needs no separator, so a pipe gets its text
    unchanged."""
    assert run("put", f"odd/{key}", key).exit_code == 0
    listed, names = run("range", "--prefix", "odd/"), run("range", "--prefix", "odd/", "--keys-only")
    as_json, got = run("range", "--prefix", "odd/", "--json"), run("get", f"odd/{key}")
    refused = run("cas", f"odd/{key}", "v", "--absent")
    (shown, value), (name,) = listed.stdout.removesuffix("\n").split("\t"), names.stdout.splitlines()
    deleted = run("del", shown)

    assert (got.stdout, from_text(value), from_text(name)) == (f"{key}\n", key.encode(), f"odd/{key}".encode())
    assert as_json.stdout.removesuffix("\n").isprintable()
    assert json.loads(as_json.stdout)["items"][0]["key"] == f"odd/{key}"
    assert refused.stderr.removesuffix("\n").isprintable()
    assert deleted.exit_code == 0


@pytest.mark.parametrize(
    ("value", "shown"), [("two\nlines\tfine", "two\nlines\tfine"), ("\x1b]0;title\x07", "base64:G10wO3RpdGxlBw==")]
)
def test_a_terminal_is_shown_no_value_that_it_would_obey(
    run: Run, server: tuple[Server, str], value: str, shown: str
) -> None:
    """On a terminal the value appears as encoded text, which commands accept as input. A message says how the user can
    get the bytes."""
    assert run("put", "v", value).exit_code == 0
    near, far = pty.openpty()
    done = subprocess.run(hwm("get", "v", "--endpoints", server[1]), stdout=far, stderr=subprocess.PIPE, timeout=30,
                          check=True, text=True)  # fmt: skip
    output = os.read(near, 65536).decode().replace("\r\n", "\n").replace("        ", "\t")
    os.close(near)
    os.close(far)

    assert output == f"{shown}\n"
    assert ("--raw" in done.stderr) == (value != shown)


def test_a_transaction_is_written_as_json(run: Run) -> None:
    """The transaction is an argument or comes from standard input. Exit code 1 means that the failure branch ran."""
    document = {
        "compares": [{"key": "t", "op": "=", "target": "version", "value": 0}],
        "success": [{"op": "put", "key": "t", "value": "1"}, {"op": "get", "key": "t"}],
        "failure": [{"op": "range", "prefix": "t"}, {"op": "delete", "key": "t"}],
    }
    run("del", "t")

    first = run("txn", json.dumps(document))
    second = run("txn", stdin=json.dumps(document))

    assert (first.exit_code, second.exit_code) == (0, 1)
    shown = json.loads(first.stdout)
    assert shown["results"][1]["value"] == "1"
    assert [each["op"] for each in json.loads(second.stdout)["results"]] == ["range", "delete"]


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ("{", "cannot be read"),
        ("[]", "the transaction is an object"),
        ('{"succes": []}', "no field 'succes'"),
        ('{"success": [{"op": "puts", "key": "a"}]}', "put, get, delete, range"),
        ('{"success": [{"op": "put", "key": "a"}]}', "value is a text"),
        ('{"compares": [{"key": "a", "op": "~", "target": "value", "value": "x"}]}', "= != < >"),
        ('{"compares": [{"key": "a", "op": "=", "target": "size", "value": 1}]}', "version, create_revision"),
        ('{"compares": [{"key": "a", "op": "=", "target": "version", "value": "1"}]}', "a number"),
        ('{"success": [{"op": "range", "limit": "3"}]}', "limit of a range"),
    ],
)
def test_a_transaction_that_cannot_be_read_says_where(document: str, words: str) -> None:
    """The command refuses the document before it sends any request."""
    result = invoke(["txn", document, "--endpoints", "127.0.0.1:1"])

    assert result.exit_code == 2
    assert words in result.stderr


def test_status_shows_marks_and_lag(run: Run) -> None:
    """If stdout is not a terminal, the output is titles and rows, separated by tabs. With --json it has every field."""
    titles, row = run("status").stdout.splitlines()
    assert titles.split("\t")[:2] == ["member", "role"]
    assert row.split("\t")[:2] == ["s1", "leader"]
    _, services = run("status", "--services").stdout.splitlines()
    assert services.split("\t")[:3] == ["s1", "0", "0"]  # The member has no watches and no leases.
    (shown,) = json.loads(run("status", "--json", "--state-hash").stdout)
    assert {"role", "term", "last_index", "commit_index", "last_applied", "low_watermark", "lag"} <= set(shown)
    assert (shown["lag"], shown["reachable"], len(shown["state_hash"])) == (0, True, 64)


@pytest.mark.parametrize(
    ("typed", "near"),
    [("gte", "get"), ("puts", "put"), ("delete", "del"), ("ls", "range"), ("stauts", "status"), ("sever", "serve")],
)
def test_an_unknown_command_is_answered_with_the_nearest(typed: str, near: str) -> None:
    """`hwm` also knows the command names of other stores."""
    result = invoke([typed, "a"])

    assert result.exit_code == 2
    assert f"hwm {near}" in result.stderr


def test_a_wrong_flag_is_answered_with_the_right_one() -> None:
    """If an unknown command resembles no known command, the message lists all commands."""
    assert "--json" in invoke(["get", "a", "--jsn"]).stderr
    assert "--election-timeout-ms" in invoke(["serve", "d", "--election-timeout", "3"]).stderr
    assert "init, serve, put" in invoke(["xyzzy"]).stderr
    assert "belongs behind the command" in invoke(["--json", "get", "a"]).stderr


def test_certain_and_uncertain_ends_have_exit_codes_of_their_own(run: Run) -> None:
    """Exit code 3 means that the command was refused, and 5 means that no member answered. In both cases the command
    had no effect, so a script may repeat it."""
    refused = run("put", "k" * 2000, "v")
    assert refused.exit_code == 3
    assert "too long" in refused.stderr
    (port,) = free_ports(1)
    nobody = invoke(["put", "a", "b", "--endpoints", f"127.0.0.1:{port}", "--deadline", "0.3"])
    assert nobody.exit_code == 5
    assert "connection refused" in nobody.stderr
    assert "hint:" in nobody.stderr
    assert run("get", "a", "--consistency", "lease").exit_code == 2
    assert invoke(["get", "a", "--endpoints", "nonsense"]).exit_code == 2


def test_a_paused_member_leaves_the_outcome_unknown(server: tuple[Server, str]) -> None:
    """Exit code 4 means that the write may have been carried out. The member could be reached, so the write was
    sent."""
    process, endpoint = server
    try:
        code = (
            "import trio\nfrom kvstore import Client\nfrom kvstore.cli.common import failure_of\n"
            "from kvstore import StoreError\n"
            "async def main():\n"
            f"    async with Client(['{endpoint}']) as client:\n"
            "        await client.put('a', '1')\n"
            "        print('ready', flush=True); input()\n"
            "        try:\n"
            "            await client.put('a', '2', deadline_seconds=0.5)\n"
            "        except StoreError as error:\n"
            "            raise SystemExit(failure_of(error).exit_code)\n"
            "trio.run(main)\n"
        )
        child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGSTOP)
        child.communicate("\n", timeout=30)
        assert child.returncode == 4
    finally:
        process.send_signal(signal.SIGCONT)


def test_garbage_on_both_ports_closes_that_connection_only(tmp_path: Path) -> None:
    """The ports get frames that are too long, other protocols, and half a frame. The servers keep running. `status`
    shows the absent member."""
    with running_cluster(tmp_path, 3) as cluster:
        arguments = cluster.servers["s1"].arguments
        ports = [part.rpartition(":")[2] for each in arguments[:1] for part in each.split("/")]
        for port in map(int, ports):
            for garbage in (b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 1000, b"\0\0\0\0", b"\0\0\0\x04\xff\xff\xff\xff"):
                with socket.create_connection(("127.0.0.1", port), timeout=10) as stranger:
                    stranger.sendall(garbage)
                    answer = stranger.makefile("rb").read()
                    assert isinstance(decode_hello(answer[4:]), Refusal), answer
            half = socket.create_connection(("127.0.0.1", port), timeout=10)
            half.sendall(b"\0\0")
            half.close()

        env = {"HWM_ENDPOINTS": ",".join(cluster.endpoints)}
        assert invoke(["put", "a", "1", "--deadline", "20"], env).exit_code == 0
        assert len(invoke(["status"], env).stdout.splitlines()) == 1 + 3

        cluster.servers["s2"].kill()
        partly = invoke(["status", "--deadline", "20"], env)
        rows = [line.split("\t") for line in partly.stdout.splitlines()[1:]]
        assert [(row[0], row[1] == "unreachable") for row in rows] == [("s1", False), ("s2", True), ("s3", False)]
        assert (partly.exit_code, "s2 did not answer" in partly.stderr) == (1, True)


def test_transfer_moves_the_leadership_to_the_member_that_is_named(tmp_path: Path) -> None:
    """The command waits until the named member leads. It ends immediately if that member leads already, or does not
    exist."""
    with running_cluster(tmp_path, 3) as cluster:
        env = {"HWM_ENDPOINTS": ",".join(cluster.endpoints)}
        assert invoke(["put", "a", "1", "--deadline", "20"], env).exit_code == 0
        for member in ("s1", "s2", "s3", "s3"):
            moved = invoke(["transfer", member, "--deadline", "20", "--json"], env)
            assert (moved.exit_code, json.loads(moved.stdout)) == (0, {"leader_id": member})
        other = invoke(["transfer", "--deadline", "20"], env)
        refused = invoke(["transfer", "s9", "--deadline", "20"], env)

    assert (other.exit_code, other.stdout.strip() in ("s1", "s2")) == (0, True)
    assert refused.exit_code == 3
    assert "s9 is not another voter" in refused.stderr


def test_a_client_on_the_peer_port_is_told_where_to_go(tmp_path: Path) -> None:
    """Users easily confuse the two ports."""
    with running_cluster(tmp_path, 2) as cluster:
        peer_port = cluster.servers["s1"].arguments[0].split("=")[2].split("/")[0]
        result = invoke(["get", "a", "--endpoints", peer_port, "--deadline", "0.5"])

    assert result.exit_code == 5
    assert f"{peer_port}: this is a port for members" in result.stderr
    assert "clients have another" in result.stderr


# The start of a server, and the reasons for which it refuses to start.


def serve_fails(*arguments: str | Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        hwm("serve", *arguments),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env={**os.environ, **(env or {})},
    )
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    return done


def test_a_folder_without_a_member_is_refused_with_the_remedy(tmp_path: Path) -> None:
    """The folder is empty, but without --bootstrap it must contain a member."""
    done = serve_fails(tmp_path / "data")

    assert done.returncode == 3
    assert "--bootstrap" in done.stderr
    assert not (tmp_path / "data").exists()


def test_a_locked_folder_is_refused_with_the_process_that_holds_it(server: tuple[Server, str]) -> None:
    """Two servers that use one folder would destroy its data."""
    done = serve_fails(server[0].folder, "--listen-client", "127.0.0.1:0")

    assert done.returncode == 3
    assert "in use by process" in done.stderr


def test_a_port_in_use_is_refused_with_the_option_to_change_it(tmp_path: Path, server: tuple[Server, str]) -> None:
    """The message is one line and a hint."""
    done = serve_fails(tmp_path / "data", "--bootstrap", "--listen-client", server[1])

    assert done.returncode == 3
    assert "address already in use" in done.stderr
    assert "--listen-client" in done.stderr


def test_another_membership_is_refused(tmp_path: Path) -> None:
    """The folder records which cluster it belongs to."""
    members = ["--member=a=127.0.0.1:1/127.0.0.1:2", "--member=b=127.0.0.1:3/127.0.0.1:4"]
    made = invoke(["init", str(tmp_path / "a"), "--node-id", "a", *members])
    assert made.exit_code == 0
    assert "member a of cluster" in made.stderr

    other = serve_fails(tmp_path / "a", "--node-id", "a", members[0], "--member=c=127.0.0.1:3/127.0.0.1:4")
    assert other.returncode == 3
    assert "belongs to cluster" in other.stderr
    assert "--cluster-token" in other.stderr
    assert "made without --member is a store of one member" in other.stderr
    assert serve_fails(tmp_path / "a", "--node-id", "b", *members).returncode == 3
    stranger = serve_fails(tmp_path / "z", "--node-id", "z", *members, "--bootstrap")
    assert (stranger.returncode, "not in the member list" in stranger.stderr) == (2, True)
    again = invoke(["init", str(tmp_path / "a"), "--node-id", "a", *members])
    assert (again.exit_code, "not empty" in again.stderr) == (3, True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--member", "s1"], "id=peerhost:port/clienthost:port"),
        (["--member", "S1=127.0.0.1:1/127.0.0.1:2"], "must match"),
        (["--member", "s1=127.0.0.1/127.0.0.1:2"], "no host or no port"),
        (["--dial", "s1"], "id=host:port"),
        (["--ready-file", "/nowhere/at/all"], "no folder"),
        (["--listen-client", "127.0.0.1:99999"], "not a number from 0 to 65535"),
        (["--listen-client", "a..b:1", "--insecure"], "empty part"),
        (["--metrics", ".a:1", "--insecure"], "empty part"),
        (["--dial", "s1=a..b:1"], "empty part"),
        (["--member", "s1=127.0.0.1:1/a..b:2"], "empty part"),
        (["--heartbeat-ms", "500"], "twice"),
        (["--heartbeat-ms", "x"], "not a valid integer"),
    ],
)
def test_options_that_cannot_work_are_refused_before_anything_is_made(
    tmp_path: Path, arguments: list[str], words: str
) -> None:
    """The error gives a setting that would work."""
    result = invoke(["serve", str(tmp_path / "data"), "--bootstrap", *arguments])

    assert result.exit_code == 2
    assert words in result.stderr
    assert not (tmp_path / "data").exists()


def test_the_server_does_not_run_without_assertions(tmp_path: Path) -> None:
    """`python -O` removes assertions, but the server relies on assertions."""
    done = serve_fails(tmp_path / "data", "--bootstrap", env={"PYTHONOPTIMIZE": "1"})

    assert done.returncode == 2
    assert "assertions" in done.stderr
    assert not (tmp_path / "data").exists()


def test_a_server_that_is_asked_to_stop_finishes_and_exits_with_0(tmp_path: Path) -> None:
    """After SIGTERM all acknowledged writes are in the store, and a further frame proves the last batch of the log."""
    with running_cluster(tmp_path, 1) as cluster:
        server = cluster.servers["s1"]
        env = {"HWM_ENDPOINTS": cluster.endpoints[0]}
        assert invoke(["put", "a", "1"], env).exit_code == 0

        server.send_signal(signal.SIGTERM)
        assert server.wait() == 0

        server.start()
        assert server.wait_ready()
        assert invoke(["get", "a"], env).stdout == "1\n"


@pytest.mark.parametrize("has_terminal", [False, True])
def test_no_signal_ends_a_server_without_a_hand_over(tmp_path: Path, has_terminal: bool) -> None:
    """In many unit files SIGHUP means that the process should read its options again. For other processes SIGHUP means
    that their terminal has gone."""
    ready, log = tmp_path / "ready", tmp_path / "log"
    near, far = pty.openpty()

    def begin() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # The tests may run under `nohup`, which ignores the signal.
        if has_terminal:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    with log.open("wb") as words:
        process = subprocess.Popen(
            hwm("serve", tmp_path / "data", "--bootstrap", "--listen-client", "127.0.0.1:0", "--ready-file", ready),
            stdin=far, stderr=words, start_new_session=True, preexec_fn=begin,
        )  # fmt: skip
    try:
        while not ready.exists():
            assert process.poll() is None, log.read_text()
            time.sleep(0.01)
        for number in ("SIGUSR1", "SIGUSR2", "SIGALRM", "SIGVTALRM", "SIGPROF", "SIGSTKFLT", "SIGRTMIN"):
            process.send_signal(getattr(signal, number))
        process.send_signal(signal.SIGRTMIN + 3)
        address = ready.read_text().split("client=")[1].split()[0]
        assert invoke(["put", "a", "b", "--endpoints", address]).exit_code == 0
        process.send_signal(signal.SIGHUP)
        if not has_terminal:
            assert invoke(["get", "a", "--endpoints", address]).exit_code == 0
            process.terminate()
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        os.close(near)
        os.close(far)
    told = log.read_text()
    assert "s1: stopping" in told
    assert "SIGUSR1 is ignored" in told
    assert "SIGRTMIN+3 is ignored" in told
    assert ("SIGHUP is ignored" in told) != has_terminal


def test_a_ready_line_can_go_to_a_pipe_or_a_device_and_replaces_none(tmp_path: Path) -> None:
    """A shell script can wait for the ready line with `read line < pipe`."""
    pipe, link = tmp_path / "pipe", tmp_path / "null"
    os.mkfifo(pipe)
    link.symlink_to(os.devnull)
    held = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    for place in (pipe, link):
        process = subprocess.Popen(
            hwm("serve", tmp_path / f"{place.name}.data", "--bootstrap", "--listen-client", "127.0.0.1:0",
                "--ready-file", place), stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            process.terminate()
            process.communicate(timeout=30)
        finally:
            process.kill()
        assert line.startswith("ready node=s1")
        assert process.returncode == 0
        if place is pipe:
            assert os.read(held, 4096).decode() == line
    os.close(held)

    assert (stat.S_ISFIFO(pipe.stat().st_mode), link.is_symlink()) == (True, True)
    assert stat.S_ISCHR(Path(os.devnull).stat().st_mode)


def test_a_ready_line_that_cannot_be_written_is_no_matter_of_the_data_folder(tmp_path: Path) -> None:
    """If the error advised to replace the node, an operator would discard a good member."""
    pipe, away = tmp_path / "pipe", tmp_path / "away"
    os.mkfifo(pipe)
    away.symlink_to("/proc/none")
    for place in (pipe, Path("/dev/full"), away):
        done = serve_fails(
            tmp_path / "data", "--bootstrap", "--listen-client", "127.0.0.1:0", "--ready-file", str(place)
        )
        assert done.returncode in (2, 3)
        error, hint = done.stderr.splitlines()[-2:]
        assert error.startswith(f"error: {place}: ")
        assert "ready line" in hint
        assert "replace" not in hint


def test_the_ready_line_names_the_ports_that_were_chosen(tmp_path: Path) -> None:
    """Port 0 means any free port. The program that starts the server reads the chosen port from the ready line."""
    process = subprocess.Popen(
        hwm("serve", tmp_path / "data", "--bootstrap", "--listen-client", "127.0.0.1:0"),
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert line.startswith("ready node=s1 client=127.0.0.1:")
        address = line.split("client=")[1].split()[0]
        assert invoke(["put", "a", "1", "--endpoints", address]).exit_code == 0
    finally:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def test_what_only_two_hellos_reveal(server: tuple[Server, str]) -> None:
    """A member sends its name in its hello, before it gets a request."""
    host, _, port = server[1].rpartition(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(frame(encode_client_hello()))
        answer = connection.recv(4096)
    hello = decode_hello(answer[4:])
    assert isinstance(hello, Hello)
    assert (hello.node_id, hello.role) == ("s1", HelloRole.PEER)


def test_tables_fit_a_terminal_of_80_columns(server: tuple[Server, str]) -> None:
    """On a terminal the table of `status` has a head, and no word is split between two lines."""
    near, far = pty.openpty()
    environment = {**os.environ, "HWM_ENDPOINTS": server[1], "TERM": "dumb", "COLUMNS": "80"}
    done = subprocess.run(hwm("status"), stdout=far, timeout=30, check=True, env=environment)
    shown = os.read(near, 65536).decode()
    os.close(near)
    os.close(far)

    assert done.returncode == 0
    lines = shown.splitlines()
    assert "high-water mark" in shown
    assert "low-water" in shown
    assert lines[-1].split()[:2] == ["s1", "leader"]
    assert max(map(len, lines)) <= 80


def test_a_mistake_in_the_program_ends_without_a_traceback() -> None:
    """The traceback is printed only with HWM_DEBUG=1."""
    code = "import kvstore.cli.main as c; c.COMMANDS['get'] = ('kvstore.cli.keys.data', 'nothing'); c.main()"
    for debug, shown in (("", False), ("1", True)):
        done = subprocess.run(
            [sys.executable, "-c", code, "get", "a"], capture_output=True, text=True, timeout=30, check=False,
            env={**os.environ, "HWM_DEBUG": debug},
        )  # fmt: skip
        assert ("Traceback" in done.stderr) == shown
        assert done.returncode == (1 if shown else 70)
