"""The metrics of a member in the Prometheus format (docs/reference/metrics.md), collected when they are requested.

Only this module imports `prometheus-client`, which the extra `metrics` installs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version

from prometheus_client import GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector, CollectorRegistry

from kvstore.monitoring.metrics_counts import (
    EVENTS,
    LEASE_EVENTS,
    LEASES_EXPIRED,
    REASONS,
    WATCH_ENDS,
    CountingService,
    Counts,
)
from kvstore.protocol.text import to_shown_text
from kvstore.store.machine import KvMachine
from raft import Node, NodeStatus, RaftConfig, Role
from raft.runtime import (
    HANDSHAKE_REFUSALS,
    HELLO_REFUSALS,
    OUTBOUND_BYTES_MAX,
    Credentials,
    Histogram,
    MeasuredDriver,
    Transport,
)
from storage import RealFiles

PREFIX = "highwatermark_"
CONTENT_TYPE = CONTENT_TYPE_LATEST

EVENT_TEXTS = {
    "pre_votes": "Times this member asked whether it could win an election",
    "elections": "Times this member became a candidate, with a new term",
    "elections_won": "Times this member became the leader",
    "step_downs": "Times this member ceased to lead",
    "leader_changes": "Times another leader, or none, was known",
    "log_truncations": "Times a conflicting end of the log was cut off",
    "appends_rejected": "Append requests that did not continue the log",
    "leadership_transfers": "Transfers of the leadership begun by this member",
    "leadership_transfers_given_up": "Transfers of the leadership that failed",
    "snapshots_built": "Snapshots built here",
    "snapshots_installed": "Snapshots received from a leader and installed",
    "snapshots_given_up": "Snapshots that could not be built",
    "log_compactions": "Times entries before a snapshot were dropped from the log",
    "disk_hangs": "Times an append to the log took longer than two election time-outs",
    "in_sync_departures": "Times a voter fell out of sync with this leader",
}


LEASE_TEXTS = {
    "leases_granted": "Leases granted",
    "leases_revoked": "Leases revoked",
    "leases_expired": "Leases that ended because nobody renewed them",
    "lease_renewals": "Renewals of leases that still existed",
}
"""The texts of the counters about leases. These counters count the commands that this member has applied, from any
client."""


class MemberCollector(Collector):
    """Collects the metrics of one running member. `files` may be None in tests; `transport` is None if there are no
    peers. `credentials`: those of the ports with TLS."""

    def __init__(
        self,
        *,
        node: Node,
        machine: KvMachine,
        config: RaftConfig,
        service: CountingService,
        driver: MeasuredDriver,
        transport: Transport | None = None,
        files: RealFiles | None = None,
        credentials: Sequence[Credentials] = (),
    ) -> None:
        self._credentials = credentials
        self._node, self._machine, self._config = node, machine, config
        self._service, self._driver, self._transport, self._files = service, driver, transport, files

    def collect(self) -> Iterator[Metric]:
        """Collect all metrics at one moment. Cost: O(sessions + connections), and a listing of the log's folder."""
        status = self._node.status()
        yield from self._node_metrics(status)
        yield from _peer_metrics(status)
        yield from self._buffers(status)
        yield from self._disk(status)
        yield from self._store()
        yield from self._history_and_leases()
        yield from self._watches()
        yield from self._groups()
        yield from self._network()
        yield from _certificates(self._credentials)
        yield from _counted(self._service.counts)
        yield _counter("request_errors", "Unexpected errors while requests of clients were judged",
                       self._service.request_errors.total)  # fmt: skip
        yield _histogram("commit_latency", "From an entry's place in the leader's log to its commit",
                         self._driver.commit_latency)  # fmt: skip

    def _node_metrics(self, status: NodeStatus) -> Iterator[Metric]:
        cluster = self._node.identity.cluster_id.hex()
        labels = {"node_id": status.node_id, "cluster_id": cluster, "version": _version()}
        info = GaugeMetricFamily(f"{PREFIX}node_info", "Which member this is; always 1", labels=list(labels))
        info.add_metric(list(labels.values()), 1)
        yield info
        yield _gauge("term", "The current term", status.term)
        yield _gauge("is_leader", "1 on the leader", status.role is Role.LEADER)
        yield _gauge("has_leader", "1 if the leader of the term is known", status.leader_id is not None)
        yield _gauge("commit_index", "The high-water mark", status.commit_index)
        yield _gauge("last_applied_index", "The last entry that the store has applied", status.last_applied)
        yield _gauge("durable_index", "The end of the log on disk", status.durable_index)
        yield _gauge("last_index", "The end of the log, durable or not", status.last_index)
        yield _gauge("first_index", "The oldest entry in the log", status.first_index)
        yield _gauge("snapshot_index", "The end of the newest durable snapshot", status.snapshot_index)
        yield _gauge("low_watermark_index", "No other member needs an entry up to here", status.low_watermark)
        yield _gauge("open_proposals", "Commands whose outcome is open", status.open_proposals)
        yield _gauge("open_proposals_limit", "Their bound", self._config.proposals_pending_max)
        yield _gauge("open_reads", "Linearizable reads that wait for their round", status.open_reads)
        yield _gauge("open_reads_limit", "Their bound", self._config.reads_pending_max)
        yield _counter("flushes", "Turns of the node's loop", self._driver.turns)

    def _buffers(self, status: NodeStatus) -> Iterator[Metric]:
        unsent_bytes, unsent_bytes_most = self._service.unsent_bytes()
        config, limits, core = self._config, self._service.limits, self._node.core.status()
        buffers: dict[str, tuple[int, int | None]] = {
            "pending": (status.pending_bytes, config.pending_bytes_max),
            "uncommitted": (status.uncommitted_bytes, config.uncommitted_bytes_max),
            "unapplied": (core.unapplied_bytes, config.unapplied_bytes_max),
            "log_cache": (core.log_cache_bytes, config.log_cache_bytes_max),
            "snapshot_incoming": (status.snapshot_bytes, None),  # Bounded in chunks.
            "client_incomplete": (self._service.incomplete_bytes(), limits.incomplete_bytes_total_max),
            "client_unsent": (unsent_bytes, limits.unsent_bytes_total_max),
            "client_unsent_fullest": (unsent_bytes_most, limits.unsent_bytes_max),
        }
        yield _by_label("buffer_bytes", "The size of each bounded buffer", "buffer",
                        {name: size for name, (size, _) in buffers.items()})  # fmt: skip
        yield _by_label("buffer_limit_bytes", "The bound of each buffer; some exceed it by one item", "buffer",
                        {name: limit for name, (_, limit) in buffers.items() if limit is not None})  # fmt: skip
        yield _gauge("client_connections", "Clients that are connected", self._service.client_connections())
        yield _gauge("client_connections_limit", "Their bound", limits.connections_max)

    def _disk(self, status: NodeStatus) -> Iterator[Metric]:
        yield _gauge("log_bytes", "The log on disk, without zeroes written ahead", status.log_bytes)
        yield _gauge("log_retention_limit_bytes", "Beyond this, a slow member gets a snapshot, not entries",
                     self._config.retention_bytes_max)  # fmt: skip
        yield _by_label("log_held_by", "1 for the cause that keeps old entries in the log", "what",
                        {what: status.log_held_by == what for what in ("own_snapshot", "low_watermark")})  # fmt: skip
        yield _gauge("disk_full", "1 while writes are refused because the disk is full", status.is_disk_full)
        yield _gauge("descriptors_lacking", "1 while writes are refused because no further file can be opened",
                     bool(status.lacks_descriptors))  # fmt: skip
        yield _gauge("disk_hanging", "1 while an append to the log takes longer than two election time-outs",
                     status.disk_hangs)  # fmt: skip
        if self._files is not None:
            yield _gauge("log_segments", "Files of the log", self._files.log_segments(self._node.identity.group_id))

    def _store(self) -> Iterator[Metric]:
        state = self._machine.status()
        yield _gauge("keys", "Keys in the store", state.keys)
        yield _gauge("stored_bytes", "Keys, values and 64 bytes for each record", state.stored_bytes)
        yield _gauge("quota_bytes", "The bound of stored_bytes", state.quota_bytes)
        yield _gauge("revision", "The store's revision", state.revision)
        yield _gauge("sessions", "Sessions of clients", state.sessions)
        yield _gauge("feature_level", "The feature level in force", state.feature_level)
        yield _gauge(
            "feature_level_known", "The highest feature level that this build knows", self._node.levels.highest
        )

    def _history_and_leases(self) -> Iterator[Metric]:
        history, limits = self._machine.history, self._machine.limits
        first_revision = history.first_revision if history.is_on else self._machine.revision + 1
        yield _gauge("history_events", "Changes whose old records are kept", len(history))
        yield _gauge("history_events_limit", "Their bound; 0: no history is kept", limits.history_events_max)
        yield _gauge("history_bytes", "Keys, old values and 64 bytes for each kept change", history.size_bytes)
        yield _gauge("history_limit_bytes", "The bound of history_bytes", limits.history_bytes_max)
        yield _gauge("history_first_revision", "Every change from this revision on is kept", first_revision)
        yield _gauge("leases", "Leases that have not ended", len(self._machine.leases.by_id))
        yield _gauge("leases_limit", "Their bound", limits.leases_max)
        for name in (*LEASE_EVENTS.values(), LEASES_EXPIRED):
            yield _counter(name, LEASE_TEXTS[name], self._service.counts.leases[name])

    def _watches(self) -> Iterator[Metric]:
        service = self._service
        yield _gauge("watches", "Open watches on this member", service.watches.count)
        yield _gauge("watches_limit", "Their bound", service.limits.watches_max)
        yield _gauge("watch_unsent_bytes", "Bytes that wait to be sent to clients with watches",
                     service.watch_unsent_bytes())  # fmt: skip
        yield _counter("watch_events_sent", "Events sent to watches", service.counts.watch_events_sent)
        metric = CounterMetricFamily(f"{PREFIX}watches_ended", "Watches that have ended", labels=["cause"])
        for cause in WATCH_ENDS:
            metric.add_metric([cause], service.counts.watch_ends[cause])
        yield metric

    def _groups(self) -> Iterator[Metric]:
        look = self._service.look_at_groups()
        lags = {to_shown_text(lag.group): lag for lag in look.lags()}
        yield _by_label("consumer_group_lag_revisions", "Revisions of the store after a group's position", "group",
                        {name: lag.revisions for name, lag in lags.items()})  # fmt: skip
        yield _by_label("consumer_group_lag_seconds", "The age of the oldest change that a group has not consumed",
                        "group", {name: lag.seconds for name, lag in lags.items()})  # fmt: skip
        yield _gauge("consumer_groups_omitted", "1 if there are more groups than these metrics show", look.omitted)

    def _network(self) -> Iterator[Metric]:
        if self._transport is None:
            return
        connected = self._transport.connected
        duplicates = self._transport.duplicate_members
        duplicate = {peer_id: peer_id in duplicates for peer_id in sorted(connected | {*duplicates})}
        yield _by_label("duplicate_member", "1 for a peer that runs as two processes", "peer", duplicate)
        queued, dropped = self._transport.queued_bytes, self._transport.dropped
        yield _by_label("peer_connected", "1 for a peer to which messages can be sent", "peer",
                        {peer_id: peer_id in connected for peer_id in queued})  # fmt: skip
        yield _by_label("peer_queued_bytes", "Bytes that wait to be sent to each peer", "peer", queued)
        yield _gauge("peer_queued_limit_bytes", "Their bound; messages beyond it are dropped", OUTBOUND_BYTES_MAX)
        metric = CounterMetricFamily(f"{PREFIX}peer_messages_dropped", "Messages dropped at the bound", labels=["peer"])
        for peer_id, count in dropped.items():
            metric.add_metric([peer_id], count)
        yield metric
        refused = self._transport.hellos_refused
        metric = CounterMetricFamily(f"{PREFIX}peer_hellos_refused", "Hellos of members that this member refused",
                                     labels=["code"])  # fmt: skip
        for code in sorted(HELLO_REFUSALS):
            metric.add_metric([code], refused.get(code, 0))
        yield metric
        yield _counter("peer_validation_faults", "Inputs of peers that this build could not validate",
                       self._transport.validation_faults)  # fmt: skip


