"""The README's example runs, and its commands, options and map agree with the code."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from kvstore.cli.main import cli as hwm

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


@pytest.mark.timeout(60)
def test_the_embedding_example_runs_twice_and_remembers(tmp_path: Path) -> None:
    (program,) = blocks("python")

    said = [
        subprocess.run(
            [sys.executable, "-W", "error", "-c", program],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        ).stdout
        for _ in range(2)
    ]

    assert said == ["claimed\n", "claimed before, by b'me'\n"]


def test_every_hwm_command_that_the_readme_shows_exists() -> None:
    shown = set(re.findall(r"hwm ([a-z]+(?:\|[a-z]+)*)", README))
    names = {name for group in shown for name in group.split("|")}
    assert {"serve", "put", "get", "status"} <= names
    for name in sorted(names):
        assert CliRunner().invoke(hwm, [name, "--help"]).exit_code == 0, name


def test_the_options_that_the_readme_gives_to_serve_exist() -> None:
    text = CliRunner().invoke(hwm, ["serve", "--help"]).output
    shown = {word for block in blocks("sh") for word in shlex.split(block, comments=True) if word.startswith("--")}
    for option in sorted({word.split()[0] for word in shown}):
        assert option in text, option


def test_the_map_has_every_package_and_chapter_and_no_other() -> None:
    """A chapter of the map is a folder of a package."""
    (house,) = re.findall(r"## The house\n(.*?)\n## ", README, flags=re.DOTALL)
    parts = re.split(r"^(\w+)/ .*\n", house.split("```")[1], flags=re.MULTILINE)[1:]
    shown = {
        package: [
            name for names in re.findall(r"^ +(\w+(?:, \w+)*)  ", lines, re.MULTILINE) for name in names.split(", ")
        ]
        for package, lines in zip(parts[::2], parts[1::2], strict=True)
    }

    assert shown.pop("tests") == []
    assert set(shown) == {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests"}
    for package, chapters in shown.items():
        folders = [path.parent.name for path in (ROOT / package).rglob("*/__init__.py")]
        assert sorted(chapters) == sorted(folders), package
