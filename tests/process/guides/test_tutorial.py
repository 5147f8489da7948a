"""The tests run docs/tutorial.md exactly as it is written. They start real processes, on free ports instead of those on
the page."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from contextlib import suppress
from pathlib import Path

import pytest

from harness.cluster.ports import free_ports

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]

ROOT = Path(__file__).resolve().parents[3]
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")

SECONDS_MAX = 150
SHOWN = re.compile(r"```(sh|text|python)\n(.*?)```", re.DOTALL)


def with_free_ports(page: str) -> str:
    """The same page, with a free port in place of each port that it names."""
    named = sorted(set(re.findall(r"127\.0\.0\.1:(\d+)", page)))
    ports = dict(zip(named, map(str, free_ports(len(named))), strict=True))
    return re.sub(r"127\.0\.0\.1:(\d+)", lambda found: f"127.0.0.1:{ports[found[1]]}", page)


def make_commands(folder: Path) -> None:
    """Make the commands that an installation puts on the path, for this checkout and this interpreter."""
    folder.mkdir()
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
    python = shlex.quote(sys.executable)
    lines = {"python": f'exec {python} "$@"'}
    for name, target in scripts.items():
        module, _, function = target.partition(":")
        lines[name] = f'exec {python} -c "from {module} import {function}; {function}()" "$@"'
    for name, line in lines.items():
        (folder / name).write_text(f"#!/bin/sh\n{line}\n", encoding="utf-8")
        (folder / name).chmod(0o755)


def run_script(script: str, folder: Path, commands: Path, *, checkout: Path | None = ROOT) -> str:
    """Run a shell script in which every command must succeed. No process may remain. Return all its output. `checkout`
    is the folder in which Python looks for packages first."""
    python_path = {} if checkout is None else {"PYTHONPATH": str(checkout)}
    outside = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    output = folder / "output"
    with output.open("wb") as target:
        shell = subprocess.Popen(
            ["bash", "-e", "-c", script],
            cwd=folder, stdin=subprocess.DEVNULL, stdout=target, stderr=target, start_new_session=True,
            env={**outside, "PATH": f"{commands}:{os.environ['PATH']}", **python_path},
        )  # fmt: skip
        try:
            exit_code = shell.wait(SECONDS_MAX)
        finally:
            with suppress(ProcessLookupError):  # All have ended.
                os.killpg(shell.pid, signal.SIGKILL)
            shell.wait()
    said = output.read_text(encoding="utf-8")
    assert exit_code == 0, said
    return said


def missing_line(wanted: str, said: str) -> str | None:
    """The first line of `wanted` that does not occur in `said` after the lines before it. Other lines may be in
    between. Any kind and amount of white space counts as equal."""
    lines = iter([line.split() for line in said.splitlines()])
    for line in wanted.splitlines():
        if line.split() not in lines:
            return line
    return None


def run_page(page: str, folder: Path, commands: Path, *, checkout: Path | None = ROOT) -> list[str]:
    """Run all commands and programs of a page in `folder`, and compare the output with the page. Returns the output of
    each block of commands."""
    folder.mkdir()
    script, wanted = "", list[tuple[int, str]]()
    steps = 0
    for found in SHOWN.finditer(page):
        language, block = found.groups()
        if language == "sh":
            steps += 1
            script += f"echo '=== {steps}'\n{block}\n"
        elif language == "text":
            wanted.append((steps, block))
        else:
            (name,) = re.findall(r"Save this as `(\S+)`:\s*$", page[: found.start()])
            (folder / name).write_text(block, encoding="utf-8")

    said = re.split(r"^=== \d+$", run_script(script, folder, commands, checkout=checkout), flags=re.MULTILINE)

    assert len(said) == steps + 1
    assert len(wanted) >= 5
    for step, text in wanted:
        assert (line := missing_line(text, said[step])) is None, (line, said[step])
    return said[1:]


def test_every_command_and_program_of_the_tutorial_runs_and_says_what_the_page_shows(tmp_path: Path) -> None:
    make_commands(tmp_path / "bin")
    said = run_page(with_free_ports(TUTORIAL), tmp_path / "work", tmp_path / "bin")

    assert "LINEARIZABLE" in said[-1]
    assert (tmp_path / "work" / "run.html").stat().st_size > 10_000
