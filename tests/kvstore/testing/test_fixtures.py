"""The plugin as a user's project has it: pytest runs in a process of its own, with a conftest.py of two lines."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(90)

SECONDS_MAX = 60
PAGE = Path(__file__).resolve().parents[3] / "docs/reference/testing-programs.md"

CONFTEST = """
from kvstore.testing import MemoryStore  # A project may also import what it needs.

pytest_plugins = ["kvstore.testing"]
"""

TESTS = """
import asyncio

import kvstore.blocking


def test_threads(hwm_store):
    with hwm_store.blocking_client() as client:
        granted = client.lease_grant(60)
        client.put("a", "1", lease=granted.lease_id)
        hwm_store.advance(61)
        assert client.get("a").record is None


def test_asyncio(hwm_store):
    async def service():
        async with hwm_store.asyncio_client() as client:
            await client.put("a", "1")
            return (await client.get("a")).value

    assert asyncio.run(service()) == b"1"


async def test_trio(hwm_store, hwm_clock):
    async with hwm_store.trio_client() as client:
        await client.put("a", "1")
        assert (await client.get("a")).value == b"1"


def test_members(hwm_cluster):
    with kvstore.blocking.connect(hwm_cluster.url) as client, hwm_cluster.without_leader():
        client.put("a", "1", deadline_seconds=20)
"""


SERVICE = """
import kvstore.blocking


class Reporter:
    def __init__(self, client):
        self.client = client

    def report(self, day):
        return self.client.compare_and_set(f"report/{day}", "done", expected=None).succeeded


class OrderService:
    def __init__(self, url):
        self.url = url

    def place(self, order):
        with kvstore.blocking.connect(self.url) as client:
            client.put(f"orders/{order}", "placed", deadline_seconds=20)

    def orders(self):
        with kvstore.blocking.connect(self.url) as client:
            return [each.key.decode().removeprefix("orders/") for each in client.range(prefix="orders/").items]
"""


def run_pytest(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-W", "error", *options, str(folder)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)


def test_a_project_that_names_the_plugin_has_the_fixtures(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_service.py").write_text(TESTS)

    ended = run_pytest(tmp_path, "-o", "trio_mode=true")

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "4 passed" in ended.stdout


def test_the_tests_on_the_page_pass(tmp_path: Path) -> None:
    """docs/reference/testing-programs.md"""
    conftest, *tests = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "conftest.py").write_text(conftest)
    (tmp_path / "service.py").write_text(SERVICE)
    (tmp_path / "test_page.py").write_text("from service import OrderService, Reporter\n" + "\n".join(tests))

    ended = run_pytest(tmp_path, "-o", "trio_mode=true")

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert f"{len(tests)} passed" in ended.stdout


def test_the_plugin_can_be_named_on_the_command_line(tmp_path: Path) -> None:
    listed = run_pytest(tmp_path, "-p", "kvstore.testing", "--fixtures")

    for fixture in ("hwm_store", "hwm_clock", "hwm_cluster"):
        assert fixture in listed.stdout


def test_a_program_loads_pytest_only_with_the_plugin() -> None:
    """pytest is not among the dependencies of the package. A store in memory works without it."""
    code = (
        "import sys; sys.modules['pytest'] = None\n"
        "import kvstore, kvstore.asyncio, kvstore.blocking, kvstore.embedded\n"
        "from kvstore.testing import MemoryStore, Cluster\n"
        "with MemoryStore() as store, store.blocking_client() as client: client.put('a', '1')\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], timeout=SECONDS_MAX, check=True)
