"""Checks, while a run lasts, that every member answers its operators: `status` on a new connection, and `livez`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import trio

from harness.cluster.cluster import Cluster
from harness.recording.history import RunWriter
from kvstore import Client, StoreError

_PAUSE_SECONDS = 2.0
_ANSWER_SECONDS_MAX = 5.0
_SETTLED_SECONDS = 3.0  # A member that was started less than this time ago may not listen yet.
_PROBE = b"GET /livez HTTP/1.1\r\nHost: probe\r\nConnection: close\r\n\r\n"


@dataclass(slots=True)
class OperatorChecks:
    """Counts the checks `status` and `livez` of members without a present fault, as `ok` or `failed`.

    `failures`: descriptions of the first 20 failures. `worst_ms`: the longest time of a `status` check.
    """

    counts: Counter[str] = field(default_factory=Counter)
    worst_ms: float = 0.0
    failures: list[str] = field(default_factory=list)
    # The trio time of the first check that found the process running, by process id.
    _running_since: dict[int, float] = field(default_factory=dict)

    async def watch(self, cluster: Cluster, writer: RunWriter) -> None:
        """Check every member in turn until cancelled, then record an event `operator_checks`."""
        try:
            while True:
                await trio.sleep(_PAUSE_SECONDS)
                for node_id in list(cluster.members):
                    await self._check(cluster, node_id)
        finally:
            writer.event(
                "operator_checks", counts=dict(self.counts), worst_ms=round(self.worst_ms, 1), failures=self.failures
            )

    async def _check(self, cluster: Cluster, node_id: str) -> None:
        pid = self._settled_process(cluster, node_id)
        if pid is None:
            return
        address = cluster.addresses[node_id]
        began = trio.current_time()
        outcomes = {"status": await _status_answers(address.client)}
        took_ms = (trio.current_time() - began) * 1000
        if address.metrics_port:
            outcomes["livez"] = await _is_alive(address.metrics_port)
        if self._settled_process(cluster, node_id) != pid:
            return  # A fault hit the member during the check, so a missing answer is no failure.
        self.worst_ms = max(self.worst_ms, took_ms)
        for name, why_not in outcomes.items():
            self.counts[f"{name} {'failed' if why_not else 'ok'}"] += 1
            if why_not and len(self.failures) < 20:
                self.failures.append(f"{node_id}: {name}: {why_not}")

    def _settled_process(self, cluster: Cluster, node_id: str) -> int | None:
        """Return the member's process id if it is not paused and has been running for a while; else None."""
        member = cluster.members.get(node_id)
        if member is None or not member.running or member.paused:
            return None
        since = self._running_since.setdefault(member.pid, trio.current_time())
        return member.pid if trio.current_time() - since >= _SETTLED_SECONDS else None


async def _status_answers(address: str) -> str:
    """Request the status with a new client. Returns the reason of a failure, or an empty string."""
    try:
        async with Client([address], session=False) as client:
            await client.status(address, deadline_seconds=_ANSWER_SECONDS_MAX)
    except StoreError as error:
        return str(error)
    return ""


async def _is_alive(port: int) -> str:
    """Request the liveness probe. Returns the reason of a failure, or an empty string."""
    answer = b""
    try:
        with trio.fail_after(_ANSWER_SECONDS_MAX):
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                await stream.send_all(_PROBE)
                while part := await stream.receive_some(65_536):
                    answer += part
    except (OSError, trio.BrokenResourceError, trio.TooSlowError) as error:
        return f"{type(error).__name__}: {error}"
    return "" if answer.startswith((b"HTTP/1.1 200", b"HTTP/1.0 200")) else repr(answer[:80])
