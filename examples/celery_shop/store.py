"""The client of each process of the shop.

Gunicorn and Celery fork their workers. A client belongs to the process in which it was entered, because a child would
share the connections of its parent. So each process makes its client when it first needs one.
"""

from __future__ import annotations

import atexit
import os
from functools import cache

from kvstore.blocking import Client, connect


def client() -> Client:
    """The client of this process, for all its threads."""
    return _client_of(os.getpid())


@cache
def _client_of(_pid: int) -> Client:
    entered = connect(os.environ["STORE_URL"]).__enter__()
    atexit.register(entered.__exit__, None, None, None)
    return entered
