"""Odd numbers, texts and columns: all engines without Spark give the same verdict or refuse with the same words."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from spark_audit import MalformedHistory, Verdict, check_rows
from spark_audit.follow.cli import follow_files
from spark_audit.follow.state import FollowState, write_state
from spark_audit.history.rows import FIELDS
from spark_audit.local.job import audit
from spark_audit.tables.frame import schema
from spark_audit.testing.generate import Row
from tests.spark_audit.support.histories import History, write_lines


def _outcome(decide: Callable[[], Verdict]) -> str:
    try:
        return decide().status
    except MalformedHistory as error:
        return "; ".join(fault.reason for fault in error.faults)


def _followed(paths: tuple[str, ...], state: Path) -> Verdict:
    followed = FollowState()
    verdict = follow_files(followed, paths, settled_ns=0, final=True)
    write_state(state, followed)
    return verdict


def outcomes_of_files(rows: list[Row], folder: Path) -> dict[str, str]:
    """The outcomes of the engines that read files, for these rows as lines and as a table."""
    lines, table = folder / "lines" / "ops" / "a.jsonl", folder / "table" / "ops" / "a.parquet"
    write_lines(lines, rows)
    outcomes = {
        "lines": _outcome(lambda: audit([str(lines)])),
        "parts of lines": _outcome(lambda: _followed((str(lines),), folder / "state.json")),
    }
    if "\\ud800" in json.dumps([{**row, "request": None} for row in rows]):
        return outcomes  # A table cannot contain such a text.
    table.parent.mkdir(parents=True, exist_ok=True)
    whole = [{**dict.fromkeys(name for name, _ in FIELDS), **row} for row in rows]
    parquet.write_table(pa.Table.from_pylist(whole, schema=schema(names_coded=False)), table)
    outcomes["table"] = _outcome(lambda: audit([str(table)]))
    outcomes["parts of a table"] = _outcome(lambda: _followed((str(table),), folder / "state.json"))
    return outcomes


def outcome_of_all(rows: list[Row], folder: Path) -> str:
    """The common outcome of all engines and of the rows in memory. The test fails if two outcomes differ."""
    outcomes = {"rows": _outcome(lambda: check_rows(rows)), **outcomes_of_files(rows, folder)}
    assert len(set(outcomes.values())) == 1, outcomes
    return outcomes["rows"]


def _store() -> History:
    h = History()
    h.put("A", 0, 1, 5)
    return h


@pytest.mark.parametrize("consistency", ["linearizable", "local"])
@pytest.mark.parametrize("name", ["mod_revision", "create_revision", "version", "deleted_revision"])
def test_a_number_below_zero_in_an_answer_is_refused(tmp_path: Path, name: str, consistency: str) -> None:
    """In the columns, -1 stands for a missing number. So an answer of -1 would pass without being noticed."""
    h = _store()
    h.get("A", 2, 3, 5, consistency=consistency)["output"][name] = -1

    assert outcome_of_all(h.rows, tmp_path) == f"output.{name} is below 0"


@pytest.mark.parametrize("name", ["mod_revision", "create_revision", "version"])
def test_a_number_below_zero_in_a_listing_or_a_transaction_is_refused(tmp_path: Path, name: str) -> None:
    """Each item of a listing and each result of a transaction counts as a read of its key."""
    listing = _store()
    listing.range({"k": ("A", 5)}, 2, 3, 5)["output"]["items"][0][name] = -1
    get: Row = {"op": "get", "found": True, "value": "A", name: -1}
    page: Row = {"op": "range", "items": [{"key": "k", "value": "A", name: -1}]}
    reads = _store()
    reads.txn({"success": [{"op": "get", "key": "k"}]}, True, [get], 2, 3, 5)
    pages = _store()
    pages.txn({"success": [{"op": "range", "prefix": ""}]}, True, [page], 2, 3, 5)

    assert outcome_of_all(listing.rows, tmp_path) == f"output.items: {name} is below 0"
    assert outcome_of_all(reads.rows, tmp_path) == f"output.results: {name} is below 0"
    assert outcome_of_all(pages.rows, tmp_path) == f"output.items: {name} is below 0"


@pytest.mark.parametrize("revision", [-4, 2**63, 10**23])
def test_a_page_pinned_to_what_is_no_revision_is_refused(tmp_path: Path, revision: int) -> None:
    """Regression: engines read a number below 0 in different ways, and crashed at a number above int64."""
    listing = _store()
    listing.range({"k": ("A", 5)}, 2, 3, 5, revision=revision)
    page: Row = {"op": "range", "items": [{"key": "k", "value": "A"}]}
    inside = _store()
    inside.txn({"success": [{"op": "range", "prefix": "", "revision": revision}]}, True, [page], 2, 3, 5)

    assert outcome_of_all(listing.rows, tmp_path) == "request: revision is out of range"
    assert outcome_of_all(inside.rows, tmp_path) == "request: revision is out of range"


@pytest.mark.parametrize("revision", [None, 0])
def test_a_page_of_revision_zero_is_one_of_now(tmp_path: Path, revision: int | None) -> None:
    """The listing is checked like one without a revision."""
    h = _store()
    h.range({"k": ("A", 5)}, 2, 3, 5, revision=revision)

    assert outcome_of_all(h.rows, tmp_path) == "linearizable"


@pytest.mark.parametrize("first", [-(2**63), -(2**63) + 1, 2**63 - 8, 2**63 - 6, 2**63 - 4, 2**63 - 3])
@pytest.mark.parametrize("seen", ["A", "B"])
@pytest.mark.parametrize("far", [True, False], ids=["far", "near"])
def test_stamps_at_the_ends_of_their_range_are_stamps(tmp_path: Path, first: int, seen: str, far: bool) -> None:
    """A number beyond these ends is not a 64-bit number. With `far`, the other stamps of the key are in the middle of
    the range."""
    h = _store()
    h.get(seen, 2, 3, 5)
    for row in h.rows[:1] if far and first < 0 else h.rows[1:] if far else h.rows:
        call = first + row["call_ns"] // 1_000
        row |= {"call_ns": call, "return_ns": min(call + 1, 2**63 - 1)}

    assert outcome_of_all(h.rows, tmp_path) == ("linearizable" if seen == "A" else "violation")


def _table_of(path: Path, rows: list[Row], **columns: Any) -> str:
    """Write a table with these columns, such as `output`. A name that ends in `_` adds a second column with that name
    (without `_`)."""
    table = pa.Table.from_pylist([{**row, "output": None} for row in rows]).drop_columns(["output"])
    for name, column in columns.items():
        table = table.append_column(name.rstrip("_"), column)
    parquet.write_table(table, path)
    return str(path)


def test_an_answer_of_listing_fields_only_is_an_answer_all_the_same(tmp_path: Path) -> None:
    """The answer to a put has no fields of listings. If a history has no listings, the engine does not read the columns
    of listings."""
    h = _store()
    h.put("B", 2, 3, 6)
    listing = pa.struct([("items", pa.list_(pa.struct([("key", pa.string())])))])
    path = _table_of(tmp_path / "a.parquet", h.rows, output=pa.array([{}, {}], listing))

    assert _outcome(lambda: audit([path])) == "linearizable"
    assert _outcome(lambda: _followed((path,), tmp_path / "state.json")) == "linearizable"


def test_a_table_with_a_column_of_one_name_twice_is_refused(tmp_path: Path) -> None:
    """The engine cannot know which of the two columns is meant. Columns that are not fields of a row may be
    repeated."""
    rows, nothing, number = _store().rows, pa.nulls(1, pa.bool_()), pa.array([9])
    answer = pa.StructArray.from_arrays([nothing], names=["found"])
    of_two = pa.StructArray.from_arrays([nothing, nothing], names=["found", "found"])
    twice = _table_of(tmp_path / "twice.parquet", rows, output=answer, op_id=number)
    inside = _table_of(tmp_path / "inside.parquet", rows, output=of_two)
    further = _table_of(tmp_path / "further.parquet", rows, output=answer, further=number, further_=number)

    def outcome(path: str) -> str:
        outcome = _outcome(lambda: audit([path]))
        assert _outcome(lambda: _followed((path,), tmp_path / "state.json")) == outcome
        return outcome

    assert outcome(twice) == "column op_id is there twice"
    assert "not the documented structure" in outcome(inside)
    assert outcome(further) == "linearizable"


@pytest.mark.parametrize("name", ["value", "key", "error"])
def test_a_line_with_half_a_surrogate_pair_is_refused(tmp_path: Path, name: str) -> None:
    """Neither a UTF-8 file nor the state of `follow` can contain such a text. In unknown fields of a row, the text is
    ignored."""
    h = _store()
    h.rows[0][name] = "\ud800"

    assert set(outcomes_of_files(h.rows, tmp_path).values()) == {"text with one half of a surrogate pair"}

    ignored = _store()
    ignored.rows[0]["further"] = "\ud800"
    path = write_lines(tmp_path / "ignored.jsonl", ignored.rows)
    assert (
        _outcome(lambda: audit([str(path)]))
        == _outcome(lambda: _followed((str(path),), tmp_path / "s"))
        == "linearizable"
    )


_PUT: Row = {"op": "put", "key": "k", "value": "A"}
_COMPARE: Row = {"key": "k", "op": "=", "target": "value", "value": "A"}


@pytest.mark.parametrize(
    "bad_request",
    [
        {"success": [{**_PUT, "key": "\ud800"}]},
        {"success": [{**_PUT, "value": "\ud800"}]},
        {"success": [_PUT], "compares": [{**_COMPARE, "key": "\ud800"}]},
        {"success": [_PUT], "compares": [{**_COMPARE, "value": "\ud800"}]},
        {"success": [_PUT], "failure": [{"op": "range", "prefix": "\ud800"}]},
    ],
    ids=["key", "value", "compared key", "compared value", "prefix"],
)
def test_half_a_surrogate_pair_inside_a_request_is_refused(tmp_path: Path, bad_request: Row) -> None:
    """The half of a surrogate pair is escaped in JSON inside a text, so the row's own text is valid."""
    h = _store()
    h.txn(bad_request, True, [{"op": "put"}], 2, 3, 6)

    assert outcome_of_all(h.rows, tmp_path) == "request: text with one half of a surrogate pair"


