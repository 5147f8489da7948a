"""How an asyncio client opens a connection: it leaves no socket open, and needs one address of a name that responds."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstore.asyncio.dial import open_socket

DESCRIPTORS = Path("/proc/self/fd")
TURNS_MAX = 200


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening


def open_sockets() -> set[str]:
    found = set()
    for each in DESCRIPTORS.iterdir():
        try:
            target = str(each.readlink())
        except OSError:
            continue
        if target.startswith("socket:"):
            found.add(target)
    return found


async def cancelled_after(turns: int, port: int) -> bool:
    """Cancel an attempt after some turns of the loop. Returns True if the attempt had already ended."""
    attempt = asyncio.create_task(open_socket("127.0.0.1", port))
    for _ in range(turns):
        await asyncio.sleep(0)
    attempt.cancel()
    await asyncio.wait([attempt])
    if attempt.cancelled():
        return False
    attempt.result().close()
    return True


@pytest.mark.skipif(not DESCRIPTORS.is_dir(), reason="needs /proc")
def test_an_attempt_that_is_cancelled_at_any_moment_leaves_no_socket_open(listener: socket.socket) -> None:
    async def main() -> None:
        before = open_sockets()
        for turns in range(TURNS_MAX):
            is_over = await cancelled_after(turns, listener.getsockname()[1])
            assert open_sockets() == before, turns
            if is_over:
                assert turns > 2
                return
        raise AssertionError(f"no attempt was over after {TURNS_MAX} turns")

    asyncio.run(main())


def resolving(monkeypatch: pytest.MonkeyPatch, *addresses: tuple[str, int]) -> None:
    """Let a name have these IPv4 addresses."""
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", address) for address in addresses]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_arguments, **_options: found)


def closed_port() -> int:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port: int = unused.getsockname()[1]
        return port


def test_an_address_that_refuses_is_followed_by_the_next(
    monkeypatch: pytest.MonkeyPatch, listener: socket.socket
) -> None:
    resolving(monkeypatch, ("127.0.0.1", closed_port()), listener.getsockname())

    with asyncio.run(open_socket("store.example", 7101)) as connected:
        assert connected.getpeername() == listener.getsockname()


def test_an_address_that_is_silent_does_not_delay_the_next_for_long(
    monkeypatch: pytest.MonkeyPatch, listener: socket.socket
) -> None:
    with socket.socket() as silent, socket.socket() as first, socket.socket() as second:
        silent.bind(("127.0.0.1", 0))
        silent.listen(0)
        for waiting in (first, second):  # A full queue of connections: the next attempt gets no response.
            waiting.setblocking(False)
            waiting.connect_ex(silent.getsockname())
        resolving(monkeypatch, silent.getsockname(), listener.getsockname())

        with asyncio.run(open_socket("store.example", 7101)) as connected:
            assert connected.getpeername() == listener.getsockname()


def test_if_every_address_refuses_all_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = closed_port(), closed_port()
    resolving(monkeypatch, ("127.0.0.1", first), ("127.0.0.1", second))

    with pytest.raises(OSError, match=f"{first}.*{second}"):
        asyncio.run(open_socket("store.example", 7101))


def test_a_single_address_that_refuses_raises_its_own_error(monkeypatch: pytest.MonkeyPatch) -> None:
    resolving(monkeypatch, ("127.0.0.1", closed_port()))

    with pytest.raises(ConnectionRefusedError):
        asyncio.run(open_socket("store.example", 7101))
