"""Real servers of PostgreSQL for tests. HWM_TEST_POSTGRESQL names the folder with its programs; otherwise PATH and the
folders of Debian count. PostgreSQL does not run as root: root needs `setpriv` and a user `postgres` or `nobody`."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.cluster.ports import free_ports

SETTINGS = {"listen_addresses": "127.0.0.1", "unix_socket_directories": "", "fsync": "off"}


@contextmanager
def running_postgresql(folder: Path) -> Iterator[str]:
    """Run a server with an empty database. `folder` does not exist yet. Yields the connection string."""
    _make(folder)
    _run(folder, "initdb", "--pgdata", "data", "--username", "postgres", "--auth", "trust", "--no-sync")
    with _started(folder) as address:
        yield address


@contextmanager
def running_standby(folder: Path, primary: str) -> Iterator[str]:
    """Run a server that follows another one, and answers reads. `folder` does not exist yet."""
    _make(folder)
    _run(folder, "pg_basebackup", "--pgdata", "data", "--dbname", primary, "--write-recovery-conf", "--no-sync",
         "--checkpoint", "fast")  # fmt: skip
    with _started(folder) as address:
        yield address


@contextmanager
def _started(folder: Path) -> Iterator[str]:
    (port,) = free_ports(1)
    options = " ".join(f"-c {name}='{value}'" for name, value in {**SETTINGS, "port": port}.items())
    _run(folder, "pg_ctl", "start", "--wait", "--pgdata", "data", "--log", "log", "--options", options)
    try:
        yield f"host=127.0.0.1 port={port} user=postgres dbname=postgres"
    finally:
        _run(folder, "pg_ctl", "stop", "--wait", "--pgdata", "data", "--mode", "immediate")


def _make(folder: Path) -> None:
    user = server_user()
    folder.mkdir()
    if user is not None:
        os.chown(folder, user.pw_uid, user.pw_gid)


def _run(folder: Path, program: str, *arguments: str) -> None:
    command = [*as_server_user(server_user()), str(programs() / program), *arguments]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    output = folder.with_name(f"{folder.name}.output")  # A server keeps its output open, so a pipe would never end.
    with output.open("ab") as out:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            timeout=60,
            check=False,
        )
    assert done.returncode == 0, output.read_text()


def programs() -> Path:
    """The folder with the programs of PostgreSQL. Skips the test if there is none."""
    folders = [Path(each) for each in os.environ.get("PATH", "").split(os.pathsep)]
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    if "HWM_TEST_POSTGRESQL" in os.environ:
        folders = [Path(os.environ["HWM_TEST_POSTGRESQL"])]
    for folder in folders:
        if all((folder / name).exists() for name in ("postgres", "initdb", "pg_ctl", "pg_isready", "pg_basebackup")):
            return folder
    pytest.skip("PostgreSQL is not installed, or HWM_TEST_POSTGRESQL does not name the folder of its programs")


def server_user() -> pwd.struct_passwd | None:
    """The user of PostgreSQL; None if it is the present user."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            found = pwd.getpwnam(name)
        except KeyError:
            continue
        if shutil.which("setpriv"):
            return found
    pytest.skip("PostgreSQL does not run as root, and there is no setpriv, or no user postgres or nobody")


def as_server_user(user: pwd.struct_passwd | None) -> Sequence[str]:
    """The beginning of a command that runs as a user; empty for the present user (None)."""
    if user is None:
        return ()
    # The capability lets the user read an interpreter, and a folder, that only root can reach.
    reads = ("--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search")
    return ("setpriv", "--reuid", str(user.pw_uid), "--regid", str(user.pw_gid), "--clear-groups", *reads)
