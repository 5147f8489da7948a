"""Children of `multiprocessing` and of `os.fork` record into files of their own."""

from __future__ import annotations

import copy
import pickle
from collections import Counter
from pathlib import Path

import pytest

from spark_audit.history.recorded_files import process_states
from spark_audit.record import Recorder
from tests.spark_audit.record.helpers import checked, rows_of, started, verdict_of


def _read_and_write(recorder: Recorder, name: str) -> None:
    with recorder.put("client", f"key {name}", name) as put:
        put.ok()
    with recorder.get("client", f"key {name}") as get:
        get.ok(name)


CHILDREN = """
import multiprocessing, sys
from pathlib import Path
from spark_audit.record import Recorder
from tests.spark_audit.record.test_children import _read_and_write
if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[2])
    recorder = Recorder(sys.argv[1], secret=b"secret", sample=0.999999)
    _read_and_write(recorder, "parent")
    children = [context.Process(target=_read_and_write, args=(recorder, f"child {n}")) for n in range(3)]
    for child in children:
        child.start()
    for child in children:
        child.join()
        assert child.exitcode == 0, child.exitcode
    _read_and_write(recorder, "parent")
"""


@pytest.mark.process
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_children_have_files_of_their_own_and_lose_no_rows(tmp_path: Path, method: str) -> None:
    """A child ends without `close`. The last rows of its reads wait in its memory, and are written all the same."""
    script = tmp_path / "script.py"
    script.write_text(CHILDREN)
    process = started(
        "import runpy, sys; runpy.run_path(sys.argv.pop(1), run_name='__main__')", script, tmp_path / "run", method
    )
    process.communicate(timeout=60)

    assert process.returncode == 0
    states = process_states(tmp_path / "run").values()
    assert len({state.pid for state in states}) == len(states) == 4
    assert all(state.closed for state in states)
    assert len(list((tmp_path / "run" / "ops").iterdir())) == 4
    rows = rows_of(tmp_path / "run")
    assert Counter(row["op"] for row in rows) == {"put": 5, "get": 5}
    assert len({row["op_id"] for row in rows}) == 10
    assert verdict_of(tmp_path / "run")["status"] == "linearizable"


POOL = """
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from spark_audit.record import Recorder
from tests.spark_audit.record.test_children import _read_and_write
with Recorder(sys.argv[1]) as recorder:
    with ProcessPoolExecutor(2, get_context("fork")) as pool:
        list(pool.map(_read_and_write, [recorder] * 6, "abcdef"))
"""


@pytest.mark.process
def test_a_process_of_a_pool_has_one_recorder_for_all_its_tasks(tmp_path: Path) -> None:
    """A pool pickles the recorder for each task. A recorder for each of them would hold a file open for each."""
    process = started(POOL, tmp_path)
    process.communicate(timeout=60)

    assert process.returncode == 0
    assert len(process_states(tmp_path)) <= 3
    assert Counter(row["op"] for row in rows_of(tmp_path)) == {"put": 6, "get": 6}
    assert verdict_of(tmp_path)["status"] == "linearizable"


GRANDCHILDREN = """
import os, sys
from spark_audit.record import Recorder
from tests.spark_audit.record.test_children import _read_and_write
recorder = Recorder(sys.argv[1])
_read_and_write(recorder, "one")
if os.fork() == 0:
    _read_and_write(recorder, "two")
    if os.fork() == 0:
        _read_and_write(recorder, "three")
        recorder.close()
        os._exit(0)
    assert os.wait()[1] == 0
    _read_and_write(recorder, "two again")
    recorder.close()
    os._exit(0)
assert os.wait()[1] == 0
_read_and_write(recorder, "one again")
recorder.close()
"""


@pytest.mark.process
def test_children_of_children_that_are_forked_have_files_of_their_own(tmp_path: Path) -> None:
    process = started(GRANDCHILDREN, tmp_path)
    process.communicate(timeout=60)

    assert process.returncode == 0
    assert len(list((tmp_path / "ops").iterdir())) == 3
    assert Counter(row["op"] for row in rows_of(tmp_path)) == {"put": 5, "get": 5}
    assert checked(tmp_path).exit_code == 0


FORK_IN_LOCK = """
import fcntl, os, sys
from pathlib import Path
from spark_audit.record.folder import _locked
place = Path(sys.argv[1])
(place / "recorders").mkdir()
with _locked(place):
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
with (place / "recorders" / "lock").open("a") as file:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
os.close(writing)
os.waitpid(child, 0)
"""


@pytest.mark.process
def test_a_child_that_is_forked_while_the_folder_is_locked_does_not_keep_the_lock(tmp_path: Path) -> None:
    process = started(FORK_IN_LOCK, tmp_path)
    process.communicate(timeout=60)

    assert process.returncode == 0


def test_a_recorder_that_is_passed_within_a_process_stays_the_same(tmp_path: Path) -> None:
    with Recorder(tmp_path) as recorder:
        assert pickle.loads(pickle.dumps(recorder)) is recorder
        assert copy.copy(recorder) is recorder


SETTINGS = """
import pickle, sys
from spark_audit.record import Recorder
recorder = pickle.loads(bytes.fromhex(sys.argv[1]))
try:
    with recorder.put("client", "key", "value"):
        1 / 0
except ZeroDivisionError:
    recorder.close()
"""


@pytest.mark.process
def test_a_recorder_that_is_passed_has_the_settings_and_joins_the_run(tmp_path: Path) -> None:
    with Recorder(tmp_path, secret=b"secret", did_not_happen=(ZeroDivisionError,)) as recorder:
        recorder.put("client", "key", "value").ok()
        process = started(SETTINGS, pickle.dumps(recorder).hex())
        process.communicate(timeout=60)

    first, second = rows_of(tmp_path)
    assert (first["run_id"], first["value"]) == (second["run_id"], second["value"])
    assert {first["status"], second["status"]} == {"ok", "fail"}
    assert first["client"] != second["client"]
