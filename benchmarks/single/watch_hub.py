"""`python -m benchmarks.single.watch_hub`: measures what watches cost the watch hub of a member.

The cost is the cost of matching events with watches and of making the messages. It includes neither sockets nor the
client's decoding. All times are CPU times of this process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import click

from kvstore.limits import ServiceLimits
from kvstore.protocol.commands import Put, RaiseFeatureLevel, encode_command, prefix_range
from kvstore.protocol.watches import WatchSpec
from kvstore.store.history import History
from kvstore.store.machine import KvMachine
from kvstore.watch.hub import WatchHub
from raft import Entry, EntryKind, encode_batch

Interval = tuple[bytes, bytes | None]

VALUE = b"x" * 128
BATCH = 100
IDLE_UNITS = 4_000
KEYS = [b"k%05d" % number for number in range(10_000)]
OTHER_KEYS = [b"z%05d" % number for number in range(10_000)]


class Member:
    """A state machine with a watch hub. The messages of the hub are counted and dropped."""

    def __init__(self) -> None:
        self.machine, self.index, self.messages = KvMachine(), 0, 0
        self.apply([encode_command(RaiseFeatureLevel(2))])
        most = 10**6
        limits = ServiceLimits(watches_max=most, watches_per_connection_max=most, watch_ranges_max=most)
        self.hub = WatchHub(self, self, "s1", limits)

    @property
    def history(self) -> History:
        """The kept events."""
        return self.machine.history

    @property
    def revision(self) -> int:
        """The present revision."""
        return self.machine.revision

    def has_room(self, connection_id: int) -> bool:
        """Return True, because nothing is sent."""
        del connection_id
        return True

    def send(self, connection_id: int, data: bytes) -> None:
        """Count a message."""
        del connection_id, data
        self.messages += 1

    def apply(self, commands: Sequence[bytes]) -> None:
        """Apply one entry."""
        self.index += 1
        self.machine.apply(Entry(self.index, 1, EntryKind.COMMANDS, encode_batch(0, commands)))

    def watch(self, number: int, interval: Interval, from_revision: int = 0) -> None:
        """Begin watch `number`."""
        self.hub.watch(1, number, WatchSpec(*interval, from_revision, window_bytes=1 << 60))

    def run(self) -> float:
        """Let the hub do all its pending work. Returns the CPU seconds."""
        began = time.process_time()
        while self.hub.has_work:
            self.hub.step(IDLE_UNITS)
        return time.process_time() - began


def only(key: bytes) -> Interval:
    """Return the interval that contains only `key`."""
    return key, key + b"\0"


def measure(intervals: Sequence[Interval], keys: Sequence[bytes], events: int, batch: int = BATCH) -> str:
    """Begin watches of `intervals`, and then put `events` times, to `keys` in turn. Returns the cells of a row."""
    member, seconds = Member(), 0.0
    for number, interval in enumerate(intervals, 1):
        member.watch(number, interval)
    member.run()
    member.messages = 0
    for first in range(0, events, batch):
        puts = [Put(keys[(first + number) % len(keys)], VALUE) for number in range(batch)]
        member.apply([encode_command(put) for put in puts])
        seconds += member.run()
    per_message = f"{seconds / member.messages * 1e6:.2f}" if member.messages else ""
    return f"{seconds / events * 1e6:.2f} | {per_message}"


def catch_up(intervals: Sequence[Interval], events: int) -> str:
    """Put `events` times, and then begin watches of `intervals` from the first put on. Returns the cells of a row."""
    member = Member()
    for first in range(0, events, 1_000):
        member.apply([encode_command(Put(KEYS[number % len(KEYS)], VALUE)) for number in range(first, first + 1_000)])
    for number, interval in enumerate(intervals, 1):
        member.watch(number, interval, from_revision=2)
    return f"{member.run() / events * 1e6:.2f} | "


@click.command()
def main() -> None:
    """Print a table of CPU times in µs."""
    short = [(b"k%05d" % number, b"k%05d" % (number + 5)) for number in range(9_990)]
    prefixes = [prefix_range(b"p%03d" % (number % 1_000)) for number in range(10_000)]
    many = [only(b"w%06d" % number) for number in range(100_000)]
    rows: tuple[tuple[str, Callable[[], str]], ...] = (
        ("one watch, of another key", lambda: measure([only(b"q")], OTHER_KEYS, 20_000)),
        ("10⁴ watches of one key each, none matches", lambda: measure([only(k) for k in KEYS], OTHER_KEYS, 20_000)),
        ("10⁴ watches of one key each, one matches", lambda: measure([only(k) for k in KEYS], KEYS, 20_000)),
        ("10⁵ watches of one key each, none matches", lambda: measure(many, OTHER_KEYS, 20_000)),
        ("10⁴ watches of 1,000 prefixes, none matches", lambda: measure(prefixes, OTHER_KEYS, 20_000)),
        ("10⁴ overlapping short ranges, none matches", lambda: measure(short, OTHER_KEYS, 4_000)),
        ("10⁴ overlapping short ranges, five match", lambda: measure(short, KEYS, 4_000)),
        ("one watch of all keys", lambda: measure([(b"", None)], KEYS, 20_000)),
        ("10⁴ watches of the same key", lambda: measure([only(b"k")] * 10_000, [b"k"], 20, batch=1)),
        ("one watch of all keys catches up", lambda: catch_up([(b"", None)], 100_000)),
        ("1,000 watches of one key each catch up", lambda: catch_up([only(key) for key in KEYS[:1_000]], 100_000)),
    )
    click.echo("| watches | µs per event | µs per message |\n|---|---|---|")
    for words, row in rows:
        click.echo(f"| {words} | {row()} |")


if __name__ == "__main__":
    main()
