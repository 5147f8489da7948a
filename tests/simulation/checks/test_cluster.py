"""Each rule about several members can fail (`SafetyChecker`, `ShadowLogs`), and every rule of the simulator has a
test."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.sim.checks.cluster import SafetyChecker
from harness.sim.checks.log_copies import ShadowLogs
from harness.sim.engine.errors import Violation
from raft import Entry, EntryKind, HardState, LogPosition, LogWrite, encode_batch
from tests.raft.support.memory_log import MemoryLog

SIMULATOR = Path(__file__).parents[3] / "harness/sim"


def rules_of(path: Path) -> set[str]:
    """The names of rules that occur in a file as arguments of `require`, `broken` and `Violation`."""
    calls = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
    place = {"require": 1, "broken": 0, "Violation": 0}
    names = [
        call.args[place[call.func.id]] for call in calls if isinstance(call.func, ast.Name) and call.func.id in place
    ]
    return {name.value for name in names if isinstance(name, ast.Constant) and isinstance(name.value, str)}


def test_every_rule_is_seen_to_fail() -> None:
    """The name of each rule must occur in a test of this folder, because a rule that cannot fail checks nothing."""
    tests = "".join(path.read_text() for path in Path(__file__).parents[1].rglob("test_*.py"))

    rules = set().union(*map(rules_of, SIMULATOR.rglob("*.py")))

    assert len(rules) > 70
    assert sorted(rule for rule in rules if f'"{rule}"' not in tests) == []


# Across members


def an_entry(index: int, term: int, *, leader_time: int = 0, command: bytes = b"\x01") -> Entry:
    return Entry(index, term, EntryKind.COMMANDS, encode_batch(leader_time, (command,)))


def a_ledger() -> SafetyChecker:
    """A ledger in which s1 has led term 2. Entry 1 has term 1 and entry 2 has term 2. Both are committed, and entry 1
    is applied with result 1."""
    safety = SafetyChecker()
    safety.leads("s1", 1, 2)
    safety.voted("s2", 2, "s1")
    for index in (1, 2):
        safety.wrote("s1", an_entry(index, index), index - 1)
        safety.committed("s1", index, index, 2)
    safety.applied("s1", an_entry(1, 1, leader_time=10), [1])
    safety.hashed("s1", 1, b"state")
    return safety


WRONG: dict[str, tuple[str, Callable[[SafetyChecker], object]]] = {
    "another leads the term": ("election safety", lambda world: world.leads("s2", 1, 2)),
    "it leads its term again, in another life": ("election safety", lambda world: world.leads("s1", 2, 2)),
    "a second vote": ("one vote per term", lambda world: world.voted("s2", 2, "s3")),
    "another payload": ("log matching", lambda world: world.wrote("s2", an_entry(1, 1, command=b"\x02"), 0)),
    "another predecessor": ("log matching", lambda world: world.wrote("s2", an_entry(2, 2), 2)),
    "a committed entry of an older term": ("committed terms never fall", lambda world: world.committed("s2", 3, 1, 3)),
    "nothing is committed there": ("state machine safety", lambda world: world.applied("s2", an_entry(3, 2), [1])),
    "another is committed there": ("state machine safety", lambda world: world.applied("s2", an_entry(2, 1), [1])),
    "another result": ("state machine agreement", lambda world: world.applied("s2", an_entry(1, 1), [2])),
    "another state": ("state machine agreement", lambda world: world.hashed("s2", 1, b"other")),
    "an earlier time": (
        "leader_time never falls",
        lambda world: world.applied("s1", an_entry(2, 2, leader_time=9), [1]),
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_the_ledger_sees_what_contradicts_it(what: str) -> None:
    """The rules are those of Raft Figure 3 and docs/reference/specification.md#812-leader-time."""
    rule, happens = WRONG[what]
    safety = a_ledger()

    with pytest.raises(Violation) as caught:
        happens(safety)

    assert caught.value.rule == rule


def test_the_ledger_agrees_with_what_is_the_same() -> None:
    """The ledger accepts a repeated leader, vote, entry, result or state, and also the next one of each."""
    safety = a_ledger()

    assert not safety.leads("s1", 1, 2)
    safety.voted("s2", 2, "s1")
    safety.wrote("s2", an_entry(2, 2), 1)
    assert not safety.applied("s2", an_entry(1, 1), [1])
    assert safety.applied("s2", an_entry(2, 2, leader_time=10), [1])
    safety.hashed("s2", 1, b"state")
    safety.committed("s2", 3, 2, 3)
    assert safety.last_committed_before(3) == 2


