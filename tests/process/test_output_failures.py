"""Programs whose streams cannot be written. The exit code says what the command did, and a server keeps running."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import click
import pytest
import trio

import kvstore.cli.standard_streams
import spark_audit.standard_streams
from kvstore import Client
from kvstore.cli.main import cli
from tests.process.broken_streams import BROKEN, DESCRIPTORS, SOUND, has_lost_output
from tests.process.servers import hwm, running_cluster

pytestmark = [pytest.mark.process, pytest.mark.timeout(90)]

WAYS = (SOUND, "output full", "words full", "all closed", "output unread")
"""The states of the streams with which each command is run. The following few commands are run with all states:"""

WALKED_AT_LENGTH = ("put --json", "cas", "get", "snapshot save")
CERTAINLY_NOT = {2, 3, 5}
DEADLINE_SECONDS, DEADLINE_SECONDS_OF_THE_HOPELESS = "20", "0.3"
"""A command that has no descriptor for a connection tries until its deadline, so its deadline is short."""

CASES: dict[str, list[str]] = {
    "put": ["put", "{key}", "new"],
    "put --json": ["put", "{key}", "new", "--json"],
    "get": ["get", "old"],
    "get --raw": ["get", "old", "--raw"],
    "get of nothing": ["get", "nothing", "--json"],
    "del": ["del", "{other}"],
    "del --json": ["del", "{other}", "--json"],
    "cas": ["cas", "{key}", "new", "--absent"],
    "cas --json": ["cas", "{key}", "new", "--absent", "--json"],
    "cas that is false": ["cas", "old", "new", "--absent", "--json"],
    "range": ["range", "--prefix", "old"],
    "txn": ["txn", '{{"success": [{{"op": "put", "key": "{key}", "value": "new"}}]}}'],
    "status": ["status"],
    "top": ["top", "--once", "--interval-seconds", "0.1"],
    "member list": ["member", "list"],
    "member add": ["member", "add", "s9=127.0.0.1:9/127.0.0.1:10", "--wait", "0.1"],
    "member promote": ["member", "promote", "s1", "--wait", "0.1"],
    "member remove": ["member", "remove", "s8", "--wait", "0.1"],
    "member replace": ["member", "replace", "s7", "s6=127.0.0.1:11/127.0.0.1:12", "--wait", "0.1"],
    "member update": ["member", "update", "s5=127.0.0.1:13/127.0.0.1:14", "--wait", "0.1"],
    "transfer": ["transfer", "s1"],
    "upgrade": ["upgrade", "--level", "1"],
    "session list": ["session", "list", "--limit", "1"],
    "session close": ["session", "close", "999999999"],
    "limits": ["limits"],
    "limits set": ["limits", "set", "sessions_max=9999"],
    "user add": ["user", "add", "{key}", "--no-password"],
    "user list": ["user", "list"],
    "user password": ["user", "password", "nobody", "--no-password"],
    "user grant": ["user", "grant", "nobody", "nothing"],
    "user revoke": ["user", "revoke", "nobody", "nothing"],
    "user limits": ["user", "limits", "nobody", "watches_max=1"],
    "user remove": ["user", "remove", "nobody"],
    "role add": ["role", "add", "{key}"],
    "role list": ["role", "list"],
    "role grant": ["role", "grant", "nothing", "read", "old"],
    "role revoke": ["role", "revoke", "nothing", "old"],
    "role remove": ["role", "remove", "nothing"],
    # This command must fail. Otherwise authentication would be on while nobody has the role root, and all other
    # commands would be refused.
    "auth enable without a root": ["auth", "enable"],
    "auth disable": ["auth", "disable"],
    "auth status": ["auth", "status"],
    "watch": ["watch", "old", "--initial", "--limit", "1"],
    "append": ["append", "{key}/", "new"],
    "append --json": ["append", "{key}/", "new", "--json"],
    "consume": ["consume", "old", "--from-revision", "1", "--limit", "1"],
    "consume --group": ["consume", "old", "--group", "{key}", "--from-revision", "1", "--limit", "1"],
    "group": ["group"],
    "group of nothing": ["group", "nothing", "--json"],
    "compact a revision that is gone": ["compact", "1"],
    "lease grant": ["lease", "grant", "60"],
    "lease revoke": ["lease", "revoke", "999999999"],
    "lease keep-alive": ["lease", "keep-alive", "999999999", "--once"],
    "lease ttl": ["lease", "ttl", "999999999"],
    "lease list": ["lease", "list"],
    "lock": ["lock", "{key}", "--", "true"],
    # With correct options the command would lead until it is interrupted.
    "elect with a wrong option": ["elect", "{key}", "--ttl", "0"],
    "snapshot save": ["snapshot", "save", "{folder}/{key}.snap"],
    "snapshot status": ["snapshot", "status", "{folder}/base.snap"],
    "snapshot restore": ["snapshot", "restore", "{folder}/base.snap", "{folder}/{key}-restored"],
    "snapshot to-etcd": ["snapshot", "to-etcd", "{folder}/base.snap", "{folder}/{key}-etcd.db"],
    "import-etcd": ["import-etcd", "{folder}/base-etcd.db", "{folder}/{key}-imported"],
    "export": ["export", "old"],
    "export to a file": ["export", "old", "--output", "{folder}/{key}.jsonl"],
    "import": ["import", "{folder}/lines", "--overwrite"],
    "completion": ["completion", "zsh"],
    "init": ["init", "{folder}/{key}-made"],
    "serve": ["serve", "{folder}/nothing", "--listen-client", "127.0.0.1:0"],
    "check": ["check", "{folder}/made"],
    "bench": ["bench", "--seconds", "0.1", "--clients", "1", "--keys", "1", "--in-flight", "1", "--prefix", "{key}"],
}
"""One or more cases for each command. Before a case runs, the key `{other}` exists and the key `{key}` does not. No
other process uses these two keys."""

WITHOUT_CLUSTER = (
    "completion",
    "snapshot status",
    "snapshot restore",
    "snapshot to-etcd",
    "import-etcd",
    "init",
    "serve",
    "check",
)
WRITES = ("put", "cas", "txn")
MAKES = {
    "snapshot save": "{key}.snap",
    "export to a file": "{key}.jsonl",
    "snapshot restore": "{key}-restored/meta",
    "snapshot to-etcd": "{key}-etcd.db",
    "import-etcd": "{key}-imported/meta",
    "init": "{key}-made/meta",
}


def leaves(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[str]:
    if not isinstance(command, click.Group):
        yield " ".join(path)
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        assert inner is not None
        yield from leaves(inner, (*path, name))


def test_every_command_is_walked() -> None:
    """A new command needs a case in CASES: its exit code must be right even if the command cannot print."""
    walked = {name for name in leaves(cli) if any(case == name or case.startswith(f"{name} ") for case in CASES)}
    assert set(leaves(cli)) - walked == set()


@pytest.mark.timeout(180)  # The test usually takes 6 s. But it syncs hundreds of times, and others use the disk, too.
async def test_the_exit_code_says_what_a_command_did_whatever_became_of_its_words(tmp_path: Path) -> None:
    """All commands run with all kinds of broken streams. The exit code must be right, because a script uses it to
    decide whether to retry."""
    with running_cluster(tmp_path, 1) as cluster:
        (tmp_path / "lines").write_text('{"key": "imported", "value": "1"}\n', encoding="utf-8")
        save = hwm("snapshot", "save", tmp_path / "base.snap", "--endpoints", cluster.endpoints[0])
        raised = hwm("upgrade", "--endpoints", cluster.endpoints[0])
        to_etcd = hwm("snapshot", "to-etcd", tmp_path / "base.snap", tmp_path / "base-etcd.db")
        for made in (save, to_etcd, hwm("init", tmp_path / "made"), raised):
            await trio.run_process(made, capture_stdout=True, capture_stderr=True)
        rows = [
            (name, kind, f"{name.replace(' ', '-')}-{number}".replace("--", ""))
            for name in CASES
            for number, kind in enumerate((SOUND, *BROKEN, *DESCRIPTORS) if name in WALKED_AT_LENGTH else WAYS)
        ]
        async with cluster.client() as client:
            await client.put_many([("old", "old"), *((f"{key}-other", "") for _, _, key in rows)])
            results = walk(tmp_path, rows, cluster.endpoints[0])
            complaints = []
            for (name, kind, key), result in zip(rows, results, strict=True):
                is_done = await has_effect(client, name, key, tmp_path)
                sound = results[rows.index((name, SOUND, key.rpartition("-")[0] + "-0"))]
                if flaw := flaw_of(name, kind, result, sound, is_done):
                    complaints.append(f"{name}, {kind}: {flaw}: {result}")
    assert not complaints, "\n".join(complaints)


def arguments_of(name: str, kind: str, key: str, folder: Path) -> list[str]:
    seconds = DEADLINE_SECONDS_OF_THE_HOPELESS if kind in DESCRIPTORS else DEADLINE_SECONDS
    words = [word.format(key=key, other=f"{key}-other", folder=folder) for word in CASES[name]]
    if name in WITHOUT_CLUSTER:
        return words
    place = words.index("--") if "--" in words else len(words)
    return [*words[:place], "--deadline", seconds, *words[place:]]


def walk(folder: Path, rows: Sequence[tuple[str, str, str]], endpoint: str) -> list[dict[str, object]]:
    asked, told = folder / "cases.json", folder / "results.json"
    cases = [{"kind": kind, "arguments": arguments_of(name, kind, key, folder)} for name, kind, key in rows]
    asked.write_text(json.dumps(cases))
    subprocess.run(
        [sys.executable, "-m", "tests.process.broken_streams", str(asked), str(told)],
        check=True, timeout=160, env={**os.environ, "HWM_ENDPOINTS": endpoint},
    )  # fmt: skip
    results: list[dict[str, object]] = json.loads(told.read_text())
    return results


async def has_effect(client: Client, name: str, key: str, folder: Path) -> bool | None:
    """True if the command's effect is in the store or in the folder; None for a command without an effect."""
    word = name.partition(" --")[0]
    if word in WRITES:
        return (await client.get(key)).record is not None
    if word == "del":
        return (await client.get(f"{key}-other")).record is None
    return (folder / MAKES[word].format(key=key)).exists() if word in MAKES else None


