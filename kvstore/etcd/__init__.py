"""The port for etcd's clients: the API of etcd v3, as gRPC over HTTP/2 and as JSON over HTTP/1.1.

The port is a translator in front of the member. It has no rights of its own: each request becomes requests of the
project's own client, with the user whom the caller has proved. `http2` and `grpc` are the transport, `schema` has the
messages, `services` answers the calls, and `port` is the trio shell. `fast_calls` takes usual calls at the leader
directly to the service of the member. The chapter needs the extra `etcd` (`pip install "highwatermark[etcd]"`).

See docs/guides/etcd.md.
"""

from __future__ import annotations

from kvstore.errors import StoreError

HTTP2 = ("engine", "library")
"""The implementations of HTTP/2: the one of this project, and the library h2."""


class EtcdNotInstalled(StoreError):
    """A library of the port for etcd's clients is not installed. `library`: the name of its package for pip."""

    def __init__(self, library: str) -> None:
        super().__init__(library)
        self.library = library

    def __str__(self) -> str:
        return f"serving etcd's clients needs the library {self.library}, which is not installed"

    @property
    def hint(self) -> str:
        return "pip install 'highwatermark[etcd]'"