# One log


def a_copy() -> ShadowLogs:
    """A log with entries 1 and 2 of term 2, durable and committed, and a vote for s1. Entry 3 waits for its sync."""
    logs = ShadowLogs("s2", SafetyChecker())
    state = HardState(2, "s1", 0)
    logs.append(LogWrite(sequence=1, hard_state=state, entries=(an_entry(1, 2), an_entry(2, 2))))
    logs.synced(1)
    for index in (1, 2):
        logs._safety.committed("s1", index, 2, 2)
    logs.append(LogWrite(sequence=2, entries=(an_entry(3, 2),)))
    return logs


WRITES = {
    "a gap": ("no gap in a log", LogWrite(sequence=3, entries=(an_entry(5, 2),))),
    "an older term": ("entry terms never fall", LogWrite(sequence=3, entries=(an_entry(4, 1),))),
    "a term nobody knows of": ("entry terms never fall", LogWrite(sequence=3, entries=(an_entry(4, 3),))),
    "term 1 again": ("terms never go back", LogWrite(sequence=3, hard_state=HardState(1, None, 0))),
    "another vote": ("one vote per term", LogWrite(sequence=3, hard_state=HardState(2, "s3", 0))),
    "the vote is gone": ("one vote per term", LogWrite(sequence=3, hard_state=HardState(2, None, 0))),
    "a cut below the mark": ("a committed entry is never cut", LogWrite(sequence=3, replace_from=2)),
}


@pytest.mark.parametrize("what", WRITES)
def test_a_wrong_write_is_seen(what: str) -> None:
    """The rules are those of Raft §5.1, §5.2, §5.4 and docs/reference/specification.md#46-order-of-entries."""
    rule, write = WRITES[what]

    with pytest.raises(Violation) as caught:
        a_copy().append(write)

    assert caught.value.rule == rule


@pytest.mark.parametrize("own_term", [3, 4])
def test_who_has_not_come_to_the_term_of_a_commit_may_cut_its_own_copy(own_term: int) -> None:
    """Raft §5.4.2: a copy of an entry of an old term does not count. So the leader of term 3 may overwrite entry 2 of
    term 2, or the leader of term 4 may commit it."""
    logs = ShadowLogs("s2", SafetyChecker())
    logs.append(LogWrite(sequence=1, hard_state=HardState(2, "s1", 0), entries=(an_entry(1, 2), an_entry(2, 2))))
    logs.synced(1)
    for index in (1, 2):
        logs._safety.committed("s1", index, 2, 4)
    late = LogWrite(sequence=2, hard_state=HardState(own_term, None, 0), replace_from=2)

    if own_term < 4:
        logs.append(late)
    else:
        with pytest.raises(Violation, match="a committed entry is never cut"):
            logs.append(late)


RECOVERED = {
    "a durable entry is gone": (1, HardState(2, "s1", 0)),
    "an entry too many": (4, HardState(2, "s1", 0)),
    "the vote is gone": (2, HardState(2, None, 0)),
    "the term is gone": (2, HardState(1, None, 0)),
}


@pytest.mark.parametrize("what", RECOVERED)
def test_a_wrong_recovery_is_seen(what: str) -> None:
    """A recovered log must have all promised entries, and no entry that was not written
    (docs/reference/specification.md#35-recovery)."""
    count, state = RECOVERED[what]
    log = MemoryLog(LogPosition(0, 0), tuple(an_entry(index, 2) for index in range(1, count + 1)), state)

    with pytest.raises(Violation, match="recovery finds everything that was promised"):
        a_copy().recovered(log, state, LogPosition(0, 0))


@pytest.mark.parametrize("count", [2, 3])
def test_a_write_that_waited_may_be_kept_or_lost(count: int) -> None:
    """A sync that was under way at the crash may or may not have taken effect."""
    log = MemoryLog(
        LogPosition(0, 0), tuple(an_entry(index, 2) for index in range(1, count + 1)), HardState(2, "s1", 0)
    )

    a_copy().recovered(log, HardState(2, "s1", 0), LogPosition(0, 0))
