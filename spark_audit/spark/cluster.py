"""Checks a Spark that runs on other machines: it must answer, accept a task, and have a Python that runs this package.

If a check fails, the error gives the reason in one line.
"""

from __future__ import annotations

import os
import re
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from spark_audit.errors import JobFailed

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

T = TypeVar("T")

REACH_SECONDS_MAX = 5.0  # A port on the network must accept a connection within this time.
START_SECONDS_MAX = 90.0  # Spark tries to reach a standalone master three times, 20 s each; a server answers at once.
# YARN and Kubernetes may first start machines, or wait for other jobs.
TASK_SECONDS_MAX = {"yarn": 600.0, "k8s": 600.0}
TASK_SECONDS_MAX_ELSEWHERE = 60.0  # Executors of a standalone master or of a server start in seconds.
CONNECT_PORT = 15002
MASTER = r"local(\[(\*|[1-9][0-9]*)(,\s*[0-9]+)?\])?|local-cluster\[[1-9][0-9]*,[1-9][0-9]*,[1-9][0-9]*\]|yarn|(spark|k8s)://.+"
REMOTE = r"sc://[^/;\s]+(/(;[^;=\s]+=[^;\s]*)*;?)?"


class NotUsable(JobFailed):
    """The remote Spark cannot be reached, or cannot run the job.

    The message states the whole reason, so it does not refer to the output of Spark.
    """

    def __str__(self) -> str:
        return self.reason


_KNOWN_ERRORS: tuple[tuple[str, str], ...] = (
    (
        r"Python in worker has different version: (?P<theirs>\S+) than that in driver: (?P<ours>[\d.]*\d)",
        "the executors run Python {theirs}, and this process runs Python {ours}: both must have the same minor version."
        " PYSPARK_PYTHON sets the Python of the executors",
    ),
    (
        r"No module named '(?P<name>[\w.]+)'",
        "the executors' Python has no {name}: it needs numpy and pyarrow. PYSPARK_PYTHON sets that Python",
    ),
    (
        r"PACKAGE_NOT_INSTALLED\] (?P<name>\S+)",
        "the executors' Python has no {name}: it needs numpy and pyarrow. PYSPARK_PYTHON sets that Python",
    ),
    (r"Cannot run program \"(?P<name>[^\"]+)\"", "the executors find no {name}. PYSPARK_PYTHON sets their Python"),
    (
        r"PATH_NOT_FOUND\].{0,40}?(?P<name>file:\S+?)\.?(\s|$)|File (?P<other>file:\S+) does not exist",
        "Spark does not see {name}: a history must lie at the same path on all its machines",
    ),
    (r"All masters are unresponsive|(?P<name>Application has been killed)", "the Spark master does not take the job"),
)


def in_words(error: BaseException) -> str | None:
    """Return one line that explains a known error of a Spark on several machines; None for any other error."""
    text = str(error)
    for pattern, words in _KNOWN_ERRORS:
        found = re.search(pattern, text)
        if found:
            named = {name: value for name, value in found.groupdict().items() if value is not None}
            if "other" in named:
                named["name"] = named["other"]
            return words.format(**named)
    return None


def is_local(master: str) -> bool:
    """Return whether the executors are threads of the driver on this machine, so that they use the same Python."""
    return master == "local" or master.startswith("local[")


def under_spark_submit() -> bool:
    """Return whether spark-submit started this process, so that a driver is already running."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def on_loopback(master: str) -> bool:
    """Return whether this master uses only this machine, so that no network is needed."""
    hosts = [host for host, _ in _addresses(master)]
    return master.startswith("local") or bool(hosts and all(h in ("127.0.0.1", "localhost", "::1") for h in hosts))


def reach(url: str) -> None:
    """Connect to the TCP port of a standalone master or of a Connect server, to see whether it answers.

    If the URL lists several masters, one of them must answer. Raises JobFailed.
    """
    failed = ""
    for host, port in _addresses(url):
        try:
            socket.create_connection((host, port), timeout=REACH_SECONDS_MAX).close()
        except OSError as error:
            failed = str(error.strerror or error)
        else:
            return
    if failed:
        raise NotUsable(f"nothing answers at {url.split(';')[0]} ({failed}); is it running, and is that its address?")


def _addresses(url: str) -> Iterator[tuple[str, int]]:
    kind, _, rest = url.partition("://")
    if kind not in ("spark", "sc"):
        return
    for part in rest.split("/")[0].split(","):
        try:
            where = urlsplit(f"//{part}")
            host, port = where.hostname, where.port
        except ValueError as error:
            raise NotUsable(f"{url} is no address: {error}") from error
        yield host or "", port or (CONNECT_PORT if kind == "sc" else 7077)


def within(seconds: float, work: Callable[[], T], stop: Callable[[], object], late: str) -> T:
    """Run `work` in a thread, and return its result.

    If it takes longer than `seconds`, call `stop` and raise NotUsable(`late`).
    """
    done: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            done.append(work())
        except BaseException as error:  # The waiting thread raises this error again.
            failed.append(error)

    worker = threading.Thread(target=run, daemon=True, name="waiting for Spark")
    worker.start()
    worker.join(seconds)
    if worker.is_alive():
        stop()
        raise NotUsable(late)
    if failed:
        raise failed[0]
    return done[0]


def prepare_executors(session: SparkSession, folder: Path, url: str) -> None:
    """Send this package to the executors, and let one of them import it.

    Raises JobFailed if no executor can import it.
    """
    from spark_audit.spark.package import write_archive  # This module imports click, which executors do not have.

    archive = folder / "hwm-audit-executors.zip"
    write_archive(archive)
    kind = url.partition("://")[0]
    seconds = TASK_SECONDS_MAX.get(kind, TASK_SECONDS_MAX_ELSEWHERE)
    where = url.split(";")[0]
    late = f"no executor at {where} took a task within {seconds:.0f} s: are there workers with free cores and memory?"
    if kind == "sc":
        session.addArtifacts(str(archive), pyfile=True)
        within(seconds, lambda: _try(session), session.interruptAll, late)
    else:
        session.sparkContext.addPyFile(str(archive))
        within(seconds, lambda: _try(session), session.sparkContext.cancelAllJobs, late)


def _try(session: SparkSession) -> None:
    session.range(1).mapInArrow(_probe, "imported boolean").collect()


def _probe(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Import, on an executor, the modules that the stages import."""
    import pyarrow

    import spark_audit.spark.keys
    import spark_audit.spark.order  # noqa: F401

    for batch in batches:
        imported: Any = pyarrow.array([True] * batch.num_rows, pyarrow.bool_())
        yield pyarrow.RecordBatch.from_arrays([imported], names=["imported"])
