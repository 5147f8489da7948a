"""Starts a Spark session for one audit, with a suitable Java and Python, without log output or remaining files.

There are four modes. With a local master, everything runs on this machine. With another master, this process is the
driver of a cluster. With `remote`, this process is a client of a Spark Connect server. Under spark-submit, this process
runs inside a driver that spark-submit has started. See docs/operations/audit-spark.md.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from spark_audit.errors import AuditError, JobFailed
from spark_audit.spark.cluster import (
    START_SECONDS_MAX,
    NotUsable,
    in_words,
    is_local,
    on_loopback,
    prepare_executors,
    reach,
    under_spark_submit,
    within,
)
from spark_audit.spark.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG4J = """rootLogger.level = {level}
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{{HH:mm:ss}} %p %c{{1}}: %m%n
"""
# In this job, Java mostly moves bytes, so the C1 compiler is enough. In a job of ten million operations, the C2
# compiler took 28 s of CPU time.
_LIGHT = " -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_SETTINGS = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
    "spark.sql.files.ignoreCorruptFiles": "false",
}
_HERE = {
    "spark.shuffle.compress": "false",  # The shuffle does not use the network.
    "spark.shuffle.spill.compress": "false",
    "spark.shuffle.sort.bypassMergeThreshold": "1",  # By default, the shuffle would write all data twice.
    # Adaptive execution plans every stage again, which gains nothing with few partitions.
    "spark.sql.adaptive.enabled": "false",
}
# With the default of 200 partitions, Python is started 200 times, which takes 70 s.
_SHORT_ELSEWHERE = {"spark.sql.shuffle.partitions": "8"}
LOG_TAIL_CHARACTERS_MAX = 2_000  # If Spark does not start, at most this many last characters of its log are shown.


@contextmanager
def spark_session(
    master: str = "local[*]",
    *,
    remote: str | None = None,
    memory: str = "2g",
    short: bool = False,
    verbose: bool = False,
) -> Iterator[SparkSession]:
    """Start Spark, yield its session, stop it, and remove its folders.

    `master`: the URL of a master, as Spark writes it. `remote`: the URL of a Spark Connect server, sc://HOST[:PORT]; if
    it is given, `master` is ignored. Under spark-submit, `master` and `memory` are ignored, because the driver is
    running already. `short`: whether the job takes only seconds, so that it should use few tasks on other machines.

    At its start the JVM prints warnings that cannot be switched off. So the output of the JVM is written to a file, or,
    if `verbose` is true, to stderr. Raises NoJava. Raises JobFailed if Spark does not start, if it cannot be reached,
    or if its executors cannot run this package.
    """
    folder = Path(tempfile.mkdtemp(prefix="hwm-audit-"))
    saved = dict(os.environ)
    submitted = under_spark_submit()
    url = remote or master
    try:
        if remote is not None:
            session = _connect(remote, short)
        elif submitted:
            session = _join(short, verbose)
            url = str(session.sparkContext.master)
        else:
            reach(master)
            _prepare_environment(folder, master, verbose)
            session = _start(folder, master, memory, short, verbose)
        try:
            if not is_local(url):
                prepare_executors(session, folder, url)
            yield session
        except Exception as error:
            words = None if isinstance(error, AuditError) else in_words(error)
            if words is None:
                raise
            raise NotUsable(words) from error
        finally:
            if remote is not None or submitted:
                session.stop()
            else:
                _stop(session)
    finally:
        os.environ.clear()
        os.environ.update(saved)
        shutil.rmtree(folder, ignore_errors=True)


def _connect(remote: str, short: bool) -> SparkSession:
    reach(remote)
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        import pyspark.sql.connect.session  # noqa: F401 (fails with the name of a missing package)
    except ImportError as error:  # Spark raises its own ImportError, which does not name the package.
        reason = (
            f"--remote needs a missing package ({str(error).splitlines()[0]}): pip install 'highwatermark[connect]'"
        )
        raise NotUsable(reason) from error
    from pyspark.sql import SparkSession

    late = f"{remote.split(';')[0]} does not answer as a Spark Connect server within {START_SECONDS_MAX:.0f} s"
    builder = SparkSession.builder.remote(remote)
    for name, value in (_SETTINGS | (_SHORT_ELSEWHERE if short else {})).items():
        builder = builder.config(name, value)
    try:
        return within(START_SECONDS_MAX, builder.getOrCreate, lambda: None, late)
    except JobFailed:
        raise
    except Exception as error:  # gRPC and Spark raise errors of several types.
        raise NotUsable(f"no session at {remote.split(';')[0]} ({str(error).strip().splitlines()[0]})") from error


def _join(short: bool, verbose: bool) -> SparkSession:
    """Return a session in the driver of spark-submit. The driver's own settings (--conf and others) take precedence."""
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    try:
        SparkContext._ensure_initialized()  # Without this call, a SparkConf would be empty.
        conf = SparkConf()
        builder = SparkSession.builder
        elsewhere = short and not is_local(conf.get("spark.master", "") or "")
        for name, value in (_SETTINGS | (_SHORT_ELSEWHERE if elsewhere else {})).items():
            builder = builder if conf.contains(name) else builder.config(name, value)
        session = builder.getOrCreate()
    except Exception as error:  # Py4J raises errors of several types.
        raise JobFailed(f"Spark did not start ({in_words(error) or error})") from error
    session.sparkContext.setLogLevel("INFO" if verbose else "OFF")
    return session


