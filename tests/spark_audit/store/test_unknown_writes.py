"""A replay of the whole store finds where unknown writes took effect. Some histories are hand-written. Others are small
and random, and a checker tries all their orders."""

from __future__ import annotations

import copy
from random import Random

import pytest

from spark_audit import Shape, check_rows, generate
from spark_audit.history.clocks import Clocks
from spark_audit.history.effects import takes_part
from spark_audit.store.replay import contradictions
from spark_audit.store.replay_plan import Hint, plan_replay, position
from spark_audit.testing.generate import Row
from tests.spark_audit.support.amounts import amounts
from tests.spark_audit.support.histories import History
from tests.spark_audit.support.simulated_store import FAULTS, Mix, has_an_order, history

_ALL = ("keys", "order", "unique", "store")


def _status(rows: list[Row]) -> str:
    """The status without the property `weak`, because the checker that tries all orders does not know this property."""
    found = check_rows(rows).properties
    if any(found[name].violated for name in _ALL):
        return "violation"
    return "undecided" if any(found[name].undecided for name in _ALL) else "linearizable"


def _swap(h: History, guard: Row, puts: dict[str, str | None], call: int) -> None:
    """Add a transaction with unknown outcome. If its guard holds, the transaction makes the writes in `puts`. The value
    None means a deletion."""
    success = [
        {"op": "delete", "key": key} if value is None else {"op": "put", "key": key, "value": value}
        for key, value in puts.items()
    ]
    request = {"compares": [{"op": "=", **guard}], "success": success, "failure": [{"op": "get", "key": "a"}]}
    h.txn(request, True, [], call, None, None)


def _seen_by_a_local_read(value: str, mod_revision: int) -> History:
    """An unknown transaction wrote `a` and `b` at revision 4. Only a local read shows the revision of `b`; other reads
    show its value later. In between, `a` was deleted."""
    h = History()
    h.put("1", 0, 10, 2, key="a")
    h.put("2", 0, 10, 3, key="b")
    _swap(h, {"key": "a", "target": "mod_revision", "value": 2}, {"a": "x", "b": "y"}, 11)
    h.delete(True, 20, 30, 5, key="a")
    h.get(value, 40, 50, 5, key="b", mod_revision=mod_revision, consistency="local")
    request = {
        "compares": [{"key": "b", "op": "=", "target": "value", "value": "y"}],
        "success": [{"op": "put", "key": "b", "value": "z"}, {"op": "delete", "key": "c"}],
        "failure": [],
    }
    h.txn(request, True, [{"op": "put"}, {"op": "delete", "found": False}], 60, 70, 6)
    h.get(None, 80, 90, 6, key="a")
    h.range({"b": ("z", 6)}, 80, 90, 6)
    return h


def test_a_local_read_tells_where_an_unknown_transaction_took_effect() -> None:
    """The other properties are checked without the local read. But it may propose an order, and this order is a proof
    if it is verified."""
    h = _seen_by_a_local_read("y", 4)

    verdict = check_rows(h.rows)

    assert verdict.status == "linearizable", verdict.to_json()


@pytest.mark.parametrize(("value", "mod_revision"), [("y", 5), ("2", 4), ("never", 4)])
def test_a_local_read_that_lies_concerns_only_the_weak_reads(value: str, mod_revision: int) -> None:
    """If the order that the local read proposes cannot be verified, the audit looks for an order without this read."""
    h = _seen_by_a_local_read(value, mod_revision)

    verdict = check_rows(h.rows)

    assert {name for name, prop in verdict.properties.items() if prop.status != "linearizable"} <= {"weak"}
    assert verdict.properties["weak"].violated == (value != "y")  # The check of weak reads ignores this revision.


