"""One run of a cluster under load and faults.

After the faults, the cluster recovers, all keys are read, and the states of all members are compared.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal
from uuid import uuid4

import trio

from harness.cluster.certificates import ClusterCertificates
from harness.cluster.cluster import Cluster, running_cluster
from harness.cluster.member_resources import ResourcePeaks
from harness.errors import NotReady
from harness.nemesis.injection import Nemesis
from harness.recording.clock import RunClock
from harness.recording.history import RunWriter, read_about
from harness.reports.report import Report, report_on
from harness.runs.operator_checks import OperatorChecks
from harness.runs.settings import RunSettings
from harness.strangers.folder_intruder import FolderIntruder
from harness.strangers.process import strangers_about
from harness.strangers.wire import TargetMember
from harness.workload.workers import Workload
from kvstore import Client

Phase = Literal["starting", "under load", "healing", "reading everything", "done"]

# The time between two flushes. A killed harness loses the rows since the last flush. A recorded read may show a write
# among them; the file `calls.jsonl` still has the call of such a write.
_FLUSH_SECONDS = 0.2
_WATCH_SECONDS = 0.1
_HASH_SECONDS = 15.0  # The time within which all members must report their state hashes at the same index.


@dataclass(slots=True)
class Progress:
    """The parts of a run, for a display. Each part is None until it exists."""

    settings: RunSettings
    phase: Phase = "starting"
    cluster: Cluster | None = None
    nemesis: Nemesis | None = None
    workload: Workload | None = None
    notes: list[str] = field(default_factory=list)

    def note(self, words: str) -> None:
        self.notes.append(words)


async def record_run(progress: Progress) -> Report:
    """Carry out a run with `progress.settings`, record it in `settings.out`, and return its report.

    If the cluster does not recover after the faults, the report is still returned, but is not sound. Raises BadInput,
    NotReady (the cluster never became ready) or NodeDied (a member ended by itself). After an error, the recording up
    to the error is readable.
    """
    settings = progress.settings
    run_id = f"run-{settings.seed}-{uuid4().hex[:12]}"
    writer = RunWriter(
        settings.out, run_id=run_id, clock=RunClock(), ops_format=settings.ops_format, about=settings.about()
    )
    try:
        certificates = ClusterCertificates(settings.out / "tls") if settings.tls else None
        async with running_cluster(
            settings.out / "nodes",
            nodes=settings.nodes,
            proxied=settings.proxied,
            member_options=replace(settings.member_options, certificates=certificates),
            ready_seconds=settings.ready_seconds,
        ) as cluster:
            progress.cluster = cluster
            await _all_phases(progress, cluster, writer)
            writer.event("members_stopped", exit_codes=await cluster.stop())
        writer.finish()
    finally:
        writer.close()
    progress.phase = "done"
    assert read_about(settings.out)["run_id"] == run_id
    return report_on(settings.out)


async def _all_phases(progress: Progress, cluster: Cluster, writer: RunWriter) -> None:
    settings = progress.settings
    progress.nemesis = nemesis = Nemesis(cluster, writer, settings.plan)
    progress.workload = workload = Workload(
        writer=writer,
        endpoints=cluster.endpoints,
        seed=settings.seed,
        clients=settings.clients,
        keys=settings.keys,
        in_flight=settings.in_flight,
        bulk=settings.bulk,
        operations_per_second=settings.operations_per_second,
        hasty_share=settings.hasty_share,
        read_modes=settings.read_modes,
        services=settings.services,
        levels=settings.levels,
        tls=cluster.tls,
    )
    if settings.min_in_sync is not None:
        async with Client(cluster.endpoints, tls=cluster.tls) as store:
            await store.set_limits(min_in_sync=settings.min_in_sync, deadline_seconds=settings.ready_seconds)
    writer.event("cluster_ready", members={name: address.client for name, address in cluster.addresses.items()})
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cluster.monitor.run, writer)
        nursery.start_soon(_flush_often, writer)
        nursery.start_soon(_watch_members, cluster)

        progress.phase = "under load"
        writer.event("load_started", clients=settings.clients)
        async with trio.open_nursery() as beside:
            if settings.is_inspected:
                beside.start_soon(ResourcePeaks().watch, cluster, writer)
                beside.start_soon(OperatorChecks().watch, cluster, writer)
            if settings.strangers:
                beside.start_soon(FolderIntruder().intrude, cluster, writer)
            async with trio.open_nursery() as busy:
                busy.start_soon(nemesis.run, settings.seconds)
                busy.start_soon(workload.run, settings.seconds)
                busy.start_soon(_let_strangers_in, settings, cluster, writer)
            writer.event("load_ended")
            beside.cancel_scope.cancel()

        progress.phase = "healing"
        if await _heal(cluster, writer, settings.ready_seconds):
            progress.phase = "reading everything"
            if settings.levels:
                asked, answered = await workload.settle_accepted()
                writer.event("accepted_settled", asked=asked, answered=answered)
            answered = await workload.read_everything()
            writer.event("everything_read", keys=settings.keys, answered=answered)
            await _compare_states(cluster, writer)
        nursery.cancel_scope.cancel()


async def _let_strangers_in(settings: RunSettings, cluster: Cluster, writer: RunWriter) -> None:
    """Start and stop strangers at the times in `stranger_windows`, each time in a new process with another seed."""
    began = trio.current_time()
    targets = [
        TargetMember(
            node_id=node_id,
            client_port=address.client_port,
            peer_port=address.peer_port,
            metrics_port=address.metrics_port,
        )
        for node_id, address in cluster.addresses.items()
    ]
    for number, (comes, leaves) in enumerate(settings.stranger_windows, 1):
        await trio.sleep_until(began + comes)
        folder = settings.out / "strangers" / str(number)
        folder.mkdir(parents=True)
        with strangers_about(folder, targets, settings.seed + number, settings.strangers) as strangers:
            writer.event("strangers_came")
            await trio.sleep_until(began + leaves)
            writer.event("strangers_leave")
            writer.event("strangers_left", counts=await strangers.stop())


async def _heal(cluster: Cluster, writer: RunWriter, ready_seconds: float) -> bool:
    """Start or resume all members and wait until the cluster is ready.

    Records whether the cluster becomes ready in time.

    Returns False if the cluster does not become ready in time.
    """
    cluster.start_all()
    try:
        await cluster.wait_ready(ready_seconds)
    except NotReady as error:
        writer.event("not_healed", why=str(error))
        return False
    writer.event("healed")
    return True


async def _compare_states(cluster: Cluster, writer: RunWriter) -> None:
    """Wait until all members have hashed their states at the same index, and record whether the hashes are equal."""
    hashes: dict[str, tuple[int, str]] = {}
    with trio.move_on_after(_HASH_SECONDS):
        while True:
            hashes = await cluster.state_hashes()
            if hashes.keys() == cluster.members.keys() and len({index for index, _ in hashes.values()}) == 1:
                break
            await trio.sleep(_WATCH_SECONDS)
    indexes = {index for index, _ in hashes.values()}
    at_one_index = len(hashes) == len(cluster.members) and len(indexes) == 1
    writer.event(
        "state_hashes",
        index=next(iter(indexes)) if at_one_index else None,
        hashes={node_id: digest for node_id, (_, digest) in sorted(hashes.items())},
        agree=at_one_index and len({digest for _, digest in hashes.values()}) == 1,
    )


async def _flush_often(writer: RunWriter) -> None:
    while True:
        await trio.sleep(_FLUSH_SECONDS)
        writer.flush()


async def _watch_members(cluster: Cluster) -> None:
    """Raise NodeDied, which ends the run, as soon as a member has ended by itself."""
    while True:
        cluster.check_alive()
        await trio.sleep(_WATCH_SECONDS)
