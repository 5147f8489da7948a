"""Messages to the service manager that started the member: systemd, with `Type=notify` in the unit.

The protocol is that of sd_notify(3): one datagram of `NAME=value` lines to the socket named by `NOTIFY_SOCKET`.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

from kvstore.cli.output import say

SOCKET = "NOTIFY_SOCKET"


def notify(environment: Mapping[str, str] = os.environ, **fields: str) -> bool:
    """Send one message, and return whether it was sent. Without a service manager, do nothing.

    `fields`: for example `READY="1"`, `STOPPING="1"`, `STATUS="leader of term 5"`. A failure is reported on stderr, but
    does not stop the member: a manager that waits for the message ends the member by its own time-out.
    """
    address = environment.get(SOCKET, "")
    if not address:
        return False
    if address.startswith("@"):  # The `@` means an abstract socket, whose name begins with a zero byte.
        address = "\0" + address[1:]
    message = "\n".join(f"{name}={value}" for name, value in fields.items())
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.setblocking(False)
            sender.sendto(message.encode(), address)
    except OSError as error:
        say(f"the service manager at {SOCKET}={environment[SOCKET]} was not notified: {error.strerror or error}")
        return False
    return True
