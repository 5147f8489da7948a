"""The diagram of a run is one complete page that shows the events of the run."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from harness.sim.cli import EXIT_VIOLATION, simulate
from harness.sim.diagram.draw import DOWN, LOST, VIOLATION
from harness.sim.plan.draw import draw_plan
from harness.sim.plan.plan import MILLISECOND_NS
from harness.sim.plan.plan_file import read_plan, write_plan
from harness.sim.recorded_run import RecordedSimulation
from harness.sim.simulation import Simulation
from tests.simulation.support.deliberate_bugs import votes_go_to_logs_that_are_behind

SVG = "{http://www.w3.org/2000/svg}"
WHOLE_RUN = 20_000  # The run has fewer events than the limit, so the diagram shows all of them.
A_KILL = Path(__file__).parent / "regressions" / "a-vote-for-a-log-that-is-behind.toml"


class Tags(HTMLParser):
    """Parses all tags, which must be closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "br"):
            self.open.append(tag)
        self.links += [str(value) for name, value in attrs if name in ("src", "href")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def drawn(path: Path) -> ElementTree.Element:
    """The SVG of a page. The page itself is checked first."""
    page = path.read_text(encoding="utf-8")
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    assert tags.links == []
    assert "url(http" not in page
    found = re.search(r"<svg.*</svg>", page, re.DOTALL)
    assert found is not None
    return ElementTree.fromstring(found[0])


def titles(parent: ElementTree.Element) -> list[str]:
    return [title.text or "" for title in parent.iter(f"{SVG}title")]


def a_plan_that_shows_it(path: Path) -> Path:
    """A plan with several kills. The seed is the first one from 8 on for which one of the kills leads to a bad
    leader."""
    kill = read_plan(A_KILL).faults[0]
    kills = tuple(replace(kill, at_ns=at_ms * MILLISECOND_NS) for at_ms in range(150, 1_300, 150))
    plan = replace(read_plan(A_KILL), until_ns=1_500 * MILLISECOND_NS, faults=kills)
    plans = (replace(plan, seed=seed) for seed in range(8, 100))
    shows_it = next(plan for plan in plans if Simulation(plan).run().violation is not None)
    write_plan(shows_it, path, "of a test")
    return path


@pytest.mark.timeout(120)
def test_a_violation_is_drawn_in_red_with_what_led_to_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The drawing shows members, messages that arrived or were lost, a member that is down, and the violation at the
    end."""
    votes_go_to_logs_that_are_behind(monkeypatch)
    plan, path = a_plan_that_shows_it(tmp_path / "plan.toml"), tmp_path / "run.html"

    done = CliRunner().invoke(simulate, ["--plan", str(plan), "--lamport", str(path), "--last", str(WHOLE_RUN)])
    svg = drawn(path)

    assert done.exit_code == EXIT_VIOLATION
    assert f"simulate --plan {plan} --lamport seed-" in done.stdout
    words = [text.text or "" for text in svg.iter(f"{SVG}text")]
    assert {"n1", "n2", "n3"} <= set(words)
    assert any("leader completeness: n" in text for text in words)
    lines = list(svg.iter(f"{SVG}line"))
    assert sum(line.get("marker-end") == "url(#head)" for line in lines) > 50
    assert any(line.get("stroke") == LOST for line in lines)
    assert any(line.get("stroke") == VIOLATION for line in lines)
    assert any(bar.get("fill") == DOWN and titles(bar) for bar in svg.iter(f"{SVG}rect"))
    assert {"VoteRequest", "AppendEntries", "AppendAccepted"} <= set(titles(svg))
    assert any(": VoteRequest" in title for title in titles(svg))


@pytest.mark.timeout(60)
def test_as_many_events_are_drawn_as_asked_for(tmp_path: Path) -> None:
    """The option `--last` gives the number of events."""
    path = tmp_path / "run.html"

    done = CliRunner().invoke(simulate, ["--plan", str(A_KILL), "--lamport", str(path), "--last", "40"])

    assert done.exit_code == 0
    assert len(list(drawn(path).iter(f"{SVG}g"))) == 40


@pytest.mark.timeout(60)
def test_a_run_that_is_recorded_is_the_same_run() -> None:
    """Recording does not change the trace hash, with or without clients."""
    with_clients = next(plan for plan in map(draw_plan, range(1, 40)) if plan.load.with_service)
    for plan in (read_plan(A_KILL), with_clients):
        recorded = RecordedSimulation(plan, last=10)

        assert recorded.run().trace_hash == Simulation(plan).run().trace_hash


def test_a_picture_of_many_seeds_is_refused_with_the_reason() -> None:
    done = CliRunner().invoke(simulate, ["--lamport", "x.html"])

    assert done.exit_code == 2
    assert "--lamport needs --seed or --plan" in done.stderr


def test_a_page_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    missing = tmp_path / "none" / "run.html"

    done = CliRunner().invoke(simulate, ["--plan", str(A_KILL), "--lamport", str(missing)])

    assert done.exit_code == 2
    assert f"{missing} cannot be written" in done.stderr
