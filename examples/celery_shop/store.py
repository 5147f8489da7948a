"""The client of each process of the shop.

Gunicorn and Celery fork their workers. A client belongs to the process in which it was entered, because a child would
share the connections of its parent. So each process makes its client when it first needs one.
"""

from __future__ import annotations

import atexit
import os
import threading

from kvstore.blocking import Client, connect

_lock = threading.Lock()
_client: Client | None = None


def client() -> Client:
    """The client of this process, for all its threads."""
    global _client
    with _lock:  # Without the lock, two threads could make two clients.
        if _client is None:
            _client = connect(os.environ["STORE_URL"]).__enter__()
            atexit.register(_client.__exit__, None, None, None)
        return _client


def _begin_anew() -> None:
    """Forget the client of the parent, and the lock, which another thread of the parent may have held."""
    global _lock, _client
    _lock, _client = threading.Lock(), None


os.register_at_fork(after_in_child=_begin_anew)
