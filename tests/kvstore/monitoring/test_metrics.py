"""The collector reports members in memory, the buckets are right, and the library is loaded only for `--metrics`."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from prometheus_client.metrics_core import Metric

from kvstore.errors import InvalidRequest, QuotaExceeded, Reason, StoreBusy
from kvstore.monitoring.log_format import JsonFormatter
from kvstore.monitoring.metrics import EVENT_TEXTS, PREFIX, MemberCollector, exposition, registry_of
from kvstore.monitoring.metrics_counts import (
    BOUNDS,
    EVENTS,
    REASONS,
    WATCH_ENDS,
    CountingApplication,
    CountingService,
    Counts,
    reason_of,
)
from kvstore.protocol.commands import Put
from raft import Busy, DiskFull, LevelRange, NodeStopped, NotLeader, RaftConfig, Refused, TooLarge, TraceEvent
from raft.runtime import HELLO_REFUSALS, CompletionQueue, Histogram, MeasuredDriver, Transport
from raft.runtime.driver import INFO_EVENTS, WARNING_EVENTS
from tests.kvstore.support.in_memory_cluster import Cluster, Host

pytestmark = pytest.mark.timeout(30)

DOCS = (Path(__file__).resolve().parents[3] / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")


class Nobody:
    """An application that ignores everything the driver reports to it."""

    def complete(self, completions: object, events: object) -> None:
        """From the driver."""


def collector_of(host: Host, counts: Counts | None = None) -> MemberCollector:
    service = CountingService(host.node, host.machine)
    service.counts = counts or Counts()
    driver = MeasuredDriver(host.node, completions=CompletionQueue(), application=Nobody())
    return MemberCollector(node=host.node, machine=host.machine, config=RaftConfig(), service=service, driver=driver)


def collected(host: Host, counts: Counts | None = None) -> dict[str, Metric]:
    return {metric.name: metric for metric in collector_of(host, counts).collect()}


def value(metrics: dict[str, Metric], name: str, **labels: str) -> float:
    (sample,) = [each for each in metrics[PREFIX + name].samples if each.labels == labels]
    return sample.value


def test_every_metric_has_the_prefix_a_help_text_and_a_base_unit(tmp_path: Path) -> None:
    """The rules are those of https://prometheus.io/docs/practices/naming/."""
    cluster = Cluster(tmp_path, 3)
    for metric in collected(cluster.hosts[cluster.leader()]).values():
        assert re.fullmatch(rf"{PREFIX}[a-z_]+", metric.name), metric.name
        assert metric.documentation, metric.name
        assert not re.search(r"_(ms|ns|kb|mb|millis|total)($|_)", metric.name), metric.name
        if metric.type == "histogram":
            assert metric.name.endswith("_seconds"), metric.name
        for sample in metric.samples:
            assert sample.name.endswith("_total") == (metric.type == "counter"), sample.name


def test_no_label_has_values_without_end(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 3)
    counts = Counts()
    application = CountingApplication(Nobody(), counts)
    odd = [Busy(f"bound {number}", number) for number in range(50)]
    application.complete([Refused(1, error) for error in odd], [TraceEvent(f"event {n}", {}) for n in range(50)])

    values: dict[str, set[str]] = {}
    for metric in collected(cluster.hosts[cluster.leader()], counts).values():
        for sample in metric.samples:
            for label, each in sample.labels.items():
                values.setdefault(label, set()).add(each)

    assert values.pop("reason") == REASONS
    assert values.pop("peer") < set(cluster.hosts)
    assert values.pop("cause") == {*WATCH_ENDS}
    assert set(values) == {"node_id", "cluster_id", "version", "buffer", "what", "le"}
    assert counts.refusals == {"other_bound": 50}
    assert not counts.events


def test_the_leader_tells_which_peer_holds_the_low_water_mark_back(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 3)
    leader = cluster.leader()
    slow, quick = sorted(set(cluster.hosts) - {leader})
    cluster.cut.add(slow)
    cluster.client().do(Put(b"key", b"value"))
    cluster.wait(0.2)

    metrics = collected(cluster.hosts[leader])

    assert value(metrics, "is_leader") == 1
    assert value(metrics, "commit_index") == cluster.hosts[leader].node.core.commit_index
    assert value(metrics, "peer_match_lag_entries", peer=slow) > 0
    assert value(metrics, "peer_match_lag_entries", peer=quick) == 0
    assert value(metrics, "peer_holds_low_watermark", peer=slow) == 1
    assert value(metrics, "peer_holds_low_watermark", peer=quick) == 0