def test_a_guard_on_another_key_says_which_unknown_transaction_filled_a_jump_in_the_version() -> None:
    """The older transaction did not fill the gap, because its guard did not hold. The operations on the key alone do
    not show this."""
    h = History()
    h.put("1", 0, 10, 2, key="a")
    h.put("2", 0, 10, 3, key="b")
    h.put("3", 0, 10, 4, key="c")
    _swap(h, {"key": "b", "target": "mod_revision", "value": 99}, {"b": "old", "a": "old"}, 11)
    _swap(h, {"key": "a", "target": "value", "value": "1"}, {"a": "new", "c": None}, 12)
    h.put("6", 20, 30, 6, key="a")
    h.get("6", 40, 50, 6, key="a", mod_revision=6, version=3)
    h.get("2", 60, 70, 6, key="b", mod_revision=3)
    h.range({"a": ("6", 6), "b": ("2", 3)}, 60, 70, 6, count=2)
    assert check_rows(h.rows).status == "linearizable"

    both = copy.deepcopy(h)
    both.get("3", 80, 90, 6, key="c", mod_revision=4)
    verdict = check_rows(both.rows)
    assert verdict.status == "violation", verdict.to_json()


def test_an_unknown_write_called_after_an_answer_of_another_key_did_not_fill_a_jump_before_that_answer() -> None:
    """By the operations on its key alone, the write could fill the gap. But in real time, the write was called after
    revision 6 had returned."""
    h = History()
    h.put("1", 0, 10, 2, key="a")
    _swap(h, {"key": "a", "target": "mod_revision", "value": 2}, {"a": "hidden"}, 11)
    h.put("4", 20, 30, 4, key="a")
    h.put("told", 31, None, key="a")
    h.put("6", 40, 50, 6, key="c")
    h.cas("late", "4", True, 55, None, key="a")
    seen = {"op": "get", "found": True, "value": "told", "mod_revision": 5, "version": 4}
    other = {"op": "get", "found": True, "value": "6", "mod_revision": 6}
    reads = {"compares": [], "success": [{"op": "get", "key": "a"}, {"op": "get", "key": "c"}], "failure": []}
    h.txn(reads, True, [seen, other], 45, 60, 6)
    h.range({"a": ("told", 5), "c": ("6", 6)}, 45, 65, 6)

    assert check_rows(h.rows).status == "linearizable"


def test_what_changed_the_store_has_a_revision_of_its_own() -> None:
    """Reads saw two unknown writes, but only one revision is free.

    See docs/reference/specification.md#81-records-and-revisions.
    """

    def seen_both(revision: int) -> History:
        h = History()
        h.put("1", 0, 10, 2, key="a")
        h.put("x", 11, None, key="x")
        h.put("y", 11, None, key="y")
        h.put("4", 20, 30, revision, key="a")
        h.get("x", 40, 50, revision, key="x")
        h.get("y", 40, 50, revision, key="y")
        h.range({"a": ("4", revision)}, 60, 70, revision, prefix="a")
        return h

    assert check_rows(seen_both(5).rows).status == "linearizable"
    assert check_rows(seen_both(4).rows).status == "violation"


def test_an_unknown_transaction_was_called_before_what_shows_it_of_any_key() -> None:
    """Real time limits the transaction on all its keys. The transaction cannot have had revision 4, which returned
    before the call of the transaction."""

    def called_at(call: int) -> History:
        h = History()
        h.put("1", 0, 10, 2, key="a")
        h.put("3", 0, 10, 3, key="c")
        _swap(h, {"key": "a", "target": "value", "value": "1"}, {"a": "t", "b": "t"}, call)
        h.put("5", 20, 30, 5, key="c")
        h.get("t", 100, 110, 5, key="b")
        h.range({"a": ("t", 4)}, 100, 110, 5, prefix="a", keys_only=False)
        return h

    assert check_rows(called_at(25).rows).status == "linearizable"
    assert check_rows(called_at(40).rows).status == "violation"


def test_a_contradiction_among_the_known_is_certain_beside_unknown_writes_of_other_keys() -> None:
    """The listing of `a` is wrong, no matter what the unknown write of `u` did."""
    h = History()
    h.put("1", 0, 10, 2, key="a")
    h.put("lost", 0, None, key="u")
    h.put("2", 20, 30, 4, key="a")
    h.range({}, 40, 50, 4, prefix="a")

    (violation,) = check_rows(h.rows).violations

    assert violation.property == "store"


