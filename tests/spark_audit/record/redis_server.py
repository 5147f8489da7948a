"""A real Redis for one test: `redis-server` on PATH, or the program that HWM_TEST_REDIS_SERVER names."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def running_redis(folder: Path, *options: str) -> Iterator[str]:
    """Run a Redis that writes nothing to the disk. Yields its URL, of a socket in the folder.

    `options`: more options of the program. A `--port` there lets other servers reach it. Skips the test if there is no
    program.
    """
    program = os.environ.get("HWM_TEST_REDIS_SERVER") or shutil.which("redis-server")
    if program is None:
        pytest.skip("redis-server is not installed (apt-get install redis-server, or set HWM_TEST_REDIS_SERVER)")
    socket = folder / "socket"
    command = [program, "--port", "0", "--unixsocket", str(socket), "--save", "", "--dir", str(folder), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            said = next((line for line in server.stdout if "ready to accept connections" in line), None)
            assert said is not None
            yield f"unix://{socket}"
        finally:
            server.kill()
