"""The least cost of a put: `python -m benchmarks.systems.bare_node JSON` runs a leader or a follower without a store.

The node only carries out puts, so that the cost of Python and of the machine can be separated from the cost of a store.
The leader splits its input into requests, gathers them into a batch and sends the batch to the followers. All members
write and sync the batch, decode it, and store its keys and values in a dict. The leader answers once a majority has the
batch on disk.

There are no elections, terms, sessions, limits, snapshots, ordered keys or checks, and nothing is read back from disk.
The code uses epoll and plain functions. With `records`, each key has the fields of a versioned store: value, creation
revision, modification revision, version.
"""

from __future__ import annotations

import json
import os
import select
import socket
import struct
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import cbor2

from benchmarks.load.bare_wire import ANSWER, REVISION_REQUEST
from benchmarks.load.dialect import dialed

RECEIVE_BYTES_MAX = 1 << 16
FILE_BYTES = 32 << 20
"""The size of the file.

The file is first filled with zeroes and then overwritten repeatedly, because overwriting existing bytes costs the
least.
"""

# The fields: length of the following data, index, commit index, number of puts. The frames of the puts come after them.
APPEND = struct.Struct(">IIII")
POSITION = struct.Struct(">I")

Record = tuple[bytes, int, int, int]


class Disk:
    """One file, and a thread that writes and syncs it. `durable`: the index of the last synced batch."""

    def __init__(self, path: Path) -> None:
        self.durable = 0
        self.notified, self._notifier = os.pipe()
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        for offset in range(0, FILE_BYTES, 1 << 20):
            os.pwrite(self._file, bytes(1 << 20), offset)
        os.fdatasync(self._file)
        self._jobs: SimpleQueue[tuple[int, bytes]] = SimpleQueue()
        self._offset = 0
        threading.Thread(target=self._work, daemon=True).start()

    def submit(self, index: int, data: bytes) -> None:
        """Let the thread write and sync `data`. Then the pipe `notified` becomes readable."""
        self._jobs.put((index, data))

    def _work(self) -> None:
        while True:
            index, data = self._jobs.get()
            self._offset = 0 if self._offset + len(data) > FILE_BYTES else self._offset
            self._offset += os.pwrite(self._file, data, self._offset)
            os.fdatasync(self._file)
            self.durable = index
            os.write(self._notifier, b"!")


class BareStore:
    """The keys and values in a dict. The revision is the number of puts."""

    def __init__(self, *, keeps_records: bool) -> None:
        self.revision = 0
        self._keeps_records = keeps_records
        self.values: dict[bytes, bytes] = {}
        self.records: dict[bytes, Record] = {}

    def apply(self, count: int, frames: bytes) -> list[Any]:
        """Apply `count` puts, each as it was received: [request id, key, value]. One call decodes all of them."""
        items: list[Any] = cbor2.loads(b"\x9b" + count.to_bytes(8, "big") + frames)
        if self._keeps_records:
            records, revision = self.records, self.revision
            for _, key, value in items:
                revision += 1
                old = records.get(key)
                records[key] = (value, old[1], revision, old[3] + 1) if old else (value, revision, revision, 1)
        else:
            values = self.values
            for _, key, value in items:
                values[key] = value
        self.revision += count
        return items


def split(data: bytes) -> tuple[list[bytes], bytes]:
    """Split bytes into frames. In a frame, the length of the body comes first, in four bytes.

    Returns (the bodies, the bytes of the last, incomplete frame).
    """
    bodies, position, end = [], 0, len(data)
    while position + 4 <= end:
        after = position + 4 + int.from_bytes(data[position : position + 4], "big")
        if after > end:
            break
        bodies.append(data[position + 4 : after])
        position = after
    return bodies, data[position:]


def follow(link: socket.socket, disk: Disk, store: BareStore) -> None:
    """Run a follower: write and acknowledge each batch, and apply the batches that the leader's commit index covers."""
    poll = select.epoll()
    poll.register(link, select.EPOLLIN)
    poll.register(disk.notified, select.EPOLLIN)
    waiting: dict[int, tuple[int, bytes]] = {}
    applied, rest = 0, b""
    while True:
        for number, _ in poll.poll():
            if number == disk.notified:
                os.read(disk.notified, RECEIVE_BYTES_MAX)
                link.sendall(POSITION.pack(disk.durable))
                continue
            data = link.recv(1 << 20)
            if not data:
                return
            bodies, rest = split(rest + data)
            for body in bodies:
                index, commit_index, count = struct.unpack_from(">III", body)
                if count:
                    disk.submit(index, body)
                    waiting[index] = count, body[APPEND.size - 4 :]
                while applied < commit_index:
                    applied += 1
                    store.apply(*waiting.pop(applied))


