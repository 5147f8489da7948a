"""`hwm export` and `hwm import`: exported keys are lines of JSON, which can be imported again, and a wrong line is
named."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from click.testing import CliRunner, Result

from kvstore import EmbeddedStore, open_node
from kvstore.backup.key_lines import (
    BATCH_BYTES_MAX,
    BATCH_KEYS_MAX,
    LINE_BYTES_MAX,
    InvalidLine,
    KeyLine,
    batches_of,
    read_key_lines,
)
from kvstore.backup.key_transfer import export_keys
from kvstore.cli.common import ExitCode
from kvstore.cli.main import cli
from kvstore.errors import RevisionCompacted

Command = Callable[..., Result]


def with_store(folder: Path, work: Callable[[Command], None], *, level: int = 2) -> None:
    """Call `work` in a thread. Its argument is a function that runs a command of `hwm` against a store of one
    member."""

    async def main() -> None:
        node = open_node(folder / "data", bootstrap=True, feature_level=level, listen_client="127.0.0.1:0")
        async with node as store:

            def run(*arguments: str, given: bytes | None = None) -> Result:
                return CliRunner().invoke(cli, [*arguments, "--endpoints", store.client_address], input=given)

            await trio.to_thread.run_sync(work, run)

    trio.run(main)


def lines(*pairs: tuple[str, str]) -> bytes:
    return b"".join(json.dumps({"key": key, "value": value}).encode() + b"\n" for key, value in pairs)


@pytest.mark.parametrize("level", [1, 2])
def test_all_keys_leave_a_store_and_come_back(tmp_path: Path, level: int) -> None:
    values = {"a/text": "caf\u00e9", "a/control": "line\nend\u202e", "a/bytes": "base64:/wA=", "a/empty": "", "b": "x"}
    file = tmp_path / "keys"

    def work(hwm: Command) -> None:
        assert hwm("import", "-", given=lines(*values.items())).stderr == "5 keys written\n"
        out = hwm("export", "--all", "--output", str(file))
        assert (out.exit_code, out.stdout) == (0, f"{file}: 5 keys at revision 2\n")
        assert hwm("import", str(file), "--overwrite").exit_code == 0
        again = hwm("export", "--all")
        found = [json.loads(line) for line in again.stdout.splitlines()]
        assert found[0] == {"format": "highwatermark keys", "version": 1, "revision": 3, "prefix": ""}
        assert {line["key"]: line["value"] for line in found[1:-1]} == values
        assert found[-1] == {"end": True, "keys": 5}
        assert len(again.stdout_bytes.splitlines()) == len(again.stdout.splitlines()) == 7  # Only "\n" ends a line.
        one = [json.loads(line) for line in hwm("export", "a/").stdout.splitlines()]
        assert [line["key"] for line in one[1:-1]] == ["a/bytes", "a/control", "a/empty", "a/text"]

    with_store(tmp_path, work, level=level)


def test_keys_that_exist_end_an_import_or_are_left_or_overwritten(tmp_path: Path) -> None:
    new = lines(("a", "new"), ("b", "new"))

    def work(hwm: Command) -> None:
        assert hwm("put", "b", "old").exit_code == 0
        refused = hwm("import", given=new)
        assert (refused.exit_code, hwm("get", "a").exit_code) == (ExitCode.FAILED, ExitCode.NEGATIVE)
        assert "line 2: the key b'b' exists already, with mod_revision 2" in refused.stderr
        assert "hint: nothing was written; --if-absent leaves such keys" in refused.stderr
        kept = hwm("import", "--if-absent", "--json", given=new)
        assert json.loads(kept.stdout) == {"written": 1, "kept": 1, "left_out": 0}
        assert [hwm("get", key).stdout for key in "ab"] == ["new\n", "old\n"]
        assert hwm("import", "--overwrite", given=new).stderr == "2 keys written\n"
        assert hwm("get", "b").stdout == "new\n"

    with_store(tmp_path, work)


def test_a_key_that_exists_behind_written_keys_leaves_their_number(tmp_path: Path) -> None:
    many = lines(*((f"k{number:03}", "new") for number in range(BATCH_KEYS_MAX + 1)))

    def work(hwm: Command) -> None:
        assert hwm("put", f"k{BATCH_KEYS_MAX:03}", "old").exit_code == 0
        ended = hwm("import", given=many)
        assert ended.exit_code == ExitCode.UNKNOWN
        assert f"line {BATCH_KEYS_MAX + 1}: " in ended.stderr
        assert f"{BATCH_KEYS_MAX} keys were written before" in ended.stderr
        assert hwm("range", "--count").stdout == f"{BATCH_KEYS_MAX + 1}\n"
        again = hwm("import", "--if-absent", given=many)
        assert "0 keys written\n65 keys existed already" in again.stderr

    with_store(tmp_path, work)


def test_keys_with_a_lease_are_left_out_unless_they_are_asked_for(tmp_path: Path) -> None:
    def work(hwm: Command) -> None:
        hwm("lease", "grant", "60", "--id", "7")
        hwm("put", "leased", "1", "--lease", "7")
        exported = hwm("export", "--all")
        assert "1 keys have a lease" in exported.stderr
        hwm("lease", "revoke", "7")
        left_out = hwm("import", given=exported.stdout_bytes)
        assert "0 keys written\n1 keys had a lease, and were left out" in left_out.stderr
        assert hwm("import", "--with-leased", given=exported.stdout_bytes).stderr == "1 keys written\n"
        assert "lease_id" not in json.loads(hwm("get", "leased", "--json").stdout)

    with_store(tmp_path, work)


def test_a_damaged_file_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "keys"

    def work(hwm: Command) -> None:
        hwm("put", "a", "1")
        whole = hwm("export", "--all").stdout_bytes
        file.write_bytes(whole[: whole.rindex(b'{"end"')])
        refused = hwm("import", str(file), "--overwrite")
        assert refused.exit_code == ExitCode.USAGE
        assert f"{file}: line 3: the last line is missing: the export was cut short after 1 keys" in refused.stderr
        assert "nothing was written" in refused.stderr
        assert json.loads(hwm("get", "a", "--json").stdout)["version"] == 1
        absent = hwm("import", str(tmp_path / "none"))
        assert (absent.exit_code, "No such file" in absent.stderr) == (ExitCode.USAGE, True)

    with_store(tmp_path, work)


def test_wrong_uses_are_refused(tmp_path: Path) -> None:
    def work(hwm: Command) -> None:
        for arguments, words in (
            (["export"], "give a PREFIX, or --all"),
            (["export", "a", "--all"], "give a PREFIX, or --all"),
            (["export", "", ], "give a PREFIX, or --all"),
            (["export", "--all", "--json"], "name a file with --output"),
            (["import", "--if-absent", "--overwrite"], "give --if-absent or --overwrite"),
        ):  # fmt: skip
            refused = hwm(*arguments, given=b"")
            assert (refused.exit_code, words in refused.stderr) == (ExitCode.USAGE, True), arguments
        (tmp_path / "taken").write_text("x")
        taken = hwm("export", "--all", "-o", str(tmp_path / "taken"))
        assert (taken.exit_code, (tmp_path / "taken").read_text()) == (ExitCode.FAILED, "x")
        future = hwm("export", "--all", "--revision", "99", "-o", str(tmp_path / "future"))
        assert (future.exit_code, (tmp_path / "future").exists()) == (ExitCode.FAILED, False)

    with_store(tmp_path, work)


async def _export_while_it_changes(store: EmbeddedStore, value: str) -> list[bytes]:
    """Export keys that fill more than one page, and change all of them after the first page was written."""
    names = [f"k{number}" for number in range(4)]
    for name in names:
        await store.put(name, value)
    written: list[bytes] = []

    async def write(data: bytes) -> None:
        written.append(data)
        if len(written) == 2:  # The header and the first page.
            for name in names:
                await store.put(name, "changed")

    await export_keys(store, b"k", write)
    return written


async def test_all_pages_show_one_revision(tmp_path: Path) -> None:
    value = "v" * 400_000
    with trio.fail_after(30):
        async with open_node(tmp_path, bootstrap=True) as store:
            written = await _export_while_it_changes(store, value)
    assert len(written) > 3  # The header, more than one page, and the end.
    found = list(read_key_lines(io.BytesIO(b"".join(written))))
    assert [line.value for line in found] == [value.encode()] * 4


async def test_without_history_an_export_of_a_changing_store_ends_with_an_error(tmp_path: Path) -> None:
    with trio.fail_after(30):
        async with open_node(tmp_path, bootstrap=True, feature_level=1) as store:
            with pytest.raises(RevisionCompacted):
                await _export_while_it_changes(store, "v" * 400_000)


HEADER = b'{"format": "highwatermark keys", "version": 1, "revision": 1, "prefix": ""}\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"{", "line 1: this is no JSON"),
        (b"\xff\n", "line 1: this is no JSON"),
        (b"[" * 100_000, "line 1: this is no JSON"),
        (b"\n\n7\n", "line 3: this is no object with a key and a value, but a int"),
        (b'{"key": "a"}', "line 1: value must be text, not None"),
        (b'{"key": 7, "value": "a"}', "line 1: key must be text, not 7"),
        (b'{"key": "", "value": "a"}', "line 1: the key is empty"),
        (b'{"key": "base64:!", "value": "a"}', "line 1: key: 'base64:!' is not base64"),
        (b'{"key": "a", "value": "a", "lease_id": true}', "line 1: lease_id must be an integer from 0 on, not True"),
        (b'{"format": "x"}', "line 1: the format is 'x', not 'highwatermark keys'"),
        (b'{"format": "highwatermark keys", "version": 2}', "line 1: version 2 of the format; this build knows 1"),
        (HEADER, "line 2: the last line is missing: the export was cut short after 0 keys"),
        (HEADER + b'{"end": true, "keys": 1}', "line 2: the export had 1 keys, and 0 are here"),
        (HEADER + HEADER, "line 2: a header in the middle"),
        (HEADER + b'{"end": true, "keys": 0}\n' + HEADER, "line 3: there is a line behind the last line"),
        (b" " * (LINE_BYTES_MAX + 1), f"line 1: the line is longer than {LINE_BYTES_MAX} bytes"),
    ],
)
def test_each_wrong_line_is_named(text: bytes, words: str) -> None:
    with pytest.raises(InvalidLine) as caught:
        list(read_key_lines(io.BytesIO(text)))
    assert words in str(caught.value)


def test_a_batch_is_bounded_in_keys_and_bytes_and_has_each_key_once() -> None:
    def sizes(*found: KeyLine) -> list[int]:
        return [len(batch) for batch in batches_of(iter(found))]

    def line(key: object, size_bytes: int = 1) -> KeyLine:
        return KeyLine(1, str(key).encode(), bytes(size_bytes), 0)

    assert sizes() == []
    assert sizes(*map(line, range(2 * BATCH_KEYS_MAX + 1))) == [BATCH_KEYS_MAX, BATCH_KEYS_MAX, 1]
    assert sizes(line("a", BATCH_BYTES_MAX), line("b"), line("c", BATCH_BYTES_MAX)) == [1, 1, 1]
    assert sizes(line("a"), line("b"), line("a"), line("c")) == [2, 2]
