"""`hwm completion`: real shells complete the words of `hwm` with its scripts."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.process.servers import hwm

ROOT = Path(__file__).resolve().parents[3]


def script_of(shell: str) -> str:
    return subprocess.run(hwm("completion", shell), check=True, capture_output=True, text=True, timeout=60).stdout


def in_shell(shell: str, script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a script in a shell that reads no file of the user. In the script, `hwm` is the one of this interpreter."""
    path = shutil.which(shell)
    if path is None:
        pytest.skip(f"this machine has no {shell}")
    shim = folder / "bin" / "hwm"
    shim.parent.mkdir(exist_ok=True)
    shim.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m kvstore.cli.main "$@"\n')
    shim.chmod(0o755)
    environment = {**os.environ, "PATH": f"{shim.parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    options = {"bash": ["--noprofile", "--norc"], "zsh": ["-f"], "fish": ["--no-config"]}[shell]
    command = [path, *options, "-c", script]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False
    )  # fmt: skip


def completed_by_bash(words: list[str], folder: Path) -> list[str]:
    """Return what bash offers for the last element of `words`. This function calls the shell function that `complete`
    has registered."""
    script = (
        'eval "$(hwm completion bash)"\n'
        "registered=$(complete -p hwm) || exit 9\n"
        'name="${registered#*-F }"\n'
        f"COMP_WORDS=({' '.join(repr(word) for word in words)}); COMP_CWORD={len(words) - 1}\n"
        '"${name%% *}" hwm\n'
        'for word in "${COMPREPLY[@]}"; do echo "$word"; done\n'
    )
    done = in_shell("bash", script, folder)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_bash_completes_commands_options_and_choices(tmp_path: Path) -> None:
    assert completed_by_bash(["hwm", "le"], tmp_path) == ["lease"]
    assert completed_by_bash(["hwm", "lease", "k"], tmp_path) == ["keep-alive"]
    assert completed_by_bash(["hwm", "import", "--if"], tmp_path) == ["--if-absent"]
    assert completed_by_bash(["hwm", "get", "--consistency", "l"], tmp_path) == ["linearizable", "lease", "local"]
    assert set(completed_by_bash(["hwm", ""], tmp_path)) >= {"serve", "put", "get", "watch", "export", "import"}
    assert "put" in completed_by_bash(["hwm", "nothing", ""], tmp_path)  # An unknown command prints no error here.


def test_bash_completes_the_name_of_a_file(tmp_path: Path) -> None:
    """The script leaves the completion of file names to bash, whose `compgen` finds the files."""
    (tmp_path / "keys.jsonl").touch()
    script = (
        'eval "$(hwm completion bash)"\n'
        "COMP_WORDS=(hwm import ke); COMP_CWORD=2\n"
        'compopt() { echo compopt "$@"; }\n'
        "_hwm_completion hwm\n"
        "compgen -o default ke\n"
    )  # fmt: skip
    done = in_shell("bash", script, tmp_path)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "compopt -o default\nkeys.jsonl\n")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_script_can_be_read_by_its_shell(shell: str, tmp_path: Path) -> None:
    script = script_of(shell)
    assert f"_HWM_COMPLETE={shell}_complete" in script
    (tmp_path / "script").write_text(script)
    check = "fish --no-execute script" if shell == "fish" else f"{shell} -n script"
    done = in_shell(shell, check, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_another_shell_is_refused() -> None:
    done = subprocess.run(hwm("completion", "tcsh"), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "'bash', 'zsh', 'fish'" in done.stderr
