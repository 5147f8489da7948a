"""The clients of trio, asyncio and threads have the same calls with the same arguments."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import kvstore
import kvstore.asyncio
import kvstore.blocking
from kvstore import recipes
from kvstore.blocking import consumers, leases, typed_values, watch
from kvstore.blocking import recipes as blocking_recipes
from kvstore.client.watches.watch import Watch

OF_THE_LOOP = {"loop", "renewals"}
"""The attributes that only recipes in an event loop use."""

OF_THE_THREAD = {"in_loop", "in_thread", "loop_thread"}

PAIRS: list[tuple[Any, Any]] = [
    (kvstore.Client, kvstore.blocking.Client),
    (Watch, watch.BlockingWatch),
    (recipes.Lease, leases.BlockingLease),
    (recipes.Lock, leases.BlockingLock),
    (recipes.GuardedTransaction, leases.BlockingGuardedTransaction),
    (recipes.Election, leases.BlockingElection),
    (recipes.Leadership, leases.BlockingLeadership),
    (recipes.Consumer, consumers.BlockingConsumer),
    (recipes.ConsumedRecord, consumers.BlockingRecord),
    (recipes.PositionTransaction, consumers.BlockingPositionTransaction),
    (recipes.Barrier, blocking_recipes.BlockingBarrier),
    (recipes.Counter, blocking_recipes.BlockingCounter),
    (recipes.RateLimiter, blocking_recipes.BlockingRateLimiter),
    (recipes.Semaphore, blocking_recipes.BlockingSemaphore),
    (recipes.LocalCopy, blocking_recipes.BlockingCopy),
    (recipes.ServiceRegistry, blocking_recipes.BlockingRegistry),
    (recipes.TypedValues, typed_values.BlockingTypedValues),
    (recipes.WorkQueue, blocking_recipes.BlockingWorkQueue),
    (recipes.WorkItem, blocking_recipes.BlockingWorkItem),
]

INTERNAL = {
    recipes.Consumer: {"begin", "end", "close", "move", "checked"},
}


def calls_of(kind: Any) -> dict[str, Any]:
    """The public methods and properties of a class."""
    return {name: getattr(kind, name) for name in dir(kind) if not name.startswith("_")}


def parameters_of(function: Any) -> list[tuple[str, Any, Any]]:
    """The name, the kind and the default of each parameter."""
    found = inspect.signature(function).parameters.values()
    return [(each.name, each.kind, each.default) for each in found]


def test_the_clients_of_trio_and_asyncio_have_the_same_bodies() -> None:
    """No call is overridden, so there is one body for both."""
    trio, asyncio = calls_of(kvstore.Client), calls_of(kvstore.asyncio.Client)

    assert {name: each for name, each in trio.items() if asyncio.get(name) != each} == {}
    assert set(asyncio) == set(trio)


@pytest.mark.parametrize(("of_a_loop", "of_threads"), PAIRS, ids=lambda kind: kind.__name__)
def test_an_object_of_threads_has_the_calls_of_the_one_in_a_loop(of_a_loop: Any, of_threads: Any) -> None:
    wanted, found = calls_of(of_a_loop), calls_of(of_threads)
    missing = set(wanted) - set(found) - OF_THE_LOOP - INTERNAL.get(of_a_loop, set())
    assert missing == set()

    for name in set(wanted) & set(found):
        if callable(wanted[name]):
            assert parameters_of(found[name]) == parameters_of(wanted[name]), name


@pytest.mark.parametrize(("of_a_loop", "of_threads"), PAIRS, ids=lambda kind: kind.__name__)
def test_nothing_of_threads_has_to_be_awaited(of_a_loop: Any, of_threads: Any) -> None:
    for name, each in calls_of(of_threads).items():
        assert not inspect.iscoroutinefunction(each), name
        assert not inspect.isasyncgenfunction(each), name
        assert inspect.getdoc(each) or not callable(each), name


def test_the_constructors_take_the_same_arguments() -> None:
    wanted = parameters_of(kvstore.Client.__init__)

    assert parameters_of(kvstore.asyncio.Client.__init__) == wanted
    assert parameters_of(kvstore.blocking.Client.__init__) == wanted
