"""Every path, anchor and link that code or documents cite can be opened."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("raft", "storage", "kvstore", "harness", "spark_audit", "tests", "benchmarks", "examples", "docs", "scripts")
SUFFIXES = frozenset({".py", ".md", ".toml", ".scenario", ".html", ".sh"})

CITED = re.compile(r"(?<![\w/.-])docs/[\w./-]+?\.md(?:#[\w-]+)?")
"""A path from the root of the project, in the form in which code and messages contain it."""

LINK = re.compile(r"\]\((?!\w+:)([^)\s#]*)(#[^)\s]*)?\)")
"""A relative link of a Markdown page."""

HEADING = re.compile(r"#{1,6} +(.*?)[ #]*$")

RETIRED = re.compile(r"\bFORMATS " + "§" + r"|\bFORMATS\.md|\bDESI" + r"GN\b")
"""Documents that people may cite but that were never part of the project."""


def text_files() -> list[Path]:
    """Every file of the project that people write, without generated files."""
    found = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES]
    found += [path for path in ROOT.iterdir() if path.suffix in SUFFIXES or path.name == "Makefile"]
    return sorted(path for path in found if path.is_file())


def anchor_of(heading: str) -> str:
    """The anchor that GitHub makes from a heading: lower case, spaces as `-`, no punctuation."""
    words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", words.strip().lower()).replace(" ", "-")


def anchors_in(text: str) -> list[str]:
    """The anchors of a page, in order. A repeated heading gets a number."""
    anchors: list[str] = []
    seen = Counter[str]()
    is_code = False
    for line in text.splitlines():
        if line.lstrip().startswith("```"):
            is_code = not is_code
        match = HEADING.match(line)
        if match and not is_code:
            anchor = anchor_of(match[1])
            anchors.append(f"{anchor}-{seen[anchor]}" if seen[anchor] else anchor)
            seen[anchor] += 1
    return anchors


@cache
def anchors_of(page: Path) -> list[str]:
    return anchors_in(page.read_text(encoding="utf-8"))


def problem_with(page: Path, anchor: str) -> str | None:
    """The reason why this path or anchor cannot be opened, and the nearest one that can be opened. None if it can be
    opened itself."""
    shown = page.relative_to(ROOT) if page.is_relative_to(ROOT) else page
    if not page.exists():
        near = difflib.get_close_matches(page.name, [each.name for each in (ROOT / "docs").rglob("*.md")], n=1)
        return f"there is no {shown}" + (f"; the nearest is {near[0]}" if near else "")
    if not anchor or page.suffix != ".md" or anchor in anchors_of(page):
        return None
    near = difflib.get_close_matches(anchor, anchors_of(page), n=1, cutoff=0.0)
    return f"{shown} has no #{anchor}; the nearest is #{near[0] if near else ''}"


def references(path: Path, text: str) -> Iterator[tuple[int, Path, str]]:
    """The line, the page and the anchor of each reference in a file."""
    for number, line in enumerate(text.splitlines(), start=1):
        for match in CITED.finditer(line):
            page, _, anchor = match[0].partition("#")
            yield number, ROOT / page, anchor
        if path.suffix == ".md":
            for match in LINK.finditer(line):
                target = (path.parent / unquote(match[1])).resolve() if match[1] else path
                yield number, target, unquote((match[2] or "")[1:])


def broken_references(path: Path, text: str) -> list[str]:
    shown = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    found = [(number, problem_with(page, anchor)) for number, page, anchor in references(path, text)]
    return [f"{shown}:{number}: {problem}" for number, problem in found if problem is not None]


def test_everything_that_is_cited_can_be_opened() -> None:
    """If a rule moves to another section, the citations of this rule must change, too."""
    broken = [problem for path in text_files() for problem in broken_references(path, path.read_text(encoding="utf-8"))]

    assert not broken, "\n".join(broken)


def test_the_check_finds_citations() -> None:
    """If the layout of files changes, the check must not pass because it finds no citation."""
    code, documents = 0, 0
    for path in text_files():
        count = sum(1 for _, page, anchor in references(path, path.read_text(encoding="utf-8")) if anchor)
        code, documents = (code, documents + count) if path.suffix == ".md" else (code + count, documents)

    assert code > 300
    assert documents > 100


def test_a_broken_citation_is_named_with_its_place_and_the_nearest_anchor() -> None:
    """If a heading is renamed, the message names the anchor that should be cited instead."""
    cited = "docs/reference/specification.md"
    text = f"one\n# See {cited}#35-recovry.\n# See docs/no-such-page{'.md'}\n"

    broken = broken_references(ROOT / "raft" / "core" / "raft.py", text)

    assert broken == [
        f"raft/core/raft.py:2: {cited} has no #35-recovry; the nearest is #35-recovery",
        f"raft/core/raft.py:3: there is no docs/no-such-page{'.md'}",
    ]


def test_a_link_between_pages_is_resolved_from_the_page_that_has_it() -> None:
    """The links include a link within a page, and a link to a folder above the page."""
    page = ROOT / "docs" / "reference" / "specification.md"
    text = "[a](../glossary.md) [b](#35-recovery) [c](semantics.md#reads) [d](https://example.org/x.md#y)\n[e](#35-recover)"

    assert broken_references(page, text) == [
        "docs/reference/specification.md:2: docs/reference/specification.md has no #35-recover; "
        "the nearest is #35-recovery"
    ]


def test_anchors_are_those_of_github() -> None:
    """Lines in code blocks are not headings. A repeated heading gets a number."""
    text = "# A page\n## 3.5 Recovery, *again*\n```sh\n# no heading\n```\n## `run.json` (new)\n### A page ###\n"

    assert anchors_in(text) == ["a-page", "35-recovery-again", "runjson-new", "a-page-1"]


def test_nothing_cites_a_document_that_is_not_in_the_project() -> None:
    """A reader must be able to open every citation: a section of a paper, a standard, or a page of this project."""
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in text_files()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if RETIRED.search(line)
    ]

    assert not found, "\n".join(found)


GUIDES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "docs/internals/architecture.md")
NEW_IN_A_GUIDE = frozenset({"kvstore/cli/count.py"})
"""The files that a guide tells its reader to make."""


def test_every_file_and_folder_that_a_guide_names_is_there() -> None:
    """The name of such a file is in backticks, has a slash, and starts at the root of the project."""
    named = [
        (guide, path)
        for guide in GUIDES
        for path in re.findall(r"`([\w.]+(?:/[\w.]+)+)`", (ROOT / guide).read_text(encoding="utf-8"))
        if path not in NEW_IN_A_GUIDE
    ]

    assert len(named) > 20
    assert [each for each in named if not (ROOT / each[1]).exists()] == []


def test_the_index_of_decisions_has_each_record_with_its_date_and_title() -> None:
    """The index lists the records in the order of their numbers."""
    folder = ROOT / "docs" / "adr"
    heads = []
    for path in sorted(folder.glob("0*.md")):
        title, _, date = path.read_text(encoding="utf-8").splitlines()[:3]
        heads.append((path.name, date.removeprefix("Date: "), title.removeprefix(f"# {int(path.name[:4])}. ")))

    index = (folder / "README.md").read_text(encoding="utf-8")

    assert re.findall(r"^\| \[\d+\]\((.*?)\) \| (.*?) \| (.*?) \|$", index, re.MULTILINE) == heads