def _certificates(ports: Sequence[Credentials]) -> Iterator[Metric]:
    """The certificates of the ports with TLS, and the callers that were refused in the handshake."""
    if not ports:
        return
    expiry = {each.purpose: each.expires_at for each in ports if each.expires_at is not None}
    yield _by_label("certificate_expiry_timestamp_seconds", "When the certificate of a port expires, since 1970",
                    "purpose", expiry)  # fmt: skip
    metric = CounterMetricFamily(f"{PREFIX}tls_handshakes_refused", "Callers that were refused in the TLS handshake",
                                 labels=["purpose", "code"])  # fmt: skip
    for each in ports:
        for code in sorted(HANDSHAKE_REFUSALS):
            metric.add_metric([each.purpose, code], each.refused[code])
    yield metric


def registry_of(member: MemberCollector) -> CollectorRegistry:
    """Return a registry of the metrics of the member and of its process."""
    registry = CollectorRegistry()
    registry.register(member)
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


def exposition(registry: CollectorRegistry) -> bytes:
    """Return the text of `/metrics`."""
    return generate_latest(registry)


def _peer_metrics(status: NodeStatus) -> Iterator[Metric]:
    """Yield the metrics about peers. Only the leader has these metrics, because other members do not know the state of
    their peers."""
    peers = {peer.peer_id: peer for peer in status.peers}
    behind = {name: status.commit_index - peer.last_applied for name, peer in peers.items()}
    yield _by_label("peer_active", "1 for a peer that was heard lately", "peer",
                    {name: peer.recent_active for name, peer in peers.items()})  # fmt: skip
    yield _by_label("peer_match_index", "The last entry that is durable on a peer", "peer",
                    {name: peer.match_index for name, peer in peers.items()})  # fmt: skip
    yield _by_label("peer_match_lag_entries", "Entries of the leader that are not durable on a peer", "peer",
                    {name: max(0, status.last_index - peer.match_index) for name, peer in peers.items()})  # fmt: skip
    yield _by_label("peer_in_sync", "1 for a peer that is in sync, or would be as a voter", "peer",
                    {name: peer.is_in_sync for name, peer in peers.items()})  # fmt: skip
    yield _by_label("peer_lag_seconds", "The time since a peer last had the leader's whole log", "peer",
                    {name: peer.lag_ns / 1e9 for name, peer in peers.items()})  # fmt: skip
    yield _by_label("peer_applied_lag_entries", "Committed entries that a peer has not applied", "peer",
                    {name: max(0, lag) for name, lag in behind.items()})  # fmt: skip
    yield _by_label("peer_holds_low_watermark", "1 for a peer that keeps the low-water mark from rising", "peer",
                    {name: name in status.low_watermark_held_by for name in peers})  # fmt: skip
    yield _by_label("peer_holds_commit_index", "1 for a voter that lacks the entries above the high-water mark", "peer",
                    {name: name in status.commit_held_by for name in peers})  # fmt: skip
    yield _by_label("peer_in_snapshot", "1 for a peer to which a snapshot is sent", "peer",
                    {name: peer.state == "snapshot" for name, peer in peers.items()})  # fmt: skip