def test_a_request_that_is_nested_without_end_is_refused(tmp_path: Path) -> None:
    """Python's JSON reader fails at a thousand levels."""
    h = _store()
    h.range({}, 2, 3, 5)["request"] = "[" * 100_000

    assert outcome_of_all(h.rows, tmp_path) == "request is not JSON (nested too deep)"


def test_a_result_that_is_null_is_refused(tmp_path: Path) -> None:
    """Each operation must have a result, and each result must be an object."""
    h = _store()
    h.txn({"success": [_PUT]}, True, [], 2, 3, 6)["output"]["results"] = [None]

    assert outcome_of_all(h.rows, tmp_path) == "output.results: not one for each operation of the branch that ran"


@pytest.mark.parametrize("blank", ["", " ", "\t", "\x0c", "\r"])
def test_a_line_of_spaces_is_none_and_one_of_other_blanks_is_broken(tmp_path: Path, blank: str) -> None:
    """A history gives the same result if it is read in one pass and if it is followed."""
    path = tmp_path / "a.jsonl"
    row = json.dumps(_store().rows[0])
    path.write_bytes(f"{row}\n{blank}\n".encode())

    outcome = {_outcome(lambda: audit([str(path)])), _outcome(lambda: _followed((str(path),), tmp_path / "s"))}

    assert len(outcome) == 1, outcome
    assert outcome.pop().startswith("broken JSON" if blank.strip(" ") else "linearizable")
