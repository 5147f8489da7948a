"""The engine without a JVM accepts or refuses every form of input by the rules of a row."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_audit import InputError, MalformedHistory, NothingToCheck, Shape, generate
from spark_audit.history.rows import FIELDS, plain_problem
from spark_audit.local.job import audit
from spark_audit.tables import jsonl as lines
from spark_audit.tables.conform import conform
from spark_audit.tables.frame import Frame, schema
from spark_audit.tables.jsonl import _cut
from spark_audit.tables.row_rules import broken_rows
from spark_audit.testing.generate import Row
from tests.spark_audit.local.test_check_rows import MALFORMED
from tests.spark_audit.support.histories import History, write_lines


def _put(**fields: Any) -> Row:
    h = History()
    h.put("a", 0, 10, 2)
    return {**h.rows[0], **fields}


_texts = st.none() | st.sampled_from(["", "k", "ok", "fail", "unknown", "get", "cas", "txn", "local", "{}"])
_numbers = st.none() | st.integers(-2, 3)
_flags = st.none() | st.booleans()
_answers: st.SearchStrategy[Row | None] = st.none() | st.fixed_dictionaries(
    {},
    optional={
        "found": _flags,
        "succeeded": _flags,
        "value": _texts,
        **dict.fromkeys(("mod_revision", "create_revision", "version", "deleted_revision"), _numbers),
        "items": st.none() | st.just([]),
        "results": st.none() | st.just([]),
    },
)
_changes = st.fixed_dictionaries(
    {},
    optional={
        **{name: _texts for name, kind in FIELDS if kind == "string"},
        **{name: _numbers for name, kind in FIELDS if kind == "long"},
        "op": st.sampled_from(["get", "put", "delete", "cas", "range", "txn", "append", "inc", None]),
        "status": st.sampled_from(["ok", "fail", "unknown", "maybe", None]),
        "output": _answers,
    },
)


@settings(max_examples=60, deadline=None)
@given(st.lists(_changes, min_size=1, max_size=20))
def test_columns_and_rows_break_the_same_rules(changes: list[Row]) -> None:
    """If all types are right, the check of columns finds exactly the faults that the check of rows finds."""
    rows = [_put(op_id=number, **{"output": {"found": True}, **change}) if "op_id" not in change else _put(**change)
            for number, change in enumerate(changes)]  # fmt: skip
    table = pa.Table.from_pylist(rows, schema=schema(names_coded=False))

    found = dict(broken_rows(Frame(conform(table))))

    assert found == {number: reason for number, row in enumerate(rows) if (reason := plain_problem(row)) is not None}


_odd = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
_wild = st.fixed_dictionaries({}, optional={name: _odd for name, _ in FIELDS} | {"extra": _odd})
_ends = st.sampled_from(["", "", "", "", " ", "\r", " x", "{}", "\n\n", "\n \n"])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(_wild, _ends, st.booleans()), min_size=1, max_size=6))
def test_what_arrow_reads_is_what_python_reads_and_all_else_is_left_to_python(
    wild: list[tuple[Row, str, bool]],
) -> None:
    """The lines contain values of every wrong type, two rows in a line, blanks, text after the row, and escapes. The
    reader neither coerces nor loses a value."""
    text = "\n".join(json.dumps(_put(**row), ensure_ascii=ascii_) + end for row, end, ascii_ in wild)

    by_arrow = lines._by_arrow(text.encode("utf-8", "surrogatepass"))

    if by_arrow is not None:
        rows = [json.loads(line) for line in text.split("\n")]
        reasons = [plain_problem(row) or "" for row in rows]
        # Only the reasons about a wrong type have these words. The other reasons use "is not" only for an operation's
        # status.
        assert not any(re.search(r" is not (of type|a list|an object)", reason) for reason in reasons)
        expected = pa.Table.from_pylist(rows, schema=schema(names_coded=False))
        assert conform(by_arrow).to_pylist() == expected.to_pylist()


def test_plain_rows_are_read_by_arrow() -> None:
    """The rows have listings, transactions, unknown outcomes and texts of every kind. In Python it would take minutes
    to read them."""
    rows = generate(Shape(operations=300, multi_key_share=0.1, unknown_share=0.02, local_share=0.1), 3)
    rows[0] |= {"error": '\u00e4\u20ac\U0001f600"\\\n\x00', "further": {"unknown": [1, None]}}
    for ascii_ in (True, False):
        text = "\n".join(json.dumps(row, ensure_ascii=ascii_) for row in rows)
        for end in ("", "\n"):
            read = lines._by_arrow((text + end).encode())
            assert read is not None
            expected = pa.Table.from_pylist(rows, schema=schema(names_coded=False))
            assert conform(read).to_pylist() == expected.to_pylist()


def test_fields_that_the_head_of_a_piece_does_not_name_are_read_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """The beginning of a piece only decides which fields are read on the fast path."""
    monkeypatch.setattr(lines, "_HEAD_BYTES", 60)
    rows = generate(Shape(operations=100, multi_key_share=0.1, unknown_share=0.02, local_share=0.1), 3)
    rows = [{name: value for name, value in row.items() if value is not None} for row in rows]
    rows[-1] |= {"further": 1}

    read = lines._by_arrow("\n".join(map(json.dumps, rows)).encode())

    assert read is not None
    expected = pa.Table.from_pylist(rows, schema=schema(names_coded=False))
    assert conform(read).to_pylist() == expected.to_pylist()


@pytest.mark.parametrize("piece_bytes", [100, 10_000, 2**25])
def test_malformed_lines_are_all_counted_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece_bytes: int
) -> None:
    """The input has a case for each rule of a row, broken lines, two rows on one line, and bad text. The pieces may be
    cut at any place."""
    monkeypatch.setattr(lines, "PIECE_BYTES", piece_bytes)
    plain = {name: case for name, case in MALFORMED.items() if case[0]["op"] not in ("range", "txn")}
    bad = [json.dumps(row).encode() for row, _ in plain.values()]
    reasons = [reason for _, reason in plain.values()]
    bad += [b'{"run_id": "r", ', json.dumps(_put()).encode() * 2, b"[]", b"{'op': 1}", b'{"a": "\xff"}', b"[" * 100_000]
    bad += [json.dumps(_put(value="\ud800")).encode()]
    reasons += ["broken JSON", "broken JSON", "not an object", "broken JSON", "cannot be read", "nested", "surrogate"]
    ops = tmp_path / "ops"
    ops.mkdir()
    good = json.dumps(_put()).encode()
    for number, line in enumerate(bad):
        (ops / f"{number:02}.jsonl").write_bytes(good + b"\n \n" + line + b"\n" + good)

        with pytest.raises(MalformedHistory) as caught:
            audit([str(ops / f"{number:02}.jsonl")])

        (fault,) = caught.value.faults
        assert (fault.line, fault.file) == (3, str((ops / f"{number:02}.jsonl").resolve()))
        assert reasons[number] in fault.reason
    with pytest.raises(MalformedHistory) as caught:
        audit([str(tmp_path)])
    assert caught.value.count == len(bad)
    assert len(caught.value.faults) == 20


def test_a_request_that_is_none_is_named_with_the_rows_that_clash(tmp_path: Path) -> None:
    """Rows of different files contradict each other: an op_id twice, a client with two open operations, a client with
    an operation after an unknown one, a bad request."""
    good = [_put(op_id=n, client=f"g{n}", call_ns=n * 1000, return_ns=n * 1000 + 5) for n in range(10, 13)]
    write_lines(tmp_path / "ops" / "a.jsonl", good)
    clashing = [
        _put(op_id=11, client="again"),
        _put(op_id=20, client="busy", call_ns=0, return_ns=100),
        _put(op_id=21, client="busy", call_ns=50, return_ns=200),
        _put(op_id=30, client="gone", status="unknown", return_ns=None, output=None),
        _put(op_id=31, client="gone", call_ns=900_000, return_ns=900_001),
        _put(op_id=40, client="asks", op="range", key=None, request="{", output={"items": []}),
        _put(op_id=50, client="quick", call_ns=7, return_ns=9),
        _put(op_id=51, client="quick", call_ns=7, return_ns=7),
    ]
    write_lines(tmp_path / "ops" / "b.jsonl", clashing)

    with pytest.raises(MalformedHistory) as caught:
        audit([str(tmp_path)])

    faults = caught.value.faults
    assert [(Path(fault.file).name, fault.line) for fault in faults] == [("b.jsonl", n) for n in (1, 3, 5, 6)]
    for fault, reason in zip(faults, ("twice", "before its operation 20", "new name", "JSON"), strict=True):
        assert reason in fault.reason


@pytest.mark.parametrize("case", ["two folders", "another run", "empty", "none completed", "no table", "cut", "wrong"])
def test_what_is_no_history_is_refused(tmp_path: Path, case: str) -> None:
    """The audit neither joins runs nor guesses a meaning. It never reports such input as linearizable."""
    ops = tmp_path / "a" / "ops"
    write_lines(ops / "1.jsonl", [_put(run_id="r")])
    reasons = {"two folders": "never joined", "another run": "names the run r", "empty": "nothing to check"}
    reasons |= {"none completed": "none of its 1", "no table": "not a Parquet file", "cut": "cannot be read"}
    if case == "two folders":
        write_lines(tmp_path / "b" / "ops" / "1.jsonl", [_put(run_id="r", op_id=5)])
    elif case == "another run":
        (tmp_path / "a" / "run.json").write_text('{"run_id": "r"}')
        write_lines(ops / "1.jsonl", [_put(run_id="other")])
    elif case == "empty":
        write_lines(ops / "1.jsonl", [])
    elif case == "none completed":
        write_lines(ops / "1.jsonl", [_put(status="unknown", return_ns=None, output=None)])
    elif case == "no table":
        (ops / "2.parquet").write_bytes(b"PAR1 no more")
    elif case == "cut":
        table = pa.Table.from_pylist(generate(Shape(operations=500), 1), schema=schema(names_coded=False))
        parquet.write_table(table, ops / "2.parquet", compression="snappy")
        content = bytearray((ops / "2.parquet").read_bytes())
        content[4:2_000] = bytes(1_996)
        (ops / "2.parquet").write_bytes(content)
    else:
        columns: dict[str, Any] = {
            "run_id": ["r"],
            "op_id": ["7"],
            "client": ["c"],
            "op": ["get"],
            "status": ["ok"],
            "call_ns": [1.5],
        }
        parquet.write_table(pa.table(columns), ops / "2.parquet")

    with pytest.raises(InputError, match=reasons.get(case, "column op_id is of type string, not long")) as caught:
        audit([str(tmp_path)])

    assert isinstance(caught.value, (MalformedHistory, NothingToCheck))


def test_a_table_may_have_texts_in_any_encoding_of_arrow_more_columns_and_fewer(tmp_path: Path) -> None:
    """The table has dictionaries with a repeated text, large texts, columns of nulls, and structures with other
    fields."""
    rows = generate(Shape(operations=400, multi_key_share=0.1), 3)
    expected = conform(pa.Table.from_pylist(rows, schema=schema(names_coded=False)))
    coded = pa.DictionaryArray.from_arrays(pa.array(np.arange(400) % 2, pa.int32()), pa.array(["sim", "sim"]))
    table = pa.Table.from_pylist([{**row, "further": 1} for row in rows])
    table = table.set_column(table.schema.get_field_index("clock_id"), "clock_id", coded)
    table = table.drop_columns(["error"] if "error" in table.column_names else [])

    made = Frame(conform(pa.concat_tables([table.slice(0, 100), table.slice(100)])))

    assert set(made.codes("clock_id").ids.tolist()) == {0}
    for name in ("run_id", "op_id", "key", "output", "request", "value"):
        assert made.table.column(name).to_pylist() == expected.column(name).to_pylist()


def test_a_file_may_lack_every_column_that_is_null_throughout(tmp_path: Path) -> None:
    """A field that is null in all rows may be left out, even if all repeated texts are dictionaries.

    See docs/reference/specification.md#101-files.
    """
    row: Row = {
        "run_id": "r",
        "clock_id": "x",
        "client": "c",
        "op": "put",
        "key": "k",
        "status": "ok",
        "output": {"more": None},
    }
    rows = [
        {**row, "op_id": i, "call_ns": 10 * i, "return_ns": 10 * i + 5, "revision": i + 2, "value": f"{i}"}
        for i in range(5)
    ]
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "bare.parquet")

    verdict = audit([str(tmp_path / "bare.parquet")])

    assert (verdict.status, verdict.operations) == ("linearizable", 5)


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_lines_of_a_file_are_each_read_once_wherever_it_is_divided(
    end: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line is read by the part in which it begins. This also applies to a broken line, to a blank line, and to a last
    line without a line end."""
    monkeypatch.setattr("spark_audit.tables.jsonl.PIECE_BYTES", 200)
    h = History()
    for number in range(4):
        h.put(f"v{number}", 20 * number, 20 * number + 10, number + 2)
    lines = [json.dumps({"op_id": row["op_id"], "value": row["value"]}).encode() for row in h.rows]
    text = b"\n".join([lines[0], b"{no", lines[1], b"", *lines[2:]]) + end
    (tmp_path / "h.jsonl").write_bytes(text)

    for step in range(1, len(text) + 2, 3):
        cut = [b"".join(_cut(str(tmp_path / "h.jsonl"), at, at + step)) for at in range(0, len(text), step)]
        assert b"".join(cut) == text
        assert all(part.endswith(b"\n") for part in [part for part in cut if part][:-1])