def _prepare_environment(folder: Path, master: str, verbose: bool) -> None:
    conf = folder / "conf"
    conf.mkdir()
    (conf / "log4j2.properties").write_text(_LOG4J.format(level="info" if verbose else "error"))
    # Python workers import this package, too, so they must find it even if it is not installed.
    here = str(Path(__file__).resolve().parents[2])
    python_path = os.pathsep.join(p for p in (here, os.environ.get("PYTHONPATH", "")) if p)
    theirs = None if is_local(master) else os.environ.get("PYSPARK_PYTHON")
    os.environ.update(
        JAVA_HOME=str(find_java(folder).home),
        SPARK_CONF_DIR=str(conf),
        PYSPARK_PYTHON=theirs or sys.executable,
        PYSPARK_DRIVER_PYTHON=sys.executable,
        PYTHONPATH=python_path,
    )
    if on_loopback(master):
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    # SPARK_HOME may name another installation, but this job needs the Spark of its own pyspark.
    os.environ.pop("SPARK_HOME", None)
    os.environ.pop("SPARK_REMOTE", None)


def _start(folder: Path, master: str, memory: str, short: bool, verbose: bool) -> SparkSession:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).appName("hwm-audit")
    settings = {
        **_SETTINGS,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": memory,
        "spark.local.dir": str(folder / "scratch"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={folder} -XX:-UsePerfData{_LIGHT}",
    }
    if on_loopback(master):
        settings |= {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
    if is_local(master):
        settings["spark.sql.shuffle.partitions"] = str(2 * _local_cores(master))
        settings |= _HERE
    elif short:
        settings |= _SHORT_ELSEWHERE
    for name, value in settings.items():
        builder = builder.config(name, value)
    log = folder / "spark.log"
    try:
        with _output_to(None if verbose else log):
            session = builder.getOrCreate()
    except Exception as error:  # pyspark raises a PySparkRuntimeError, an OSError or an error of Py4J.
        words = log.read_text(errors="replace")[-LOG_TAIL_CHARACTERS_MAX:] if log.exists() else ""
        known = in_words(error) or in_words(RuntimeError(words))
        if known:
            raise NotUsable(f"Spark did not start at {master}: {known}") from error
        # The stack frames of Java are left out.
        tail = "\n".join(line for line in words.splitlines() if not line.startswith("\tat "))
        raise JobFailed(f"Spark did not start ({error})\n{tail}".rstrip()) from error
    session.sparkContext.setLogLevel("INFO" if verbose else "OFF")
    return session


def _local_cores(master: str) -> int:
    inside = master.removeprefix("local").strip("[]").split(",")[0]
    return int(inside) if inside.isdigit() else (os.cpu_count() or 1) if inside == "*" else 1


@contextmanager
def _output_to(file: Path | None) -> Iterator[None]:
    """Redirect file descriptors 1 and 2 to `file` while the body starts a child process.

    The child process inherits both descriptors, so it keeps writing to `file` after the body.
    """
    if file is None:
        yield
        return
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [os.dup(1), os.dup(2)]
    with file.open("ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    try:
        yield
    finally:
        for number, descriptor in enumerate(kept, 1):
            os.dup2(descriptor, number)
            os.close(descriptor)


def _stop(session: SparkSession) -> None:
    """Stop Spark and end the JVM that was started for it, so that its folders can be removed."""
    from pyspark import SparkContext

    session.stop()
    # `_gateway` and `_jvm` are internals of PySpark, whose version the `audit` extra pins. If they were not reset, the
    # next session of this process would try to use the JVM that has ended.
    gateway = SparkContext._gateway
    if gateway is not None:
        process = getattr(gateway, "proc", None)
        gateway.shutdown()
        if process is not None:
            process.stdin.close()  # The JVM ends when its stdin is closed.
            process.wait(timeout=30)
        SparkContext._gateway = None
        SparkContext._jvm = None
