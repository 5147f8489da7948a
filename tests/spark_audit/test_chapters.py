"""The imports between the chapters of `spark_audit` have one direction, and so have those between its files."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import spark_audit

FOLDER = Path(spark_audit.__file__).parent
MODULES = {
    ".".join(("spark_audit", *path.relative_to(FOLDER).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in sorted(FOLDER.rglob("*.py"))
}


def _imports(path: Path) -> Iterator[str]:
    """The modules of the package that a file imports, also for types only, and inside functions."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module in MODULES:
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            yield from (name if name in MODULES else node.module for name in names)


def _chapter(module: str) -> str:
    """The folder of a module; a module beside the folders is a chapter of its own."""
    parts = module.split(".")
    return ".".join(parts[:2])


IMPORTS = {module: {name for name in _imports(path) if name != module} for module, path in MODULES.items()}


def _chapters() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for module, names in IMPORTS.items():
        if module != "spark_audit":
            found.setdefault(_chapter(module), set()).update(map(_chapter, names))
    return {chapter: names - {chapter} for chapter, names in found.items()}


@pytest.mark.parametrize("graph", [IMPORTS, _chapters()], ids=["files", "chapters"])
def test_there_is_no_circle(graph: Mapping[str, set[str]]) -> None:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" → ".join(error.args[1]))


@pytest.mark.parametrize(
    ("chapter", "forbidden"), [("local", {"spark"}), ("spark", {"local"}), ("tables", {"local", "spark"})]
)
def test_the_engines_share_tables_and_nothing_of_each_other(chapter: str, forbidden: set[str]) -> None:
    found = _chapters()[f"spark_audit.{chapter}"]
    assert found.isdisjoint(f"spark_audit.{name}" for name in forbidden)
