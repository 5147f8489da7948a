"""The common part of the programs that speak etcd's API: their parts, and one open call at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from harness.sim.checks.history import HistoryChecker
from harness.sim.checks.store.etcd import EtcdChecker
from harness.sim.checks.store.leases import LeaseChecker
from harness.sim.checks.store.replay import StoreReplay
from harness.sim.checks.store.watches import WatchChecker
from harness.sim.load.etcd.client import EtcdClient, Then
from harness.sim.load.pausing_program import PausingProgram
from harness.sim.plan.plan import EtcdPlan
from harness.sim.world.context import World
from kvstore import Command, Compare, Put, Range, Target, Txn
from kvstore.etcd.hosting import Message, make

RANGE, PUT, DELETE = "/etcdserverpb.KV/Range", "/etcdserverpb.KV/Put", "/etcdserverpb.KV/DeleteRange"
TXN, COMPACT = "/etcdserverpb.KV/Txn", "/etcdserverpb.KV/Compact"

NO_END = b"\0"
"""The `range_end` of a range without an end."""


@dataclass(slots=True, kw_only=True)
class EtcdParts:
    """The parts of a run that these programs use. `members`: the names of the members that a client may dial."""

    world: World
    plan: EtcdPlan
    history: HistoryChecker
    replay: StoreReplay
    checker: EtcdChecker
    leases: LeaseChecker
    watches: WatchChecker
    members: Callable[[], list[str]]
    is_stopped: bool = False  # True once no program may begin another call.
    is_over: bool = False  # True once the run ends and watches need not continue.

    @property
    def first_keeper(self) -> int:
        """The number of the first program that keeps keys under a lease."""
        return self.plan.clients * self.plan.workers

    @property
    def cover(self) -> Callable[[str], None]:
        """See `World.cover`."""
        return self.world.cover


class EtcdProgram(PausingProgram[EtcdParts]):
    """One program on a client. Several programs may share a client."""

    letter = b"e"

    def __init__(self, parts: EtcdParts, client: EtcdClient, number: int, random: Random) -> None:
        super().__init__(parts, number, random)
        self.client = client

    @property
    def can_act(self) -> bool:
        """False while the client has no connection."""
        return self.client.is_connected

    def ask(self, path: str, request: Message, then: Then) -> None:
        """Make a call, and act again after a pause."""
        patience_ns = self.parts.plan.patience_ns // (8 if self.random.random() < 0.1 else 1)

        def ended(response: Message | None, failure: object) -> None:
            if failure is not None:
                self.parts.cover(f"an etcd call failed: {failure[0]}")  # type: ignore[index]
            then(response, failure)  # type: ignore[arg-type]
            self.rest()

        self.client.call(path, request, patience_ns, ended)


def message_of(command: Command) -> Message:
    """Return the request of etcd for a put, a range or a transaction of these."""
    if isinstance(command, Put):
        return make(
            "PutRequest", key=command.key, value=command.value, lease=command.lease_id, prev_kv=command.previous
        )
    if isinstance(command, Range):
        end = NO_END if command.end is None else command.end
        if command.end == command.start + b"\0":
            end = b""
        start = command.start or NO_END
        return make("RangeRequest", key=start, range_end=end, limit=command.limit, revision=command.revision)
    assert isinstance(command, Txn), command
    return make(
        "TxnRequest",
        compare=map(_compare_of, command.compares),
        success=map(_operation_of, command.success),
        failure=map(_operation_of, command.failure),
    )


def _compare_of(compare: Compare) -> Message:
    assert compare.target is Target.MOD_REVISION, compare
    return make("Compare", result=0, target=2, key=compare.key, mod_revision=compare.operand)


def _operation_of(operation: object) -> Message:
    assert isinstance(operation, Put | Range), operation
    field = "request_put" if isinstance(operation, Put) else "request_range"
    return make("RequestOp", **{field: message_of(operation)})
