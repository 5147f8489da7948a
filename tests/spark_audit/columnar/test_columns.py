"""Equal texts become equal tokens, and different texts become different tokens, for any order and any types of the
columns."""

from __future__ import annotations

from random import Random

import numpy as np
import pyarrow as pa
import pytest

from spark_audit.columnar import FOREVER, encode, encode_rows, triage
from spark_audit.columnar.columns import NEEDED, sorted_by
from spark_audit.testing.generate import Shape, generate
from tests.spark_audit.support.histories import History


def test_equal_values_of_one_key_are_one_token_and_of_two_keys_are_two() -> None:
    h = History()
    h.put("same", 0, 10, 2, key="a")
    h.get("same", 20, 30, 2, key="a")
    h.put("same", 0, 10, 3, key="b")
    h.get("other", 20, 30, 3, key="b")
    columns = encode_rows(h.rows)
    assert columns.writes[0] == columns.finds[1] > columns.tokens[0]
    assert columns.writes[2] != columns.writes[0]
    assert columns.finds[3] not in (columns.writes[2], columns.writes[0])
    for key in range(2):
        mine = slice(int(columns.starts[key]), int(columns.starts[key + 1]))
        tokens = np.r_[columns.writes[mine], columns.finds[mine]]
        tokens = tokens[tokens >= 0]
        assert (tokens > columns.tokens[key]).all()
        assert (tokens < columns.tokens[key + 1]).all()


def test_tokens_are_equal_exactly_if_the_texts_are() -> None:
    """The test compares every pair of texts. Some pairs differ only in case, in accents or at their end."""
    random = Random(1)
    texts = ["", "a", "A", "ä", "a\u0308", "a" * 1000, "a" * 999 + "b", "base64:AA==", "v1", "v10", "\u0000"]
    h = History()
    for number in range(200):
        h.put(random.choice(texts), number, number + 1, number + 2, key=random.choice("xyz"))
    columns = encode_rows(h.rows)
    by_op = dict(zip(columns.op_id.tolist(), columns.writes.tolist(), strict=True))
    for one in h.rows:
        for other in h.rows:
            same = (one["key"], one["value"]) == (other["key"], other["value"])
            assert (by_op[one["op_id"]] == by_op[other["op_id"]]) is same


def test_rows_come_sorted_by_key_and_call_whatever_their_order_was() -> None:
    rows = generate(Shape(operations=500, keys=7), 1)
    Random(2).shuffle(rows)
    columns = encode_rows(rows)
    key = np.repeat(np.arange(columns.keys), np.diff(columns.starts))
    assert (np.lexsort((columns.call, key)) == np.arange(len(columns))).all()
    for place, row in enumerate(columns.row.tolist()):
        assert rows[row]["op_id"] == columns.op_id[place]
        assert columns.names[key[place]] == (rows[row]["run_id"], rows[row]["key"])


def test_runs_are_kept_apart() -> None:
    one, other = History("one"), History("other")
    one.put("a", 0, 10, 2)
    other.put("a", 0, 10, 2)
    assert encode_rows([*one.rows, *other.rows]).names == [("one", "k"), ("other", "k")]


def test_an_unknown_operation_has_no_end_and_no_revision() -> None:
    h = History()
    h.put("a", 0, None, 7)
    h.get("a", 0, 10).update(status="unknown", return_ns=None, output=None)
    columns = encode_rows(h.rows)
    assert (columns.ret.tolist(), columns.revision.tolist()) == ([FOREVER], [0])


def test_columns_that_are_missing_or_null_or_of_other_text_types_are_read_alike() -> None:
    rows = generate(Shape(operations=300, keys=5, revisions=False, unknown_share=0.0), 4)
    table = pa.Table.from_pylist(rows, schema=NEEDED)
    plain = encode(table)
    fewer = encode(table.drop_columns(["weak", "expected_mod_revision", "revision", "consistency"]))
    other = encode(
        table.set_column(table.column_names.index("key"), "key", table["key"].dictionary_encode())
        .set_column(table.column_names.index("value"), "value", table["value"].cast(pa.large_string()))
        .set_column(table.column_names.index("revision"), "revision", pa.nulls(len(table)))
    )
    for name in ("row", "writes", "finds", "differs", "kind", "mod", "revision"):
        assert getattr(plain, name).tolist() == getattr(fewer, name).tolist() == getattr(other, name).tolist()


def test_nothing_at_all_is_no_key() -> None:
    columns = encode_rows([])
    assert (len(columns), columns.keys) == (0, 0)


@pytest.mark.parametrize("most", [1, 1000, 2**40, 2**62])
def test_sorting_by_a_packed_number_is_stable(most: int) -> None:
    numbers = np.random.default_rng(3).integers(0, most, 500) // (most // 20 + 1) * (most // 20 + 1)
    assert sorted_by(numbers).tolist() == np.argsort(numbers, kind="stable").tolist()


def test_names_as_dictionaries_mean_what_they_mean_as_texts() -> None:
    """The dictionary of a file may contain unused names, or may contain a name twice. A name that no row uses is not a
    key."""
    rows = generate(Shape(operations=80, keys=5), 2)
    plain = pa.Table.from_pylist(rows, schema=NEEDED)
    coded = plain
    for name in ("run_id", "op", "key", "status", "clock_id", "consistency"):
        texts = plain.column(name).to_pylist()
        words = ["in vain", *sorted({text for text in texts if text is not None}, reverse=True)] * 2
        places = [
            None if text is None else words.index(text, len(words) // 2 * (n % 2)) for n, text in enumerate(texts)
        ]
        array = pa.DictionaryArray.from_arrays(pa.array(places, pa.int32()), pa.array(words, pa.large_string()))
        coded = coded.set_column(coded.column_names.index(name), name, array)
    one, other = encode(plain), encode(coded)

    assert sorted(one.names) == sorted(other.names)
    keys = np.array([other.names.index(name) for name in one.names])
    assert np.array_equal(triage(one).verdict, triage(other).verdict[keys])
    again = other.of_keys(keys)
    for name in ("op_id", "kind", "unknown", "failed", "writes", "finds", "revision", "starts", "tokens"):
        assert np.array_equal(getattr(one, name), getattr(again, name)), name
