"""The choice of an implementation of HTTP/2."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvstore.etcd.http2.engine import EngineConnection

if TYPE_CHECKING:
    from kvstore.etcd.http2.library import LibraryConnection


def connection_maker(name: str) -> type[EngineConnection | LibraryConnection]:
    """Return the class of an implementation. `name`: one of `kvstore.etcd.HTTP2`.

    h2 is loaded only for a member that is to use it.
    """
    if name == "library":
        from kvstore.etcd.http2.library import LibraryConnection

        return LibraryConnection
    return EngineConnection
