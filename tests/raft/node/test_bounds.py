"""One node at its bounds. Each refusal names the bound, and the refused request has no effect."""

from __future__ import annotations

import pytest

from raft import (
    Busy,
    TooLarge,
    batch_size,
    encode_item,
)
from raft.node.requests import COMMAND_BYTES_MAX
from tests.raft.support.node_cluster import a_single_leader


def test_a_batch_stays_within_its_bound_and_a_larger_command_is_alone() -> None:
    """A batch exceeds `batch_bytes_max` only if it is a single larger command."""
    s1 = a_single_leader(batch_bytes_max=100)

    for ticket, size_bytes in enumerate((40, 40, 40, 500, 10, 10)):
        s1.propose(b"x" * size_bytes, ticket)
    s1.settle()

    sizes = [batch_size(entry.payload) for entry in s1.node.read_log(2, 10_000)]
    assert sizes == [2, 1, 1, 2]
    assert [completion.ticket for completion in s1.applied] == list(range(6))


def test_at_the_bound_in_bytes_the_answer_is_busy() -> None:
    """At `pending_bytes_max` the caller gets the answer Busy, and the memory does not grow."""
    s1 = a_single_leader(pending_bytes_max=1_000)
    s1.propose("under way", 0)
    s1.flush()

    s1.propose(b"x" * 900, 1)
    with pytest.raises(Busy, match="pending_bytes_max"):
        s1.propose(b"x" * 200, 2)
    assert s1.node.status().pending_bytes < 1_000
    s1.settle()

    assert [completion.ticket for completion in s1.applied] == [0, 1]
    s1.propose("again", 3)


def test_at_the_bound_of_open_proposals_the_answer_is_busy() -> None:
    """`proposals_pending_max` counts commands that wait as well as commands that are proposed."""
    s1 = a_single_leader(proposals_pending_max=2)
    s1.propose("one", 1)
    s1.flush()
    s1.propose("two", 2)

    with pytest.raises(Busy, match="proposals_pending_max"):
        s1.propose("three", 3)
    s1.settle()
    s1.propose("three", 3)


def test_at_the_bound_of_the_uncommitted_tail_commands_wait() -> None:
    """At `uncommitted_bytes_max` further commands wait. When the commit index has risen, the leader proposes the
    waiting commands in order."""
    s1 = a_single_leader(uncommitted_bytes_max=150, batch_bytes_max=50)
    for ticket in range(6):
        s1.propose(b"x" * 40, ticket)

    s1.flush()
    assert s1.node.status().pending_commands > 0
    assert s1.node.core.status().uncommitted_bytes <= 150
    s1.settle()

    assert [completion.ticket for completion in s1.applied] == list(range(6))


def test_at_the_bound_of_reads_the_answer_is_busy() -> None:
    """`reads_pending_max` bounds the open reads."""
    s1 = a_single_leader(reads_pending_max=1)
    s1.node.read(1)

    with pytest.raises(Busy):
        s1.node.read(2)
    s1.settle()

    assert s1.reads_ready == [1]
    s1.node.read(3)


def test_a_command_that_fits_into_no_entry_is_too_large() -> None:
    """ENTRY_PAYLOAD_BYTES_MAX is a constant of the protocol, which no setting changes."""
    s1 = a_single_leader()

    with pytest.raises(TooLarge):
        s1.node.propose(bytes(COMMAND_BYTES_MAX + 1), 1)
    s1.node.propose(encode_item(b"x" * (COMMAND_BYTES_MAX - 5)), 2)
    s1.settle()

    assert [completion.ticket for completion in s1.applied] == [2]
