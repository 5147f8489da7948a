"""If the disk is quick, the caller waits for it. Otherwise the thread does the work alone. The tests use
`SyncLatencyTracker`, and a `RealFiles` whose operations the caller starts.
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from storage import CreateFile, Operation, RealFiles, SyncFile, Write
from storage.files import disk
from storage.files.threaded import QUICK_NS_MAX, SHORT_BYTES_MAX, SKIPS, STEPS, WAIT_NS_MAX, SyncLatencyTracker
from tests.storage.files.test_threaded import SECONDS_MAX, Loop, carried_out

pytestmark = pytest.mark.timeout(30)

SLOW_NS = WAIT_NS_MAX


def waits(tracker: SyncLatencyTracker, duration_ns: int, count: int) -> int:
    """The number of syncs for which the caller waits, out of `count` syncs with this duration."""
    waited = 0
    for _ in range(count):
        if tracker.should_wait():
            tracker.record(duration_ns)
            waited += 1
    return waited


def test_a_quick_disk_is_always_waited_for() -> None:
    assert waits(SyncLatencyTracker(), QUICK_NS_MAX // 2, 1_000) == 1_000


def test_a_disk_that_is_mostly_slow_only_because_the_cores_are_busy_is_waited_for() -> None:
    """A third of the waits is short. These waits show how fast the disk can be."""
    tracker = SyncLatencyTracker()
    waits(tracker, QUICK_NS_MAX // 4, 100)
    for _ in range(100):
        tracker.record(SLOW_NS)
        tracker.record(SLOW_NS)
        assert waits(tracker, QUICK_NS_MAX // 4, 1) == 1


def test_a_slow_disk_is_left_to_the_thread_and_tried_now_and_then() -> None:
    tracker = SyncLatencyTracker()
    assert waits(tracker, SLOW_NS, SKIPS) <= STEPS
    assert waits(tracker, SLOW_NS, 10 * (SKIPS + 1)) == 10


def test_a_disk_that_became_quick_is_waited_for_again() -> None:
    tracker = SyncLatencyTracker()
    waits(tracker, SLOW_NS, 100 * SKIPS)
    waits(tracker, QUICK_NS_MAX // 4, 100 * SKIPS)
    assert waits(tracker, QUICK_NS_MAX // 4, 100) == 100


class Held:
    """Files with a single file in them. Their operations start when the test demands it. By default the test waits even
    for a slow disk."""

    def __init__(self, folder: Path, *, wait_ns_max: int = SECONDS_MAX * 1_000_000_000) -> None:
        self.loop = Loop()
        self.files = RealFiles(folder, self.loop.post, wait_ns_max=wait_ns_max)
        assert carried_out(self.files, self.loop, CreateFile("log")) is None
        self.files.hold()
        self.ends: list[tuple[str, BaseException | None, int]] = []

    def submit(self, name: str, operations: Sequence[Operation]) -> None:
        self.files.submit(operations, lambda error: self.ends.append((name, error, threading.get_ident())))

    def append(self, name: str, offset: int, data: bytes) -> None:
        self.submit(name, [Write("log", offset, (data,)), SyncFile("log")])

    @property
    def names(self) -> list[str]:
        return [name for name, _, _ in self.ends]


def test_what_is_held_begins_with_start_and_a_short_append_has_ended_with_it(tmp_path: Path) -> None:
    held = Held(tmp_path)
    held.append("a", 0, b"abc")
    assert held.files.read("log", 0, 9) == b""

    assert held.files.start()
    assert held.ends == [("a", None, threading.get_ident())]
    assert held.files.read("log", 0, 9) == b"abc"
    assert not held.files.start()  # No operation waits.
    held.files.close()


@pytest.mark.parametrize(
    "operations",
    [
        [Write("log", 0, (bytes(SHORT_BYTES_MAX), b"1")), SyncFile("log")],
        [SyncFile("log")],
        [Write("log", 0, (b"a",)), CreateFile("other")],
    ],
    ids=["long", "no write", "no sync"],
)
def test_what_is_no_short_append_goes_to_the_thread(tmp_path: Path, operations: list[Operation]) -> None:
    held = Held(tmp_path)
    held.submit("a", operations)

    assert not held.files.start()
    held.loop.run_one()
    assert held.names == ["a"]
    held.files.close()


def test_what_the_end_of_an_append_leads_to_is_begun_as_well(tmp_path: Path) -> None:
    """One example is a retry on a full disk. Such a retry must not wait for the next turn of the loop, because this
    turn may be far away."""
    held = Held(tmp_path)

    def ended(error: BaseException | None) -> None:
        held.append("what follows", 1, b"b")

    held.files.submit([Write("log", 0, (b"a",)), SyncFile("log")], ended)

    assert held.files.start()
    held.loop.run_one()
    assert held.names == ["what follows"]
    held.files.close()


def test_nothing_overtakes_what_the_thread_has(tmp_path: Path) -> None:
    """Submissions are carried out in the order in which they came, and their ends are reported in this order."""
    held = Held(tmp_path)
    held.submit("first", [CreateFile("other")])
    held.files.start()
    held.append("second", 0, b"a")
    assert not held.files.start()  # The end of the first submission is not reported yet.
    held.append("third", 1, b"b")
    held.append("fourth", 2, b"c")
    assert not held.files.start()

    for _ in range(4):
        held.loop.run_one()
    assert held.names == ["first", "second", "third", "fourth"]
    held.append("fifth", 3, b"d")
    assert held.files.start()
    assert held.files.read("log", 0, 9) == b"abcd"
    held.files.close()


def test_an_append_that_fails_while_it_is_waited_for_says_so(tmp_path: Path) -> None:
    held = Held(tmp_path)
    held.submit("a", [Write("missing", 0, (b"a",)), SyncFile("missing")])

    assert held.files.start()
    (_, error, _) = held.ends[0]
    assert isinstance(error, FileNotFoundError)
    # The time of a failed sync is not measured, even if it was short.
    assert held.files._sync_latency._typical_ns == QUICK_NS_MAX // 2
    held.files.close()


class Hanging:
    """A disk whose syncs take as long as the test demands, or fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_reached, self.goes_on = threading.Event(), threading.Event()
        self.error: OSError | None = None
        self._sync = disk.sync_data
        monkeypatch.setattr(disk, "sync_data", self.sync_data)

    def sync_data(self, descriptor: int) -> None:
        """Replaces the real `sync_data`."""
        self.is_reached.set()
        assert self.goes_on.wait(SECONDS_MAX)
        if self.error is not None:
            raise self.error
        self._sync(descriptor)


