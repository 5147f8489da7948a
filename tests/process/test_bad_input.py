"""A new user's mistakes and other obstacles. Each of them gives one message, which says what happened and what the user
can do."""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
import trio
from click.testing import CliRunner, Result

from kvstore import Client
from kvstore.cli.cluster.member import change_members
from kvstore.cli.common import Failure
from kvstore.cli.main import cli
from kvstore.errors import OutcomeUnknown
from kvstore.member import joining
from kvstore.member.config import MemberConfig
from kvstore.member.member import RunningMember, run_member
from kvstore.protocol.membership import Membership
from kvstore.protocol.messages import encode_client_hello
from kvstore.server import client_listener
from raft import frame
from tests.process.servers import hwm, running_cluster

pytestmark = [pytest.mark.process, pytest.mark.timeout(60)]
NOBODY = "127.0.0.1:1"
MEMBERS = ["--member", "s1=127.0.0.1:7001/127.0.0.1:7101", "--member", "s2=127.0.0.1:7002/127.0.0.1:7102"]


def invoke(*arguments: str, stdin: str | bytes | None = None) -> Result:
    result = CliRunner().invoke(cli, [*arguments], env={"HWM_ENDPOINTS": NOBODY}, input=stdin)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def ended(arguments: Sequence[str | Path], **keywords: object) -> subprocess.CompletedProcess[str]:
    """A process of `hwm` that ends by itself, without a traceback."""
    done: subprocess.CompletedProcess[str] = subprocess.run(  # type: ignore[call-overload]
        hwm(*arguments), capture_output=True, text=True, timeout=40, check=False, **keywords
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


# Words.


@pytest.mark.parametrize("seconds", ["nan", "inf", "-inf", "0", "1e99"])
def test_a_deadline_that_is_no_time_is_refused(seconds: str) -> None:
    """Python reads these words as numbers, but no program can wait for such a time."""
    result = invoke("get", "a", "--deadline", seconds)

    assert result.exit_code == 2
    assert "--deadline" in result.stderr


async def test_a_program_may_wait_for_ever_but_not_for_no_number() -> None:
    """In trio programs, `math.inf` means "no deadline"."""
    async with Client([NOBODY], deadline_seconds=float("inf")) as client:
        with trio.move_on_after(0.2) as patience:
            await client.put("a", "b")
        assert patience.cancelled_caught
        with pytest.raises(ValueError, match="deadline_seconds"):
            await client.put("a", "b", deadline_seconds=float("nan"))


def test_who_asks_for_help_gets_it() -> None:
    """`hwm help` shows the help, and is not taken for a misspelt `hwm del`."""
    assert "hwm --help" in invoke("help").stderr


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ("[" * 100_000, "too deep"),
        ('{"success": ' + "[" * 100_000, "too deep"),
        ('{"compares": [{"key": "a", "op": ["="], "target": "version", "value": 1}]}', "= != < >"),
        ('{"success": [{"op": "range", "prefix": "a", "start": "b"}]}', "prefix"),
        ('{"success": [], "success": [{"op": "delete", "key": "a"}]}', "twice"),
        ('{"compares": [{"key": "a", "op": "=", "target": "version", "value": -1}]}', "not with -1"),
        (
            '{"compares": [{"key": "a", "op": "=", "target": "version", "value": 18446744073709551616}]}',
            "not with 18",
        ),
        ('{"success": [{"op": "range", "limit": -1}]}', "limit of a range is a number from 0 on, not -1"),
        ("order.json", "hwm txn - < order.json"),
    ],
)
def test_a_document_that_is_no_transaction_is_refused_in_words(document: str, words: str) -> None:
    """A JSON value that is not a transaction is refused, and so is text that is not JSON."""
    result = invoke("txn", document)

    assert result.exit_code == 2
    assert words in result.stderr


def test_standard_input_without_an_end_is_not_read_to_the_end() -> None:
    """`hwm put a - < /dev/zero` must not take all of the memory."""
    with Path("/dev/zero").open("rb") as endless:
        done = ended(["put", "a", "-", "--endpoints", NOBODY], stdin=endless)

    assert done.returncode == 3
    assert "standard input" in done.stderr


