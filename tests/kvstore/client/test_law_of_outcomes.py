"""The law of outcomes under random faults, against whole members: a write that ends with `ok` is carried out once, and
a write that ends with `fail` is never carried out.

Every write has a different key, so the version of the record shows how often the write was carried out.

See docs/reference/specification.md#95-outcomes.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from kvstore.client.client_limits import ClientLimits
from kvstore.errors import Busy, OutcomeUnknown
from kvstore.protocol.commands import Put, Range
from kvstore.protocol.messages import command_request
from kvstore.protocol.results import RangeResult, read_result
from tests.kvstore.support.in_memory_cluster import SECOND, Cluster, SimClient

LIMITS = ClientLimits(attempt_timeout_ns=SECOND // 2, keep_alive_ns=SECOND // 2, open_numbers_max=20)


class Chaos:
    """Writing clients, and faults from one seed: members are killed or cut off, connections end, disks hang."""

    def __init__(self, folder: Path, seed: int, *, ttl_ns: int) -> None:
        self.random = Random(seed)
        self.cluster = Cluster(folder, 3)
        self.clients = [self.cluster.client(ttl_ns=ttl_ns, limits=LIMITS) for _ in range(2)]
        self.keys: dict[tuple[int, int], bytes] = {}  # (client, ticket) → key.
        self.cancelled: set[tuple[int, int]] = set()

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.random.choice([self.write, self.write, self.write, self.disturb])()
            self.cluster.wait(self.random.choice([0, 0.001, 0.02, 0.2]))
        self.heal()

    def write(self) -> None:
        for number, client in enumerate(self.clients):
            for _ in range(self.random.randrange(4)):
                self._submit(number, client)

    def _submit(self, number: int, client: SimClient) -> None:
        client._last_ticket += 1
        ticket = client._last_ticket
        key = self.keys[number, ticket] = f"c{number}/{ticket:05}".encode()
        deadline = self.cluster.now + self.random.choice([SECOND // 20, SECOND, 5 * SECOND])
        try:
            client.core.submit(ticket, command_request(Put(key, b"v")), deadline)
        except Busy:
            del self.keys[number, ticket]
        if self.random.random() < 0.05:
            client.flush()
            client.core.cancel(ticket)
            self.cancelled.add((number, ticket))

    def disturb(self) -> None:
        cluster = self.cluster
        node_id = self.random.choice(sorted(cluster.identities))
        if node_id not in cluster.hosts:
            cluster.start(node_id)
            return
        match self.random.randrange(6):
            case 0:
                cluster.kill(node_id)
            case 1:
                cluster.cut ^= {node_id}
            case 2:
                host = cluster.hosts[node_id]
                host.files.is_held = not host.files.is_held
            case 3:
                for client in self.clients:
                    client.member_died(node_id)  # Only the connections end; the member keeps running.
            case 4:
                leader = max(cluster.hosts.values(), key=lambda host: host.node.core.term)
                cluster.kill(leader.identity.node_id)
            case _:
                cluster.wait(self.random.random())

    def heal(self) -> None:
        self.cluster.cut.clear()
        for node_id in self.cluster.identities:
            if node_id not in self.cluster.hosts:
                self.cluster.start(node_id)
            self.cluster.hosts[node_id].files.is_held = False
        self.cluster.wait(8)

    def records(self) -> dict[bytes, int]:
        """The records at the end: key → version."""
        found: dict[bytes, int] = {}
        start = b""
        reader = self.cluster.client()
        while True:
            page = reader.do(Range(start), 10)
            assert isinstance(page, RangeResult)
            found |= {item.key: item.version for item in page.items}
            if not page.more:
                return found
            start = page.items[-1].key + b"\0"


@pytest.mark.parametrize("ttl_ns", [60 * SECOND, 2 * SECOND, 0], ids=["session", "short session", "no session"])
@pytest.mark.parametrize("seed", range(6))
def test_every_outcome_is_the_truth(tmp_path: Path, seed: int, ttl_ns: int) -> None:
    """Under all faults, an acknowledged write takes effect exactly once, a failed write never takes effect, and no
    write takes effect twice."""
    chaos = Chaos(tmp_path, seed, ttl_ns=ttl_ns)

    chaos.run(80)

    records = chaos.records()
    counts = {"ok": 0, "fail": 0, "unknown": 0}
    revisions = set()
    for (number, ticket), key in chaos.keys.items():
        ended = chaos.clients[number].ended.get(ticket)
        if (number, ticket) in chaos.cancelled:
            assert ended is None, ended
            continue
        assert ended is not None, f"seed {seed}: {key!r} never ended"
        if ended.error is None:
            counts["ok"] += 1
            assert records.get(key) == 1, f"seed {seed}: {key!r} was acknowledged"
            assert ended.response is not None
            result = read_result((ended.response.code, ended.response.revision, *ended.response.fields))
            revisions.add(result.revision)
        elif isinstance(ended.error, OutcomeUnknown):
            counts["unknown"] += 1
        else:
            counts["fail"] += 1
            assert key not in records, f"seed {seed}: {key!r} had certainly failed: {ended.error}"
    assert set(records.values()) <= {1}, f"seed {seed}: a write was carried out twice"
    assert len(revisions) == counts["ok"], f"seed {seed}: two writes share a revision"
    assert counts["ok"] > 10, counts
