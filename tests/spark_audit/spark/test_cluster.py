"""Spark outside of this process: a standalone master, local-cluster, a Connect server and spark-submit. Some masters
and Pythons of these tests are missing or unsuitable.

Tests that start a cluster take half a minute or more, so they run only with HWM_SPARK_MODES=1. All servers are on
loopback and on free ports.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest
from click.testing import CliRunner

from spark_audit import Shape, generate, inject
from spark_audit.cli import cli
from spark_audit.spark.cluster import NotUsable, in_words, is_local, on_loopback, reach, within
from spark_audit.spark.package import FOR_EXECUTORS, write_archive
from tests.spark_audit.support.histories import write_lines

ROOT = Path(__file__).resolve().parents[3]
SECONDS_MAX = 280

slow = [
    pytest.mark.spark,
    pytest.mark.timeout(2 * SECONDS_MAX),
    pytest.mark.skipif("HWM_SPARK_MODES" not in os.environ, reason="minutes of Spark: HWM_SPARK_MODES=1"),
]


# -- options and error texts


@pytest.mark.parametrize("master", ["local", "local[*]", "local[4]", "local-cluster[2,1,1024]", "spark://h:1", "yarn"])
def test_what_spark_calls_a_master_is_one(master: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["check", str(tmp_path / "none"), "--master", master])
    assert "no such file or folder" in result.output


@pytest.mark.parametrize("master", ["local[0]", "local-cluster[2,1]", "localhost:7077", "spark://", "sc://h"])
def test_what_is_no_master_is_refused_before_anything_starts(master: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["check", str(tmp_path), "--master", master])
    assert result.exit_code == 2
    assert "is not a Spark master" in result.output


@pytest.mark.parametrize("remote", ["sc://h", "sc://h:15002", "sc://h:1/;use_ssl=true;token=x"])
def test_what_spark_calls_a_connect_server_is_one(remote: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["check", str(tmp_path / "none"), "--remote", remote])
    assert "no such file or folder" in result.output


@pytest.mark.parametrize("remote", ["h:15002", "spark://h:1", "sc://", "sc://h:1/path"])
def test_what_is_no_connect_server_is_refused_before_anything_starts(remote: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["check", str(tmp_path), "--remote", remote])
    assert result.exit_code == 2
    assert "is not a Spark Connect server" in result.output


@pytest.mark.parametrize("option", ["--master=spark://127.0.0.1:{}", "--remote=sc://127.0.0.1:{}"])
def test_where_nobody_listens_a_line_says_so_without_starting_java(option: str, tmp_path: Path) -> None:
    history = write_lines(tmp_path / "h.jsonl", generate(Shape(operations=5), 1))
    # The port is bound but does not listen. So it refuses calls, and no other process can get it.
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        where = option.format(reserved.getsockname()[1])
        result = CliRunner().invoke(cli, ["check", str(history), where])
    assert result.exit_code == 1
    assert "nothing answers at" in result.output
    assert "Connection refused" in result.output


def test_of_several_masters_one_that_listens_is_enough() -> None:
    with socket.socket() as reserved, socket.create_server(("127.0.0.1", 0)) as open_:
        reserved.bind(("127.0.0.1", 0))
        reach(f"spark://127.0.0.1:{reserved.getsockname()[1]},127.0.0.1:{open_.getsockname()[1]}")


def test_an_address_with_a_port_that_is_none_is_told() -> None:
    with pytest.raises(NotUsable, match="is no address"):
        reach("spark://127.0.0.1:99999")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "Job aborted\n  [PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.12 than that in "
            "driver: 3.11, PySpark cannot run with different minor versions.",
            "the executors run Python 3.12, and this process runs Python 3.11",
        ),
        ("Traceback\nModuleNotFoundError: No module named 'numpy'", "the executors' Python has no numpy"),
        ('java.io.IOException: Cannot run program "/a/python": error=2', "the executors find no /a/python"),
        (
            "[PATH_NOT_FOUND] Path does not exist: file:/a/b.jsonl. SQLSTATE: 42K03",
            "Spark does not see file:/a/b.jsonl",
        ),
        ("SparkFileNotFoundException: File file:/a/b.jsonl does not exist", "Spark does not see file:/a/b.jsonl"),
        ("All masters are unresponsive! Giving up.", "the Spark master does not take the job"),
    ],
)
def test_what_is_known_to_go_wrong_between_machines_is_one_line(text: str, words: str) -> None:
    result = in_words(RuntimeError(text))
    assert result is not None
    assert result.startswith(words)
    assert "\n" not in result


def test_what_is_not_known_is_left_as_it_is() -> None:
    assert in_words(RuntimeError("java.lang.OutOfMemoryError: Java heap space")) is None


def test_what_needs_no_network_stays_on_loopback() -> None:
    assert on_loopback("local[*]")
    assert on_loopback("local-cluster[2,1,1024]")
    assert on_loopback("spark://127.0.0.1:7077")
    assert not on_loopback("spark://127.0.0.1:7077,other:7077")
    assert not on_loopback("yarn")
    assert not is_local("local-cluster[2,1,1024]")


def test_what_does_not_end_is_stopped_and_told() -> None:
    stopped = threading.Event()
    with pytest.raises(NotUsable, match="too late"):
        within(0.01, stopped.wait, stopped.set, "too late")
    assert stopped.is_set()


def test_what_a_bounded_call_raises_comes_through() -> None:
    with pytest.raises(ZeroDivisionError):
        within(10, lambda: 1 / 0, lambda: None, "too late")


def test_the_archive_is_the_same_each_time_and_is_imported_where_nothing_else_is_installed(tmp_path: Path) -> None:
    """The archive has the Python code that the stages import. The archive contains no command line, no driver code and
    no other packages."""
    write_archive(tmp_path / "a.zip")
    write_archive(tmp_path / "b.zip")
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()
    assert {name.split("/")[0] for name in zipfile.ZipFile(tmp_path / "a.zip").namelist()} == set(FOR_EXECUTORS)
    code = "import sys; sys.path.insert(0, sys.argv[1]); import spark_audit as s; print(s.__file__, s.check_rows)"
    result = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, str(tmp_path / "a.zip")], capture_output=True, text=True, check=True
    )
    assert str(tmp_path / "a.zip") in result.stdout


def test_package_writes_the_archive_and_what_spark_submit_runs(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["package", str(tmp_path / "audit.zip")])
    assert result.exit_code == 0
    assert f"--py-files {tmp_path / 'audit.zip'} {tmp_path / 'audit.py'}" in result.output
    assert {"click/core.py", "spark_audit/report/violation_page.html"} <= set(
        zipfile.ZipFile(tmp_path / "audit.zip").namelist()
    )


@pytest.mark.parametrize(("name", "reason"), [("audit.tar", "does not end in .zip"), ("no/audit.zip", "cannot be")])
def test_an_archive_that_cannot_be_written_is_told(name: str, reason: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["package", str(tmp_path / name)])
    assert result.exit_code == 2
    assert reason in result.output


def test_what_spark_submit_starts_is_run_by_spark_however_small(tmp_path: Path) -> None:
    """The gateway in this test is not a real one. The command runs in a separate process, because this process may have
    a session."""
    history = write_lines(tmp_path / "h.jsonl", generate(Shape(operations=5), 1))
    result = subprocess.run(
        [sys.executable, "-m", "spark_audit.cli", "check", str(history)],
        env={**os.environ, "PYSPARK_GATEWAY_PORT": "1", "PYSPARK_GATEWAY_SECRET": "x"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert result.returncode == 1
    assert "Spark did not start" in result.stderr


# -- for real


def _spark() -> Path:
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def _environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYSPARK_PYTHON")}
    return {**kept, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable, **more}


@contextmanager
def _running(log: Path, command: list[str], pattern: str) -> Iterator[str]:
    """Start a server and yield the match in its log. At the end, kill the process group of the server."""
    with log.open("wb") as out:
        server = subprocess.Popen(
            command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, env=_environment(), start_new_session=True,
            cwd=log.parent,
        )  # fmt: skip
    try:
        end = time.monotonic() + SECONDS_MAX / 4
        while (found := re.search(pattern, log.read_text(errors="replace"))) is None:
            assert server.poll() is None, log.read_text(errors="replace")
            assert time.monotonic() < end, log.read_text(errors="replace")
            time.sleep(0.1)  # The test must poll the log.
        yield found.group(1) if found.groups() else found.group()
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


@contextmanager
def _master(folder: Path) -> Iterator[str]:
    command = [str(_spark() / "bin" / "spark-class"), "org.apache.spark.deploy.master.Master"]
    command += ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
    with _running(folder / "master.log", command, r"Starting Spark master at (\S+)") as url:
        yield url


@contextmanager
def _cluster(folder: Path) -> Iterator[str]:
    with _master(folder) as url:
        command = [str(_spark() / "bin" / "spark-class"), "org.apache.spark.deploy.worker.Worker", url]
        command += ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        command += ["--cores", "2", "--memory", "2g", "--work-dir", str(folder / "work")]
        with _running(folder / "worker.log", command, "Successfully registered with master"):
            yield url


@contextmanager
def _connect_server(folder: Path) -> Iterator[str]:
    command = [str(_spark() / "bin" / "spark-submit")]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "--master", "local[2]"]
    for setting in ("connect.grpc.binding.address=127.0.0.1", "connect.grpc.binding.port=0", "ui.enabled=false"):
        command += ["--conf", f"spark.{setting}"]
    with _running(folder / "connect.log", command, r"Spark Connect server started at: (\S+)") as address:
        yield f"sc://{address}"


def _audit(arguments: list[str], environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "spark_audit.cli", "check", "--json", *arguments],
        capture_output=True, text=True, timeout=SECONDS_MAX, check=False, cwd=ROOT,
        env=_environment() | dict(environment or {}),
    )  # fmt: skip


def _history(folder: Path) -> tuple[str, str]:
    """A run with one stale read, and the key of that read."""
    rows, wrong = inject(generate(Shape(operations=300, keys=5, delete_share=0.0), 8), "stale_read", 8)
    write_lines(folder / "run" / "ops" / "1.jsonl", rows)
    return str(folder / "run"), wrong["key"]


def _assert_found(run: subprocess.CompletedProcess[str], key: str) -> None:
    assert run.returncode == 3, run.stderr
    assert json.loads(run.stdout)["engine"] == "spark"
    assert [found["key"] for found in json.loads(run.stdout)["violations"] if found["property"] == "keys"] == [key]
    assert "Traceback" not in run.stderr


class TestForReal:
    pytestmark = slow

    def test_a_standalone_cluster_finds_the_violation(self, tmp_path: Path) -> None:
        history, key = _history(tmp_path)
        with _cluster(tmp_path) as master:
            run = _audit([history, "--master", master])
        _assert_found(run, key)
        assert run.stderr == ""

    def test_a_local_cluster_finds_the_violation(self, tmp_path: Path) -> None:
        history, key = _history(tmp_path)
        _assert_found(_audit([history, "--master", "local-cluster[2,1,1024]"]), key)

    def test_a_connect_server_finds_the_violation(self, tmp_path: Path) -> None:
        pytest.importorskip("grpc")
        pytest.importorskip("grpc_status")
        history, key = _history(tmp_path)
        with _connect_server(tmp_path) as remote:
            _assert_found(_audit([history, "--remote", remote]), key)

    def test_spark_submit_finds_the_violation_with_nothing_installed_but_the_archive(self, tmp_path: Path) -> None:
        history, key = _history(tmp_path)
        assert CliRunner().invoke(cli, ["package", str(tmp_path / "audit.zip")]).exit_code == 0
        with _cluster(tmp_path) as master:
            command = [
                str(_spark() / "bin" / "spark-submit"),
                "--master",
                master,
                "--py-files",
                "audit.zip",
                "audit.py",
            ]
            run = subprocess.run(
                [*command, "check", "--json", history],
                capture_output=True, text=True, timeout=SECONDS_MAX, check=False, cwd=tmp_path, env=_environment(),
            )  # fmt: skip
        _assert_found(run, key)

    def test_executors_with_an_unfit_python_are_told_in_a_line(self, tmp_path: Path) -> None:
        """One case is a Python without packages, and one is a Python that does not exist."""
        history, _ = _history(tmp_path)
        empty = tmp_path / "bare"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(empty)], check=True)
        with _cluster(tmp_path) as master:
            without = _audit([history, "--master", master], {"PYSPARK_PYTHON": str(empty / "bin" / "python")})
            nowhere = _audit([history, "--master", master], {"PYSPARK_PYTHON": str(tmp_path / "nowhere")})
        assert without.returncode == nowhere.returncode == 1
        assert without.stderr.startswith("hwm-audit: the executors' Python has no ")
        assert nowhere.stderr.startswith(f"hwm-audit: the executors find no {tmp_path / 'nowhere'}")
        assert without.stderr.count("\n") == nowhere.stderr.count("\n") == 1

    def test_a_master_without_workers_is_told_in_a_line_within_its_time(self, tmp_path: Path) -> None:
        history, _ = _history(tmp_path)
        with _master(tmp_path) as master:
            run = _audit([history, "--master", master])
        assert run.returncode == 1
        assert run.stderr.startswith(f"hwm-audit: no executor at {master} took a task within 60 s")
        assert run.stderr.count("\n") == 1