def test_what_happened_is_counted_by_name() -> None:
    counts = Counts()
    CountingApplication(Nobody(), counts).complete(
        [Refused(1, NotLeader("s1", None)), Refused(2, DiskFull("s1"))],
        [TraceEvent("became_leader", {}), TraceEvent("stepped_down", {}), TraceEvent("became_leader", {})],
    )

    assert counts.refusals == {"not_leader": 1, "disk_full": 1}
    assert counts.events == {"elections_won": 2, "step_downs": 1}


def test_every_refusal_has_a_reason_from_the_list() -> None:
    errors: dict[Exception, str] = {
        Busy("pending_bytes_max", 1): "pending_bytes_max",
        StoreBusy("sessions_max", 1): "sessions_max",
        StoreBusy("another", 1): "other_bound",
        TooLarge("a command", 2, 1): "too_large",
        NodeStopped("s1", "it failed"): "stopped",
        QuotaExceeded(2, 1): "quota_exceeded",
        InvalidRequest(Reason.KEY_EMPTY): "invalid_request",
    }
    assert {error: reason_of(error) for error in errors} == errors  # type: ignore[arg-type]
    assert set(errors.values()) <= REASONS


def test_every_bound_that_is_a_reason_exists() -> None:
    """If a bound were renamed, its refusals would be counted as `other_bound`."""
    from kvstore.limits import ServiceLimits, StoreLimits

    known = {*RaftConfig.__dataclass_fields__, *StoreLimits.names(), *ServiceLimits.__dataclass_fields__}
    assert known >= BOUNDS


def test_buckets_hold_what_is_at_most_their_bound() -> None:
    histogram = Histogram((0.001, 0.01))
    random, durations = Random(1), [1_000_000, 1_000_001, 10_000_000, 10_000_001]
    random.shuffle(durations)
    for duration in durations:
        histogram.observe(duration)

    assert histogram.cumulative() == [1, 3, 4]
    assert histogram.sum_seconds == pytest.approx(0.022_000_002)
    assert (histogram.count, histogram.max_seconds) == (4, 0.010_000_001)


def test_a_percentile_is_the_bound_of_its_bucket_and_no_more_than_the_longest_duration() -> None:
    histogram = Histogram((0.001, 0.01, 0.1))
    for duration in (500_000, 2_000_000, 3_000_000, 20_000_000):
        histogram.observe(duration)

    assert [histogram.percentile_seconds(share) for share in (0.25, 0.5, 0.75, 1)] == [0.001, 0.01, 0.01, 0.02]
    histogram.observe(7_000_000_000)
    assert histogram.percentile_seconds(1) == 7.0  # Above all bounds.


def test_every_metric_is_documented_and_no_other(tmp_path: Path) -> None:
    """The test compares the tables in docs/reference/metrics.md with the collector's own list."""
    cluster = Cluster(tmp_path, 3)
    documented = set(re.findall(rf"^\| `({PREFIX}[a-z_]+)", DOCS, re.MULTILINE))
    told = {
        metric.name + ("_total" if metric.type == "counter" else "")
        for metric in collected(cluster.hosts[cluster.leader()]).values()
    }
    of_the_shell = {  # These metrics need files, a transport or certificates: tests/process checks them.
        f"{PREFIX}{name}"
        for name in (
            "log_segments", "peer_connected", "peer_queued_bytes", "peer_queued_limit_bytes",
            "peer_messages_dropped_total", "peer_hellos_refused_total",
            "peer_validation_faults_total", "duplicate_member", "tls_handshakes_refused_total",
            "certificate_expiry_timestamp_seconds",
        )
    }  # fmt: skip

    assert documented == told | of_the_shell
    assert set(EVENT_TEXTS) == set(EVENTS.values())
    assert all(f"`{reason}`" in DOCS for reason in REASONS)


