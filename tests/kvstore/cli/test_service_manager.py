"""A member reports its start and its stop to the service manager, in the way that systemd's `Type=notify` demands."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstore.cli.daemon.service_manager import notify
from tests.process.servers import running_cluster

pytestmark = [pytest.mark.process, pytest.mark.timeout(60)]

WAIT_SECONDS_MAX = 20.0


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[socket.socket]:
    """The socket of a service manager. All processes of the test get its address."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        path = tmp_path / "notify"
        receiver.bind(str(path))
        receiver.settimeout(WAIT_SECONDS_MAX)
        monkeypatch.setenv("NOTIFY_SOCKET", str(path))
        yield receiver


def message_of(manager: socket.socket) -> dict[str, str]:
    lines = manager.recv(4096).decode().splitlines()
    return dict(line.split("=", 1) for line in lines)


def test_a_member_says_when_it_serves_and_when_it_stops(manager: socket.socket, tmp_path: Path) -> None:
    with running_cluster(tmp_path, 1) as cluster:
        ready = message_of(manager)
        (server,) = cluster.servers.values()
        server.send_signal(signal.SIGTERM)
        stopping = message_of(manager)

        assert server.wait() == 0
    assert ready["READY"] == "1"
    assert ready["STATUS"].startswith("ready node=s1 client=127.0.0.1:")
    assert stopping == {"STOPPING": "1", "STATUS": "stopping"}


def test_a_socket_may_have_a_name_without_a_file() -> None:
    name = f"highwatermark-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind("\0" + name)
        receiver.settimeout(WAIT_SECONDS_MAX)

        assert notify({"NOTIFY_SOCKET": "@" + name}, READY="1")
        assert message_of(receiver) == {"READY": "1"}


def test_without_a_service_manager_nothing_is_sent() -> None:
    assert not notify({}, READY="1")


def test_a_manager_that_is_gone_does_not_stop_a_member(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert not notify({"NOTIFY_SOCKET": str(tmp_path / "gone")}, READY="1")
    assert "was not notified: No such file or directory" in capsys.readouterr().err
