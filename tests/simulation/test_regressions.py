"""What the simulator once found: the seed that showed it, and the smallest scenario that shows it directly.

A seed stands for one run only as long as the plan's draws and the production code make the same choices, so the
direct scenario is the test that lasts; the seeds stay because they failed once.
"""

from __future__ import annotations

import pytest

from harness.sim.simulation import run_seed
from raft import AppendEntries, LogPosition
from tests.raft.bench import Bench, a_leader, accepted

SEEDS = {
    111: "after a lost connection the leader looked for entries that it had compacted",
    145: "leader and follower told each other the mark without end, when the log between them was compacted",
}


@pytest.mark.parametrize("seed", sorted(SEEDS))
def test_a_seed_that_failed_once_passes(seed: int) -> None:
    """The kept seeds of bugs found by simulation."""
    assert run_seed(seed).violation is None, SEEDS[seed]


def a_leader_that_compacted_past_s3() -> Bench:
    """Entries 1 to 4 are committed with s2, and forgotten; s3 has confirmed entry 1 only."""
    leader = a_leader(term=1)
    for word in ("a", "b", "c"):
        leader.propose(word)
    leader.persist()
    leader.step("s2", accepted(1, 4, last_applied=4))
    leader.step("s3", accepted(1, 1))
    leader.core.snapshot_saved(LogPosition(4, 1))
    leader.core.compact(4)
    leader.flush()
    leader.take_sent()
    return leader


def test_a_peer_whose_connection_was_lost_gets_a_snapshot_where_the_log_is_compacted() -> None:
    """Raft §7. Found by seed 111: next_index 1 looked sendable, because "before the log" has a term, which is 0."""
    leader = a_leader(term=1)
    leader.propose("a")
    leader.persist()
    leader.step("s2", accepted(1, 2, last_applied=2))
    leader.core.snapshot_saved(LogPosition(2, 1))
    leader.core.compact(2)

    leader.core.peer_unreachable("s3")  # Nothing is confirmed: next_index is 1 again.
    leader.heartbeat()
    leader.step("s3", accepted(1, 0))

    assert "s3" in leader.snapshot_wanted


def test_the_mark_is_not_told_again_and_again_where_the_log_is_compacted() -> None:
    """Found by seed 145: a heartbeat that proves nothing does not raise the peer's mark, so it is not repeated."""
    leader = a_leader_that_compacted_past_s3()

    leader.step("s3", accepted(1, 1))
    leader.step("s3", accepted(1, 1))

    assert leader.sent_to("s3", AppendEntries) == []
