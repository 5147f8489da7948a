"""A program that reads and writes the keys of the ordinary load by etcd's API. Its calls are rows of the history."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from harness.sim.load.etcd.client import EtcdClient, Failure
from harness.sim.load.etcd.program import DELETE, PUT, RANGE, TXN, EtcdParts, EtcdProgram, message_of
from kvstore import (
    Command,
    Compare,
    Comparison,
    Consistency,
    Delete,
    OperationFailed,
    Put,
    Range,
    RangeResult,
    Result,
    Target,
    Txn,
)
from kvstore.etcd.hosting import Message, make

_WEIGHTS = {"put": 6, "delete": 2, "read": 5, "serializable read": 3, "list": 2, "swap": 4, "read together": 1}


class CallRefused(OperationFailed):
    """A member has refused a call of etcd's API. The call has had no effect."""


class EtcdCaller(EtcdProgram):
    """One caller with one call open at a time.

    `life` is the number of the caller's unknown outcomes, and is part of the caller's name in the history.
    """

    def __init__(
        self, parts: EtcdParts, client: EtcdClient, number: int, random: Random, keys: Sequence[bytes]
    ) -> None:
        super().__init__(parts, client, number, random)
        self._keys = keys
        self._seen: dict[bytes, int] = {}  # The last known mod revision of each key.
        self.life = 0

    def act(self) -> None:
        """Begin the next call."""
        key = self.random.choice(self._keys)
        what = self.random.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
        checker = self.parts.checker
        match what:
            case "put":
                put = Put(key, self.value())
                self._ask(PUT, put, message_of(put), lambda response: checker.put(put, response))
            case "delete":
                self._ask(
                    DELETE,
                    Delete(key),
                    make("DeleteRangeRequest", key=key),
                    lambda response: checker.deleted(key, response),
                )
            case "read":
                self._read(_only(key))
            case "serializable read":
                self._read(_only(key), Consistency.LOCAL)
            case "list":
                low, high = sorted((key, self.random.choice(self._keys)))
                consistency = Consistency.LOCAL if self.random.random() < 0.3 else Consistency.LINEARIZABLE
                self._read(Range(low, high + b"\0", limit=self.random.choice((0, 0, 2))), consistency)
            case "swap":
                known = Compare(key, Target.MOD_REVISION, Comparison.EQUAL, self._seen.get(key, 0))
                self._transact(Txn((known,), (Put(key, self.value()),), (_only(key),)))
            case _:
                self._transact(Txn((), (_only(key), Range(self._keys[0], self._keys[-1] + b"\0"))))

    def _read(self, command: Range, consistency: Consistency = Consistency.LINEARIZABLE) -> None:
        request = message_of(command)
        request.serializable = consistency is Consistency.LOCAL
        self._ask(RANGE, command, request, lambda response: self.parts.checker.ranged(command, response), consistency)

    def _transact(self, command: Txn) -> None:
        self._ask(TXN, command, message_of(command), lambda response: self.parts.checker.transacted(command, response))

    def _ask(
        self,
        path: str,
        command: Command,
        request: Message,
        check: Callable[[Message], Any],
        consistency: Consistency = Consistency.LINEARIZABLE,
    ) -> None:
        history, queue, member = self.parts.history, self.parts.world.queue, self.client.member
        row = history.called(f"e{self.number}.{self.life}", 0, command, queue.now)

        def ended(response: Message | None, failure: Failure | None) -> None:
            if response is not None:
                result = check(response)
                history.told(row, result, consistency, member, queue.now)
                self._learn(command, result)
                return
            assert failure is not None
            if failure.is_unknown:
                self.life += 1
                row["error"] = "outcome_unknown"
            else:
                history.failed(row, command, CallRefused(*failure), queue.now)

        self.ask(path, request, ended)

    def _learn(self, command: Command, result: Result) -> None:
        if isinstance(command, Put):
            self._seen[command.key] = result.revision
        for part in (result, *getattr(result, "results", ())):
            for item in part.items if isinstance(part, RangeResult) else ():
                self._seen[item.key] = item.mod_revision
        if isinstance(command, Txn) and command.compares and getattr(result, "succeeded", False):
            self.parts.cover("an etcd client swapped a value")
            self._seen[command.compares[0].key] = result.revision


def _only(key: bytes) -> Range:
    return Range(key, key + b"\0")
