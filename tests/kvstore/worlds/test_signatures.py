"""The clients of trio, asyncio and threads have the same calls with the same arguments."""

from __future__ import annotations

import inspect
import re
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

IN_THREADS = {of_a_loop.__name__: of_threads.__name__ for of_a_loop, of_threads in PAIRS} | {
    "AbstractAsyncContextManager": "AbstractContextManager",
    "AsyncIterator": "Iterator",
    "LoopEvent": "BlockingEvent",
    "OptimisticTransaction": "BlockingTransaction",
    "Transaction": "BlockingPlainTransaction",
    "TypedWatch": "BlockingTypedWatch",
}
"""The type that an annotation has in plain threads, for each type of an event loop that it replaces."""

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


def in_threads(annotation: Any, owner: Any) -> str:
    """The annotation that a method of `owner`, a class of an event loop, must have in plain threads."""
    text = re.sub(r"\bAwaitable\[(\w+)\]", r"\1", text_of(annotation))
    text = re.sub(r"\bSelf\b", owner.__name__, text)
    return re.sub(r"\w+", lambda word: IN_THREADS.get(word[0], word[0]), text)


def text_of(annotation: Any) -> str:
    """The text of an annotation, however it was given."""
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def result_of(function: Any) -> str:
    """The annotation of what a call returns, or yields for a block that is written as a generator."""
    text = text_of(inspect.signature(function).return_annotation)
    is_block = inspect.isasyncgenfunction(inspect.unwrap(function)) and hasattr(function, "__wrapped__")
    return text.replace("AsyncIterator", "AbstractAsyncContextManager", 1) if is_block else text


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
def test_a_call_of_threads_takes_and_returns_the_same_types(of_a_loop: Any, of_threads: Any) -> None:
    """What an event loop awaits, enters or iterates over has its blocking form. All other types are the same."""
    wanted, found = calls_of(of_a_loop), calls_of(of_threads)
    for name in set(wanted) & set(found):
        if isinstance(wanted[name], property):
            assert isinstance(found[name], property), name
            assert result_of(found[name].fget) == in_threads(result_of(wanted[name].fget), of_a_loop), name
        elif callable(wanted[name]):
            parameters = inspect.signature(found[name]).parameters
            for each in list(inspect.signature(wanted[name]).parameters.values())[1:]:
                assert text_of(parameters[each.name].annotation) == in_threads(each.annotation, of_a_loop), (name, each)
            ours = re.sub(r"\bSelf\b", of_threads.__name__, result_of(found[name]))
            assert ours == in_threads(result_of(wanted[name]), of_a_loop), name


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


@pytest.mark.parametrize("name", ["Client", "connect", "open_node"])
def test_the_arguments_of_each_beginning_have_the_same_types(name: str) -> None:
    """Only a dialer differs: it opens what its world reads from."""
    annotations = [
        {each.name: text_of(each.annotation) for each in inspect.signature(getattr(module, name)).parameters.values()}
        for module in (kvstore, kvstore.asyncio, kvstore.blocking)
    ]
    dialers = [each.pop("dialer", "") for each in annotations]
    assert annotations[1:] == annotations[:1] * 2
    assert dialers in ([""] * 3, ["Dialer | None", "SocketDialer | None", "BlockingDialer | None"])