def test_a_disk_that_hangs_is_waited_for_no_longer_than_the_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of the submission is reported only when the sync is done. Later submissions are reported after it."""
    held = Held(tmp_path, wait_ns_max=WAIT_NS_MAX)
    hanging = Hanging(monkeypatch)
    held.append("a", 0, b"abc")

    began = time.perf_counter_ns()
    assert not held.files.start()
    assert WAIT_NS_MAX <= time.perf_counter_ns() - began < 1_000_000_000
    assert hanging.is_reached.wait(SECONDS_MAX)
    held.append("b", 3, b"def")
    assert not held.files.start()  # While one sync hangs, the caller does not wait for later syncs.
    assert held.names == []

    hanging.goes_on.set()
    held.loop.run_one()
    held.loop.run_one()
    assert held.ends == [("a", None, threading.get_ident()), ("b", None, threading.get_ident())]
    assert held.files.read("log", 0, 9) == b"abcdef"
    held.files.close()


def test_what_comes_behind_a_sync_that_took_too_long_is_waited_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(tmp_path, wait_ns_max=WAIT_NS_MAX)
    hanging = Hanging(monkeypatch)
    held.append("a", 0, b"abc")
    assert not held.files.start()
    hanging.goes_on.set()
    held.loop.run_one()

    held.files._wait_seconds_max = SECONDS_MAX
    held.append("b", 3, b"def")
    assert held.files.start()
    assert held.names == ["a", "b"]
    held.files.close()


def test_a_sync_that_fails_after_it_was_waited_for_in_vain_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(tmp_path, wait_ns_max=WAIT_NS_MAX)
    hanging = Hanging(monkeypatch)
    hanging.error = OSError(errno.EIO, "Input/output error")
    held.append("a", 0, b"abc")
    assert not held.files.start()

    hanging.goes_on.set()
    held.loop.run_one()
    assert held.ends == [("a", hanging.error, threading.get_ident())]
    held.files.close()


def test_what_is_done_at_the_last_moment_is_told_once(tmp_path: Path) -> None:
    """If the wait takes zero time, it ends while the thread does the work. The caller reports some ends, and the thread
    posts the others."""
    held = Held(tmp_path, wait_ns_max=0)
    held.files._sync_latency = Patient()
    for number in range(200):
        held.append(str(number), 3 * number, b"abc")
        if not held.files.start():
            held.loop.run_one()

    assert held.names == [str(number) for number in range(200)]
    held.files.close()


class Patient(SyncLatencyTracker):
    """A tracker that waits for any disk."""

    def should_wait(self) -> bool:
        """Always."""
        return True


def test_what_was_never_started_is_on_disk_after_close(tmp_path: Path) -> None:
    held = Held(tmp_path)
    held.append("a", 0, b"abc")

    held.files.close()
    assert held.ends == []
    assert (tmp_path / "log").read_bytes() == b"abc"
