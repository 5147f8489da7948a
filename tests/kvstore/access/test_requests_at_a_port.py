"""Every request, made at the port of a real member by nobody, with a wrong password, without the right, with the right,
and by root (docs/reference/specification.md#816-users-and-roles)."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kvstore.access.requests import AccessTopic, access_request, authenticate_request, decode_switch
from kvstore.errors import ResultCode
from kvstore.protocol.commands import Command, CommandKind, LeaseGrant, Put
from kvstore.protocol.messages import (
    Code,
    Request,
    RequestKind,
    Response,
    SessionlessRequest,
    decode_response,
    encode_client_hello,
    encode_request,
)
from raft import FRAME_BYTES_MAX_CLIENT, FrameSplitter, Hello, decode_hello, encode_item, frame
from tests.kvstore.access.request_table import (
    CALLERS,
    LEASE_OF_ADA,
    NOBODY,
    ROOT,
    ROWS,
    USERS,
    WITHOUT_RESPONSE,
    WRONG,
)
from tests.kvstore.conftest import MEMORY
from tests.kvstore.support.users import PASSWORDS, commands_to_enable
from tests.kvstore.worlds.world import SECONDS_MAX, MemberThread

pytestmark = pytest.mark.timeout(120)

ROW_ID, BARRIER_ID = 7, 8
"""The request id of a row, and the id of its barrier. The barrier is a request for the list of members, which follows
the row and which everybody may make."""

NO_USER = (NOBODY, WRONG)

CHANGES_OF_ACCESS = {kind.name for kind in CommandKind if kind >= CommandKind.USER_ADD}
"""After one of these commands, the users differ from the users that the table assumes."""


class PortClient:
    """A connection to the port of a member. Each call has an absolute time-out."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=SECONDS_MAX)
        self._splitter = FrameSplitter(FRAME_BYTES_MAX_CLIENT)
        self._bodies: list[bytes] = []
        self._socket.sendall(frame(encode_client_hello()))
        assert isinstance(decode_hello(self._next()), Hello)

    def ask(self, request: Request) -> Response:
        """Send a request without a session, and return its response."""
        self._socket.sendall(frame(encode_request(ROW_ID, request)))
        return decode_response(self._next())

    def do(self, command: Command) -> None:
        """Carry out a command."""
        assert self.ask(SessionlessRequest(RequestKind.COMMAND, command)).code == Code.OK, command

    def codes_of(self, row: list[Any]) -> list[int]:
        """Send a row, and return the codes of its responses. The barrier follows the row, so the wait ends even if the
        row gets no response."""
        self._socket.sendall(frame(encode_item(row)) + frame(encode_item([BARRIER_ID, int(RequestKind.MEMBERS)])))
        codes, is_over, is_answered = [], False, row[1] in _KINDS_WITHOUT_RESPONSE
        while not (is_over and is_answered):
            response = decode_response(self._next())
            if response.request_id == BARRIER_ID:
                is_over = True
            else:
                is_answered = True
                codes.append(response.code)
        return codes

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _next(self) -> bytes:
        while not self._bodies:
            data = self._socket.recv(1 << 16)
            assert data, "the member has closed the connection"
            self._bodies += self._splitter.feed(data)
        return self._bodies.pop(0)


_KINDS_WITHOUT_RESPONSE = {int(RequestKind[name]) for name in WITHOUT_RESPONSE}


@contextmanager
def connected(address: str, caller: str) -> Iterator[PortClient]:
    """A connection of one of the callers of the table."""
    client = PortClient(address)
    try:
        if caller != NOBODY:
            password = PASSWORDS[USERS[caller]] if caller != WRONG else "a wrong password"
            told = client.ask(authenticate_request(USERS[caller], password))
            assert told.code == (Code.OK if caller != WRONG else Code.UNAUTHENTICATED)
        yield client
    finally:
        client.close()


@contextmanager
def member_with_users() -> Iterator[str]:
    """The address of a new member with the users and the lease of the table, and with authentication."""
    with (
        tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder,
        MemberThread(Path(folder) / "s1", user="root", password=PASSWORDS["root"]) as member,
    ):
        with connected(member.address, NOBODY) as client:
            *before, last = commands_to_enable()
            while client.ask(SessionlessRequest(RequestKind.COMMAND, before[0])).code == Code.NOT_LEADER:
                pass  # A new member has yet to elect itself.
            for command in before[1:]:
                client.do(command)
            client.do(LeaseGrant(LEASE_OF_ADA, 60_000_000_000))
            client.do(Put(b"app/leased", b"", lease_id=LEASE_OF_ADA))
            client.do(last)
        yield member.address


def revisions(root: PortClient) -> tuple[int, int]:
    """The revisions of the store and of its users."""
    told = root.ask(access_request(AccessTopic.SWITCH))
    return told.revision, decode_switch(told).auth_revision


def expected_codes(name: str, allowed: set[str], caller: str, codes: list[int]) -> bool:
    """True if these are the codes that the table wants."""
    if name in WITHOUT_RESPONSE:
        return codes == []
    if name == "JUDGED" and caller not in NO_USER:
        return codes == [ResultCode.INVALID_REQUEST]
    if caller in allowed:
        return len(codes) == 1 and codes[0] not in (Code.PERMISSION_DENIED, Code.UNAUTHENTICATED)
    return codes == [Code.UNAUTHENTICATED if caller in NO_USER else Code.PERMISSION_DENIED]


@pytest.mark.parametrize("caller", CALLERS)
def test_a_member_answers_each_request_to_whom_it_is_allowed(caller: str) -> None:
    """A refused request changes nothing. After an accepted change of the users, the next rows meet a new member.
    Another test compares the rows with the kinds of requests and commands, so no kind is left out."""
    rows: list[tuple[int, Any]] = list(enumerate(ROWS))
    wrong: list[tuple[int, str, list[Any], object]] = []
    while rows:
        with member_with_users() as address, connected(address, ROOT) as root:
            while rows:
                number, (name, asked, allowed) = rows.pop(0)
                before = revisions(root)
                with connected(address, caller) as client:
                    codes = client.codes_of(asked)
                if not expected_codes(name, allowed, caller, codes):
                    wrong.append((number, name, asked, codes))
                if caller in allowed and name in CHANGES_OF_ACCESS:
                    break
                if caller not in allowed and revisions(root) != before:
                    wrong.append((number, name, asked, "it has changed something"))
    assert wrong == []
