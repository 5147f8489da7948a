"""The package in the form in which a new user gets it. The wheel and the source archive are built, each is
installed into an empty virtual environment, and the tutorial runs beside the wheel."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_string
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.process.guides.test_tutorial import ROOT, TUTORIAL, run_page, with_free_ports

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PACKAGES = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
INSTALL_SECONDS_MAX = 240
COMMAND_SECONDS_MAX = 60


class Built(NamedTuple):
    """The built files, and the commands of the environment in which the wheel is installed."""

    wheel: Path
    archive: Path
    commands: Path


def run(*command: str | Path, folder: Path | None = None, code: int = 0) -> str:
    """Run a command outside of the checkout, and return what it printed. Its exit code must be `code`."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        list(map(str, command)), cwd=folder, env=environment, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=COMMAND_SECONDS_MAX, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stdout
    return done.stdout


def environment_with(folder: Path, *requirements: str | Path) -> Path:
    """Make a virtual environment with these packages alone, and return the folder of its commands. Skips the test if
    the package index cannot be reached."""
    run(sys.executable, "-m", "venv", "--without-pip", folder)  # To install pip as well takes longer than all the rest.
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--retries", "1", "--quiet", *requirements]
    try:
        done = subprocess.run(pip, capture_output=True, text=True, timeout=INSTALL_SECONDS_MAX, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip(f"the package index did not answer within {INSTALL_SECONDS_MAX} s")
    if done.returncode != 0:
        unreachable = ("Temporary failure", "NewConnectionError", "ProxyError", "timed out")
        if any(word in done.stderr for word in unreachable):
            pytest.skip(f"no package index can be reached: {done.stderr.strip().splitlines()[-1]}")
        raise AssertionError(done.stderr)
    return folder / "bin"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The archive is built from the checkout, and then the wheel is built from the archive, as pip builds it."""
    folder = tmp_path_factory.mktemp("built")
    python = environment_with(folder / "builder", *PROJECT["build-system"]["requires"]) / "python"
    run(python, "-m", "hatchling", "build", "-t", "sdist", "-d", folder, folder=ROOT)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(folder / "unpacked", filter="data")
    (source,) = (folder / "unpacked").iterdir()
    run(python, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, folder=source)
    (wheel,) = folder.glob("*.whl")
    return Built(wheel, archive, environment_with(folder / "user", wheel))


def test_the_wheel_has_all_packages_with_their_types_and_nothing_else(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    here = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }

    assert names == here
    assert {f"{package}/py.typed" for package in PACKAGES} <= names


def test_the_wheel_names_its_commands_and_extras(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as wheel:
        (about,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        found = message_from_string(wheel.read(about).decode())
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    extras = found.get_all("Provides-Extra", [])

    assert found["Version"] == PROJECT["project"]["version"]
    assert set(extras) == set(PROJECT["project"]["optional-dependencies"])
    for extra in set(extras) - {"dev"}:
        assert f"[{extra}]" in readme, f"README does not say what the extra {extra} is for"
    for command in PROJECT["project"]["scripts"]:
        assert found["Version"] in run(built.commands / command, "--version")
        assert run(built.commands / command, "--help").startswith(f"Usage: {command} ")


def test_the_archive_is_installed_as_pip_installs_it(built: Built, tmp_path: Path) -> None:
    """Where there is no wheel, pip builds one from the archive, with the build system that the archive names."""
    commands = environment_with(tmp_path / "user", built.archive)

    for command in PROJECT["project"]["scripts"]:
        assert PROJECT["project"]["version"] in run(commands / command, "--version")
    with zipfile.ZipFile(built.wheel) as wheel:
        wanted = {name for name in wheel.namelist() if ".dist-info/" not in name}
    (installed,) = (tmp_path / "user").glob("lib/python*/site-packages")
    assert {name for name in wanted if not (installed / name).is_file()} == set()


def test_types_of_the_installed_package_reach_a_program(built: Built, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("from kvstore import Client\nclient: int = Client(['127.0.0.1:7101'])\n", encoding="utf-8")
    check = ("-m", "mypy", "--strict", "--python-executable", built.commands / "python", program)
    said = run(sys.executable, *check, folder=tmp_path, code=1)

    assert 'has type "Client"' in said  # Without py.typed, mypy would know nothing of the package.
    assert "Found 1 error" in said


def test_a_missing_extra_is_named_with_the_command_that_installs_it(built: Built, tmp_path: Path) -> None:
    serve = (built.commands / "hwm", "serve", "data", "--bootstrap", "--listen-client", "127.0.0.1:0")
    (tmp_path / "run" / "ops").mkdir(parents=True)
    (tmp_path / "run" / "ops" / "c1.jsonl").write_text("{}\n", encoding="utf-8")

    assert "pip install 'highwatermark[metrics]'" in run(*serve, "--metrics", "127.0.0.1:0", folder=tmp_path, code=3)
    assert "pip install 'highwatermark[audit]'" in run(
        built.commands / "hwm-audit", "check", "run", folder=tmp_path, code=1
    )


def test_the_tutorial_runs_in_an_empty_environment(built: Built, tmp_path: Path) -> None:
    """Steps 2 to 5 of the page, which need no extra."""
    assert "`pip install highwatermark` is enough for them" in TUTORIAL
    pages = TUTORIAL.split("\n## ")
    page = "\n## ".join(part for part in pages if part.startswith(("2.", "3.", "4.", "5.")))
    said = run_page(with_free_ports(page), tmp_path / "work", built.commands, checkout=None)

    changes = [
        json.loads(line) for block in said for line in block.splitlines() if line.startswith('{"op": "put", "key"')
    ]
    assert [(change["key"], change["value"], change["revision"]) for change in changes] == [
        ("fruit/apple", "3", 2),
        ("fruit/pear", "5", 3),
    ]
