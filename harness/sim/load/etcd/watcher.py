"""A program that watches keys by etcd's API: up to three watches on one stream.

When the stream or its connection ends, the watches continue on another one, usually at another member, each from the
first revision that it has not received. The program also leaves its member if the member is silent, and sometimes
without a reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from random import Random

from harness.sim.checks.store.etcd import item_of
from harness.sim.checks.store.watches import EVENT_COST_MIN, FollowedWatch
from harness.sim.checks.store.watches import Flag as Option
from harness.sim.engine.errors import require
from harness.sim.load.coordination_program import PREFIX
from harness.sim.load.etcd.client import UNDERSTOOD, ClientCall, EtcdClient, Failure
from harness.sim.load.etcd.keeper import OWN_PREFIX
from harness.sim.load.etcd.program import NO_END, EtcdParts
from harness.sim.plan.plan import MILLISECOND_NS
from harness.sim.world.client_connections import ClientConnections
from kvstore.etcd.hosting import Message, make

WATCH = "/etcdserverpb.Watch/Watch"

SILENCE_NS = 900 * MILLISECOND_NS
"""After this time without a message, the program asks for progress. After twice this time, it leaves its member."""

ASK_NS = 150 * MILLISECOND_NS
"""At the end of a run, the program asks for progress at this interval."""

PATIENCE_ASKS = 25
"""At the end of a run, the program asks a member for progress this many times. If it has not received everything by
then, it goes to another member, which it asks twice as many times."""

ASK_SHARE = 0.3
"""Share of the messages with changes after which the program asks for progress at once, because more changes come."""

STAY_THINKS = 20
"""How many times longer than the usual pause the program stays at a member on average."""

WINDOW_BYTES = 1 << 40
"""etcd's clients have no window of the store's own protocol."""

NO_ID = -1


class EtcdWatcher:
    """One program with one stream."""

    def __init__(
        self, parts: EtcdParts, connections: ClientConnections, name: str, random: Random, keys: Sequence[bytes]
    ) -> None:
        self.name = name
        self._parts, self._random, self._keys = parts, random, keys
        self._client = EtcdClient(parts.world, connections, name, random, parts.members, self._changed)
        self._stream: ClientCall | None = None
        self._watches = [self._new_watch() for _ in range(random.randint(1, 3))]
        self._created: dict[int, None] = {}  # The places of the watches that the member has confirmed.
        self._heard_at = 0
        self._asks = 0
        self._patience_asks = PATIENCE_ASKS

    def begin(self) -> None:
        """Dial a member, and begin to act."""
        self._client.dial()
        self._stay()
        self._look_later()

    def close(self) -> None:
        """End the program."""
        self._client.close()

    @property
    def next_revision(self) -> int:
        """The first revision that some watch has not completely received."""
        return min(watch.next_revision for watch in self._watches)

    def words(self) -> str:
        """The state of the watches, for the message of a failure."""
        return f"{self.name} at {self._client.member}: {self._watches}"

    def _new_watch(self) -> FollowedWatch:
        random, replay = self._random, self._parts.replay
        key = random.choice(self._keys)
        own = OWN_PREFIX + b"%d/" % self._parts.first_keeper
        spans: list[tuple[bytes, bytes | None]] = [
            (b"", None),
            (b"", PREFIX),
            (OWN_PREFIX, OWN_PREFIX[:-1] + b"0"),
            (own, own[:-1] + b"0"),
            (key, key + b"\0"),
        ]
        start, end = random.choice(spans)
        flags = Option.PREVIOUS if random.random() < 0.5 else Option(0)
        flags |= random.choice((Option(0), Option(0), Option(0), Option.NO_PUTS, Option.NO_DELETIONS))
        first = 0
        if random.random() < 0.4 and replay.is_kept:
            first = random.randint(max(1, replay.first_revision - 1), replay.revision + 3)
        return FollowedWatch(self.name, start, end, flags, first)

    # The stream.

    def _changed(self) -> None:
        """Open the stream on a new connection."""
        if self._client.is_connected:
            self._open()

    def _open(self) -> None:
        self._created.clear()
        self._heard_at, self._asks = self._parts.world.queue.now, 0
        needs_leader = self._random.random() < 0.3
        stream = self._client.open(WATCH, self._receive, self._ended, needs_leader=needs_leader)
        self._stream = stream
        for place in range(len(self._watches)):
            self._create(place)

    def _create(self, place: int) -> None:
        watch, stream = self._watches[place], self._stream
        self._created.pop(place, None)
        self._parts.watches.moved(watch, WINDOW_BYTES)
        end = NO_END if watch.end is None else watch.end
        request = make(
            "WatchCreateRequest",
            key=watch.start or NO_END,
            range_end=b"" if watch.end == watch.start + b"\0" else end,
            start_revision=watch.next_revision,
            filters=[int(not is_put) for is_put in (True, False) if self._leaves_out(watch, is_put=is_put)],
            prev_kv=bool(watch.flags & Option.PREVIOUS),
            watch_id=place + 1,
        )
        if stream is not None:
            stream.send(make("WatchRequest", create_request=request))

    @staticmethod
    def _leaves_out(watch: FollowedWatch, *, is_put: bool) -> bool:
        return bool(watch.flags & (Option.NO_PUTS if is_put else Option.NO_DELETIONS))

    def _ask_progress(self) -> None:
        if self._stream is not None and self._created:
            self._stream.send(make("WatchRequest", progress_request=make("WatchProgressRequest")))

    def _ended(self, failure: Failure | None) -> None:
        """Open another stream after a pause, on the same connection if the member has only ended the stream."""
        require(failure is not None, UNDERSTOOD, self.words(), "the stream has ended without a reason")
        self._stream = None
        self._created.clear()
        if self._client.is_connected:
            self._parts.cover("a member ended an etcd client's stream of watches")
            self._parts.world.queue.after(self._pause_ns(), self._open_again)

    def _open_again(self) -> None:
        if self._client.is_connected and self._stream is None:
            self._client.leave()

    def _pause_ns(self) -> int:
        return MILLISECOND_NS + int(self._random.expovariate(1) * 30 * MILLISECOND_NS)

    # Messages.

    def _receive(self, response: Message) -> None:
        self._heard_at = self._parts.world.queue.now
        revision = response.header.revision
        if response.watch_id == NO_ID:
            require(not (response.events or response.canceled), UNDERSTOOD, self.words(), response)
            self._progress(revision)
            return
        place = response.watch_id - 1
        require(0 <= place < len(self._watches), UNDERSTOOD, self.words(), response)
        watch, checker = self._watches[place], self._parts.watches
        if response.created:
            require(place not in self._created and not response.events, UNDERSTOOD, self.words(), response)
            if watch.next_revision:
                self._parts.cover("an etcd client resumed a watch")
            checker.created(watch, revision, watch.next_revision or revision + 1)
            self._created[place] = None
        else:
            require(place in self._created, UNDERSTOOD, self.words(), response)
        if response.canceled:
            self._cancelled(place, response)
        elif response.events:
            self._take(watch, response)

    def _take(self, watch: FollowedWatch, response: Message) -> None:
        """Check the events of a message, one revision after the other."""
        with_previous = bool(watch.flags & Option.PREVIOUS)
        for revision, events in groupby(response.events, lambda event: int(event.kv.mod_revision)):
            items = [item_of(event, with_previous=with_previous) for event in events]
            watch.window_bytes = WINDOW_BYTES
            require(revision >= watch.next_revision, UNDERSTOOD, self.words(), response)
            self._parts.watches.events(watch, revision, EVENT_COST_MIN * len(items), is_whole=True, items=items)
        require(watch.next_revision == response.header.revision + 1, UNDERSTOOD, self.words(), response)
        self._parts.cover("an etcd client was told a change")
        if self._random.random() < ASK_SHARE:
            self._ask_progress()

    def _progress(self, revision: int) -> None:
        """Take the answer to a request for progress, which is the least progress of all watches of the stream."""
        for place in self._created:
            watch = self._watches[place]
            if revision + 1 >= watch.next_revision:
                self._parts.watches.progress(watch, revision)

    def _cancelled(self, place: int, response: Message) -> None:
        """Begin another watch if the history that the watch needs is compacted. Otherwise try again later."""
        del self._created[place]
        if response.compact_revision:
            self._parts.cover("a watch of an etcd client was cancelled by a compaction")
            self._parts.watches.compacted(self._watches[place], response.compact_revision)
            self._watches[place] = self._new_watch()
        else:
            self._parts.cover(f"a watch of an etcd client was cancelled: {response.cancel_reason}")
        self._parts.world.queue.after(self._pause_ns(), self._create_again, self._stream, place)

    def _create_again(self, stream: ClientCall | None, place: int) -> None:
        if stream is self._stream and stream is not None:
            self._create(place)

    # Actions.

    def _stay(self) -> None:
        pause_ns = 1 + int(self._random.expovariate(1) * STAY_THINKS * self._parts.plan.think_ns)
        self._parts.world.queue.after(pause_ns, self._act)

    def _act(self) -> None:
        if self._parts.is_stopped:
            return
        if self._client.is_connected:
            if self._random.random() < 0.5:
                self._client.leave()
            else:
                self._ask_progress()
        self._stay()

    def _look_later(self) -> None:
        self._parts.world.queue.after(ASK_NS if self._parts.is_stopped else SILENCE_NS, self._look)

    def _look(self) -> None:
        """Leave a member that is silent. At the end of a run, ask for progress until everything has been received."""
        if self._parts.is_over:
            return
        self._look_later()
        if self._parts.is_stopped:
            has_all = self.next_revision > self._parts.replay.revision
            self._asks = 0 if has_all else self._asks + 1
            if self._asks > self._patience_asks:
                self._asks = 0
                self._patience_asks *= 2
                self._leave()
            elif not has_all:
                self._ask_progress()
            return
        silent_ns = self._parts.world.queue.now - max(self._heard_at, self._client.heard_at)
        if silent_ns > 2 * SILENCE_NS:
            self._leave()
        elif silent_ns > SILENCE_NS:
            self._ask_progress()

    def _leave(self) -> None:
        """Continue at another member, even if the present one has not accepted the connection yet."""
        self._stream = None
        self._client.leave()
