"""The exit code and the one JSON value that a script gets from a command that failed or found a fault."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from kvstore import Client
from kvstore.cli.cluster import member as cli_member
from kvstore.errors import ChangeRefused, OutcomeUnknown, StoreError, Unavailable
from kvstore.protocol.membership import Membership, MemberView
from tests.process.servers import hwm
from tests.process.test_bad_input import NOBODY, invoke

pytestmark = [pytest.mark.process, pytest.mark.timeout(60)]


@pytest.mark.parametrize("address", ["127.0.0.1:227010", "127.0.0.1:", ":7101", "127.0.0.1:port", "s1:"])
@pytest.mark.parametrize(
    "command",
    [
        ["get", "a", "--consistency", "follower"],
        ["snapshot", "save", "{}/f"],
        ["snapshot", "save", "{}/f", "--existing"],
    ],
)
def test_a_member_at_an_address_that_nobody_can_dial_is_wrong_usage(
    tmp_path: Path, command: list[str], address: str
) -> None:
    """After exit code 5 ("unavailable"), a supervisor would try again forever."""
    result = invoke(*(word.format(tmp_path) for word in command), "--deadline", "0.2", "--member", address)

    assert result.exit_code == 2, result.stderr
    assert f"address {address!r}" in result.stderr


LAGS = ChangeRefused("behind", "s4 lacks 12 entries", 12)


@pytest.mark.parametrize(
    ("error", "exit_code", "code", "reason", "lag"),
    [
        (LAGS, 3, "change_refused", "behind", 12),
        (OutcomeUnknown("the answer was lost"), 4, "outcome_unknown", None, None),
        (Unavailable("nobody led"), 5, "unavailable", None, None),
    ],
)
def test_an_error_is_an_object_too_for_who_asks_for_json(
    monkeypatch: pytest.MonkeyPatch,
    error: StoreError,
    exit_code: int,
    code: str,
    reason: str | None,
    lag: int | None,
) -> None:
    """With --json the error goes to stdout, like an answer. A message for people goes to stderr."""

    async def fail(*_: object, **__: object) -> Membership:
        raise error

    monkeypatch.setattr(Client, "promote_member", fail)

    told = invoke("member", "promote", "s4", "--json")
    plain = invoke("member", "promote", "s4")

    assert (told.exit_code, plain.exit_code, plain.stdout) == (exit_code, exit_code, "")
    assert told.stderr == plain.stderr
    found = json.loads(told.stdout)["error"]
    hint = found.pop("hint")
    assert f"hint: {hint}" in told.stderr
    assert found == {
        "code": code,
        "text": str(error),
        "reason": reason,
        "lag": lag,
        "is_unknown": code == "outcome_unknown",
    }


def test_there_is_one_json_value_whatever_happens(tmp_path: Path) -> None:
    """If a command has printed its finding as the JSON value, the error goes to stderr only."""
    damaged = tmp_path / "file"
    damaged.write_bytes(b"no snapshot")

    found = invoke("snapshot", "status", str(damaged), "--json")
    missing = invoke("snapshot", "status", str(tmp_path / "none"), "--json")

    assert (found.exit_code, json.loads(found.stdout)["verdict"]) == (3, "damaged")
    assert (missing.exit_code, json.loads(missing.stdout)["error"]["code"]) == (2, "usage")


def test_an_error_that_cannot_be_written_keeps_its_exit_code() -> None:
    """The put was not carried out, but exit code 74 would mean that it was."""
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            hwm("put", "a", "b", "--json", "--deadline", "0.2", "--endpoints", NOBODY),
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=40, check=False,
        )  # fmt: skip

    assert done.returncode == 5
    assert done.stderr.startswith("error: unavailable")
    assert "Exception" not in done.stderr


@pytest.mark.parametrize(
    ("leader_id", "is_heard", "exit_code", "words"),
    [
        ("s1", (True, True), 0, ""),
        ("s1", (True, False), 1, ""),
        (None, (None, None), 1, "nobody leads, says s1"),
        ("s2", (None, None), 1, "s2 leads, but did not answer, says s1"),
    ],
)
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_list_of_members_ends_well_only_if_a_leader_hears_them_all(
    monkeypatch: pytest.MonkeyPatch,
    leader_id: str | None,
    is_heard: tuple[bool | None, ...],
    exit_code: int,
    words: str,
    form: list[str],
) -> None:
    """Without a leader the command does not know which members are heard, so it must not end with exit code 0."""
    members = tuple(
        MemberView(
            node_id=f"s{at}",
            part="voter",
            peer_address="a:1",
            client_address="a:2",
            incarnation_id=b"",
            lag=0 if heard else None,
            is_heard=heard,
        )
        for at, heard in enumerate(is_heard, 1)
    )
    now = Membership(
        node_id="s1", cluster_id=b"", leader_id=leader_id, term=1, is_changing=False, members=members, removed=()
    )
    monkeypatch.setattr(cli_member, "run_with_client", lambda *_: now)

    result = invoke("member", "list", *form)

    assert (result.exit_code, result.stderr.strip()) == (exit_code, words)
