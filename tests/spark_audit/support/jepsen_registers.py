"""Small random histories of registers as Jepsen records them, and a checker that shares no code with the audit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

VALUES = ("nil", "0", "1")


@dataclass
class Called:
    """A random operation. `returned` is None if it never returned. `outcome` is one of ok, fail, info and open."""

    process: int
    f: str  # The kind: read, write or cas.
    value: tuple[str, ...]  # A write has one value, a cas has two, and a read has the value that it returned.
    called: int
    returned: int | None = None
    outcome: str = "open"


def made_up(random: Random) -> tuple[list[Called], list[str]]:
    """Returns (operations, lines). Three processes call and return at random times, with random answers."""
    operations: list[Called] = []
    lines: list[str] = []
    running: dict[int, Called] = {}
    processes = [0, 1, 2]
    left = random.choice((3, 4, 5))
    while left or (running and random.random() < 0.9):
        idle = [p for p in processes if p not in running]
        if idle and left and (not running or random.random() < 0.5):
            left -= 1
            process = random.choice(idle)
            f = random.choice(("read", "read", "write", "cas"))
            value = tuple(random.choice(VALUES) for _ in range({"read": 0, "write": 1, "cas": 2}[f]))
            running[process] = Called(process, f, value, len(lines))
            operations.append(running[process])
            lines.append(f"{process}\t:invoke\t:{f}\t{_printed(running[process])}")
            continue
        process = random.choice(sorted(running))
        op = running.pop(process)
        op.outcome = random.choice(("ok", "ok", "ok", "fail", "info") if op.f != "write" else ("ok", "ok", "info"))
        op.returned = len(lines)
        if op.f == "read" and op.outcome == "ok":
            op.value = (random.choice(VALUES),)
        if op.outcome == "info":
            processes[processes.index(process)] += 10
        lines.append(f"{process}\t:{op.outcome}\t:{op.f}\t{_printed(op)}")
    return operations, lines


def _printed(op: Called) -> str:
    return f"[{' '.join(op.value)}]" if op.f == "cas" else (op.value or ("nil",))[0]


def as_edn(lines: Sequence[str]) -> Iterator[str]:
    """These lines in the form of EDN maps."""
    for line in lines:
        process, type_, f, value = line.split("\t")
        yield f"{{:process {process}, :type {type_}, :f {f}, :value {value}}}"


def explained(operations: Sequence[Called], *, failed_cas_saw_another: bool) -> bool:
    """True if some order explains the answers. The function tries every order that real time allows."""
    failed = ("cas",) if failed_cas_saw_another else ()
    completed = [op for op in operations if op.outcome == "ok" or (op.outcome == "fail" and op.f in failed)]
    perhaps = [op for op in operations if op.outcome in ("info", "open") and op.f != "read"]
    return _has_order(completed, perhaps, "nil")


def _has_order(completed: list[Called], perhaps: list[Called], state: str) -> bool:
    if not completed:
        return True
    first_return = min(op.returned for op in completed if op.returned is not None)
    for op in [*completed, *perhaps]:
        after = _after(op, state) if op.called < first_return else None
        if after is not None and _has_order(
            [t for t in completed if t is not op], [p for p in perhaps if p is not op], after
        ):
            return True
    return False


def _after(op: Called, state: str) -> str | None:
    """The register's value after the operation. The result is None if the operation cannot have had this answer."""
    if op.f == "read":
        return state if op.value == (state,) else None
    if op.f == "write":
        return op.value[0]
    if op.outcome == "fail":
        return state if op.value[0] != state else None
    return op.value[1] if op.value[0] == state else None
