"""Messages between clients and members, in the same CBOR frames as messages between peers.

First each side sends a hello (`raft.Hello`; the client's hello has the role `client` and no ids). Then the client sends
requests, without having to wait for responses. The member answers in any order. It answers each request once, except
commands of level NONE and requests about watches:

    request   [request_id, kind, ...]          request_id: 1 or more, the client's choice
      members   [id, 1]
      command   [id, 2, [session_id, request_no, acknowledged_up_to, *body]]      body: kvstore.protocol.commands
      read      [id, 3, consistency, body]     body of a get or range, or of a txn that has only such operations; a
                                               bounded read ends with max_staleness_ms, and its answer with the
                                               greatest possible age of the state in ms
      status    [id, 4, with_hash]
      read_log  [id, 5, from_index, bytes_max, wait_ms]     if from_index is above the high-water mark, the answer waits
                                                      for at most wait_ms
      transfer  [id, 6, to]                           transfer the leadership to a node id, or (null) to the fittest
                                                      member; answered [to], or [null] if this member does not lead
      snapshot  [id, 7, name, offset, bytes_max, revision_min, build]     a page of a snapshot (snapshot_pages.py);
                                                      answered [name, size_bytes, data], or [null, reason,
                                                      whether a snapshot is being built, why the last build was
                                                      cancelled]
      change    [id, 8, [member, ...], [promoted id, ...], [removed id, ...], [member, ...]]     change the members, all
                                                      at once: added, promoted, removed, updated (`membership`); a
                                                      member is [node_id, peer_address, client_address, incarnation_id];
                                                      answered [index] when the whole change is committed
      membership [id, 9, of_leader, about]            everything about the members (`membership`); `about`, a node
                                                      id, may be left out
      sessions  [id, 10, after_id, count_max]         open sessions by id, 500 at most (`session_requests`);
                                                      answered [leader_time, [[id, ttl_ns, deadline, unused, results,
                                                      results_bytes], ...], whether there are more]
      close_session [id, 11, session_id, only_unused] answered [whether it was closed], once the close is committed
      limits    [id, 12]                              answered [{name of a replicated limit: [limit, used]}]
      watch     [id, 13, start, end, from_revision, flags, window_bytes]      a watch, about which many messages with
                                                      this id follow (`watches`)
      unwatch   [id, 14]     window [id, 15, bytes]     progress [id, 16]     about the watch with this id
      leases    [id, 17, after_id, count_max]         leases by id, 500 at most (`lease_requests`); answered
                                                      [leader_time, [[id, ttl_ns, deadline, keys], ...], whether there
                                                      are more]
      lease     [id, 18, lease_id, after_key, count_max]     one lease and its keys, 1,000 at most; answered
                                                      [leader_time, ttl_ns, deadline, [key, ...], whether there are
                                                      more], or [leader_time, null] if there is no such lease
      acknowledged [id, 19, level, [session_id, request_no, acknowledged_up_to, *body]]     a command with an
                                                      acknowledgement level (`raft.Acknowledge`). NONE: there is no
                                                      answer. LEADER: the answer has the code 32. IN_SYNC: an answer
                                                      with the code 0 ends with [node id, ...], the members that
                                                      have the write
      outcome   [id, 20, index, term, wait_ms]        the outcome of an accepted command; answered [`EntryFate`,
                                                      commit_index]; while the outcome is open, the answer waits for
                                                      at most wait_ms
      authenticate [id, 21, user, secret]     access [id, 22, what, after]     about users (`kvstore.access.requests`)

    response  [request_id, code, revision, consistency, node_id, ...]
      0 to 15   the store's answer (`ResultCode`); the rest of its result follows
      16        not the leader: leader_id, its client address (both may be null); certainly no effect here
      17        busy: reason; certainly no effect
      18        unknown: reason; the command may have taken effect, or may still do so
      19        not supported: the unsupported item
      20        not committed: index, commit_index          21  compacted: index, first_index
      22        this member has stopped: reason; certainly no effect
      23        the request or its response is too large: size, bound
      24        the leadership cannot be transferred now: reason, text; nothing has changed
      25        this change of members is refused: reason, text, entries a learner lacks or null; nothing has changed
      26        the feature level cannot be raised now: reason, text; nothing has changed
      27        the state is too old for a bounded read: its greatest possible age in ms (null: not known), the bound
      28        internal error while the request was judged: reason; certainly no effect, and the request would fail the
                same way at any member; the connection is closed (request_id 0: the id could not be read)
      29        not enough members in sync: [node id, ...], min_in_sync; certainly no effect
      30        carried out, but too few members have the write: min_in_sync, [node id, ...]; the rest of the store's
                result follows
      32        accepted: index, term of the entry, which is durable on the leader alone
      33        permission denied: user, the missing right (read, write, root), start, end; certainly no effect
      34        not authenticated: reason (missing, refused, outdated, expired), user; certainly no effect
      31        the connection is closed, since its data is invalid or its place is needed: reason (request_id 0)

New items may be added only at the end of an array. Receivers ignore extra items of a request or response; an unknown
kind is an error. Every response contains the revision of the store when the request was answered, the consistency of a
read (0 for other requests), and the id of the member that answered. The numbers of kinds and codes are already in use:
new numbers may be added, but no number may change.

See docs/reference/specification.md#710-client-requests.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kvstore.errors import Unsupported
from kvstore.protocol.access_commands import AuthEnable
from kvstore.protocol.cbor_heads import bytes_head, uint_head
from kvstore.protocol.commands import Command, CommandKind, Get, Range, Txn, command_body, encode_command
from raft import (
    INT64_MAX,
    Acknowledge,
    Hello,
    HelloRole,
    ProtocolError,
    Refusal,
    decode_hello,
    decode_item,
    encode_item,
)

PROTOCOL_VERSION = 1


class RequestKind(enum.IntEnum):
    """The kind of a request."""

    MEMBERS = 1
    COMMAND = 2
    READ = 3
    STATUS = 4
    READ_LOG = 5
    TRANSFER = 6
    SNAPSHOT = 7
    CHANGE = 8
    MEMBERSHIP = 9
    SESSIONS = 10
    CLOSE_SESSION = 11
    LIMITS = 12
    WATCH = 13
    UNWATCH = 14
    WATCH_WINDOW = 15
    WATCH_PROGRESS = 16
    LEASES = 17
    LEASE = 18
    ACKNOWLEDGED = 19
    OUTCOME = 20
    AUTHENTICATE = 21
    ACCESS = 22


class Code(enum.IntEnum):
    """The response codes of the protocol. Codes 0 to 15 are the codes of the store (`ResultCode`)."""

    OK = 0
    NOT_LEADER = 16
    BUSY = 17
    UNKNOWN = 18
    UNSUPPORTED = 19
    NOT_COMMITTED = 20
    COMPACTED = 21
    STOPPED = 22
    TOO_LARGE = 23
    TRANSFER_REFUSED = 24
    CHANGE_REFUSED = 25
    LEVEL_REFUSED = 26
    TOO_STALE = 27
    INTERNAL_ERROR = 28
    NOT_ENOUGH_IN_SYNC = 29
    UNDER_REPLICATED = 30
    MALFORMED = 31
    ACCEPTED = 32
    PERMISSION_DENIED = 33
    UNAUTHENTICATED = 34


class EntryFate(enum.IntEnum):
    """The fate of an entry that a leader accepted (docs/reference/specification.md#910-acknowledgement-levels)."""

    OPEN = 0
    """The fate is not decided yet, as far as this member knows."""
    COMMITTED = 1
    """The entry is committed. The store has carried out its commands, or has refused them by its rules."""
    LOST = 2
    """The entry was removed from the log. Its commands certainly have no effect."""
    FORGOTTEN = 3
    """The log of this member no longer contains the index of the entry."""


class Consistency(enum.IntEnum):
    """The consistency of a read (docs/reference/specification.md#811-consistency-of-reads)."""

    LINEARIZABLE = 1
    LEASE = 2
    LOCAL = 3
    FOLLOWER = 4
    BOUNDED = 5

    @property
    def word(self) -> str:
        """The name of this consistency in options and histories."""
        return self.name.lower()

    @classmethod
    def of(cls, word: Consistency | str) -> Consistency:
        """Return the consistency with this name. Raises Unsupported if there is none."""
        try:
            return word if isinstance(word, Consistency) else cls[word.upper()]
        except KeyError:
            raise Unsupported(f"consistency {word!r}; there are {', '.join(c.word for c in cls)}") from None


class Request(NamedTuple):
    """A client's request before it is sent, without request id, session id and request number.

    `address`: the only member that can answer. If `address` is None, any member can answer if `anywhere` is true, and
    otherwise only the leader.
    """

    kind: RequestKind
    command: Command | None = None
    items: tuple[Any, ...] = ()
    anywhere: bool = False
    address: str | None = None
    acknowledge: Acknowledge = Acknowledge.MAJORITY  # The acknowledgement level of a command.

    def __repr__(self) -> str:
        """Name the request, as `words` does. The items are left out, because they may contain a password."""
        return f"Request({self.words})"

    @property
    def is_command(self) -> bool:
        """True for a command of the client's session. The command goes through the log, and may be repeated."""
        return self.kind is _COMMAND

    @property
    def may_wait(self) -> bool:
        """True if the member may answer much later, so that a missing answer does not mean that the member has
        failed."""
        if self.acknowledge is _IN_SYNC or self.kind is RequestKind.OUTCOME:
            return True
        return self.kind is RequestKind.READ_LOG and len(self.items) > 2

    @property
    def has_effect(self) -> bool:
        """True for a request that goes through the log. Its outcome is unknown if the response is lost."""
        return self.kind is _COMMAND or self.kind is _CHANGE or self.kind is _CLOSE

    @property
    def words(self) -> str:
        """A description of the request for people, with its first key: `put of b'greeting'`."""
        if self.command is not None:
            body = command_body(self.command)
        elif self.kind is RequestKind.READ:
            body = self.items[1]
        else:
            return self.kind.name.lower().replace("_", " ")
        name = CommandKind(body[0]).name.lower().replace("_", " ")
        has_key = len(body) > 1 and type(body[1]) is bytes and not isinstance(self.command, AuthEnable)
        return f"{name} of {body[1]!r:.80}" if has_key else name  # The first field of AuthEnable is a secret.


class SessionlessRequest(Request):
    """A command that is sent only once, without the session of the client. Such a command works even if no more
    sessions can be opened."""

    __slots__ = ()

    @property
    def is_command(self) -> bool:
        """False, because the command waits for no session, and is never repeated."""
        return False


_IN_SYNC = Acknowledge.IN_SYNC
_COMMAND, _READ, _CHANGE = RequestKind.COMMAND, RequestKind.READ, RequestKind.CHANGE
_CLOSE = RequestKind.CLOSE_SESSION


def members_request() -> Request:
    """Request the members of the cluster, and its leader."""
    return Request(kind=RequestKind.MEMBERS, anywhere=True)


def command_request(command: Command, acknowledge: Acknowledge = Acknowledge.MAJORITY) -> Request:
    """Request a command, which the cluster carries out at most once. At the level NONE, the command has no session,
    because it is never sent again."""
    if acknowledge is Acknowledge.NONE:
        return SessionlessRequest(_COMMAND, command, acknowledge=acknowledge)
    return Request(_COMMAND, command, acknowledge=acknowledge)


def read_request(
    operation: Get | Range | Txn, consistency: Consistency, address: str | None = None, *, max_staleness_ms: int = 0
) -> Request:
    """Request a read, which needs no log entry. A transaction must contain only reads. `max_staleness_ms` is for a
    bounded read."""
    items: tuple[Any, ...] = (int(consistency), command_body(operation))
    if consistency is Consistency.BOUNDED:
        items = (*items, max_staleness_ms)
    anywhere = consistency in (Consistency.LOCAL, Consistency.FOLLOWER, Consistency.BOUNDED)
    return Request(kind=RequestKind.READ, items=items, anywhere=anywhere, address=address)


def status_request(address: str | None = None, *, with_hash: bool = False) -> Request:
    """Request the status of a member. `with_hash`: include a hash of the state, for which the member reads all keys."""
    return Request(kind=RequestKind.STATUS, items=(with_hash,), anywhere=True, address=address)


def read_log_request(from_index: int, bytes_max: int, address: str | None = None, *, wait_ms: int = 0) -> Request:
    """Request committed log entries from an index on. `wait_ms`: the longest time to wait until the first requested
    entry is committed."""
    items = (from_index, bytes_max, wait_ms) if wait_ms else (from_index, bytes_max)
    return Request(kind=RequestKind.READ_LOG, items=items, anywhere=True, address=address)


def outcome_request(index: int, term: int, *, wait_ms: int = 0) -> Request:
    """Request the fate of an accepted entry from the leader."""
    return Request(kind=RequestKind.OUTCOME, items=(index, term, wait_ms))


def transfer_request(to: str | None, address: str) -> Request:
    """Request that the member at `address` transfer its leadership, if that member leads. The request may be
    repeated."""
    return Request(kind=RequestKind.TRANSFER, items=(to,), anywhere=True, address=address)


def snapshot_request(
    address: str,
    name: str | None = None,
    *,
    offset: int = 0,
    bytes_max: int = 0,
    revision_min: int = 0,
    build: bool = False,
) -> Request:
    """Request bytes from `offset` on of the newest snapshot of the member at `address`.

    `name`: the file name from the response to the first page; None to request the first page. For the first page, the
    snapshot must have at least the revision `revision_min`. With `build`, the member builds such a snapshot if it has
    none. If `bytes_max` is 0, the page has the greatest allowed size.
    """
    items = (name, offset, bytes_max, revision_min, build)
    return Request(kind=RequestKind.SNAPSHOT, items=items, anywhere=True, address=address)


def encode_request(
    request_id: int, request: Request, *, session_id: int = 0, request_no: int = 0, acknowledged_up_to: int = 0
) -> bytes:
    """Encode the body of a request frame. If the request contains a command, a member later proposes exactly the
    encoded bytes of the command."""
    if (
        request.kind == _READ and len(request.items) == len(request.items[1]) == 2
    ):  # A get. This code makes the same bytes as the general encoding below.
        key = request.items[1][1]
        return b"\x84%b\x03%c\x82\x02%b%b" % (uint_head(request_id), request.items[0], bytes_head(len(key)), key)
    if request.command is None:
        return encode_item((request_id, int(request.kind), *request.items))
    command = encode_command(
        request.command, session_id=session_id, request_no=request_no, acknowledged_up_to=acknowledged_up_to
    )
    if request.acknowledge is not Acknowledge.MAJORITY:
        return b"\x84%b\x13%c%b" % (uint_head(request_id), request.acknowledge, command)
    return b"\x83" + uint_head(request_id) + b"\x02" + command


@dataclass(frozen=True, slots=True)
class DecodedRequest:
    """A request as a member decodes it. `raw_command` is the CBOR item to propose, as the client encoded it.
    `acknowledge`: the number of the acknowledgement level."""

    request_id: int
    kind: int
    items: Sequence[Any] = field(repr=False)  # They may contain a password.
    raw_command: bytes = b""
    acknowledge: int = int(Acknowledge.MAJORITY)


def decode_request(body: bytes) -> DecodedRequest:
    """Decode a request frame. Raises ProtocolError if it is not `[request_id, kind, ...]`."""
    items = decode_item(body)
    if type(items) is not list or len(items) < 2:
        raise ProtocolError("a request is an array [request_id, kind, ...]")
    request_id, kind = items[0], items[1]
    if type(request_id) is not int or request_id < 1 or type(kind) is not int:
        raise ProtocolError("a request begins with a request_id of 1 or more, and a kind")
    if kind == RequestKind.ACKNOWLEDGED:
        return _decode_acknowledged(request_id, items, body)
    if kind != RequestKind.COMMAND:
        return DecodedRequest(request_id, kind, items[2:])
    if len(items) != 3 or type(items[2]) is not list:
        raise ProtocolError("a command request is [request_id, 2, [session_id, request_no, acknowledged_up_to, ...]]")
    return DecodedRequest(request_id, kind, items[2], _raw_last(body, bytes([RequestKind.COMMAND])))


def _decode_acknowledged(request_id: int, items: list[Any], body: bytes) -> DecodedRequest:
    """Decode a command with a level to a request of the kind COMMAND. The level may be unknown to this build. Raises
    ProtocolError."""
    if len(items) != 4 or type(items[2]) is not int or type(items[3]) is not list:
        raise ProtocolError(
            "an acknowledged request is [request_id, 19, level, [session_id, request_no, acknowledged_up_to, ...]]"
        )
    level = items[2]
    if not 0 <= level < 24:
        raise ProtocolError(f"an acknowledgement level is 0 to 23, not {level}")
    raw_command = _raw_last(body, bytes([RequestKind.ACKNOWLEDGED, level]))
    return DecodedRequest(request_id, RequestKind.COMMAND, items[3], raw_command, level)


def _raw_last(body: bytes, kind: bytes) -> bytes:
    """Return the bytes of the last item of a request. `kind`: the encoding of the items between the request id and the
    last item, which are one or two ints of one byte each."""
    if body[0] != 0x82 + len(kind):
        raise ProtocolError("the array of a request has a head in its shortest form")
    start = 2 + {24: 1, 25: 2, 26: 4, 27: 8}.get(body[1] & 0x1F, 0)
    if body[start : start + len(kind)] != kind:
        raise ProtocolError("the kind and the level of a request are one byte each")
    return body[start + len(kind) :]


def request_id_of(body: bytes) -> int:
    """Read the request id of a frame that could not be decoded. Return 0 if the frame does not begin with an id.

    >>> request_id_of(encode_request(300, members_request()))
    300
    """
    if len(body) < 2 or not 0x82 <= body[0] <= 0x97:
        return 0
    info = body[1]
    if info < 24:
        return info
    size_bytes = {24: 1, 25: 2, 26: 4, 27: 8}.get(info, 0)
    return int.from_bytes(body[2 : 2 + size_bytes], "big") & INT64_MAX if size_bytes else 0


class Response(NamedTuple):
    """A response of a member. `fields` follow the five items that every response has."""

    request_id: int
    code: int
    revision: int
    consistency: int
    node_id: str
    fields: tuple[Any, ...] = ()


def encode_response(
    request_id: int, code: int, revision: int, consistency: int, node_id: str, fields: Sequence[Any] = ()
) -> bytes:
    """Return the body of a response frame."""
    return encode_item((request_id, code, revision, consistency, node_id, *fields))


def decode_response(body: bytes) -> Response:
    """Decode a response frame. Raises ProtocolError, with the member's reason if the member closes the connection."""
    items = decode_item(body)
    if type(items) is not list or len(items) < 5:
        raise ProtocolError("a response has at least five items")
    request_id, code, revision, consistency, node_id, *fields = items
    if not (type(request_id) is type(code) is type(revision) is type(consistency) is int and type(node_id) is str):
        raise ProtocolError("a response begins with four numbers and a node id")
    if code == _MALFORMED or (request_id == 0 and code == _INTERNAL_ERROR):
        raise ProtocolError(f"{node_id} closed the connection: {fields[0] if fields else 'no reason given'}")
    return Response(request_id, code, revision, consistency, node_id, tuple(fields))


_MALFORMED, _INTERNAL_ERROR = int(Code.MALFORMED), int(Code.INTERNAL_ERROR)


@dataclass(frozen=True, slots=True)
class MembersView:
    """The members of the cluster, as known to one member. All addresses are client addresses; an unknown address is
    empty."""

    leader_id: str | None
    leader_address: str | None
    term: int
    members: tuple[tuple[str, str], ...]


def members_fields(view: MembersView) -> tuple[Any, ...]:
    """Return the fields of a `members` response: leader_id, its address, term, [[node_id, client_address], ...]."""
    return (view.leader_id, view.leader_address, view.term, view.members)


def decode_members(response: Response) -> MembersView:
    """Decode a `members` response. Raises ProtocolError."""
    try:
        leader_id, leader_address, term, rows = response.fields[:4]
        members = tuple((node_id, address) for node_id, address in rows)
    except (ValueError, TypeError) as error:
        raise ProtocolError("a members response has leader, address, term and members") from error
    words = ["" if each is None else each for each in (leader_id, leader_address)]
    words += [word for row in members for word in row]
    if type(term) is not int or not all(type(word) is str for word in words):
        raise ProtocolError("a members response holds words and a term")
    return MembersView(leader_id, leader_address, term, members)


def encode_client_hello() -> bytes:
    """Return the first frame of a client. The frame contains no ids, because the client does not know the cluster
    yet."""
    return Hello(cluster_id=b"", group_id=0, node_id="", incarnation_id=b"", role=HelloRole.CLIENT).encode()


def check_client_hello(body: bytes) -> None:
    """Check the first frame of a client. Raises ProtocolError if the client cannot be served."""
    hello = decode_hello(body)
    if isinstance(hello, Refusal):
        raise ProtocolError(f"the client refused: {hello.text}")
    if hello.role is not HelloRole.CLIENT:
        raise ProtocolError("this is the client port; a peer dials the peer port")
    if not hello.speaks(PROTOCOL_VERSION):
        raise ProtocolError(
            f"this member speaks protocol version {PROTOCOL_VERSION}, "
            f"the client {hello.version_min} to {hello.version_max}"
        )


class PortForMembers(ProtocolError):
    """A client has connected to the port at which a member listens for its peers."""


def decode_greeting(body: bytes) -> Hello:
    """Decode the first frame of a member. Raises ProtocolError, with the member's reason if the member refuses, and
    PortForMembers."""
    hello = decode_hello(body)
    if isinstance(hello, Refusal) and hello.code == "wrong_port":
        raise PortForMembers("this is a port for members, and clients have another port")
    if isinstance(hello, Refusal):
        raise ProtocolError(f"refused by the member: {hello.text}")
    if not hello.speaks(PROTOCOL_VERSION):
        raise ProtocolError(f"the member does not speak protocol version {PROTOCOL_VERSION}")
    return hello