@pytest.mark.parametrize("arguments", [["put", "k", "-"], ["txn"], ["cas", "k", "-", "--absent"]])
def test_standard_input_that_is_closed_is_wrong_usage(arguments: list[str]) -> None:
    """The error is reported as wrong usage and not as a bug of the program."""
    command = shlex.join(hwm(*arguments, "--endpoints", NOBODY))
    done = subprocess.run(["bash", "-c", f"{command} <&-"], stderr=subprocess.PIPE, text=True, timeout=40, check=False)

    assert (done.returncode, "standard input is closed" in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize("option", ["--rate", "--reads", "--seconds"])
def test_what_is_no_number_is_no_load(option: str) -> None:
    """Python reads `nan` as a number, but every comparison of `nan` with a bound is false."""
    result = invoke("bench", option, "nan")

    assert (result.exit_code, "is not a number" in result.stderr) == (2, True)


def test_an_answer_that_cannot_be_written_is_no_mistake_of_the_program(tmp_path: Path) -> None:
    """The command was carried out, so its exit code must not mean "certainly not carried out"."""
    with running_cluster(tmp_path, 1) as cluster:
        with Path("/dev/full").open("w") as full:
            done = subprocess.run(
                hwm("put", "a", "b", "--json", "--endpoints", cluster.endpoints[0]),
                stdout=full, stderr=subprocess.PIPE, text=True, timeout=40, check=False,
            )  # fmt: skip
        got = ended(["get", "a", "--endpoints", cluster.endpoints[0]])

    assert done.returncode == 74
    assert "No space left" in done.stderr
    assert got.stdout == "b\n"


# Members.


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--node-id", "s1", *MEMBERS[:2], "--member", "s2=127.0.0.1:7001/127.0.0.1:7102"], "127.0.0.1:7001 twice"),
        (["--node-id", "s1", "--member", "s1=127.0.0.1:7001/127.0.0.1:7001", *MEMBERS[2:]], "127.0.0.1:7001 twice"),
        (["--node-id", "s1", "--member", "s1=127.0.0.1:0/127.0.0.1:7101", *MEMBERS[2:]], "port 0"),
        (["--node-id", "s1", *MEMBERS, "--dial", "s9=127.0.0.1:5"], "s9"),
        (["--heartbeat-ms", "200"], "--election-timeout-ms"),
        (["--election-timeout-ms", "9999999999"], "--election-timeout-ms"),
        (["--ready-file", "/"], "/"),
    ],
)
def test_a_member_that_could_never_work_is_not_made(tmp_path: Path, arguments: list[str], words: str) -> None:
    """`hwm serve` refuses before it creates a folder, because the content of a new folder cannot be changed later."""
    done = invoke("serve", str(tmp_path / "data"), "--bootstrap", *arguments)

    assert done.exit_code == 2
    assert words in done.stderr
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("command", ["init", "serve"])
@pytest.mark.parametrize("join", ["", " , "])
def test_who_joins_nobody_founds_no_cluster_of_its_own(tmp_path: Path, command: str, join: str) -> None:
    """In a script, the variable PEERS of `--join "$PEERS"` may not be set."""
    arguments = ["--join", join, "--node-id", "s1", *MEMBERS[:2]]

    result = invoke(command, str(tmp_path / "data"), *arguments)

    assert result.exit_code == 2
    assert "names no member of a running cluster" in result.stderr
    assert not (tmp_path / "data").exists()


def test_who_joins_without_saying_who_it_is_is_told_how(tmp_path: Path) -> None:
    """The error names the option that is missing."""
    result = invoke("init", str(tmp_path / "data"), "--join", NOBODY)

    assert result.exit_code == 2
    assert "--member ID=PEER/CLIENT" in result.stderr