def _counted(counts: Counts) -> Iterator[Metric]:
    for name in EVENTS.values():
        yield _counter(name, EVENT_TEXTS[name], counts.events[name])
    yield _counter("commands_applied", "Commands of this member's clients that were applied", counts.commands_applied)
    yield _counter("reads_confirmed", "Linearizable reads of this member's clients that were confirmed",
                   counts.reads_served)  # fmt: skip
    refusals = CounterMetricFamily(f"{PREFIX}refusals", "Requests that were not carried out", labels=["reason"])
    for reason in sorted(REASONS):
        refusals.add_metric([reason], counts.refusals[reason])
    yield refusals
    yield _histogram("log_sync", "An append to the log and its sync", counts.log_sync)
    yield _histogram("loop_lag", "How late the process's event loop is", counts.loop_lag)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(PREFIX + name, text, value=float(value))


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(PREFIX + name, text, value=float(value))


def _by_label(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    metric = GaugeMetricFamily(PREFIX + name, text, labels=[label])
    for value, number in values.items():
        metric.add_metric([value], float(number))
    return metric


def _histogram(name: str, text: str, histogram: Histogram) -> Metric:
    bounds = [*map(str, histogram.bounds_seconds), "+Inf"]
    buckets = list(zip(bounds, map(float, histogram.cumulative()), strict=True))
    return HistogramMetricFamily(f"{PREFIX}{name}_seconds", text, buckets=buckets, sum_value=histogram.sum_seconds)


def _version() -> str:
    try:
        return version("highwatermark")
    except PackageNotFoundError:  # The program runs from sources, without an installed package.
        return "unknown"
