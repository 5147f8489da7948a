"""A Spark session for one audit: right Java, right Python, on loopback, silent, and gone without a trace afterwards."""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from spark_audit.errors import JobFailed
from spark_audit.java import find_java

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
SHORT_LIFE = " -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
LOG_TAIL_CHARACTERS_MAX = 2_000  # Of Spark's own words, when it does not start.


@contextmanager
def spark_session(
    master: str = "local[*]", *, memory: str = "2g", short: bool = False, verbose: bool = False
) -> Iterator["SparkSession"]:
    """Start Spark, yield its session, stop it, and remove its folders.

    `short`: for a job of seconds, Java is told to compile lightly; half of such a job is compilation (measured: 20,000
    operations take 26 s of processor time, and 14 s so). A long job is better off without.

    What the JVM says goes to a file (its start-up warnings cannot be switched off), or to stderr if `verbose`.
    Raises NoJava, and JobFailed if Spark does not start.
    """
    folder = Path(tempfile.mkdtemp(prefix="hwm-audit-"))
    saved = dict(os.environ)
    try:
        _prepare_environment(folder, verbose)
        session = _start(folder, master, memory, short, verbose)
        try:
            yield session
        finally:
            _stop(session)
    finally:
        os.environ.clear()
        os.environ.update(saved)
        shutil.rmtree(folder, ignore_errors=True)


def _prepare_environment(folder: Path, verbose: bool) -> None:
    conf = folder / "conf"
    conf.mkdir()
    (conf / "log4j2.properties").write_text(_LOG4J.format(level="info" if verbose else "error"))
    here = str(Path(__file__).resolve().parent.parent)  # The workers import this package too, installed or not.
    python_path = os.pathsep.join(p for p in (here, os.environ.get("PYTHONPATH", "")) if p)
    os.environ.update(
        JAVA_HOME=str(find_java(folder).home),
        SPARK_CONF_DIR=str(conf),
        SPARK_LOCAL_IP="127.0.0.1",
        PYSPARK_PYTHON=sys.executable,
        PYSPARK_DRIVER_PYTHON=sys.executable,
        PYTHONPATH=python_path,
    )
    os.environ.pop("SPARK_HOME", None)  # Of another installation: this job is written for the pyspark beside it.


def _start(folder: Path, master: str, memory: str, short: bool, verbose: bool) -> "SparkSession":
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).appName("hwm-audit")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": memory,
        "spark.local.dir": str(folder / "scratch"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
        "spark.sql.files.ignoreCorruptFiles": "false",
        "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={folder} -XX:-UsePerfData" + (SHORT_LIFE if short else ""),
    }
    if master.startswith("local"):
        settings["spark.sql.shuffle.partitions"] = str(2 * _local_cores(master))
    for name, value in settings.items():
        builder = builder.config(name, value)
    log = folder / "spark.log"
    try:
        with _output_to(None if verbose else log):
            session = builder.getOrCreate()
    except Exception as error:  # pyspark raises what its launcher meets: PySparkRuntimeError, Py4J's, OSError.
        words = log.read_text(errors="replace")[-LOG_TAIL_CHARACTERS_MAX:] if log.exists() else ""
        tail = "\n".join(line for line in words.splitlines() if not line.startswith("\tat "))  # Where in Java: no help.
        raise JobFailed(f"Spark did not start ({error})\n{tail}".rstrip()) from error
    session.sparkContext.setLogLevel("INFO" if verbose else "OFF")
    return session


def _local_cores(master: str) -> int:
    inside = master.removeprefix("local").strip("[]").split(",")[0]
    return int(inside) if inside.isdigit() else (os.cpu_count() or 1) if inside == "*" else 1


@contextmanager
def _output_to(file: Path | None) -> Iterator[None]:
    """While a child process is started: file descriptors 1 and 2 go to `file`, which the child then keeps."""
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


def _stop(session: "SparkSession") -> None:
    """Stop Spark and end the JVM that was started for it, so that its folders can go."""
    from pyspark import SparkContext

    session.stop()
    gateway = SparkContext._gateway
    if gateway is not None:
        process = getattr(gateway, "proc", None)
        gateway.shutdown()
        if process is not None:
            process.stdin.close()  # It ends itself when its stdin ends.
            process.wait(timeout=30)
        SparkContext._gateway = None
        SparkContext._jvm = None
