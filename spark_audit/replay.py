"""Listings and transactions against the whole store: one pass in the order of revisions.

The store is replayed from the acknowledged writes. A listing must show exactly the live keys of its interval at its
revision, in order, with limit and count; a transaction must find its comparisons as it said. A write of unknown outcome
is put in where the witness of its key placed it; else when the first response shows it (all writes of its transaction
at once), immediately before that response. What the replay does not explain is a violation, unless an unknown write of
that key, whose place nobody has told, might be the reason: then it is undecided.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from sortedcontainers import SortedDict

from spark_audit.model import ABSENT, State, as_bytes, compared
from spark_audit.order import rank
from spark_audit.request import Request, concerns_many, covers, parse_request
from spark_audit.witness import Placed, Rank

Row: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Contradiction:
    """`row` does not agree with the store at its revision. `certain` False: an unknown write might explain it."""

    row: Row
    reason: str
    certain: bool


@dataclass(slots=True)
class _Unknown:
    """The writes of one operation of unknown outcome: key → value, None for a deletion. One per branch of a txn."""

    op_id: int
    call_ns: int
    writes: dict[str, str | None]
    alternative: int = 0
    certain: bool = False  # A response told its revision: its place is not in doubt.


@dataclass(slots=True)
class _Store:
    records: "SortedDict[bytes, tuple[str, State]]" = field(default_factory=SortedDict)  # By the bytes of the key.

    def state(self, key: str) -> State:
        found = self.records.get(as_bytes(key))
        return found[1] if found is not None else ABSENT

    def write(self, key: str, value: str | None, revision: int | None) -> None:
        if value is None:
            self.records.pop(as_bytes(key), None)
            return
        old = self.state(key)
        create, version = (revision, 1) if old[0] is None else (old[2], old[3] + 1)
        self.records[as_bytes(key)] = (key, (value, revision, create, version))

    def live(self, request: Request) -> list[tuple[str, State]]:
        """The records of the interval, in the order asked for, limit not applied."""
        prefix = request["prefix"]
        low = prefix if prefix is not None else request["start"]
        found: list[tuple[str, State]] = []
        for raw in self.records.irange(as_bytes(low) if low is not None else None):
            key, state = self.records[raw]
            if not covers(request, key):
                break
            found.append((key, state))
        return found[::-1] if request["reverse"] else found


def position(row: Row) -> tuple[int, int, int, int]:
    """Where the replay meets this row: at its revision, or at the one that its listing is pinned to."""
    pinned = parse_request(row)["revision"] if row["op"] == "range" else None
    return (pinned, 1, row["call_ns"], row["op_id"]) if pinned else rank(row)


def contradictions(
    unknown: Iterable[Row], ordered: Iterable[Row], placements: Mapping[int, Mapping[str, Placed]]
) -> Iterator[Contradiction]:
    """Replay one run. `ordered`: the rows that take part, sorted by `position`; `placements`: op_id → key → place."""
    replay = _Replay()
    for row in unknown:
        replay.open(row)
    due = replay.agreed(placements)
    for row in ordered:
        here = position(row)
        while due and due[-1][0] <= here:
            rank, write = due.pop()
            replay.put_in(write, rank[0])
        problem = replay.meet(row)
        if problem is not None:
            yield problem


class _Replay:
    def __init__(self) -> None:
        self.store = _Store()
        self.unknown: dict[str, list[_Unknown]] = {}
        self.placed: set[int] = set()
        self.listings: list[tuple[int, Request]] = []  # (revision, request): what was shown to be absent.
        self.by_branch: dict[tuple[int, int], _Unknown] = {}
        self.shared: dict[str, _Unknown] = {}  # Keys last written by an unknown transaction that writes others too.
        self.read_at: dict[str, int] = {}  # The highest revision at which the key was read.

    def open(self, row: Row) -> None:
        if row["op"] in ("put", "cas", "append"):
            branches: list[dict[str, str | None]] = [{row["key"]: row["value"]}]
        elif row["op"] == "delete":
            branches = [{row["key"]: None}]
        elif row["op"] == "txn":
            request = parse_request(row)
            branches = [_writes(request["success"]), _writes(request["failure"]) if request["compares"] else {}]
        else:
            branches = []
        for number, writes in enumerate(branches):
            made = _Unknown(row["op_id"], row["call_ns"], writes, number)
            self.by_branch[row["op_id"], number] = made
            for key in writes:
                self.unknown.setdefault(key, []).append(made)

    def agreed(self, placements: Mapping[int, Mapping[str, Placed]]) -> list[tuple[Rank, _Unknown]]:
        """The unknown writes to put in, last first.

        Where a response told the revision of one of its writes, all of them took effect there, whatever place the
        order of another key guessed. Without that, one that its keys place at different revisions stays open.
        """
        due: list[tuple[Rank, _Unknown]] = []
        for op_id, by_key in placements.items():
            told = [place for place in by_key.values() if place.told]
            places = told or list(by_key.values())
            if len({(place.rank[0], place.alternative) for place in places}) == 1:
                write = self.by_branch[op_id, places[0].alternative]
                write.certain = bool(told)
                due.append((min(place.rank for place in places), write))
        due.sort(key=lambda pair: (pair[0], pair[1].op_id), reverse=True)
        return due

    def put_in(self, write: _Unknown, revision: int) -> None:
        """All of its writes; their revision is known only if a response told it."""
        if write.op_id not in self.placed:
            self.placed.add(write.op_id)
            for key, value in write.writes.items():
                self._write(key, value, revision if write.certain else None)
                if len(write.writes) > 1:
                    self.shared[key] = write

    def _write(self, key: str, value: str | None, revision: int | None) -> None:
        self.shared.pop(key, None)
        self.store.write(key, value, revision)

    def meet(self, row: Row) -> Contradiction | None:
        """Compare the row with the store, then apply it."""
        output, op = row["output"], row["op"]
        if op == "range":
            return self._blame(row, self._listing(row, parse_request(row), output))
        if op == "txn":
            return self._blame(row, self._transaction(row, parse_request(row), output))
        key, revision = row["key"], row["revision"]
        if op == "get" or (op == "cas" and not output["succeeded"]):
            return self._read(row, key, output if output["found"] else None)
        if op in ("put", "cas"):
            self._write(key, row["value"], revision)
        elif op == "append":
            self._write(key, (self.store.state(key)[0] or "") + row["value"], revision)
        elif output["found"]:
            self._write(key, None, revision)
        return None

    def _read(self, row: Row, key: str, record: Row | None) -> Contradiction | None:
        """What one key decides is not blamed here, only what needs two: an unknown transaction shown by half."""
        if self._shown(row, key, record) or key not in self.shared:
            return None
        torn = self.shared[key]
        reason = f"it does not show the write of txn #{torn.op_id}, which another key shows to have happened"
        return Contradiction(row, reason, torn.certain)

    def _blame(self, row: Row, found: "_Problem | None") -> Contradiction | None:
        if found is None:
            return None
        doubtful = (
            write for key in found.keys for write in self.unknown.get(key, ()) if write.call_ns <= row["return_ns"]
        )
        return Contradiction(row, found.reason, certain=all(write.certain for write in doubtful))

    def _candidates(self, row: Row, key: str) -> list[_Unknown]:
        return [u for u in self.unknown.get(key, ()) if u.op_id not in self.placed and u.call_ns <= row["return_ns"]]

    def _shown(self, row: Row, key: str, record: Row | None) -> bool:
        """Whether the store holds this record (None: absence); an unknown write that explains it is put in first."""
        if not _agrees(self.store.state(key), record):
            for write in self._candidates(row, key):
                wanted = None if record is None else record.get("value")
                told = row["revision"] if record is None else record.get("mod_revision") or row["revision"]
                if write.writes[key] == wanted and self._place(write, told, key):
                    break
        self.read_at[key] = max(self.read_at.get(key, 0), row["revision"])
        return _agrees(self.store.state(key), record)

    def _place(self, write: _Unknown, revision: int, shown: str) -> bool:
        """Put all of it in, unless some response at or after that revision has shown the store without it."""
        for key in write.writes:
            if key != shown and self.read_at.get(key, 0) >= revision:
                return False
            if key != shown and any(at >= revision and covers(listing, key) for at, listing in self.listings):
                return False
        self.placed.add(write.op_id)
        for key, value in write.writes.items():
            if (self.store.state(key)[1] or 0) < revision:
                self._write(key, value, revision)
        return True

    def _listing(self, row: Row, request: Request, output: Row) -> "_Problem | None":
        items = [] if request["count_only"] else output["items"]
        for item in items:
            if not covers(request, item["key"]):
                return _Problem(f"it lists {item['key']}, which lies outside of its interval")
            if not self._shown(row, item["key"], item):
                return _Problem(f"it lists {item['key']} with what is not its record at that revision", [item["key"]])
        listed = {item["key"] for item in items}
        live = self.store.live(request)
        wanted = live[: request["limit"]] if request["limit"] else live
        if not request["count_only"]:
            for key, _ in wanted[: len(items)] if output.get("more") else wanted:
                if key not in listed and not self._shown(row, key, None):
                    return _Problem(f"it does not list {key}, which was live at that revision", [key])
        if output.get("count") is not None:
            self._make_count_right(row, request, listed, output["count"])
        live = self.store.live(request)
        self.listings.append((row["revision"], request))
        reason = _listing_problem(request, output, [key for key, _ in live])
        return _Problem(reason, [key for key in self.unknown if covers(request, key)]) if reason else None

    def _make_count_right(self, row: Row, request: Request, listed: set[str], count: int) -> None:
        """Behind the limit only the count shows what unknown writes did: put in as many as it takes."""
        live = {key for key, _ in self.store.live(request)}
        open_keys = sorted(key for key in self.unknown if key not in listed and covers(request, key))
        for key in open_keys:
            if len(live) == count:
                return
            fewer = len(live) > count
            for write in self._candidates(row, key) if (key in live) == fewer else []:
                if (write.writes[key] is None) == fewer and self._place(write, row["revision"], key):
                    live ^= {key}
                    break

    def _transaction(self, row: Row, request: Request, output: Row) -> "_Problem | None":
        held = [(c, _compare(self.store.state(c["key"]), c)) for c in request["compares"]]
        problem: _Problem | None = None
        wrong = next((c for c, holds in held if holds is False), None)
        if output["succeeded"] and wrong is not None:
            problem = _Problem(f"its comparison {_canonical(wrong)} did not hold at that revision", [wrong["key"]])
        if not output["succeeded"] and all(holds for _, holds in held):
            keys = [c["key"] for c in request["compares"]]
            problem = _Problem("it says that a comparison failed, yet all held at that revision", keys)
        steps = request["success" if output["succeeded"] else "failure"]
        for step, result in zip(steps, output["results"], strict=True):
            problem = self._step(row, step, result) or problem
        return problem

    def _step(self, row: Row, step: Request, result: Row) -> "_Problem | None":
        if step["op"] == "range":
            return self._listing(row, step, result) if not step["revision"] else None
        key, problem = step["key"], None
        if step["op"] == "get" and not self._shown(row, key, result if result["found"] else None):
            problem = _Problem(f"it read {key} as it was not at that revision", [key])
        if step["op"] == "delete" and not self._shown(row, key, {} if result["found"] else None):
            found = "a record" if result["found"] else "nothing"
            problem = _Problem(f"its deletion of {key} found {found}, which was not so at that revision", [key])
        if step["op"] in ("put", "delete"):
            self._write(key, step.get("value"), row["revision"])
        return problem


@dataclass(frozen=True, slots=True)
class _Problem:
    """What is wrong with an answer, and the keys of which an unknown write might be the reason."""

    reason: str
    keys: list[str] = field(default_factory=list)


def _writes(steps: Iterable[Request]) -> dict[str, str | None]:
    return {step["key"]: step.get("value") for step in steps if step["op"] in ("put", "delete")}


def _agrees(state: State, record: Row | None) -> bool:
    if record is None or state[0] is None:
        return record is None and state[0] is None
    told = (record.get("value"), record.get("mod_revision"))
    return all(t is None or have is None or t == have for t, have in zip(told, state[:2], strict=True))


def _compare(state: State, compare: Request) -> bool | None:
    """None: it compares a revision that nobody has told."""
    if compare["target"] == "value":
        return state[0] is not None and compared(state[0], compare["op"], compare["value"])
    have = {"mod_revision": state[1], "create_revision": state[2], "version": state[3]}[compare["target"]]
    return None if have is None else compared(have, compare["op"], compare["value"])


def _canonical(value: Row) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _listing_problem(request: Request, output: Row, live: list[str]) -> str | None:
    if output.get("count") is not None and output["count"] != len(live):
        return f"it counts {output['count']} keys, where {len(live)} were live at that revision"
    if request["count_only"]:
        return None
    listed = [item["key"] for item in output["items"]]
    if listed != live[: len(listed)]:
        return "its keys are not in order"
    if request["limit"] and len(listed) > request["limit"]:
        return f"it lists {len(listed)} keys, above its limit of {request['limit']}"
    if output.get("more") is not None and bool(output["more"]) != (len(listed) < len(live)):
        return f"it says more={str(output['more']).lower()} after {len(listed)} of {len(live)} keys"
    return None


def replayable(rows: Iterable[Row]) -> tuple[int, str | None]:
    """(operations to be checked here, why they cannot be) of one run."""
    many, bare = 0, 0
    for row in rows:
        many += row["status"] != "fail" and concerns_many(row)
        bare += row["status"] == "ok" and row.get("revision") is None
    return many, f"{bare} operations carry no revision, so there is no order to replay the store in" if bare else None
