"""Small histories for the columnar witness. Some of them prove their key, and others leave their key suspect."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from spark_audit.columnar import NOT_COVERED, OK, SUSPECT, Witnessed, encode_rows, witness
from spark_audit.history.clocks import Clocks
from spark_audit.history.operation import operation_of
from spark_audit.history.projection import project
from spark_audit.key.witness import witness as one_by_one
from spark_audit.testing.generate import Shape, generate
from tests.spark_audit.support.histories import History


def _witness(h: History) -> Witnessed:
    return witness(encode_rows(h.rows))


def _status(h: History) -> int:
    return int(_witness(h).status[0])


def test_real_time_against_revisions_is_suspect_and_told_where() -> None:
    h = History()
    h.put("a", 20, 30, 2)
    h.put("b", 0, 10, 3)
    h.get("b", 40, 50, 3)
    columns = encode_rows(h.rows)
    seen = witness(columns)
    assert seen.status.tolist() == [SUSPECT]
    assert columns.op_id[seen.at[0]] == 1


def test_an_unknown_write_takes_part_only_if_it_was_observed_and_then_as_late_as_possible() -> None:
    h = History()
    h.put("a", 0, 10, 2)
    h.put("u", 12, None)
    h.put("never seen", 12, None)
    h.get("a", 20, 30, 2)
    h.get("u", 40, 50, 3)
    seen = _witness(h)
    assert seen.status.tolist() == [OK]
    assert seen.guessed.tolist() == [True]  # No response contained the revision of the write.
    h.get("a", 60, 70, 4)
    assert _status(h) == SUSPECT


def test_an_unknown_write_whose_revision_was_told_is_not_guessed() -> None:
    h = History()
    h.put("u", 0, None)
    h.get("u", 40, 50, 3, mod_revision=2, create_revision=2, version=1)
    seen = _witness(h)
    assert (seen.status.tolist(), seen.guessed.tolist()) == ([OK], [False])


def test_a_creation_that_responses_tell_may_begin_a_chain_of_unknown_writes() -> None:
    """Only the last of the three writes was acknowledged. The version and the create revision of its record imply the
    first write."""
    h = History()
    h.put("other", 0, None)  # This write could have created the key as well, but the chain shows which write did.
    h.put("a", 0, None)
    h.cas("b", "a", True, 5, None)
    h.cas("c", "b", True, 20, 30, 4)
    h.get("c", 40, 50, 4, mod_revision=4, create_revision=2, version=3)
    assert _status(h) == OK
    h.get("c", 60, 70, 4, mod_revision=4, create_revision=2, version=4)
    assert _status(h) == SUSPECT


def test_an_unknown_write_is_suspect_where_its_revision_was_seen_without_it() -> None:
    """If a response shows an absence, another record or an acknowledged write at that revision, the unknown write had
    another revision."""
    absent = History()
    absent.put("u", 0, None)
    absent.get(None, 1, 2, 2)
    absent.get("u", 3, 4, 2, mod_revision=2)
    other = History()
    other.put("z", 0, 1, 2)
    other.put("u", 0, None)
    other.get("z", 5, 6, 3, mod_revision=2)
    other.get("u", 7, 8, 3, mod_revision=3)
    acknowledged = History()
    acknowledged.put("z", 1, 2, 2)
    acknowledged.put("u", 0, None)
    acknowledged.get("u", 3, 4, 2, mod_revision=2)
    assert [_status(h) for h in (absent, other, acknowledged)] == [SUSPECT] * 3


def test_an_observed_write_that_was_called_too_late_is_suspect() -> None:
    h = History()
    h.get("u", 0, 10, 2)
    h.put("u", 20, None)
    assert _status(h) == SUSPECT


@pytest.mark.parametrize("links", [2, 7, 40])
def test_chains_of_unknown_compare_and_sets_are_followed_backwards(links: int) -> None:
    h = History()
    h.put("v0", 0, 10, 2)
    for number in range(links, 0, -1):
        h.cas(f"v{number}", f"v{number - 1}", True, 11 + links - number, None)
    h.get(f"v{links}", 100, 110, 2 + links)
    assert _status(h) == OK
    h.rows[-2]["expected"] = "something else"
    assert _status(h) == SUSPECT


def test_a_chain_that_was_seen_halfway_is_placed_in_two_parts() -> None:
    h = History()
    h.put("v0", 0, 10, 2)
    h.cas("v1", "v0", True, 11, None)
    h.cas("v2", "v1", True, 11, None)
    h.get("v1", 20, 30, 3)
    h.get("v2", 40, 50, 4)
    assert _status(h) == OK


def test_versions_show_hidden_writes_and_each_needs_one_that_was_called_in_time() -> None:
    h = History()
    h.put("a", 0, 10, 2)
    h.put("u", 12, None)
    h.put("b", 20, 30, 9)
    h.get("b", 40, 50, 9, mod_revision=9, create_revision=2, version=3)
    assert _status(h) == OK
    h.rows[-1]["output"]["version"] = 4
    assert _status(h) == SUSPECT
    h.put("w", 35, None)
    assert _status(h) == SUSPECT  # The write w was called after b had returned.
    h.rows[-1]["call_ns"] = 25_000
    assert _status(h) == OK


def test_a_hidden_compare_and_set_stands_right_after_what_it_expected() -> None:
    h = History()
    h.put("a", 0, 10, 2)
    h.cas("u", "a", True, 12, None)
    h.put("b", 20, 30, 9)
    h.put("c", 40, 50, 10)
    h.get("c", 60, 70, 10, mod_revision=10, create_revision=2, version=4)
    assert _status(h) == OK
    h.rows[1]["expected"] = "z"
    assert _status(h) == SUSPECT


def test_a_creation_revision_shows_a_hidden_deletion_and_a_hidden_creation() -> None:
    h = History()
    h.put("a", 0, 10, 2)
    h.delete(True, 12, None)
    h.put("b", 20, 30, 9)
    h.get("b", 40, 50, 9, mod_revision=9, create_revision=9, version=1)
    assert _status(h) == OK
    h.rows[-1]["output"] |= {"create_revision": 7, "version": 2}
    assert _status(h) == SUSPECT
    h.put("u", 15, None)
    assert _status(h) == OK


def test_absence_and_presence_show_unknown_writes() -> None:
    h = History()
    h.put("a", 0, 10, 2)
    h.delete(True, 12, None)
    h.get(None, 20, 30, 3)
    assert _status(h) == OK
    h.delete(True, 40, 50, 5)
    assert _status(h) == SUSPECT
    h.put("u", 32, None)
    assert _status(h) == OK


def test_a_compare_and_set_by_revision_names_an_unknown_write_by_it() -> None:
    h = History()
    h.put("u", 0, None)
    h.cas("b", None, True, 20, 30, 3, expected_mod_revision=2)
    h.get("u", 5, 40, 2, mod_revision=2)
    assert _status(h) == OK
    h.rows[1]["expected_mod_revision"] = 7
    assert _status(h) == SUSPECT


def test_failed_and_weak_operations_take_no_part() -> None:
    h = History()
    h.put("a", 0, 10, 2)
    h.put("b", 20, 30, 3)
    h.get("a", 40, 50, 3, consistency="local")
    h.put("c", 20, 30, 3, status="fail")
    assert _status(h) == OK


def test_what_columns_cannot_express_is_not_covered() -> None:
    h = History()
    h.put("a", 0, 10, 2)
    h.put("b", 0, 10, 2, key="other", clock_id="one")
    h.get("b", 20, 30, 2, key="other", clock_id="two")
    h.put("c", 0, 10, 3, key="third").update(op="append")
    assert _witness(h).status.tolist() == [OK, NOT_COVERED, NOT_COVERED]


def test_a_missing_revision_is_suspect() -> None:
    h = History()
    h.put("a", 0, 10, 2)
    h.get("a", 20, 30, None)
    seen = _witness(h)
    assert (seen.status.tolist(), seen.at.tolist()) == ([SUSPECT], [-1])


def test_stamps_over_the_whole_of_an_int64_are_compared_exactly() -> None:
    h = History()
    h.put("a", 0, 1, 2)
    h.get("a", 2, 3, 2)
    h.put("b", 0, 1, 3, key="other")
    for row in h.rows:
        row["call_ns"] -= 2**62
        row["return_ns"] += 2**62 if row["op"] == "get" else -(2**62)
    assert _witness(h).status.tolist() == [OK, OK]
    h.rows[1]["return_ns"] = h.rows[1]["call_ns"]
    h.rows[0]["call_ns"] = h.rows[0]["return_ns"] = 2**62
    assert _witness(h).status.tolist() == [SUSPECT, OK]


@pytest.mark.parametrize("seed", range(4))
def test_true_histories_are_proven_as_the_witness_of_one_key_proves_them(seed: int) -> None:
    shape = Shape(operations=6_000, clients=12, keys=30, unknown_share=0.05, cas_share=0.25)
    rows = generate(shape, seed)
    columns = encode_rows(rows)
    proven = dict(zip(columns.names, witness(columns).status.tolist(), strict=True))

    by_key: dict[str, list[dict[str, object]]] = {}
    for row in rows:
        for key, part in project(row):
            by_key.setdefault(key, []).append(dict(part))
    slow = {
        key: one_by_one([op for row in mine for op in operation_of(row)], Clocks()).verified
        for key, mine in by_key.items()
    }
    fast = {key: status == OK for (_, key), status in proven.items()}
    assert sum(fast.values()) >= sum(slow.values()) - 1, (fast, slow)
    assert sum(fast.values()) >= 0.9 * len(fast)


def test_a_listing_is_a_read_of_each_key_that_it_shows() -> None:
    rows = generate(Shape(operations=2_000, keys=10, unknown_share=0.0, multi_key_share=0.0), 3)
    h = History(rows[0]["run_id"])
    h.put("a", 0, 10, 2)
    h.range({"k": ("a", 2)}, 20, 30, 2)
    cut = [part for row in h.rows for _, part in project(row)]
    assert witness(encode_rows(cut)).status.tolist() == [OK]
    assert len(encode_rows(cut)) == 2


def test_keys_cut_out_of_columns_are_decided_as_before() -> None:
    columns = encode_rows(generate(Shape(operations=3_000, keys=20, unknown_share=0.03), 5))
    keys = np.array([3, 7, 4])
    part = columns.of_keys(keys)
    assert part.names == [columns.names[key] for key in keys]
    assert witness(part).status.tolist() == witness(columns).status[keys].tolist()
    assert replace(part, names=part.names).keys == 3
