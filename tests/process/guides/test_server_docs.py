"""Runs the examples, and checks the code, options and exit codes of docs/reference/client.md."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from kvstore import Client, open_node
from kvstore.cli.common import ExitCode
from kvstore.cli.daemon.serve import serve_command

pytestmark = [pytest.mark.process, pytest.mark.timeout(60)]

ROOT = Path(__file__).resolve().parents[3]
GUIDE = (ROOT / "docs" / "reference" / "client.md").read_text(encoding="utf-8")


def run_python(*arguments: str | Path, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, *map(str, arguments)], capture_output=True, text=True, timeout=50, check=False, cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_embedded_example_counts_its_runs(tmp_path: Path) -> None:
    """The test runs examples/embedded_store.py twice."""
    example = ROOT / "examples" / "embedded_store.py"

    assert run_python(example, cwd=tmp_path).startswith("run number 1,")
    assert run_python(example, cwd=tmp_path).startswith("run number 2,")


def test_the_replicated_example_does_each_job_once(tmp_path: Path) -> None:
    """The test runs examples/replicated_service.py."""
    out = run_python(ROOT / "examples" / "replicated_service.py", cwd=tmp_path)

    assert out.splitlines()[-1] == "every job was done exactly once"


def test_no_connection_of_the_replicated_example_can_be_given_the_port_of_a_member() -> None:
    """A member connects to other members that do not listen yet. The local port of such a connection must not be the
    port of a member."""
    find = runpy.run_path(str(ROOT / "examples" / "replicated_service.py"))["free_addresses"]
    ports = [int(address.rpartition(":")[2]) for address in find(200)]

    assert len(set(ports)) == 200
    assert max(ports) < 32_768


async def test_the_transfer_example_keeps_the_sum(tmp_path: Path) -> None:
    """The test runs examples/transfer.py against a store."""
    async with open_node(tmp_path / "data", bootstrap=True, listen_client="127.0.0.1:0") as store:
        example = ROOT / "examples" / "transfer.py"
        done = await trio.run_process(
            [sys.executable, str(example), store.client_address], capture_stdout=True, cwd=tmp_path
        )
        async with Client([store.client_address]) as client:
            assert (await client.range()).count == 2

    assert done.stdout.decode().strip().endswith("together 200")


def test_the_code_of_the_guide_runs(tmp_path: Path) -> None:
    """The test runs all Python blocks of docs/reference/client.md. A store runs while the blocks that need a client
    run."""
    client_code, lock_code, bulk_code, level_code, embedded_code = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    run_python("-c", embedded_code, cwd=tmp_path)

    async def with_store() -> None:
        async with open_node(tmp_path / "data", listen_client="127.0.0.1:0") as store:
            for block, output in (
                (client_code, b"b'hello' 3\n"),
                (lock_code, b"written\n"),
                (bulk_code, b"10000 puts, 0 failed\n"),
                (level_code, b"the early write is COMMITTED\non the disks of 1 members\n"),
            ):
                code = block.replace("127.0.0.1:7101", store.client_address).replace('"127.0.0.1:7102"', "")
                done = await trio.run_process([sys.executable, "-c", code], capture_stdout=True)
                assert done.stdout == output

    trio.run(with_store)


def test_every_option_of_the_server_is_documented_and_no_other() -> None:
    """The test compares the table in docs/reference/client.md with click's own list."""
    section = GUIDE.split("### Options of `hwm serve`")[1]
    documented = set(re.findall(r"`(--[a-z0-9-]+)", section))

    assert documented == {option for param in serve_command.params for option in param.opts if option.startswith("--")}


def test_every_exit_code_is_documented() -> None:
    """The test compares the table in docs/reference/client.md with the enum."""
    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", GUIDE, re.MULTILINE)}

    assert documented == {int(code) for code in ExitCode} | {130}
