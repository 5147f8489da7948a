"""A resolver for tests: host names are looked up in a file of `name address` lines, and no other name exists.

Run as a program, it is `hwm` with this resolver; the file is named by `HOSTS_FILE`.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

from kvstore.cli.main import main

HOSTS_FILE = "HOSTS_FILE"

_getaddrinfo = socket.getaddrinfo


def install(hosts: Path) -> None:
    """Make this process look host names up in the file `hosts`, which may change later."""

    def getaddrinfo(host: Any, port: Any, *arguments: Any, **named: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else host
        if isinstance(name, str) and name.endswith(".hwm"):
            known = dict(line.split() for line in hosts.read_text(encoding="utf-8").splitlines())
            if name not in known:
                raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
            host = known[name]
        return _getaddrinfo(host, port, *arguments, **named)

    socket.getaddrinfo = getaddrinfo


if __name__ == "__main__":
    install(Path(os.environ[HOSTS_FILE]))
    main()
