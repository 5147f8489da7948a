"""Reports the progress of Spark: how many tasks of the running stages are finished."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Say = Callable[[str], None]

POLL_SECONDS = 0.5


class _Progress:
    """Reports the current activity and the number of its finished tasks."""

    def __init__(self, say: Say) -> None:
        self._say, self._doing, self._tasks = say, "", ""
        self._lock = threading.Lock()

    def doing(self, words: str) -> None:
        self._report(words, "")

    def tasks(self, stages: Iterable[tuple[int, int]]) -> None:
        """Report the number of finished tasks. `stages`: (finished tasks, all tasks) of each running stage."""
        pairs = list(stages)
        done, total = sum(pair[0] for pair in pairs), sum(pair[1] for pair in pairs)
        self._report(self._doing, f": {done} of {total} tasks" if total else "")

    def _report(self, doing: str, tasks: str) -> None:
        with self._lock:
            if (doing, tasks) != (self._doing, self._tasks):
                self._doing, self._tasks = doing, tasks
                self._say(f"{doing}{tasks}")


@contextmanager
def stage_progress(session: SparkSession, say: Say) -> Iterator[Say]:
    """Yield a function that reports a message, and, until the next message, the number of finished tasks."""
    progress = _Progress(say)
    # With Spark Connect, the session calls a handler, so no thread has to poll.
    if type(session).__module__.startswith("pyspark.sql.connect."):

        def handle(stages: Iterable[Any] | None, **_: Any) -> None:
            running = (stage for stage in stages or () if not stage.done)
            progress.tasks((stage.num_completed_tasks, stage.num_tasks) for stage in running)

        # The declared type of a handler is an abstract class, but Spark only calls it, so a function is enough.
        handler: Any = handle
        session.registerProgressHandler(handler)
        try:
            yield progress.doing
        finally:
            session.removeProgressHandler(handler)
        return
    over = threading.Event()
    watcher = threading.Thread(target=_watch, args=(session, progress, over), daemon=True, name="stage progress")
    watcher.start()
    try:
        yield progress.doing
    finally:
        over.set()
        watcher.join()


def _watch(session: SparkSession, progress: _Progress, over: threading.Event) -> None:
    tracker = session.sparkContext.statusTracker()
    while not over.wait(POLL_SECONDS):
        try:
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        except Exception:  # The JVM has ended. The thread that runs the job reports the cause.
            return
        progress.tasks((stage.numCompletedTasks, stage.numTasks) for stage in stages if stage is not None)
