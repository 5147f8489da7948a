"""The parts of a cluster that need no member: ports, and a child process that ends with its parent."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from harness.cluster.ports import free_ports
from harness.errors import ExtraMissing
from harness.recording.clock import RunClock
from harness.recording.history import RunWriter


def test_ports_are_free_distinct_and_none_that_the_system_gives_away() -> None:
    """While a server is down, any connection could take its port if the port were in the ephemeral range."""
    ports = free_ports(18)
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert len(set(ports)) == 18
    assert max(ports) < low
    for port in ports:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", port))


@pytest.mark.timeout(30)
@pytest.mark.parametrize("way", ["die_with(1)", "_watch(1)"])
def test_a_member_whose_harness_is_gone_ends_at_once(way: str) -> None:
    """The kernel's signal ends the member on Linux, and polling ends it elsewhere. In this test the member gets the
    process id of a wrong parent."""
    assert os.getpid() != 1
    script = f"from harness.cluster.child import die_with, _watch\n{way}\nprint('still here')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=20, check=False)
    assert (done.returncode, done.stdout) == (1, b"")


def test_parquet_without_pyarrow_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "harness.recording.parquet", raising=False)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ExtraMissing, match=r"highwatermark\[audit\]"):
        RunWriter(tmp_path / "run", run_id="r", clock=RunClock(), ops_format="parquet", about={})
    assert not (tmp_path / "run").exists()
