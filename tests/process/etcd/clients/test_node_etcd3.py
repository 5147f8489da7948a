"""npm's `etcd3`: a client of JavaScript over gRPC. The programs are in node_client.js.

The package is no part of this project. `npm install etcd3` in any folder puts it into `node_modules` there, and
HWM_TEST_NODE_MODULES names that folder. Without the variable, `node_modules` in the folder of the project counts.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

pytestmark = [pytest.mark.process, pytest.mark.timeout(100)]

PROGRAM = Path(__file__).with_name("node_client.js")
SECONDS = 60.0


@pytest.fixture(scope="module")
def node() -> tuple[str, Path]:
    """The path of node, and the folder with the package."""
    found = shutil.which("node")
    if found is None:
        pytest.skip("node is not on PATH")
    modules = Path(os.environ.get("HWM_TEST_NODE_MODULES", "node_modules")).absolute()
    if not (modules / "etcd3").is_dir():
        pytest.skip(f"npm's etcd3 is not in {modules}: `npm install etcd3`, and set HWM_TEST_NODE_MODULES")
    assert found is not None
    return found, modules


def run(node: tuple[str, Path], scenario: str, prefix: str, endpoints: Sequence[str]) -> None:
    program, modules = node
    done = subprocess.run(
        [program, str(PROGRAM), scenario, prefix, *endpoints], env={**os.environ, "NODE_PATH": str(modules)},
        capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "scenario",
    [
        "keys", "ranges", "transactions", "stm", "watches", "leases", "lostLease", "locks", "elections", "members",
    ],
)  # fmt: skip
def test_the_client_of_node(node: tuple[str, Path], etcd_endpoints: Sequence[str], prefix: str, scenario: str) -> None:
    """The client knows all members, and sends each request to any of them."""
    run(node, scenario, prefix, etcd_endpoints)


@pytest.mark.parametrize("scenario", ["users", "compacted"])
def test_the_client_of_node_alone(
    node: tuple[str, Path], own_endpoints: Sequence[str], prefix: str, scenario: str
) -> None:
    run(node, scenario, prefix, own_endpoints[:1])
