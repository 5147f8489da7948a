"""The page of a verdict: its drawings, its safe texts (no text of a history is read as HTML), and the way in which the
file is written."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path
from random import Random

import pytest
from click.testing import CliRunner

from spark_audit import FAULTS, Shape, check_rows, generate, inject
from spark_audit.cli import cli
from spark_audit.errors import UnreadablePath
from spark_audit.local.page_material import gather_rows
from spark_audit.report.axis import LEFT, RIGHT, WIDTH, TimeAxis
from spark_audit.report.material import NEIGHBOURS_MAX, TEXT_CHARACTERS_MAX, Material, bar_of, scene
from spark_audit.report.page import draw_page, write_page
from tests.spark_audit.support.histories import History, write_lines
from tests.spark_audit.support.pages import SVG, drawings, groups, ids, page_of, span_of, title


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_drawn_with_its_operations_marked_and_its_neighbours_on_the_key_beside_them(fault: str) -> None:
    rows, _ = inject(generate(Shape(operations=2_000, delete_share=0.0), 7), fault, 7)
    verdict = check_rows(rows)
    assert verdict.violations, "the fault is there"

    page = draw_page(verdict, gather_rows(rows, verdict))

    labelled = {drawing.get("aria-label"): drawing for drawing in drawings(page)}
    for violation in verdict.violations:
        drawing = labelled[violation.words()]
        guilty, neighbours = groups(drawing, "guilty"), groups(drawing, "neighbour")
        assert ids(guilty) == {op.op_id for op in violation.operations}
        assert {title(group).split("\n")[0] for group in guilty} == {op.words for op in violation.operations}
        assert escape(violation.words()) in page
        assert 0 < len(neighbours) <= NEIGHBOURS_MAX
        if violation.key is not None:
            assert all(f"key: {violation.key}\n" in title(group) for group in neighbours)
        assert not ids(guilty) & ids(neighbours)


def test_a_bar_reaches_from_call_to_return_and_lanes_are_of_clients() -> None:
    h = History()
    h.put("a", 0, 10, 2, client="one")
    h.put("b", 20, 30, 3, client="one")
    h.get("a", 40, 60, 3, mod_revision=2, client="two")

    drawing, *_ = drawings(page_of(h.rows))

    bars = {int(str(group.get("data-op"))): group for group in groups(drawing, "guilty")}
    (a, a_end), (b, b_end), (get, get_end) = (span_of(bars[number]) for number in range(3))
    assert a < a_end < b < b_end < get < get_end
    assert (get_end - get) == pytest.approx(2 * (b_end - b), abs=0.01)
    heights = [bars[number].find(f"{SVG}rect") for number in range(3)]
    y = [shape.get("y") for shape in heights if shape is not None]
    assert y[0] == y[1] != y[2]
    assert [text.text for text in groups(drawing, "stay")[0].iter(f"{SVG}text")] == ["one", "two"]


def test_an_operation_of_unknown_outcome_is_open_to_the_right() -> None:
    h = History()
    h.put("a", 0, 10, 2)
    h.put("b", 12, None)
    h.get("c", 40, 60, 2, mod_revision=2)

    drawing, *_ = drawings(page_of(h.rows))

    (unknown,) = [group for group in groups(drawing, "neighbour") if group.get("data-op") == "1"]
    assert span_of(unknown)[1] == WIDTH - RIGHT
    assert "outcome unknown" in title(unknown)
    assert "never returned" in title(unknown)
    outline = unknown.find(f"{SVG}path")
    assert outline is not None
    assert "Z" not in str(outline.get("d")).upper()  # The outline has no line at its right end.


def test_a_failed_operation_stands_beside_the_others_as_one_without_effect() -> None:
    h = History()
    h.put("a", 0, 10, 2)
    h.put("b", 12, 20, error="Busy").update(status="fail", output=None)
    h.get("b", 40, 60, 2, mod_revision=2)

    drawing, *_ = drawings(page_of(h.rows))

    (failed,) = [group for group in groups(drawing, "neighbour") if group.get("data-op") == "1"]
    assert title(failed).startswith("put #1 failed (Busy), without effect")


def test_the_nearest_in_time_are_shown_and_no_more_than_forty() -> None:
    h = History()
    for number in range(300):
        h.put(f"v{number}", number * 100, number * 100 + 10, number + 2)
    h.get("v100", 15_020, 15_030, 152, mod_revision=102)
    verdict = check_rows(h.rows)

    (bars,) = gather_rows(h.rows, verdict).scenes

    neighbours = {bar.op_id for bar in bars if not bar.guilty}
    guilty = {op.op_id for op in verdict.violations[0].operations}
    stamps = [s for op in verdict.violations[0].operations for s in (op.call_ns, op.return_ns or op.call_ns)]
    others = sorted(
        (min(max(r["call_ns"] - s, s - r["return_ns"], 0) for s in stamps), r["call_ns"], r["op_id"])
        for r in h.rows
        if r["op_id"] not in guilty
    )
    assert len(neighbours) == NEIGHBOURS_MAX == 40
    assert neighbours == {op_id for *_, op_id in others[:NEIGHBOURS_MAX]}


def test_listings_and_transactions_are_neighbours_on_the_keys_that_they_name() -> None:
    h = History()
    h.put("a", 0, 10, 2)
    h.range({"k": ("a", 2)}, 12, 14, 2)
    compare = {"compares": [], "success": [{"op": "put", "key": "other", "value": "x"}], "failure": []}
    h.txn(compare, True, [{"op": "put"}], 15, 16, 3)
    mine = {"compares": [], "success": [{"op": "get", "key": "k"}], "failure": []}
    h.txn(mine, True, [{"op": "get", "found": True, "value": "a", "mod_revision": 2}], 17, 18, 3)
    h.get("never", 20, 30, 3, mod_revision=2)
    verdict = check_rows(h.rows)

    scenes = gather_rows(h.rows, verdict).scenes

    about_k = next(bars for v, bars in zip(verdict.violations, scenes, strict=True) if v.property == "keys")
    words = {bar.op_id: bar.words for bar in about_k}
    assert set(words) == {0, 1, 3, 4}
    assert words[1] == "range #1 listed a (revision 2)"


@pytest.mark.parametrize("payload", ["<script>alert(1)</script>", "</svg></title>\"'&<!--]]>", "a\x00b\x1b\r\ufffe"])
def test_nothing_in_a_history_is_more_than_text(payload: str) -> None:
    """The texts are values, keys, clients, the run, errors and nodes. These texts appear in sentences, tables, labels,
    tooltips and attributes."""
    h = History(run_id=payload)
    h.put(payload, 0, 10, 2, key=payload, client=f"w{payload}", node=payload)
    h.put("b", 12, 15, key=payload, error=payload, client=f"f{payload}").update(status="fail", output=None)
    h.get(payload + "!", 20, 30, 2, key=payload, mod_revision=2, client=f"r{payload}")
    h.put("x", 40, 50, None, key="y", clock_id=payload)
    h.get("x", 60, 70, None, key="y")
    verdict = check_rows(h.rows)
    assert {v.property for v in verdict.violations} == {"keys"}
    assert verdict.undecided

    page = draw_page(verdict, gather_rows(h.rows, verdict))

    assert page.lower().count("<script") == page.lower().count("</script") == 1
    assert "<!--" not in page
    assert payload not in page
    assert len(drawings(page)) == 3  # The page has a drawing of the violation, and a plot for each of the two clocks.
    page.encode("utf-8")
    for c in "\x00\x1b\r\ufffe":
        assert c not in page


def test_half_a_surrogate_pair_is_no_reason_to_have_no_page() -> None:
    """The audit refuses a file with such a row, but it accepts such rows in memory."""
    h = History()
    h.put("a", 0, 10, 2)
    h.get("\ud800", 20, 30, 2)

    bars = {row["op_id"]: bar_of(row, whole=True) for row in h.rows}
    verdict = check_rows(h.rows)

    draw_page(verdict, Material(tuple(scene(found, bars, (), str) for found in verdict.violations))).encode("utf-8")


def test_a_very_long_value_is_cut_where_it_is_shown() -> None:
    h = History()
    h.put("a" * 100_000, 0, 10, 2)
    h.get("b" * 100_000, 20, 30, 2, mod_revision=2)

    page = page_of(h.rows)

    assert "a" * TEXT_CHARACTERS_MAX in page
    assert "a" * (TEXT_CHARACTERS_MAX + 1) not in page
    assert "(100,000 characters)" in page
    assert len(page) < 50_000


def test_the_order_of_the_rows_changes_no_byte_of_the_page() -> None:
    rows, _ = inject(generate(Shape(operations=1_500, multi_key_share=0.05, local_share=0.1), 3), "stale_read", 3)
    shuffled = list(rows)
    Random(1).shuffle(shuffled)

    assert page_of(rows) == page_of(shuffled)


def test_a_clean_history_is_said_to_be_clean_and_drawn_over_time() -> None:
    page = page_of(generate(Shape(operations=600), 5))

    assert "Every property holds" in page
    assert '<b class="linearizable">linearizable</b>' in page
    assert page.count('<td class="linearizable">holds</td>') == 3
    assert page.count('<td class="none">nothing to check</td>') == 2
    assert 'class="found"' not in page
    (plot,) = drawings(page)
    assert not groups(plot, "violation")
    assert len(groups(plot, "slice")) > 8


def test_what_is_undecided_is_listed_with_its_reason() -> None:
    h = History()
    h.put("a", 0, 10, None)
    h.range({"k": ("a", 2)}, 20, 30, None)  # type: ignore[arg-type]

    page = page_of(h.rows)

    assert '<b class="undecided">undecided</b>' in page
    assert "carry no revision" in page


def test_a_page_needs_nothing_from_anywhere() -> None:
    page = page_of(inject(generate(Shape(operations=500, delete_share=0.0), 5), "stale_read", 5)[0])

    outside = page.replace("http://www.w3.org/2000/svg", "")
    for word in ("http:", "https:", "src=", "url(", "@import", "fetch(", "XMLHttpRequest", "import("):
        assert word not in outside
    assert "default-src 'none'" in page


def test_the_ticks_of_an_axis_are_round_and_count_from_its_zero() -> None:
    axis = TimeAxis(-3_000_000, 17_000_000, 0)

    ticks = list(axis.ticks())

    assert [words for _, words in ticks] == ["0 ms", "+5 ms", "+10 ms", "+15 ms"]
    assert ticks[0][0] == pytest.approx(LEFT + (WIDTH - LEFT - RIGHT) * 3 / 20)
    assert [words for _, words in TimeAxis(0, 9, 4).ticks()][:5] == ["-4 ns", "-3 ns", "-2 ns", "-1 ns", "0 ns"]


@pytest.mark.parametrize(
    ("name", "why"),
    [("no/such/page.html", "there is no folder"), ("page.txt", "ends in .html"), ("d.html", "is a folder")],
)
def test_a_place_where_no_page_can_be_is_told_before_anything_is_started(tmp_path: Path, name: str, why: str) -> None:
    (tmp_path / "d.html").mkdir()
    (tmp_path / "h.jsonl").write_text("{}\n")

    result = CliRunner().invoke(cli, ["check", str(tmp_path / "h.jsonl"), "--html", str(tmp_path / name)])

    assert result.exit_code == 2
    assert why in result.stderr
    assert result.stdout == ""
    assert "malformed" not in result.stderr  # The command did not read the history.


@contextmanager
def _files_of_at_most(size: int) -> Iterator[None]:
    """In this block, a write that extends a file beyond this size is cut short and then fails, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_page_that_finds_no_room_leaves_the_one_before_it_and_no_half(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    write_page(path, "before")

    with _files_of_at_most(4_096), pytest.raises(UnreadablePath, match=os.strerror(errno.EFBIG)):
        write_page(path, "x" * 10_000)

    assert path.read_text() == "before"
    assert [file.name for file in tmp_path.iterdir()] == ["page.html"]


def test_a_full_disk_is_told_after_the_verdict_which_stands(tmp_path: Path) -> None:
    """If the page cannot be written, the verdict, which took minutes, is not lost."""
    history = write_lines(tmp_path / "rows.jsonl", generate(Shape(operations=100), 1))

    with _files_of_at_most(4_096):
        result = CliRunner().invoke(cli, ["check", str(history), "--html", str(tmp_path / "page.html")])

    assert result.exit_code == 2
    assert "LINEARIZABLE" in result.stdout
    assert os.strerror(errno.EFBIG) in result.stderr
    assert "the verdict above (linearizable) stands" in result.stderr
    assert list(tmp_path.iterdir()) == [history]


def test_a_page_replaces_the_one_before_it(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    for rows in (generate(Shape(operations=100), 1), generate(Shape(operations=200), 2)):
        verdict = check_rows(rows)
        write_page(path, draw_page(verdict, Material()))

    assert "200 operations" in path.read_text(encoding="utf-8")
    assert [file.name for file in tmp_path.iterdir()] == ["page.html"]
