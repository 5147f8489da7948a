"""`hwm lease`, `hwm compact`, and the options of `hwm put|get|del|range` for level 2: their output and their exit
codes."""

from __future__ import annotations

import json
from pathlib import Path

import trio
from click.testing import CliRunner, Result

from kvstore import open_node
from kvstore.cli.common import ExitCode
from kvstore.cli.main import cli


def run(folder: Path, *commands: str, level: int = 2) -> list[Result]:
    """Run commands against a store of one member, one after the other. Each command is written as in a shell."""

    def work(address: str) -> list[Result]:
        return [CliRunner().invoke(cli, [*command.split(), "--endpoints", address]) for command in commands]

    results: list[Result] = []

    async def main() -> None:
        node = open_node(folder / "data", bootstrap=True, feature_level=level, listen_client="127.0.0.1:0")
        async with node as store:
            results.extend(await trio.to_thread.run_sync(work, store.client_address))

    trio.run(main)
    return results


def test_a_lease_is_granted_used_shown_renewed_and_revoked(tmp_path: Path) -> None:
    granted, named, put, shown, found, listed, renewed, revoked, gone = run(
        tmp_path,
        "lease grant 60",
        "lease grant 90 --id 77 --json",
        "put a 1 --lease 77",
        "get a --json",
        "lease ttl 77 --keys",
        "lease list",
        "lease keep-alive 77 --once",
        "lease revoke 77",
        "get a",
    )

    assert (granted.exit_code, granted.stdout) == (0, "1\n")
    assert json.loads(named.stdout) == {"lease_id": 77, "ttl_ns": 90 * 10**9, "revision": 1}
    assert (put.exit_code, put.stderr) == (0, "revision 2\n")
    assert json.loads(shown.stdout)["lease_id"] == 77
    seconds, key = found.stdout.splitlines()
    assert 80 < float(seconds) <= 90
    assert key == "a"
    assert [row.split("\t")[::3] for row in listed.stdout.splitlines()] == [["1", "0"], ["77", "1"]]
    assert (renewed.exit_code, renewed.stdout) == (0, "90\n")
    assert (revoked.exit_code, revoked.stderr) == (0, "revoked; keys removed: 1\n")
    assert gone.exit_code == ExitCode.NEGATIVE


def test_a_lease_that_is_not_there_is_no_error_of_the_store(tmp_path: Path) -> None:
    results = run(
        tmp_path, "lease revoke 5", "lease ttl 5", "lease keep-alive 5", "lease ttl 5 --json", "put a 1 --lease 5"
    )

    assert [each.exit_code for each in results] == [1, 1, 1, 1, ExitCode.FAILED]
    assert [each.stderr for each in results[:3]] == ["there is no lease 5\n"] * 3
    assert json.loads(results[3].stdout) == {"found": False}
    assert "there is no lease 5: it has expired, was revoked, or never existed" in results[4].stderr


def test_keys_with_a_prefix_are_removed_as_one_change(tmp_path: Path) -> None:
    *_, removed, again, wrong = run(
        tmp_path, "put p/1 x", "put p/2 x", "put q x", "del --prefix p/", "del --prefix p/", "del"
    )

    assert (removed.exit_code, removed.stderr) == (0, "deleted 2 keys at revision 5\n")
    assert (again.exit_code, again.stderr) == (1, "not found: p/\n")
    assert wrong.exit_code == ExitCode.USAGE
    assert "give a KEY, or --prefix" in wrong.stderr


def test_old_revisions_are_read_until_they_are_compacted(tmp_path: Path) -> None:
    _, _, value, rows, compacted, lost, again, ahead = run(
        tmp_path,
        "put a old",
        "put a new",
        "get a --revision 2",
        "range --revision 2",
        "compact 3",
        "get a --revision 2",
        "compact 3",
        "compact 100",
    )

    assert value.stdout == "old\n"
    assert rows.stdout == "a\told\n"
    assert (compacted.exit_code, compacted.stderr) == (0, "the oldest revision that can be read is 3\n")
    for refused in (lost, again):
        assert refused.exit_code == ExitCode.FAILED
        assert "is compacted: the oldest that can be read is 3" in refused.stderr
    assert ahead.exit_code == ExitCode.FAILED
    assert "revision 100 is ahead of this member, which is at 3" in ahead.stderr


def test_level_1_says_what_to_do(tmp_path: Path) -> None:
    for refused in run(tmp_path, "lease grant 60", "del --prefix a", "get a --revision 1", "compact 1", level=1):
        assert refused.exit_code == ExitCode.FAILED
        assert "this needs feature level 2" in refused.stderr
        assert "then `hwm upgrade`" in refused.stderr


def test_an_election_needs_a_value_or_listens(tmp_path: Path) -> None:
    for arguments in (["elect", "x"], ["elect", "x", "me", "--listen"]):
        refused = CliRunner().invoke(cli, arguments)
        assert refused.exit_code == ExitCode.USAGE
        assert "give a VALUE to stand with, or --listen" in refused.stderr


def test_the_names_of_other_stores_lead_to_the_commands_here() -> None:
    for name, here in (("leases", "lease"), ("election", "elect"), ("flock", "lock"), ("compaction", "compact")):
        assert f"Did you mean `hwm {here}`?" in CliRunner().invoke(cli, [name]).stderr
