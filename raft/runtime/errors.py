"""The errors of a member's sockets."""

from __future__ import annotations

from raft.errors import RaftError


class InsecureAddress(RaftError):
    """Other machines could reach the peer port, although its connections are not encrypted or authenticated."""

    def __init__(self, host: str) -> None:
        super().__init__(host)
        self.host = host

    def __str__(self) -> str:
        return (
            f"the peer port would listen on {self.host!r}, where other machines can reach it, without encryption or "
            "authentication. Listen on 127.0.0.1, or say that you want this with the `insecure` flag"
        )


class InvalidAddress(RaftError, ValueError):
    """The text is not an address of the form `host:port`."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.address = address

    def __str__(self) -> str:
        return f"{self.address!r} is not an address of the form host:port, such as 127.0.0.1:7001 or [::1]:7001"


class CannotListen(RaftError):
    """The peer port could not be opened."""

    def __init__(self, host: str, port: int, reason: str) -> None:
        super().__init__(host, port, reason)
        self.host, self.port, self.reason = host, port, reason

    def __str__(self) -> str:
        return (
            f"cannot listen for peers on {self.host}:{self.port}: {self.reason}. "
            "Is another server using this port? Choose another one, or 0 for any"
        )


class ConnectionRefusedByPeer(RaftError):
    """The other side rejected this connection with a reason."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(code, text)
        self.code, self.text = code, text

    def __str__(self) -> str:
        return f"it refuses this connection ({self.code}): {self.text}"