@pytest.mark.parametrize("address", ["0.0.0.0:7001", "[::]:7001", ":::7001"])
def test_an_address_to_listen_on_is_none_to_be_found_at(tmp_path: Path, address: str) -> None:
    """All members and clients learn this address, and each of them would then connect to itself."""
    member = f"s1={address}/127.0.0.1:7101"

    founding = invoke("init", str(tmp_path / "data"), "--node-id", "s1", "--member", member)
    adding = invoke("member", "add", member)

    assert (founding.exit_code, adding.exit_code) == (2, 2)
    assert "--listen-peer" in founding.stderr
    assert not (tmp_path / "data").exists()


def test_a_cluster_that_does_not_answer_who_joins_is_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After exit code 5, a supervisor starts the member again. A member that was refused must not be started again, so
    it ends with exit code 3."""
    monkeypatch.setattr(joining, "ASK_SECONDS", 0.5)
    arguments = ["--join", NOBODY, "--member", "s2=127.0.0.1:7002/127.0.0.1:7102"]

    done = invoke("serve", str(tmp_path / "data"), *arguments)

    assert done.exit_code == 5, done.stderr
    assert NOBODY in done.stderr
    assert not (tmp_path / "data").exists()


def test_a_member_is_not_replaced_by_itself() -> None:
    """The command would remove the id permanently, and a new member with the same id would be refused."""
    result = invoke("member", "replace", "s2", "s2=127.0.0.1:7002/127.0.0.1:7102")

    assert result.exit_code == 2
    assert "another id" in result.stderr
    assert "hwm member update" in result.stderr


def test_of_a_change_of_members_whose_outcome_is_unknown_it_is_said_that_it_can_be_given_again() -> None:
    """The command states a goal. So it can be repeated without reading the list of members first."""

    async def work(client: Client) -> Membership:
        raise OutcomeUnknown("the answer was lost")

    with pytest.raises(Failure) as failure:
        change_members(work, NOBODY, 1.0, as_json=False)

    assert failure.value.exit_code == 4
    assert "repeat the command" in failure.value.hint


@pytest.mark.parametrize("name", ["meta", "groups/0/log"])
def test_a_file_and_a_folder_that_changed_places_are_named(tmp_path: Path, name: str) -> None:
    """The operating system's error text alone does not tell a user what to do."""
    folder = tmp_path / "data"
    assert ended(["init", folder]).returncode == 0
    (folder / name).rename(tmp_path / "aside")
    if name == "meta":
        (folder / name).mkdir()
    else:
        (folder / name).write_text("no folder")

    done = ended(["serve", folder, "--listen-client", "127.0.0.1:0"])

    assert done.returncode == 3
    assert str(folder) in done.stderr
    assert "Errno" not in done.stderr
    assert "hint: " in done.stderr


