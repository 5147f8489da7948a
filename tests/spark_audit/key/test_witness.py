"""The order that the revisions propose: what this order proves, and at which positions it has unknown writes."""

from __future__ import annotations

from random import Random

from spark_audit.history.clocks import Clocks
from spark_audit.key.witness import explains, witness
from spark_audit.testing.generate import Shape, generate
from tests.spark_audit.support.histories import History
from tests.spark_audit.support.small_histories import ONE_CLOCK, has_an_order, operations_in, small_history


def test_a_read_that_returned_before_a_lower_revision_was_called_refutes_the_order() -> None:
    """In the proposed order, no operation may return before the latest call among the operations up to it. An order
    that breaks this rule is refuted."""
    h = History()
    h.put("a", 0, 10, 2)
    h.get("b", 20, 30, 3, mod_revision=3)
    h.put("b", 40, 50, 3)

    found = witness(operations_in(h.rows), ONE_CLOCK)

    assert not found.verified
    assert found.at is not None
    assert found.at.op_id == 1


def test_equal_stamps_are_concurrent() -> None:
    """The later revision may have been called at the moment when the earlier one returned.

    See docs/reference/specification.md#107-clocks.
    """
    h = History()
    h.get("b", 20, 30, 3, mod_revision=3)
    h.put("b", 30, 50, 3)

    assert witness(operations_in(h.rows), ONE_CLOCK).verified


def test_an_unknown_write_goes_where_a_response_tells_its_revision() -> None:
    """The response proves that the write took effect. The write never returned, so it may have taken effect late."""
    h = History()
    h.put("a", 0, 10, 2)
    h.put("lost", 5, None)
    h.put("b", 20, 30, 4)
    h.get("lost", 32, 40, 5, mod_revision=5)

    found = witness(operations_in(h.rows), ONE_CLOCK)

    assert found.verified
    assert [(op.op_id, revision) for op, revision in found.order if op.unknown] == [(1, 5)]


def test_an_unknown_write_called_after_its_observer_returned_is_no_explanation() -> None:
    """An unknown write never returns, but it cannot take effect before its call."""
    h = History()
    h.get("lost", 0, 10, 2, mod_revision=2)
    h.put("lost", 20, None)

    assert not witness(operations_in(h.rows), ONE_CLOCK).verified


def test_chains_of_unknown_compare_and_sets_are_followed_backwards() -> None:
    """The chain is a → b → c. Both steps have unknown outcomes. A read saw only c, without a revision."""
    h = History()
    h.put("a", 0, 10, 2)
    h.cas("b", "a", True, 20, None)
    h.cas("c", "b", True, 22, None)
    h.get("c", 40, 50, 4)

    found = witness(operations_in(h.rows), ONE_CLOCK)

    assert found.verified
    assert [op.op_id for op, _ in found.order] == [0, 1, 2, 3]


def test_a_hidden_unknown_write_that_only_a_version_shows_is_found() -> None:
    """The version counts writes. If an unknown put was overwritten before a read, the version has a gap of one.

    See docs/reference/specification.md#81-records-and-revisions.
    """
    h = History()
    h.put("a", 0, 10, 2)
    h.put("hidden", 11, None)
    h.put("b", 20, 30, 4)
    h.get("b", 40, 50, 4, mod_revision=4, version=3)

    assert witness(operations_in(h.rows), ONE_CLOCK).verified


def test_a_hidden_write_is_not_put_between_a_write_and_the_compare_and_set_that_expects_it() -> None:
    """The version shows a gap at the compare-and-set. The hidden write must be before the put whose record the
    compare-and-set expects."""
    h = History()
    h.put("hidden", 0, None)
    h.put("a", 10, 20, 3)
    h.cas("b", "a", True, 30, 40, 4)
    h.get("b", 50, 60, 4, mod_revision=4, version=3)

    assert witness(operations_in(h.rows), ONE_CLOCK).verified


def test_a_hidden_write_does_not_get_the_revision_of_an_acknowledged_one() -> None:
    """Two writes are hidden between 2 and 5. The cas was called between the calls of these writes. It expects revision
    5, which neither of them has."""
    h = History()
    h.put("a", 0, 10, 2)
    h.put("hidden", 11, None)
    h.cas("not this", None, True, 12, None, expected_mod_revision=5)
    h.put("hidden too", 13, None)
    h.put("b", 20, 30, 5)
    h.get("b", 40, 50, 5, mod_revision=5, version=4)

    found = witness(operations_in(h.rows), ONE_CLOCK)

    assert found.verified, found.reason
    assert [op.op_id for op, _ in found.order] == [0, 1, 3, 4, 5]


def test_a_hidden_write_is_not_put_before_the_compare_and_set_that_names_the_revision_of_another() -> None:
    """The version after the compare-and-set shows the gap. The compare-and-set expects the revision of the put before
    it."""
    h = History()
    h.put("a", 0, 10, 2)
    h.put("hidden", 11, None)
    h.put("b", 20, 30, 4)
    h.cas("c", None, True, 40, 50, 5, expected_mod_revision=4)
    h.get("c", 60, 70, 5, mod_revision=5, version=4)

    found = witness(operations_in(h.rows), ONE_CLOCK)

    assert found.verified, found.reason
    assert [op.op_id for op, _ in found.order] == [0, 1, 2, 3, 4]


def test_a_version_that_no_writes_account_for_is_not_verified() -> None:
    """If a put is applied twice, the version is too high by one."""
    h = History()
    h.put("a", 0, 10, 2)
    h.get("a", 20, 30, 3, mod_revision=2, version=2)

    assert not witness(operations_in(h.rows), ONE_CLOCK).verified


def test_two_clocks_are_compared_with_their_error_bounds_and_are_concurrent_without() -> None:
    """`a` precedes `b` only if the return of `a` plus the bound is before the call of `b`. Without such a distance the
    two operations are concurrent.

    See docs/reference/specification.md#107-clocks.
    """
    h = History()
    h.put("a", 0, 10, 2)
    h.put("b", 20, 30, 3, clock_id="boot")
    h.get("a", 50, 60, 2, clock_id="other", mod_revision=2)
    operations = operations_in(h.rows)

    assert witness(operations, Clocks()).verified
    # The put returned at 30 µs, and the bounds of both clocks add up to 30 µs. The sum is above 50 µs, the call of the
    # read.
    assert witness(operations, Clocks({"boot": 15_000, "other": 15_000})).verified
    assert not witness(operations, Clocks({"boot": 5_000, "other": 5_000})).verified


def test_nearly_every_true_history_has_a_verified_witness() -> None:
    """Without a witness, the search decides, and the search is slower. In these histories, 3 % of the operations on hot
    keys are unknown."""
    keys = verified = 0
    for seed in range(10):
        by_key: dict[str, list[dict[str, object]]] = {}
        for row in generate(Shape(operations=2_000, keys=4, clients=20, unknown_share=0.03), seed):
            by_key.setdefault(row["key"], []).append(row)
        for rows in by_key.values():
            keys += 1
            verified += witness(operations_in(rows), ONE_CLOCK).verified

    assert verified >= 0.9 * keys, (verified, keys)


def test_what_the_witness_returns_explains_the_history_by_itself() -> None:
    """The test checks the order again from the beginning, with the model alone."""
    verified = 0
    for seed in range(500):
        rows = small_history(Random(seed), revisions=True, values=0)
        found = witness(operations_in(rows), ONE_CLOCK)
        if found.verified:
            verified += 1
            assert explains(found.order, ONE_CLOCK)
            assert has_an_order(rows)
    assert verified > 100