def flaw_of(
    name: str, kind: str, result: dict[str, object], sound: dict[str, object], is_done: bool | None
) -> str | None:
    code, earned = result["code"], sound["code"]
    if "Traceback" in str(result["words"]) or "mistake" in str(result["words"]):
        return "it ended with a traceback, or what it takes for a mistake"
    if kind in DESCRIPTORS:
        if code not in (earned, *CERTAINLY_NOT, 4):
            return f"exit code {code}"
    else:
        expected = 74 if earned == 0 and sound["output"] and has_lost_output(kind) else earned
        if code != expected:
            return f"exit code {code}, not {expected}"
    if is_done is not None and is_done != (code in (0, 74)) and code != 4:
        return f"exit code {code}, and it {'was' if is_done else 'was not'} done"
    return None


@pytest.mark.parametrize("redirection", ["2>/dev/full", "<&- >&- 2>&-", "2>&1 | true"])
def test_a_server_that_can_say_nothing_starts_serves_and_hands_over(tmp_path: Path, redirection: str) -> None:
    """The disk of the server's output is full, or the reader of this output has ended. The server neither stops nor
    omits the hand-over at its end."""
    ready = tmp_path / "ready"
    command = " ".join(hwm("serve", tmp_path / "data", "--bootstrap", "--listen-client", "127.0.0.1:0",
                           "--log-level", "debug", "--ready-file", ready))  # fmt: skip
    pipe = redirection.endswith("| true")
    shell = f"{{ {command} {redirection.removesuffix('| true')} ; echo $? > {tmp_path}/code; }}" + " | true" * pipe
    with subprocess.Popen(["bash", "-c", shell]) as process:
        try:
            line = wait_for(ready, process)
            address = line.split("client=")[1].split()[0]
            done = subprocess.run(hwm("put", "a", "b", "--endpoints", address), timeout=30, check=False)
            assert done.returncode == 0
            os.kill(int((tmp_path / "data" / "LOCK").read_text().split()[0]), signal.SIGTERM)
            process.wait(30)
        finally:
            process.kill()
    assert (tmp_path / "code").read_text() == "0\n"


