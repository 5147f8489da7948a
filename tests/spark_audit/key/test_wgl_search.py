"""The search for an order, and the excerpts that are shown if there is none."""

from __future__ import annotations

from random import Random

from spark_audit.history.clocks import Clocks
from spark_audit.history.operation import Operation, Step
from spark_audit.key.counterexample import Excerpt
from spark_audit.key.decide import decide
from spark_audit.key.wgl_search import search
from spark_audit.testing.generate import Shape, generate
from tests.spark_audit.support.histories import History
from tests.spark_audit.support.small_histories import ONE_CLOCK, operations_in, small_history


def test_the_cap_ends_the_search_without_a_verdict() -> None:
    """Beyond `configurations_max` the key is undecided. It is never reported as linearizable."""
    h = History()
    for number in range(12):
        h.put(f"v{number}", 0, 100)
    for number in range(12):
        h.get(f"v{number}", 0, 100)
    h.get("never", 200, 210)
    operations = operations_in(h.rows)

    assert search(operations, configurations_max=500).linearizable is None
    assert search(operations, configurations_max=500).configurations == 501


def test_a_key_beyond_the_cap_is_undecided() -> None:
    """Fourteen concurrent puts can take effect in any order, and reads overlap them. The search for an order needs more
    than three configurations."""
    h = History()
    for number in range(14):
        h.put(f"v{number}", 0, 1_000)
    for number in range(14):
        h.get(f"v{number}", number, 1_000)
        h.get(f"v{13 - number}", number, 1_000)

    decision = decide(operations_in(h.rows), ONE_CLOCK, configurations_max=3)

    assert decision.status == "undecided"


def test_a_revision_that_an_acknowledged_write_carries_is_told_of_no_other_write() -> None:
    """Each change has its own revision. So the unknown put cannot have revision 2 as well.

    See docs/reference/specification.md#81-records-and-revisions.
    """
    h = History()
    h.put("a", 0, None)
    h.put("b", 10, 20, 2)
    h.put("c", 30, 40, 4)
    h.cas("d", None, True, 50, 60, 3, expected_mod_revision=2)

    assert search(operations_in(h.rows), configurations_max=1_000).linearizable is False
    assert decide(operations_in(h.rows), ONE_CLOCK).status == "violation"


def test_a_revision_is_told_of_one_unknown_write_only() -> None:
    """After the record of revision 3 is overwritten, no read can find a record of revision 3 again."""
    h = History()
    h.put("a", 0, None)
    h.put("a", 0, None)
    h.get("a", 10, 20, 3, mod_revision=3)
    h.put("b", 30, 40, 4)
    h.get("a", 50, 60, 5, mod_revision=3)

    assert search(operations_in(h.rows), configurations_max=1_000).linearizable is False
    h.rows[-1]["output"]["mod_revision"] = 5
    assert search(operations_in(h.rows), configurations_max=1_000).linearizable
    assert decide(operations_in(h.rows), ONE_CLOCK).status == "linearizable"


def test_a_record_is_created_by_its_first_write_and_by_no_other() -> None:
    """Version 2 shows that the unknown put came first, so the record was not created at revision 2."""
    h = History()
    h.put("a", 0, None)
    h.put("b", 10, 20, 2)
    h.get("b", 30, 40, 2, mod_revision=2, create_revision=2, version=2)

    assert search(operations_in(h.rows), configurations_max=1_000).linearizable is False
    assert decide(operations_in(h.rows), ONE_CLOCK).status == "violation"


def test_an_unknown_operation_may_take_effect_at_any_later_time_or_never() -> None:
    """An operation of unknown outcome never ends in the history (docs/reference/specification.md#103-row)."""
    late, never = History(), History()
    for h in (late, never):
        h.put("a", 0, 10)
        h.put("b", 5, None)
        h.put("c", 20, 30)
    late.get("c", 40, 50)
    late.get("b", 60, 70)
    never.get("c", 60, 70)

    assert search(operations_in(late.rows), configurations_max=1_000).linearizable
    assert search(operations_in(never.rows), configurations_max=1_000).linearizable
    late.get("b", 80, 90)
    late.get("c", 100, 110)  # The put of b took effect and cannot be undone later.
    assert search(operations_in(late.rows), configurations_max=1_000).linearizable is False


def test_equal_unknown_operations_are_counted_not_told_apart() -> None:
    """Twenty equal unknown puts have a million subsets. But the search only counts the puts, so it has only twenty-one
    cases."""
    h = History()
    for number in range(20):
        h.put("same", number, None)
    for number in range(20):
        h.put("other", 100 * number, 100 * number + 10)
        h.get("same", 100 * number + 20, 100 * number + 30)
    operations = operations_in(h.rows)

    assert search(operations, configurations_max=5_000).linearizable
    h.put("other", 5_000, 5_010)
    h.get("same", 5_020, 5_030)  # This is the twenty-first read of the value.
    assert search(operations_in(h.rows), configurations_max=5_000).linearizable is False


def test_appends_are_an_operation_of_the_model() -> None:
    """Imported histories have `append` (docs/reference/specification.md#103-row)."""

    def history(last: str) -> list[Operation]:
        steps = [Step("append", "x"), Step("append", "y")]
        writes = [
            Operation(8 + n, f"a{n}", "append", 0, 10_000, "boot", None, False, (s,)) for n, s in enumerate(steps)
        ]
        h = History()
        h.get(last, 20, 30)
        return [*writes, *operations_in(h.rows)]

    assert search(history("xy"), configurations_max=100).linearizable
    assert search(history("yx"), configurations_max=100).linearizable
    assert decide(history("xx"), ONE_CLOCK).status == "violation"


def test_what_is_left_out_of_a_sound_excerpt_does_not_make_a_violation() -> None:
    """If an excerpt is impossible, the whole history must be impossible, too. The test tries random subsets of true
    histories."""
    tried = 0
    for seed in range(3_000):
        random = Random(seed)
        operations = operations_in(small_history(random, revisions=True, values=random.choice((0, 2))))
        if search(operations, configurations_max=100_000).linearizable:
            kept = Excerpt(operations).sound([op for op in operations if random.random() < 0.6])
            tried += 0 < len(kept) < len(operations)
            assert search(kept, configurations_max=100_000).linearizable, f"seed {seed}"
    assert tried > 500


def test_a_long_history_without_revisions_is_decided() -> None:
    """The number of concurrent operations bounds the memory of the search. Ten clients do 2,000 operations on one key
    without revisions."""
    rows = generate(Shape(operations=2_000, keys=1, revisions=False, unknown_share=0.002), seed=3)

    decision = decide(operations_in(rows), ONE_CLOCK)

    assert (decision.status, decision.method) == ("linearizable", "search")


def test_across_clocks_only_what_is_impossible_on_the_widened_axis_is_a_violation() -> None:
    """With error bounds of the clocks, a key that is neither proven nor refuted is undecided. It is never reported as
    linearizable.

    See docs/reference/specification.md#107-clocks.
    """
    h = History()
    h.put("a", 0, 10)
    h.put("b", 100, 110, clock_id="other")
    h.get("a", 500, 510)
    operations = operations_in(h.rows)

    assert decide(operations, Clocks({"boot": 1_000, "other": 1_000})).status == "violation"
    assert decide(operations, Clocks({"boot": 300_000, "other": 300_000})).status == "undecided"
    assert decide(operations, Clocks()).status == "undecided"