def test_revisions_without_an_owner_cost_nothing() -> None:
    """A history may begin at a high revision or skip revisions. The number of unknown writes bounds the number of gaps
    that the audit tries."""
    h = History()
    h.put("lost", 0, None, key="u")
    h.put("1", 0, 10, 10**12, key="a")
    h.get("lost", 20, 30, 10**15, key="u", mod_revision=10**14)
    h.range({"a": ("1", 10**12), "u": ("lost", 10**14)}, 40, 50, 10**15)

    unknown, known = [h.rows[0]], sorted((row for row in h.rows if takes_part(row)), key=position)
    prepared = plan_replay(unknown, known, [Hint("u", 77, "lost")], Clocks(), frozenset())

    assert prepared is not None
    assert len(prepared.steps) < 20
    assert check_rows(h.rows).status == "linearizable"


def test_beyond_its_bound_the_replay_is_undecided_never_green() -> None:
    """The first choice of the replay is wrong in this history. If STEPS_AGAIN_MAX leaves no step to replay again, the
    audit concludes nothing."""
    h = History()
    h.put("1", 0, 10, 2, key="a")
    for call in (11, 12, 13):
        _swap(h, {"key": "a", "target": "version", "value": 1}, {"a": f"t{call}", f"b{call}": "t"}, call)
    h.put("4", 20, 30, 4, key="a")
    h.get("4", 40, 50, 4, key="a", mod_revision=4, version=3)
    h.range({"a": ("4", 4)}, 60, 70, 4, prefix="a", count=1)
    h.range({"b11": ("t", 3)}, 60, 70, 4, limit=1, more=False, prefix="b11")
    h.range({}, 60, 70, 4, prefix="b", count_only=True, count=1)
    known = sorted((row for row in h.rows if takes_part(row)), key=position)
    unknown = [row for row in h.rows if row["status"] == "unknown"]

    def found(steps: int) -> list[bool]:
        return [one.certain for one in contradictions(unknown, [], known, clocks=Clocks(), steps_again_max=steps)]

    assert found(1_000) == []
    h.rows[-1]["output"]["count"] = 2
    assert True in found(1_000)
    assert found(0)
    assert True not in found(0)


@amounts(100, 300)
def test_true_histories_are_never_a_violation_and_nearly_always_decided(histories: int) -> None:
    """In each history 3 to 10 % of the operations are unknown, and 10 to 30 % are listings and transactions. Other
    operations are deletions and local reads."""
    undecided = 0
    for seed in range(histories):
        random = Random(seed)
        multi_key, unknown = random.choice((0.1, 0.2, 0.3)), random.choice((0.03, 0.06, 0.1))
        if seed % 2:
            shape = Shape(operations=200, clients=8, keys=random.choice((4, 8, 20)), put_share=0.3, delete_share=0.1,
                          cas_share=0.1, multi_key_share=multi_key, unknown_share=unknown, local_share=0.1)  # fmt: skip
            rows = generate(shape, seed)
        else:
            mix = Mix(operations=200, keys=random.choice((3, 8, 20)), clients=8, unknown=unknown, txn=multi_key / 2,
                      listing=multi_key / 2, local=0.1)  # fmt: skip
            rows = history(mix, random)
        verdict = check_rows(rows)
        assert not verdict.violations, (seed, verdict.to_json())
        undecided += verdict.status != "linearizable"

    assert undecided <= histories / 100


@amounts(300, 900)
def test_small_histories_true_or_broken_are_judged_as_by_trying_every_order(histories: int) -> None:
    """A stale, lost, phantom, half-applied or torn answer must be a violation if no order explains it, and only
    then."""
    seen = {True: 0, False: 0}
    for seed in range(histories):
        random = Random(seed)
        mix = Mix(
            operations=random.choice((8, 12, 16)),
            keys=random.choice((1, 2, 3)),
            clients=random.choice((2, 4, 6)),
            unknown=random.choice((0.1, 0.2, 0.3)),
            txn=0.25,
            listing=0.15,
            local=random.choice((0, 0.1)),
        )
        rows = history(mix, random, random.choice((None, None, *FAULTS)))
        if not any(row["status"] == "ok" for row in rows):
            continue
        truth = has_an_order(rows)
        seen[truth] += 1
        assert _status(rows) == ("linearizable" if truth else "violation"), seed

    assert min(seen.values()) > histories / 4, seen  # Both answers occurred.