def test_a_server_whose_log_nobody_reads_does_not_stand_still(tmp_path: Path) -> None:
    """The pipe is full, and its reader is alive but does not read. So a blocking write would never return."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writer, bytes(4096))
    os.set_blocking(writer, True)
    ready = tmp_path / "ready"
    with subprocess.Popen(
        hwm("serve", tmp_path / "data", "--bootstrap", "--listen-client", "127.0.0.1:0", "--ready-file", ready),
        stderr=writer,
    ) as server:
        try:
            wait_for(ready, server)
            server.terminate()
            assert server.wait(30) == 0
        finally:
            server.kill()
            os.close(reader)
            os.close(writer)


def wait_for(path: Path, process: subprocess.Popen[bytes]) -> str:
    end = time.monotonic() + 30
    while not path.exists():
        assert process.poll() is None, "it has ended"
        assert time.monotonic() < end, "it is not ready"
        time.sleep(0.01)
    return path.read_text()


@pytest.mark.parametrize("redirection", [">/dev/full 2>/dev/full", ">&- 2>&-"])
@pytest.mark.parametrize(
    ("arguments", "exit_code"),
    [
        (["harness.cli", "scenario", "--list"], 0),
        (["spark_audit.cli", "check", "/nowhere"], 2),
        (["spark_audit.cli", "check", "--help"], 0),
    ],
)
def test_the_other_two_programs_tell_the_truth_as_well(arguments: list[str], exit_code: int, redirection: str) -> None:
    """The programs end with the exit code of their result, or with 74 if the result could not be written."""
    command = " ".join([sys.executable, "-m", *arguments])
    done = subprocess.run(
        ["bash", "-c", f"{command} {redirection}"], capture_output=True, text=True, timeout=60, check=False
    )

    assert done.returncode == (74 if exit_code == 0 and redirection[0] == ">" else exit_code)
    assert "Traceback" not in done.stderr


def test_both_packages_have_the_same_streams() -> None:
    """`spark_audit` imports no other package, so it has a copy of the module."""
    ours, theirs = (Path(module.__file__ or "").read_text() for module in
                    (kvstore.cli.standard_streams, spark_audit.standard_streams))  # fmt: skip
    assert ours == theirs
