"""Runs examples/fastapi_settings.py: two instances, three members, and a member that fails."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.error
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import kvstore.blocking
from kvstore.testing import Cluster
from tests.process.examples.program import EXAMPLES, ROOT, SECONDS_MAX, Program, ask, running, until

pytestmark = [pytest.mark.process, pytest.mark.timeout(150)]


@contextmanager
def instance(cluster: Cluster, folder: Path, parameters: str = "") -> Iterator[tuple[Program, str]]:
    """One instance of the service at a free port, and its URL."""
    options = ("--app-dir", EXAMPLES, "fastapi_settings:app", "--port", "0")
    with running("-m", "uvicorn", *options, folder=folder, STORE_URL=cluster.url + parameters) as program:
        yield program, program.wait_for(r"running on (http://[\d.:]+)")[1]


def test_a_setting_that_is_changed_at_one_instance_is_in_force_at_the_other(
    hwm_cluster: Cluster, tmp_path: Path
) -> None:
    with instance(hwm_cluster, tmp_path) as (program, first), instance(hwm_cluster, tmp_path) as (_, second):
        assert ask(f"{second}/greet/Ada") == {"greeting": "Welcome, Ada!"}

        changed = ask(f"{first}/settings/greeting?value=Hello", "PUT")

        until(lambda: ask(f"{second}/greet/Ada") == {"greeting": "Hello, Ada!"}, "the change is in force")
        until(lambda: ask(f"{first}/settings") == {"greeting": "Hello"}, "the change is listed")
        program.wait_for(rf"setting settings/greeting put at revision {changed['revision']}\n")
        program.stop()
        program.wait_for("Application shutdown complete")


def test_settings_are_followed_when_the_leader_is_gone(hwm_cluster: Cluster, tmp_path: Path) -> None:
    with instance(hwm_cluster, tmp_path) as (_, url), kvstore.blocking.connect(hwm_cluster.url) as operator:
        with hwm_cluster.without_leader():
            operator.put("settings/greeting", "Hi", deadline_seconds=20)
            until(lambda: ask(f"{url}/greet/Ada") == {"greeting": "Hi, Ada!"}, "the change is in force")
        operator.delete("settings/greeting")
        until(lambda: ask(f"{url}/greet/Ada") == {"greeting": "Welcome, Ada!"}, "the setting is gone")


def test_a_setting_that_is_no_text_does_not_end_the_copy(hwm_cluster: Cluster, tmp_path: Path) -> None:
    with instance(hwm_cluster, tmp_path) as (program, url), kvstore.blocking.connect(hwm_cluster.url) as operator:
        operator.put(b"settings/\xff", b"\xfe")
        program.wait_for("setting settings/\ufffd put")
        assert ask(f"{url}/settings") == {"\ufffd": "\ufffd"}

        operator.put("settings/greeting", "Hello")
        until(lambda: ask(f"{url}/greet/Ada") == {"greeting": "Hello, Ada!"}, "the change is in force")


def test_an_instance_that_can_no_longer_follow_ends(hwm_cluster: Cluster, tmp_path: Path) -> None:
    """This instance cannot print a change, because the reader of its output has gone."""
    reading, writing = os.pipe()
    os.close(reading)
    options = ("--app-dir", str(EXAMPLES), "fastapi_settings:app", "--port", "0", "--no-access-log")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "STORE_URL": hwm_cluster.url}
    with subprocess.Popen(
        [sys.executable, "-u", "-m", "uvicorn", *options],
        cwd=tmp_path,
        env=environment,
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        os.close(writing)
        try:
            assert process.stderr is not None
            while "running on" not in (line := process.stderr.readline()):
                assert line
            with kvstore.blocking.connect(hwm_cluster.url) as operator:
                operator.put("settings/greeting", "Hello")
            _, errors = process.communicate(timeout=SECONDS_MAX)
        finally:
            process.kill()
    assert "the settings are no longer followed" in errors
    assert "BrokenPipeError" in errors
    assert "Application shutdown complete" in errors


def test_requests_are_served_without_a_quorum_and_a_change_says_how_far_it_got(
    hwm_cluster: Cluster, tmp_path: Path
) -> None:
    with instance(hwm_cluster, tmp_path, "/?deadline=0.5") as (_, url):
        ask(f"{url}/settings/greeting?value=Hello", "PUT")
        until(lambda: ask(f"{url}/greet/Ada") == {"greeting": "Hello, Ada!"}, "the change is in force")
        with hwm_cluster.without_quorum():
            with pytest.raises(urllib.error.HTTPError) as refused:
                ask(f"{url}/settings/greeting?value=Bye", "PUT")
            with refused.value:
                assert refused.value.code in (503, 504)
                assert b"changed" in refused.value.read()
            assert ask(f"{url}/greet/Ada") == {"greeting": "Hello, Ada!"}
        ask(f"{url}/settings/greeting?value=Again", "PUT")
        until(lambda: ask(f"{url}/greet/Ada") == {"greeting": "Again, Ada!"}, "the change is in force")
