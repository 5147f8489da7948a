"""A relay in front of a member: the test sees the bytes of a client, and can cut its connections."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from types import TracebackType

_READ_BYTES = 1 << 16


class Relay:
    """Listens, and passes bytes on to `target` (an address, to be set before a client connects) and back, in threads.

    `connections`: for each connection so far, the bytes that its client has sent.
    """

    def __init__(self) -> None:
        self.target = ""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()  # Protects the fields above and `connections`.
        self.connections: list[bytearray] = []

    @property
    def address(self) -> str:
        """The address for clients."""
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def cut(self) -> None:
        """End all connections. Later ones are served."""
        with self._lock:
            sockets, self._sockets = self._sockets, []
        for each in sockets:
            _end(each)

    def __enter__(self) -> Relay:
        self._start(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _end(self._listener)
        self._threads[0].join()
        self.cut()
        for thread in self._threads:
            thread.join()

    def _start(self, function: object, *arguments: object) -> None:
        thread = threading.Thread(target=function, args=arguments, name="relay of a test")  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            host, _, port = self.target.rpartition(":")
            member = socket.create_connection((host, int(port)))
            sent = bytearray()
            with self._lock:
                self.connections.append(sent)
                self._sockets += [client, member]
            self._start(self._carry, client, member, sent)
            self._start(self._carry, member, client, bytearray())

    def _carry(self, source: socket.socket, target: socket.socket, seen: bytearray) -> None:
        try:
            while data := source.recv(_READ_BYTES):
                seen += data
                target.sendall(data)
        except OSError:
            pass
        _end(source)
        _end(target)


def _end(end: socket.socket) -> None:
    """End both directions of a socket, so that no thread waits for it, and close it."""
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
