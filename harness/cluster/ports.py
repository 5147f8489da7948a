"""Free TCP ports on loopback, for servers that are killed and later started again on the same port."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path
from random import SystemRandom

_LOWEST = 10_000
_USUAL_EPHEMERAL_LOW = 32_768
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_ATTEMPTS_MAX = 2_000


def free_ports(count: int) -> list[int]:
    """Return `count` distinct ports that are free now.

    These ports are below the range from which the system takes the local ports of outgoing connections. Binding to port
    0 would give a port *inside* that range, and any outgoing connection could take this port while the server is down.
    A client that dials the server could even get this port as the local port of its connection, and so connect to
    itself. Another process can still take a returned port before the server binds it; the caller must then try again
    with other ports.
    """
    # The choice does not depend on the seed of the run, because two runs at the same time must choose different ports.
    random = SystemRandom()
    ports: list[int] = []
    with contextlib.ExitStack() as held:
        for _ in range(_ATTEMPTS_MAX):
            if len(ports) == count:
                return ports
            port = random.randrange(_LOWEST, _ephemeral_low())
            listener = held.enter_context(socket.socket())
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
            ports.append(port)
    raise OSError(f"no {count} free ports on 127.0.0.1 between {_LOWEST} and {_ephemeral_low()}")


def _ephemeral_low() -> int:
    try:
        low = int(_RANGE.read_text(encoding="ascii").split()[0])
    except (OSError, ValueError):
        return _USUAL_EPHEMERAL_LOW
    return low if low > _LOWEST + 1_000 else _USUAL_EPHEMERAL_LOW
