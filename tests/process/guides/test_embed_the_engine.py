"""The program of docs/reference/embed-the-engine.md runs without changes, and imports only public names."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "reference" / "embed-the-engine.md").read_text(encoding="utf-8")
PUBLIC = ("raft", "raft.runtime", "storage")

RUN_SECONDS_MAX = 50


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


def run(program: Path) -> str:
    """Run the program and return its output. The program must end without an error and without a warning."""
    return subprocess.run(
        [sys.executable, "-W", "error", program.name],
        cwd=program.parent,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS_MAX,
        check=True,
    ).stdout


def test_the_program_finds_after_a_restart_what_it_has_added(tmp_path: Path) -> None:
    (source,) = blocks("python")
    program = tmp_path / "counter.py"
    program.write_text(source, encoding="utf-8")

    said = [run(program) for _ in range(2)]

    assert said == blocks("text")
    assert sorted(path.name for path in (tmp_path / "counters").iterdir()) == ["s1", "s2", "s3"]


def test_the_program_uses_public_names_only() -> None:
    (source,) = blocks("python")
    tree = ast.parse(source)
    used = {
        (node.value.id, node.attr)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in PUBLIC
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in PUBLIC:
            used |= {(node.module, alias.name) for alias in node.names}

    assert {package for package, _ in used} == set(PUBLIC)
    assert [each for each in sorted(used) if each[1] not in import_module(each[0]).__all__] == []