@dataclass(slots=True)
class ClientConnection:
    """A connection of a client."""

    link: socket.socket
    rest: bytes = b""


@dataclass(slots=True)
class Batch:
    """The puts of one batch: how many came from each connection, and the frames of all these puts."""

    parts: list[tuple[ClientConnection, int]] = field(default_factory=list)
    frames: list[bytes] = field(default_factory=list)


class Leader:
    """A leader that writes one batch at a time, and gathers requests while its disk syncs the previous batch."""

    def __init__(self, listener: socket.socket, followers: list[socket.socket], disk: Disk, store: BareStore) -> None:
        self._listener, self._disk, self._store = listener, disk, store
        self._followers = {link.fileno(): link for link in followers}
        self._acknowledged = dict.fromkeys(self._followers, 0)
        self._connections: dict[int, ClientConnection] = {}
        self._gathering = Batch()
        self._sent: dict[int, tuple[list[tuple[ClientConnection, int]], bytes]] = {}
        self._last_index = self._applied = self._commit_sent = 0
        self._poll = select.epoll()
        for number in (listener.fileno(), disk.notified, *self._followers):
            self._poll.register(number, select.EPOLLIN)

    def run(self) -> None:
        """Run until the process is killed."""
        while True:
            for number, _ in self._poll.poll():
                if number == self._disk.notified:
                    os.read(number, RECEIVE_BYTES_MAX)
                elif number in self._followers:
                    data = self._followers[number].recv(RECEIVE_BYTES_MAX)
                    # A position is so short that loopback never splits it.
                    self._acknowledged[number] = POSITION.unpack(data[-POSITION.size :])[0]
                elif number == self._listener.fileno():
                    self._accept()
                else:
                    self._receive(number, self._connections[number])
            commit_index = sorted([self._disk.durable, *self._acknowledged.values()])[len(self._acknowledged) // 2]
            self._send(commit_index)
            while self._applied < commit_index:
                self._applied += 1
                self._answer(*self._sent.pop(self._applied))

    def _accept(self) -> None:
        link, _ = self._listener.accept()
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connections[link.fileno()] = ClientConnection(link)
        self._poll.register(link, select.EPOLLIN)

    def _receive(self, number: int, connection: ClientConnection) -> None:
        data = connection.link.recv(RECEIVE_BYTES_MAX)
        if not data:
            self._poll.unregister(number)
            self._connections.pop(number).link.close()
            return
        bodies, connection.rest = split(connection.rest + data)
        if bodies == [REVISION_REQUEST]:
            connection.link.sendall(ANSWER.pack(0, self._store.revision))
        elif bodies:
            self._gathering.parts.append((connection, len(bodies)))
            self._gathering.frames += bodies

    def _send(self, commit_index: int) -> None:
        if self._disk.durable < self._last_index:
            return  # The previous batch is not yet synced; meanwhile, more requests are gathered.
        batch = self._gathering
        if batch.frames:
            self._gathering, self._last_index = Batch(), self._last_index + 1
        elif commit_index == self._commit_sent:
            return
        self._commit_sent = commit_index
        frames = b"".join(batch.frames)
        head = APPEND.pack(APPEND.size - 4 + len(frames), self._last_index, commit_index, len(batch.frames))
        if frames:
            self._disk.submit(self._last_index, head + frames)
            self._sent[self._last_index] = batch.parts, frames
        for link in self._followers.values():
            link.sendall(head + frames)

    def _answer(self, parts: list[tuple[ClientConnection, int]], frames: bytes) -> None:
        first = self._store.revision
        items = self._store.apply(sum([count for _, count in parts]), frames)
        place = 0
        for connection, count in parts:
            numbers = enumerate(items[place : place + count], first + place + 1)
            connection.link.sendall(b"".join([ANSWER.pack(item[0], revision) for revision, item in numbers]))
            place += count


def main() -> None:
    """Run a node. Prints `ready` once it listens.

    The argument is JSON: `{"listen": port, "followers": [address], "file": path, "records": bool}`.
    """
    given = json.loads(sys.argv[1])
    disk, store = Disk(Path(given["file"])), BareStore(keeps_records=given["records"])
    listener = socket.create_server(("127.0.0.1", given["listen"]))
    print("ready", flush=True)
    if given["followers"]:
        Leader(listener, [dialed(address) for address in given["followers"]], disk, store).run()
    link, _ = listener.accept()
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    follow(link, disk, store)


if __name__ == "__main__":
    main()
