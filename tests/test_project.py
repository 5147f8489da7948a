"""The project states the requirements of a new machine, and names each missing requirement."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def find_python(path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/sh", str(ROOT / "scripts" / "find-python")],
        env={**os.environ, "PATH": str(path)},
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )


def a_program(folder: Path, name: str, body: str) -> None:
    file = folder / name
    file.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)


def test_a_machine_without_python_is_told_so(tmp_path: Path) -> None:
    result = find_python(tmp_path)

    assert result.returncode == 1
    assert "no python3 is on PATH" in result.stderr
    assert "Python 3.11+" in result.stderr


def test_an_old_python_is_named_with_its_version(tmp_path: Path) -> None:
    a_program(tmp_path, "python3", 'test "$1" = --version && { echo Python 3.9.2; exit 0; }; exit 1')

    result = find_python(tmp_path)

    assert result.returncode == 1
    assert "Python 3.9.2; 3.11 or newer is needed" in result.stderr


def test_a_python_without_venv_is_told_what_to_install(tmp_path: Path) -> None:
    a_program(tmp_path, "python3", 'case "$2" in *ensurepip*) exit 1;; esac; exit 0')

    result = find_python(tmp_path)

    assert result.returncode == 1
    assert "python3-venv" in result.stderr


@pytest.mark.parametrize("script", ["hwm", "hwm-harness", "hwm-audit"])
def test_each_console_script_names_something_that_can_be_called(script: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    module, _, attribute = project["scripts"][script].partition(":")
    assert callable(getattr(import_module(module), attribute))


def test_every_package_is_typed_and_in_the_wheel() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    for package in project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]:
        assert (ROOT / package / "py.typed").is_file(), package


def test_ci_runs_what_developers_run() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "\nmake test\n" in script
    assert script.rstrip().endswith("exec make coverage")


def test_the_hooks_before_a_commit_run_what_lint_runs() -> None:
    (lint,) = re.findall(r"^lint: .*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    hooks = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")

    assert re.findall(r"entry: \.venv/bin/(.+)", hooks) == re.findall(r"\$\(BIN\)/(.+?)(?: \.)?\n", lint)
