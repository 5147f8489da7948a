"""Runs examples/celery_shop: a web process with Flask, Celery workers that are forked, and two schedulers."""

from __future__ import annotations

import re
import urllib.error
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import kvstore.blocking
from kvstore.testing import Cluster
from tests.process.examples.program import EXAMPLES, Program, ask, running, until

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]

SHOP = EXAMPLES / "celery_shop"

PROCESSES = """
import os, threading
from store import client

begin, found = threading.Barrier(8), set()

def use():
    begin.wait()
    found.add(client())

threads = [threading.Thread(target=use) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("clients of 8 threads:", len(found), flush=True)
if (child := os.fork()) == 0:
    print("key in the child:", client().get("key").value, "own client:", client() not in found, flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""
"""A program with the `store` of the shop."""


class Shop:
    """The processes of one shop, with a broker of its own."""

    def __init__(self, cluster: Cluster, folder: Path, stack: ExitStack) -> None:
        self._cluster, self._broker, self._stack = cluster, folder / "broker", stack

    def start(self, *arguments: str, **environment: str) -> Program:
        """Start a process in the folder of the example, until the end of the test."""
        known = {"STORE_URL": self._cluster.url, "BROKER_FOLDER": str(self._broker)}
        return self._stack.enter_context(running(*arguments, folder=SHOP, **known, **environment))

    def start_web(self) -> str:
        """Start the web process, and return its URL."""
        return self.start("-m", "flask", "--app", "web", "run", "--port", "0").wait_for(r"Running on (http://[\d.:]+)")[
            1
        ]

    def start_workers(self) -> Program:
        """Start a Celery program with two worker processes."""
        options = ("--pool", "prefork", "--concurrency", "2", "--without-gossip", "--without-mingle")
        program = self.start("-m", "celery", "-A", "tasks", "worker", "--loglevel", "info", *options)
        program.wait_for(r"celery@\S+ ready")
        return program


@pytest.fixture
def shop(hwm_cluster: Cluster, tmp_path: Path) -> Iterator[Shop]:
    with ExitStack() as stack:
        yield Shop(hwm_cluster, tmp_path, stack)


def state_of(url: str, order: str) -> str:
    try:
        return str(ask(f"{url}/orders/{order}")["state"])
    except urllib.error.HTTPError as error:
        with error:
            return str(error.code)


@contextmanager
def charges_of(cluster: Cluster) -> Iterator[kvstore.blocking.Client]:
    with kvstore.blocking.connect(cluster.url) as client:
        yield client


def test_the_threads_of_a_process_share_a_client_and_a_child_has_its_own(shop: Shop) -> None:
    program = shop.start("-c", PROCESSES)

    program.wait_for("clients of 8 threads: 1\n")
    program.wait_for("key in the child: None own client: True\n")


def test_an_order_is_charged_once_however_often_it_is_sent(shop: Shop, hwm_cluster: Cluster) -> None:
    url, workers = shop.start_web(), shop.start_workers()
    assert state_of(url, "7") == "404"

    answers = [ask(f"{url}/orders/7", "POST") for _ in range(4)]

    assert [answer["is_new"] for answer in answers] == [True, False, False, False]
    until(lambda: workers.output.count("charged before: 7") == 3, "the four tasks have ended")
    assert workers.output.count("charged: 7") == 1
    assert state_of(url, "7") == "paid"
    with charges_of(hwm_cluster) as client:
        assert client.range(prefix="charges/7/").count == 1


def test_orders_are_taken_and_charged_while_the_leader_is_gone(shop: Shop, hwm_cluster: Cluster) -> None:
    url = shop.start_web()
    shop.start_workers()
    ask(f"{url}/orders/1", "POST")
    with hwm_cluster.without_leader():
        ask(f"{url}/orders/2", "POST")
        for order in "12":
            until(lambda order=order: state_of(url, order) == "paid", f"order {order} is paid")  # type: ignore[misc]


def test_an_order_is_charged_once_when_a_quorum_is_back(shop: Shop, hwm_cluster: Cluster) -> None:
    """A task that the store cannot serve, or whose outcome is unknown, is tried again until it is decided."""
    workers = shop.start_workers()
    with charges_of(hwm_cluster) as client:
        client.put("orders/7", "placed")
        with hwm_cluster.without_quorum():
            shop.start("-c", "from tasks import charge; charge.delay('7')")
            workers.wait_for(r"Retry in 1s: (Unavailable|OutcomeUnknown)")
        until(lambda: client.get("orders/7").value == b"paid", "order 7 is paid")
        workers.wait_for("charged: 7")
        assert client.range(prefix="charges/7/").count == 1


def test_one_scheduler_leads_and_another_follows_when_it_dies(shop: Shop, hwm_cluster: Cluster) -> None:
    url, workers = shop.start_web(), shop.start_workers()
    times = {"PERIOD_SECONDS": "1", "LEADER_TTL_SECONDS": "2"}
    first = shop.start("scheduler.py", "host-1", **times)
    first.wait_for("host-1 leads")
    second = shop.start("scheduler.py", "host-2", **times)
    first.wait_for(r"(?s)(sent period.*){2}")
    workers.wait_for(r"report of period (\d+)")
    assert second.output == ""

    first.kill()
    second.wait_for("host-2 leads")
    last = int(second.wait_for(r"(?s)(?:sent period.*){2}sent period (\d+)")[1])
    until(lambda: str(last) in ask(f"{url}/reports"), "the last report is made")

    sent = re.findall(r"sent period (\d+)", first.output + second.output)
    assert len(sent) == len(set(sent))
