"""The structure: chapters import only lower chapters, every file is used, and a name has only one meaning."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter, defaultdict
from collections.abc import Mapping, Set
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("raft", "storage", "kvstore", "harness", "spark_audit", "benchmarks")

FILES_MAX = 20
"""The maximum number of files in one folder. A folder with more files contains two chapters, and should be divided."""


@cache
def modules_of(package: str) -> dict[str, Path]:
    """Every module of a package, with its file. An `__init__` has the name of its folder."""
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in sorted((ROOT / package).rglob("*.py"))
    }


@cache
def source(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def imported_names(path: Path) -> Set[str]:
    """Every name that the file imports, with its module. Imports in functions and imports for types count, too."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source(path))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(names)


@cache
def started_names(path: Path) -> Set[str]:
    """Every dotted name after a quotation mark or after `-m`. Such names are modules that the file starts or imports
    late."""
    return frozenset(re.findall(r"(?:\"|-m )([\w.]+)", source(path)))


@cache
def arrows_of(package: str) -> dict[str, set[str]]:
    """For each module of the package, the modules of the package that it imports."""
    known = modules_of(package)
    return {name: (imported_names(path) & known.keys()) - {name} for name, path in known.items()}


def chapters_of(package: str) -> dict[str, set[str]]:
    """The chapters of a package that each chapter imports. A file beside the chapters counts as a chapter."""
    known = modules_of(package)
    folders = {name for name, path in known.items() if path.name == "__init__.py"}
    with_folders = {folder.rpartition(".")[0] for folder in folders}

    def chapter(module: str) -> str:
        folder = module if module in folders else module.rpartition(".")[0]
        return module if folder in with_folders else folder

    between: defaultdict[str, set[str]] = defaultdict(set)
    for module, others in arrows_of(package).items():
        between[chapter(module)] |= {chapter(other) for other in others} - {chapter(module)}
    return between


def circles(arrows: Mapping[str, set[str]]) -> list[list[str]]:
    """Every set of nodes that can reach each other, largest first (Tarjan's algorithm)."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        number[node] = lowest[node] = len(number)
        stack.append(node)
        for other in sorted(arrows.get(node, ())):
            if other not in number:
                visit(other)
                lowest[node] = min(lowest[node], lowest[other])
            elif other in stack:
                lowest[node] = min(lowest[node], number[other])
        if lowest[node] == number[node]:
            at = stack.index(node)
            if len(stack) - at > 1:
                found.append(sorted(stack[at:]))
            del stack[at:]

    for node in sorted(arrows):
        if node not in number:
            visit(node)
    return sorted(found, key=len, reverse=True)


def test_circles_are_found() -> None:
    """The checks below rely on `circles`. So `circles` must find the circles of an example."""
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}, "e": {"f"}, "f": {"e"}}) == [
        ["a", "b", "c"],
        ["e", "f"],
    ]
    assert circles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


@pytest.mark.parametrize("package", PACKAGES)
def test_no_file_imports_one_that_imports_it(package: str) -> None:
    """The rule applies to any number of import steps. If a part needs the whole, it defines a protocol for the whole,
    and gets the whole as an argument."""
    assert circles(arrows_of(package)) == []


@pytest.mark.parametrize("package", PACKAGES)
def test_arrows_run_down_between_chapters(package: str) -> None:
    """If a part needs something of a higher chapter, it defines a protocol for it, and gets it as an argument."""
    assert circles(chapters_of(package)) == []


@pytest.mark.parametrize(
    ("chapter", "forbidden"), [("local", {"spark"}), ("spark", {"local"}), ("tables", {"local", "spark"})]
)
def test_the_engines_of_the_audit_share_tables_and_nothing_of_each_other(chapter: str, forbidden: set[str]) -> None:
    imported_chapters = chapters_of("spark_audit")[f"spark_audit.{chapter}"]

    assert imported_chapters.isdisjoint(f"spark_audit.{name}" for name in forbidden)


def test_no_folder_is_a_drawer() -> None:
    counts = Counter(path.parent for package in (*PACKAGES, "tests") for path in (ROOT / package).rglob("*.py"))

    assert {str(folder.relative_to(ROOT)): count for folder, count in counts.items() if count > FILES_MAX} == {}


@pytest.mark.parametrize("package", PACKAGES)
def test_a_chapter_says_what_belongs_in_it(package: str) -> None:
    for folder in {path.parent for path in modules_of(package).values()}:
        init = folder / "__init__.py"
        assert init.is_file(), folder
        assert ast.get_docstring(ast.parse(init.read_text(encoding="utf-8"))), init


@pytest.mark.parametrize("package", PACKAGES)
def test_no_two_public_classes_of_a_package_have_one_name(package: str) -> None:
    places: defaultdict[str, list[str]] = defaultdict(list)
    for module, path in modules_of(package).items():
        for node in ast.parse(source(path)).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(module)

    assert {name: modules for name, modules in places.items() if len(modules) > 1} == {}


@pytest.mark.parametrize("package", PACKAGES)
def test_no_file_is_dead(package: str) -> None:
    """Each file is imported by another file of the project, or is started by a console script or by `python -m`."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"].values()
    started = {script.partition(":")[0] for script in scripts}
    known = modules_of(package)
    used: set[str] = set()
    for path in (path for folder in (*PACKAGES, "examples") for path in (ROOT / folder).rglob("*.py")):
        own = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        used |= (imported_names(path) & known.keys()) - {own}
        used |= started_names(path) & known.keys()

    dead = {
        name
        for name, path in known.items()
        if name not in used | started and path.name not in ("__init__.py", "__main__.py")
    }
    assert dead == set()
