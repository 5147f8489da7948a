"""A program that watches keys.

The program implements the protocol of watches itself, so it receives each message as it was sent.

The program watches at any member, whether this member leads or not. The program leaves the member when the connection
ends or the member is silent, and sometimes without a reason. The watch then continues at another member, from the first
revision that is not completely received. For some time the program may return no bytes of the window to the member,
like a program that does not read.

See docs/reference/specification.md#messages-of-a-watch.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from harness.sim.checks.store.watches import Flag, FollowedWatch
from harness.sim.engine.errors import Violation, broken, require
from harness.sim.load.coordination_program import PREFIX, Coordination
from harness.sim.load.lock_contender import LOCK_NAMES
from harness.sim.load.store_writer import DATA_KEYS
from harness.sim.plan.plan import MILLISECOND_NS
from kvstore import Code, Consistency, Range, RequestKind, ResultCode, command_body
from raft import (
    FRAME_BYTES_MAX_CLIENT,
    FrameSplitter,
    Hello,
    HelloRole,
    ProtocolError,
    Refusal,
    decode_hello,
    decode_item,
    encode_item,
    frame,
)

UNDERSTOOD = "a watch and its member understand each other"

SILENCE_NS = 700 * MILLISECOND_NS
"""After this time without a message, a watch asks for progress. After twice this time, it goes to another member."""

ASK_NS = 150 * MILLISECOND_NS
"""At the end of a run, a watch asks for progress at this interval."""

PATIENCE_ASKS = 10
"""At the end of a run, a watch asks a member for progress this many times. If it has not received everything by then,
it goes to another member, which it asks twice as many times.
"""

CREATED = 1

NOT_NOW = (Code.BUSY, Code.NOT_LEADER, Code.UNSUPPORTED, Code.STOPPED)
"""Codes of members that cannot serve a watch now. `NOT_LEADER`: the member has not applied the level in force.
`UNSUPPORTED`: the member's build knows only level 1, and the member has not yet applied the entry that raised the
level."""

WATCH_ID, LIST_ID = 7, 8

HELLO = Hello(cluster_id=b"", group_id=0, node_id="", incarnation_id=b"", role=HelloRole.CLIENT)

ASK_SHARE = 0.15
"""Share of the messages with changes after which a watch asks for progress at once."""

ACT_THINKS = 4
"""The pause of a watch between two actions is this many times as long as the pause of the other programs."""

_WEIGHTS = {"leave": 3, "pause": 3, "progress": 6, "unwatch": 1}


class WatchClient:
    """One program with one watch at a time."""

    def __init__(self, parts: Coordination, number: int, random: Random) -> None:
        self.name = f"w{number}"
        self._parts, self._random = parts, random
        self._watch = self._new_watch()
        self._connection_id = 0
        self._is_connected = False
        self._splitter = FrameSplitter(FRAME_BYTES_MAX_CLIENT)
        self._is_greeted = self._is_created = False
        self._wants_listing = False
        self._is_reading = True
        self._unreturned = 0  # The bytes of the window that this client has not yet returned.
        self._asks = 0  # At the end of a run: the number of progress requests to the present member.
        self._patience_asks = PATIENCE_ASKS
        self._heard_at = 0
        self._member = ""

    def begin(self) -> None:
        """Dial a member, and begin to act."""
        self._dial()
        self._act_later()
        self._look_later()

    @property
    def next_revision(self) -> int:
        """The first revision that the watch has not completely received."""
        return self._watch.next_revision

    def words(self) -> str:
        """The state of the watch, for the message of a failure."""
        return f"{self.name} at {self._member}: {self._watch}"

    # -- the watch

    def _new_watch(self) -> FollowedWatch:
        """Draw another watch, of one key, of a range of keys, or of all keys."""
        random = self._random
        key = random.choice(DATA_KEYS)
        start, end = random.choice(
            (
                (b"", None),
                (b"", PREFIX),
                (PREFIX + b"data/", PREFIX + b"data0"),
                (PREFIX + b"log/", PREFIX + b"log0"),
                (PREFIX + b"own/", PREFIX + b"own0"),
                (LOCK_NAMES[0] + b"/", LOCK_NAMES[0] + b"0"),
                (DATA_KEYS[1], DATA_KEYS[4]),
                (key, key + b"\0"),
            )
        )
        flags = Flag.PREVIOUS if random.random() < 0.5 else Flag(0)
        flags |= Flag.PROGRESS if random.random() < 0.5 else Flag(0)
        flags |= random.choice((Flag(0), Flag(0), Flag(0), Flag.NO_PUTS, Flag.NO_DELETIONS))
        begin = random.random()
        replay = self._parts.replay
        first = 0
        # Begin at any kept revision, shortly before the oldest kept revision, or shortly after the newest.
        if begin < 0.4 and replay.is_kept:
            first = random.randint(max(1, replay.first_revision - 2), replay.revision + 3)
        self._wants_listing = begin > 0.7
        return FollowedWatch(self.name, start, end, flags, first)

    # -- connections

    def _dial(self) -> None:
        world = self._parts.world
        members = list(world.members) if not self._parts.is_stopped else self._parts.living()
        self._member = self._random.choice(members)
        self._connection_id += 1
        self._splitter = FrameSplitter(FRAME_BYTES_MAX_CLIENT)
        self._is_connected = self._is_greeted = self._is_created = False
        self._heard_at, self._unreturned, self._asks = world.queue.now, 0, 0
        self._parts.watches.moved(self._watch, self._parts.plan.window_bytes)
        self._parts.connections.dial(self, self._connection_id, f"{self._member}:1")

    def _leave(self) -> None:
        """Continue at another member."""
        if self._is_created:
            self._parts.cover("a watch went on at another member")
        self._parts.connections.hang_up(self, self._connection_id)
        self._dial()

    def connected(self, connection_id: int) -> None:
        """Handle the opening of a connection that the program has dialed."""
        if connection_id == self._connection_id:
            self._is_connected = True
            self._send_frame(HELLO.encode())
            self._request()

    def disconnected(self, connection_id: int, reason: str) -> None:
        """Handle the end of a connection: continue at another member after a pause."""
        require(reason != "closed by the member", UNDERSTOOD, self.words(), reason)
        if connection_id == self._connection_id:
            self._is_connected = False
            self._parts.world.queue.after(self._pause_ns(), self._redial, connection_id)

    def _redial(self, connection_id: int) -> None:
        if connection_id == self._connection_id:
            self._leave()

    def _pause_ns(self) -> int:
        return MILLISECOND_NS + int(self._random.expovariate(1) * 30 * MILLISECOND_NS)

    # -- requests

    def _send_frame(self, body: bytes) -> None:
        self._parts.connections.send(self, self._connection_id, frame(body))

    def _send(self, *items: Any) -> None:
        self._send_frame(encode_item(items))

    def _request(self) -> None:
        """Request the watch. If the watch must begin with a listing, request the listing first."""
        watch = self._watch
        if self._wants_listing and not watch.next_revision:
            body = command_body(Range(watch.start, watch.end))
            self._send(LIST_ID, int(RequestKind.READ), int(Consistency.LOCAL), body)
            return
        window = self._parts.plan.window_bytes
        watch.window_bytes, self._unreturned = window, 0
        items = (watch.start, watch.end, watch.next_revision, int(watch.flags), window)
        self._send(WATCH_ID, int(RequestKind.WATCH), *items)

    def _ask_progress(self) -> None:
        if self._is_created:
            self._send(WATCH_ID, int(RequestKind.WATCH_PROGRESS))

    # -- messages

    def receive(self, connection_id: int, data: bytes) -> None:
        """Receive bytes that a member has sent."""
        if connection_id != self._connection_id:
            return
        self._parts.world.note_client(self.name, data)
        self._heard_at = self._parts.world.queue.now
        try:
            for body in self._splitter.feed(data):
                if self._is_greeted:
                    self._receive_message(decode_item(body))
                else:
                    self._is_greeted = not isinstance(decode_hello(body), Refusal)
                if connection_id != self._connection_id:
                    return
        except ProtocolError as error:
            raise Violation(UNDERSTOOD, f"{self.words()}: {error}") from error
        if self._is_reading:
            self._return_window()

    def _receive_message(self, items: Sequence[Any]) -> None:
        request_id, code, revision, _, _, *fields = items
        if code != Code.OK:
            self._refused(code, fields)
        elif request_id == LIST_ID:
            _, rows, more, _ = fields[0]
            require(not more, UNDERSTOOD, self.words(), items)
            self._parts.watches.listed(self._watch, revision, rows)
            self._request()
        else:
            self._receive_of_watch(revision, fields)

    def _receive_of_watch(self, revision: int, fields: Sequence[Any]) -> None:
        watch, watches = self._watch, self._parts.watches
        require(self._is_created or fields[0] == CREATED, UNDERSTOOD, self.words(), fields)
        match fields[0]:
            case 1:
                require(not self._is_created, UNDERSTOOD, self.words(), fields)
                self._is_created = True
                watches.created(watch, revision, fields[1])
                if self._parts.is_stopped:
                    self._ask_progress()
            case 2:
                _, cost, is_whole, events = fields
                watches.events(watch, revision, cost, is_whole=is_whole, items=events)
                self._unreturned += cost
                # Ask for progress now, because a hub may lag behind its store while changes come.
                if self._random.random() < ASK_SHARE:
                    self._ask_progress()
            case 3:
                watches.progress(watch, revision)
            case 4:
                self._cancelled(fields[1], fields[2])
            case _:
                broken(UNDERSTOOD, self.words(), fields)

    def _refused(self, code: int, fields: Sequence[Any]) -> None:
        """Begin another watch if the history that the present watch needs is compacted.

        Otherwise try again at another member.
        """
        if code == ResultCode.REVISION_COMPACTED:
            self._parts.watches.compacted(self._watch, fields[1])
            self._begin_anew()
            return
        require(code in NOT_NOW, UNDERSTOOD, self.words(), code, fields)
        self._parts.world.queue.after(self._pause_ns(), self._redial, self._connection_id)

    def _cancelled(self, reason: str, oldest_revision: int) -> None:
        if reason == "compacted":
            self._parts.cover("a watch was cancelled by a compaction")
            self._parts.watches.compacted(self._watch, oldest_revision)
        else:
            require(reason in ("unwatched", "history_off"), UNDERSTOOD, self.words(), reason)
            self._parts.cover(f"a watch ended: {reason}")
        self._begin_anew()

    def _begin_anew(self) -> None:
        """Begin another watch on the same connection."""
        self._is_created = False
        self._watch = self._new_watch()
        self._is_reading = True
        if self._is_connected:
            self._request()

    # -- actions

    def _act_later(self) -> None:
        pause_ns = 1 + int(self._random.expovariate(1) * ACT_THINKS * self._parts.plan.think_ns)
        self._parts.world.queue.after(pause_ns, self._act)

    def _act(self) -> None:
        if self._parts.is_stopped:
            return
        if not self._is_reading:
            self._resume()
        elif self._is_created:
            match self._random.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]:
                case "leave":
                    self._leave()
                case "pause":
                    self._is_reading = False
                case "progress":
                    self._ask_progress()
                case _:
                    self._send(WATCH_ID, int(RequestKind.UNWATCH))
        self._act_later()

    def _resume(self) -> None:
        if self._watch.window_bytes <= 0:
            self._parts.cover("a watch that was not read went on")
        self._is_reading = True
        self._return_window()

    def _return_window(self) -> None:
        """Return the received bytes to the member's window, but only when no revision is partly received."""
        if self._unreturned and not self._watch.part and self._is_created:
            self._watch.window_bytes += self._unreturned
            self._send(WATCH_ID, int(RequestKind.WATCH_WINDOW), self._unreturned)
            self._unreturned = 0

    def _look_later(self) -> None:
        self._parts.world.queue.after(ASK_NS if self._parts.is_stopped else SILENCE_NS, self._look)

    def _look(self) -> None:
        """Leave a member that is silent.

        At the end of a run, request progress messages until all events have been received.
        """
        if self._parts.is_over:
            return
        self._look_later()
        if self._parts.is_stopped:
            self._is_reading = True
            self._return_window()
            has_all = self.next_revision > self._parts.replay.revision
            self._asks = 0 if has_all else self._asks + 1
            if self._asks > self._patience_asks:
                # A hub with small steps may just need longer to pass over changes that the watch does not want.
                self._patience_asks *= 2
                self._leave()
            else:
                self._ask_progress()
            return
        silent_ns = self._parts.world.queue.now - self._heard_at
        if silent_ns > 2 * SILENCE_NS:
            self._leave()
        elif silent_ns > SILENCE_NS:
            self._ask_progress()