def test_every_code_with_which_a_hello_is_refused_is_told_from_the_beginning(tmp_path: Path) -> None:
    """An alert on an increase needs a value before the first refusal, so each code begins at 0.
    docs/reference/metrics.md lists the same codes."""
    host = Cluster(tmp_path, 3).hosts["s1"]
    configuration = host.node.core.configuration
    transport = Transport(identity=host.identity, configuration=configuration, random=Random(1))
    transport._log.count_refusal("removed")
    transport._log.count_refusal("of a later build")
    collector = collector_of(host)
    collector._transport = transport
    metrics = {metric.name: metric for metric in collector.collect()}

    told = {each.labels["code"]: each.value for each in metrics[f"{PREFIX}peer_hellos_refused"].samples}

    assert set(told) == HELLO_REFUSALS
    assert {code for code, count in told.items() if count} == {"removed", "other"}
    assert all(f"`{code}`" in DOCS for code in HELLO_REFUSALS)


def test_the_table_of_events_says_which_metric_counts_each_and_from_which_level_on_it_is_told() -> None:
    """docs/reference/metrics.md agrees with the events that are counted and with the events that the driver logs."""
    table = DOCS[DOCS.index("| event | level | metric |") :]
    rows = re.findall(r"^\| `(\w+)`(?:, `\w+`)* \| (\w+) \| ?(?:`(\w+)`)?", table, re.MULTILINE)
    levels = {event: level for event, level, _ in rows}
    documented = set(re.findall(rf"^\| `{PREFIX}([a-z_]+)", DOCS, re.MULTILINE))

    counted = {event: metric.removesuffix("_total") for event, _, metric in rows if event in EVENTS}
    assert counted == EVENTS
    assert {metric for _, _, metric in rows if metric} <= documented
    assert set(levels) >= INFO_EVENTS | WARNING_EVENTS
    for event in INFO_EVENTS | set(EVENTS):
        told_from = "warning" if event in WARNING_EVENTS else "info" if event in INFO_EVENTS else "debug"
        assert levels[event] == told_from, event


def test_the_exposition_has_the_process_in_it(tmp_path: Path) -> None:
    text = exposition(registry_of(collector_of(Cluster(tmp_path, 1).hosts["s1"]))).decode()

    assert f"# TYPE {PREFIX}commit_latency_seconds histogram" in text
    assert f"{PREFIX}commit_index " in text
    assert "python_gc_collections_total" in text


def test_a_trace_event_is_one_json_object_with_its_fields() -> None:
    record = logging.makeLogRecord({"name": "raft.driver", "levelname": "INFO", "created": 1.5})
    record.msg = "%(node_id)s: %(event)s %(fields)s"
    record.args = {"node_id": "s1", "event": "became_leader", "fields": {"term": 3, "odd": b"\n"}}

    assert json.loads(JsonFormatter().format(record)) == {
        "time": "1970-01-01T00:00:01.500000+00:00", "level": "info", "logger": "raft.driver", "node_id": "s1",
        "event": "became_leader", "fields": {"term": 3, "odd": "b'\\n'"},
    }  # fmt: skip
    assert record.getMessage().startswith("s1: became_leader {")


def test_a_message_with_a_line_break_stays_one_line() -> None:
    record = logging.makeLogRecord(
        {"name": "kvstore.member", "levelname": "WARNING", "msg": "%s: a\nb", "args": ("s1",)}
    )

    line = JsonFormatter().format(record)

    assert "\n" not in line
    assert json.loads(line)["message"] == "s1: a\nb"


def test_a_member_without_metrics_loads_nothing_of_it() -> None:
    code = (
        "import sys, kvstore.cli.daemon.serve, kvstore.cli.daemon.process; "
        "print([m for m in sys.modules if 'prometheus' in m or m.startswith(('h11', 'kvstore.monitoring.metrics'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)

    assert done.stdout == "[]\n"


def test_the_feature_level_in_force_and_what_the_build_knows_are_told(tmp_path: Path) -> None:
    """From these metrics an operator learns when an upgrade by `hwm upgrade` is possible
    (docs/reference/versions.md)."""
    cluster = Cluster(tmp_path, 1)
    leader = cluster.leader()
    cluster.kill(leader)
    cluster.start(leader, LevelRange(1, 3))
    cluster.leader()
    metrics = collected(cluster.hosts[leader])

    assert (value(metrics, "feature_level"), value(metrics, "feature_level_known")) == (1, 3)