def as_nobody(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run `hwm` as another user. That user may not be able to read this interpreter, so the imports come first."""
    code = (
        "import os, kvstore.cli.main, kvstore.cli.daemon.serve, kvstore.cli.daemon.process\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534); kvstore.cli.main.main()"
    )
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=40, check=False
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="gives up root for a user without rights")
@pytest.mark.parametrize(
    ("arguments", "exit_code"),
    [
        (["check", "{}/data"], 2),
        (["snapshot", "save", "{}/backup.snap", "--endpoints", NOBODY], 3),
        (["serve", "/dev/null/data", "--ready-file", "{}/ready"], 3),
    ],
)
def test_a_folder_that_this_user_may_not_enter_is_no_command_that_was_carried_out(
    tmp_path: Path, arguments: list[str], exit_code: int
) -> None:
    """Exit code 74 would mean that the backup was written and that only the report about it was lost."""
    sealed = tmp_path / "sealed"
    sealed.mkdir(mode=0o700)

    done = as_nobody(*(word.format(sealed) for word in arguments))

    assert done.returncode == exit_code, done.stderr
    assert str(sealed) in done.stderr
    assert "permission denied" in done.stderr
    assert "carried out" not in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="gives up root for a user without rights")
def test_a_folder_of_somebody_else_is_refused_as_such() -> None:
    """If this user cannot read or write the folder, the exit code is 3, as for every folder that a member cannot
    use."""
    with tempfile.TemporaryDirectory() as name:  # Other users cannot enter the folders above a `tmp_path`.
        Path(name).chmod(0o711)
        folder = Path(name) / "data"
        assert ended(["init", folder]).returncode == 0
        folder.chmod(0o700)
        hidden = as_nobody("serve", folder)
        folder.chmod(0o777)
        (folder / "LOCK").chmod(0o666)
        (folder / "meta").chmod(0o600)
        sealed = as_nobody("serve", folder)

    assert (hidden.returncode, "permission denied" in hidden.stderr.lower()) == (3, True)
    assert (sealed.returncode, "hint: " in sealed.stderr) == (3, True)
    assert f"{folder}/meta" in sealed.stderr


def test_a_snapshot_that_was_passed_over_is_told(tmp_path: Path) -> None:
    """The member uses an older snapshot, and its log warns the operator that a file on the disk is damaged."""
    folder = tmp_path / "data"
    assert ended(["init", folder]).returncode == 0
    damaged = folder / "groups/0/snapshots/0000000000099999-0000000000000001.snap"
    damaged.write_bytes(b"what a snapshot never looks like")
    ready = tmp_path / "ready"

    server = subprocess.Popen(
        hwm("serve", folder, "--listen-client", "127.0.0.1:0", "--ready-file", ready), stderr=subprocess.PIPE, text=True
    )
    try:
        while not ready.exists():
            assert server.poll() is None
            time.sleep(0.01)
        server.terminate()
        words = server.communicate(timeout=30)[1]
    finally:
        server.kill()
        server.wait()

    assert "0000000000099999" in words
    assert "older" in words


# Connections.


async def test_a_client_that_stops_in_the_middle_of_a_frame_does_not_keep_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that becomes silent in the middle of a frame is closed. A connection that is silent between frames
    stays."""
    monkeypatch.setattr(client_listener, "HALF_FRAME_SECONDS_MAX", 0.3)
    config = MemberConfig(folder=tmp_path / "data", bootstrap=True, listen_client="127.0.0.1:0")
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            member: RunningMember = await nursery.start(partial(run_member, config))
            client = int(member.client_address.rpartition(":")[2])
            quiet = await trio.open_tcp_stream("127.0.0.1", client)
            await quiet.send_all(frame(encode_client_hello()))
            assert await quiet.receive_some()
            half = await trio.open_tcp_stream("127.0.0.1", client)
            await half.send_all(frame(encode_client_hello()) + b"\0\0\1\0half")
            assert await half.receive_some()

            assert b"did not come in time" in await half.receive_some()
            assert await half.receive_some() == b""  # Closed.
            with trio.move_on_after(0.5) as patience:
                await quiet.receive_some()
            assert patience.cancelled_caught
            await half.aclose()
            await quiet.aclose()
            nursery.cancel_scope.cancel()


def test_hundreds_of_strangers_do_not_keep_a_member_from_serving(tmp_path: Path) -> None:
    """The member closes connections of strangers at the bound or when their time is up. Meanwhile it serves honest
    clients."""
    with running_cluster(tmp_path, 2) as cluster:
        arguments = cluster.servers["s1"].arguments[0].split("=")[2].split("/")
        strangers = [
            socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), timeout=10)
            for address in arguments
            for _ in range(300)
        ]
        done = ended(["put", "a", "b", "--deadline", "20", "--endpoints", ",".join(cluster.endpoints)])
        for stranger in strangers:
            stranger.close()
        status = ended(["status", "--json", "--endpoints", ",".join(cluster.endpoints)])

    assert done.returncode == 0, done.stderr
    assert [member["reachable"] for member in json.loads(status.stdout)] == [True, True]


# Data folders that `python -m storage` reads.


def test_what_is_no_data_folder_is_answered_with_what_to_name(tmp_path: Path) -> None:
    """The path leads to a folder with other content, to a file, or to nothing."""
    (tmp_path / "file").write_text("x")
    for path in (tmp_path, tmp_path / "file", tmp_path / "nothing"):
        done = subprocess.run(
            [sys.executable, "-m", "storage", path], capture_output=True, text=True, timeout=30, check=False
        )
        assert done.returncode == 2
        assert "hint: name the folder" in done.stderr
