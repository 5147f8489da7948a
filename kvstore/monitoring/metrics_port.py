"""The parts of a member that is watched: it counts, and answers scrapers and probes on a port of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Any

import trio

from kvstore.errors import StoreError
from kvstore.monitoring.health import why_not_alive, why_not_ready
from kvstore.monitoring.metrics_counts import CountingApplication, CountingService, Counts
from kvstore.monitoring.metrics_http import Answer, PageServer
from kvstore.server.service import ServiceLimits
from kvstore.store.machine import KvMachine
from raft import Node, RaftConfig
from raft.runtime import Application, MeasuredDriver, Transport
from storage import RealFiles

try:
    from kvstore.monitoring import metrics
except ModuleNotFoundError as missing:
    if (missing.name or "").partition(".")[0] != "prometheus_client":
        raise
    metrics = None  # type: ignore[assignment]


class MetricsNotInstalled(StoreError):
    """The library that writes the exposition format is not here."""

    def __str__(self) -> str:
        return "--metrics needs the library prometheus-client, which is not installed"

    @property
    def hint(self) -> str:
        return "pip install 'highwatermark[metrics]'"


class MetricsPort:
    """Makes the parts that count, in the order `service`, `driver`, then serves what they have counted.

    Raises MetricsNotInstalled.
    """

    def __init__(self, config: RaftConfig, files: RealFiles, group_id: int) -> None:
        if metrics is None:
            raise MetricsNotInstalled()
        self._config, self._files = config, files
        self._counts = Counts()
        files.measure_log_syncs(group_id, self._counts.log_sync.observe)
        self._service: CountingService | None = None
        self._machine: KvMachine | None = None
        self._driver: MeasuredDriver | None = None
        self._transport: Transport | None = None

    def service(self, node: Node, machine: KvMachine, limits: ServiceLimits) -> CountingService:
        """As `Service`."""
        self._machine, self._service = machine, CountingService(node, machine, limits)
        self._service.counts = self._counts
        return self._service

    def driver(
        self, node: Node, *, application: Application, transport: Transport | None, **named: Any
    ) -> MeasuredDriver:
        """As `Driver`."""
        self._transport = transport
        counting = CountingApplication(application, self._counts)
        self._driver = MeasuredDriver(node, application=counting, transport=transport, **named)
        return self._driver

    async def serve(
        self,
        listeners: Sequence[trio.SocketListener],
        is_stopping: Callable[[], bool],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve the three pages until cancelled; closes the listeners."""
        assert self._driver is not None
        assert self._service is not None
        assert self._machine is not None
        node = self._driver.node
        registry = metrics.registry_of(
            metrics.MemberCollector(
                node=node,
                machine=self._machine,
                config=self._config,
                service=self._service,
                driver=self._driver,
                transport=self._transport,
                files=self._files,
            )
        )

        async def exposition() -> Answer:
            return Answer(HTTPStatus.OK, metrics.exposition(registry), metrics.CONTENT_TYPE)

        async def alive() -> Answer:
            return _health(why_not_alive(node), "alive")

        async def ready() -> Answer:
            return _health(await why_not_ready(node, is_stopping), "ready")

        pages = PageServer({"/metrics": exposition, "/livez": alive, "/readyz": ready})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._counts.watch_the_loop)
            await nursery.start(pages.serve, listeners)
            task_status.started()


def _health(reason: str | None, well: str) -> Answer:
    if reason is None:
        return Answer.text(HTTPStatus.OK, well)
    return Answer.text(HTTPStatus.SERVICE_UNAVAILABLE, f"not {well}: {reason}")
