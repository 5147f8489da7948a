"""etcdctl: watches of keys and ranges, from now on or from an old revision.

A watch that begins at a revision shows everything from there on, whenever it reaches the server. So a test needs no
pause between a watch and the write that it must show.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Sequence
from typing import Any

import pytest

from tests.process.etcd.etcdctl import Etcdctl, Running

pytestmark = [pytest.mark.process, pytest.mark.timeout(100)]


@pytest.fixture
def etcdctl(etcd_endpoints: Sequence[str]) -> Etcdctl:
    return Etcdctl(etcd_endpoints[:1])


def test_a_watch_shows_puts_and_deletions(etcdctl: Etcdctl, prefix: str) -> None:
    key = f"{prefix}k"
    with etcdctl.running("watch", key, f"--rev={etcdctl.revision() + 1}") as watch:
        etcdctl("put", key, "one")
        assert watch.lines(3) == ["PUT", key, "one"]
        etcdctl("put", f"{key}longer", "not watched")
        etcdctl("put", key, "two")
        assert watch.lines(3) == ["PUT", key, "two"]
        etcdctl("del", key)
        assert watch.lines(3) == ["DELETE", key, ""]


def test_a_watch_of_a_prefix_shows_what_was_before(etcdctl: Etcdctl, prefix: str) -> None:
    with etcdctl.running("watch", "--prefix", prefix, "--prev-kv", f"--rev={etcdctl.revision() + 1}") as watch:
        etcdctl("put", f"{prefix}k", "one")
        assert watch.lines(3) == ["PUT", f"{prefix}k", "one"]
        etcdctl("put", f"{prefix}k", "two")
        assert watch.lines(5) == ["PUT", f"{prefix}k", "one", f"{prefix}k", "two"]
        etcdctl("del", f"{prefix}k")
        assert watch.lines(5) == ["DELETE", f"{prefix}k", "two", f"{prefix}k", ""]


def test_a_watch_of_a_range_ends_before_its_end(etcdctl: Etcdctl, prefix: str) -> None:
    with etcdctl.running("watch", f"{prefix}b", f"{prefix}d", f"--rev={etcdctl.revision() + 1}") as watch:
        for name in "adcb":
            etcdctl("put", prefix + name, name)
        assert watch.lines(6) == ["PUT", f"{prefix}c", "c", "PUT", f"{prefix}b", "b"]


def test_a_watch_from_an_old_revision_shows_all_since(etcdctl: Etcdctl, prefix: str) -> None:
    """Events have the metadata of their time, and come in the order of revisions. One that reaches back over several
    revisions gets them in few answers, in order and without gaps."""
    revisions = [etcdctl.put(f"{prefix}k", value) for value in ("a", "b", "c")]
    etcdctl("del", f"{prefix}k")
    revisions.append(etcdctl.put(f"{prefix}k", "d"))

    events = events_of(etcdctl, "--prefix", prefix, "--prev-kv", f"--rev={revisions[1]}", count=4)

    assert [event.get("type", 0) for event in events] == [0, 0, 1, 0]
    assert [event["kv"]["mod_revision"] for event in events] == [*revisions[1:3], revisions[2] + 1, revisions[3]]
    assert [event["kv"].get("version", 0) for event in events] == [2, 3, 0, 1]
    assert [text(event.get("prev_kv")) for event in events] == ["a", "b", "c", None]
    assert [text(event["kv"]) for event in events] == ["b", "c", None, "d"]
    assert events[2]["kv"].keys() == {"key", "mod_revision"}, "a deletion has only its key and its revision"


def test_events_of_a_transaction_come_together(etcdctl: Etcdctl, prefix: str) -> None:
    """One answer has all events of a revision, in the order of the operations."""
    revision = etcdctl.revision() + 1
    with etcdctl.running("watch", "--prefix", prefix, f"--rev={revision}", "--write-out=json") as watch:
        etcdctl("txn", stdin=f"\nput {prefix}z 1\nput {prefix}a 2\n\n\n")
        answer = json.loads(watch.line())

    assert [text(event["kv"]) for event in answer["Events"]] == ["1", "2"]
    assert {event["kv"]["mod_revision"] for event in answer["Events"]} == {revision}
    assert answer["Header"]["revision"] >= revision


def test_a_deletion_of_many_keys_is_one_event_for_each(etcdctl: Etcdctl, prefix: str) -> None:
    for name in "cab":
        etcdctl("put", prefix + name, name)
    with etcdctl.running("watch", "--prefix", prefix, f"--rev={etcdctl.revision() + 1}") as watch:
        etcdctl("del", "--prefix", prefix)
        assert watch.lines(9) == [line for name in "abc" for line in ("DELETE", prefix + name, "")]


def test_a_watch_may_begin_in_the_future(etcdctl: Etcdctl, prefix: str) -> None:
    with etcdctl.running("watch", "--prefix", prefix, f"--rev={etcdctl.revision() + 3}") as watch:
        for value in ("one", "two", "three", "four"):
            etcdctl("put", f"{prefix}k", value)
        assert watch.lines(6) == ["PUT", f"{prefix}k", "three", "PUT", f"{prefix}k", "four"]


def test_a_watch_that_begins_now_ignores_the_past(etcdctl: Etcdctl, prefix: str) -> None:
    """A second watch of the same stream is asked for after the first, so its first event proves that both are there.

    etcdctl prints the events of its two watches at the same time, line by line: their lines may mix.
    """
    etcdctl("put", f"{prefix}k", "past")
    with etcdctl.running("watch", "--interactive") as watch:
        watch.say(f"watch {prefix}k")
        watch.say(f"watch {prefix}k --rev={etcdctl.revision()}")
        assert watch.lines(3) == ["PUT", f"{prefix}k", "past"]
        etcdctl("put", f"{prefix}k", "present")
        assert sorted(watch.lines(6)) == sorted(["PUT", f"{prefix}k", "present"] * 2)


def test_progress_can_be_asked_for(etcdctl: Etcdctl, prefix: str) -> None:
    """The answer tells up to which revision the watch has shown everything."""
    revision = etcdctl.put(f"{prefix}k", "one")
    with etcdctl.running("watch", "--interactive") as watch:
        watch.say(f"watch {prefix}k --rev={revision}")
        assert watch.lines(3) == ["PUT", f"{prefix}k", "one"]
        assert progress(watch) == revision
        later = etcdctl.put(f"{prefix}elsewhere", "x")
        while progress(watch) < later:  # A follower may not have the write yet.
            pass


def test_a_watch_from_a_compacted_revision_is_cancelled(own_endpoints: Sequence[str]) -> None:
    etcdctl = Etcdctl(own_endpoints[:1])
    revisions = [etcdctl.put("k", value) for value in ("a", "b", "c")]
    etcdctl("compaction", str(revisions[1]))

    done = etcdctl.run("watch", "k", f"--rev={revisions[0]}")

    assert done.err.splitlines() == [
        "watch was canceled (etcdserver: mvcc: required revision has been compacted)",
        "Error: watch is canceled by the server",
    ]
    with etcdctl.running("watch", "k", f"--rev={revisions[1]}") as watch:
        assert watch.lines(6) == ["PUT", "k", "b", "PUT", "k", "c"]


def test_a_command_runs_for_each_event(etcdctl: Etcdctl, prefix: str) -> None:
    revision = etcdctl.put(f"{prefix}k", "one")
    script = "echo $ETCD_WATCH_EVENT_TYPE $ETCD_WATCH_KEY $ETCD_WATCH_VALUE $ETCD_WATCH_REVISION"
    with etcdctl.running("watch", f"{prefix}k", f"--rev={revision}", "--", "sh", "-c", script) as watch:
        assert watch.lines(3) == ["PUT", f"{prefix}k", "one"]
        kind, key, value, seen = watch.line().split()
    assert (kind, key, value) == ('"PUT"', f'"{prefix}k"', '"one"')
    assert int(seen) >= revision


def test_every_member_shows_what_was_written_through_another(etcd_endpoints: Sequence[str], prefix: str) -> None:
    writer = Etcdctl(etcd_endpoints[:1])
    revision = writer.put(f"{prefix}k", "one")
    for endpoint in etcd_endpoints:
        with Etcdctl([endpoint]).running("watch", f"{prefix}k", f"--rev={revision}") as watch:
            assert watch.lines(3) == ["PUT", f"{prefix}k", "one"]


def events_of(etcdctl: Etcdctl, *arguments: str, count: int) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    with etcdctl.running("watch", "--write-out=json", *arguments) as watch:
        while len(events) < count:
            events += json.loads(watch.line())["Events"]
    return events


def text(key_value: dict[str, str] | None) -> str | None:
    return b64decode(key_value["value"]).decode() if key_value and "value" in key_value else None


def progress(watch: Running) -> int:
    watch.say("progress")
    before, _, revision = watch.line().rpartition(": ")
    assert before == "progress notify"
    return int(revision)
