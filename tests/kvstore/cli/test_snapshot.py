"""`hwm snapshot save` names a remedy that the operator has not tried yet, and says what a file may lack."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from kvstore.backup.file import SnapshotFacts
from kvstore.backup.save import SavedSnapshot
from kvstore.cli.common import ExitCode
from kvstore.cli.main import cli
from kvstore.cli.snapshot import _what_may_lack
from kvstore.protocol.status import MemberStatus

pytestmark = pytest.mark.timeout(30)


@pytest.fixture
def silent() -> Iterator[str]:
    """An address at which nobody listens, now or during the test."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield "{}:{}".format(*held.getsockname())


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize(
    ("existing", "by_name", "is_offered"),
    [(False, False, True), (True, False, True), (False, True, True), (True, True, False)],
)
def test_a_save_of_one_member_alone_is_offered_only_to_who_has_not_asked_for_it(
    silent: str, *, as_json: bool, existing: bool, by_name: bool, is_offered: bool
) -> None:
    """Without a majority, `--member` is the remedy. `--member` is not a remedy if the named member does not answer
    either."""
    options = ["--existing"] * existing + ["--member", silent] * by_name + ["--json"] * as_json

    done = CliRunner().invoke(
        cli, ["snapshot", "save", "file", *options, "--endpoints", silent, "--deadline", "0.2", "--wait", "1"]
    )

    assert done.exit_code == ExitCode.UNAVAILABLE, done.output
    said = json.loads(done.stdout)["error"]["hint"] if as_json else done.stderr
    assert "check the addresses" in said
    assert ("--existing --member HOST:PORT" in said) == is_offered


def saved_of_one(
    *, revision: int = 5, index: int = 9, applied: int = 9, committed: int = 9, last: int = 9
) -> SavedSnapshot:
    """A saved file with all entries up to `index`. At the time of the request for the file, the member had applied up
    to `applied` and was at revision 5."""
    numbers = dict.fromkeys(MemberStatus.__dataclass_fields__, 0)
    marks = {"revision": 5, "last_applied": applied, "commit_index": committed, "last_index": last}
    facts = dict.fromkeys(SnapshotFacts.__dataclass_fields__, 0) | {"revision": revision, "index": index}
    member = MemberStatus(**numbers | marks)  # type: ignore[arg-type]
    return SavedSnapshot(facts=SnapshotFacts(**facts), size_bytes=1, node_id="s3", member=member)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("saved", "count"),
    [
        (saved_of_one(), 0),
        (saved_of_one(committed=10, last=12), 3),  # The file also lacks entries that the member knew to be committed.
        (saved_of_one(committed=10, last=12, index=10, revision=6), 2),  # When the file was made, it had entry 10.
        (saved_of_one(committed=10, last=12, index=13, revision=8), 0),
        (saved_of_one(last=12, index=7), 3),  # Entries 8 and 9 change no key.
    ],
)
def test_how_many_entries_of_a_members_log_are_in_no_file_is_said(saved: SavedSnapshot, count: int) -> None:
    """Only entries that the member had not applied are counted. For the applied entries, the file's revision shows
    whether the file has them."""
    words = [each for each in _what_may_lack(saved) if each.startswith("warning: the log of s3")]

    assert saved.open_entries == count
    assert [f"had {count} more entries, which it had not applied" in each for each in words] == [True] * (count > 0)
