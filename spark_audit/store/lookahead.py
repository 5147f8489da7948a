"""Checks whether later responses about a key can follow from the record that the key has now.

Responses are kept only for keys that an unknown write may have changed. The score IMPOSSIBLE is certain: no matter
which unknown writes take effect later, some response contradicts the record. All other scores only rank candidates.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from spark_audit.history.operation import as_bytes
from spark_audit.history.requests import Request, covers
from spark_audit.model.store import Record, written

Row: TypeAlias = Mapping[str, Any]

_Observed: TypeAlias = tuple[str, Row | None, tuple[str, str | None] | None]  # (key, seen, wrote): see Observation.

FITS, WANTING, DOUBTFUL, IMPOSSIBLE = 1_000, 500, 100, 0
"""Scores: how well a record fits the next observations. If the record fits only after further unknown writes, the score
is WANTING minus the number of these writes.
"""

# At most this many later responses are compared. A response that reports a version decides the score, so the responses
# after it are ignored.
AHEAD_MAX = 12
_MISSING_MAX = 300
# The assumed number of missing writes if the record was deleted and created again: a deletion, a put, and possibly
# more.
_OTHER_LIFE = 10
_ABSENT: Row = {"found": False}
_PRESENT: Row = {"found": True}
_NUMBERS = {"mod_revision", "create_revision", "version"}


@dataclass(frozen=True, slots=True)
class Observation:
    """The information that a row gives about a key.

    `seen`: the record, or absence, that the row found; None if the row does not report it. `wrote`: the kind and the
    value of the row's write; None if the row wrote nothing.
    """

    step: int
    revision: int
    seen: Row | None
    wrote: tuple[str, str | None] | None = None  # ("put", value), ("append", value) or ("delete", None)


@dataclass(slots=True)
class _KeyHistory:
    """All observations of one key, in the order of the replay."""

    steps: list[int] = field(default_factory=list)
    observations: list[Observation] = field(default_factory=list)

    def add(self, observation: Observation) -> None:
        self.steps.append(observation.step)
        self.observations.append(observation)


class Lookahead:
    """The observations of the keys in `open_keys`, which unknown writes may have changed.

    `gaps`: the revisions, ascending, at which unknown writes may have taken effect.
    """

    def __init__(self, open_keys: Iterable[str], gaps: Sequence[int]) -> None:
        self._by_key = {key: _KeyHistory() for key in open_keys}
        self._sorted = sorted(self._by_key, key=as_bytes)
        self._gaps = gaps
        self._is_gap = frozenset(gaps)

    def note(self, step: int, revision: int, row: Row, request: Request | None) -> list[tuple[str, Observation]]:
        """Add the row that the replay reads at this step; return its observations, each with its key."""
        noted: list[tuple[str, Observation]] = []
        for key, seen, wrote in self._observed(row, request):
            history = self._by_key.get(key)
            if history is not None:
                observation = Observation(step, revision, seen, wrote)
                history.add(observation)
                noted.append((key, observation))
        return noted

    def forget(self, keys: Iterable[str]) -> None:
        """Drop the observations of these keys; each key is a violation by itself, so no report about it is reliable."""
        for key in keys:
            if key in self._by_key:
                self._by_key[key] = _KeyHistory()

    def _observed(self, row: Row, request: Request | None) -> Iterator[_Observed]:
        op, output = row["op"], row["output"]
        if request is not None:
            if op == "txn":
                yield from self._transacted(request, output)
            else:
                yield from self._listed(request, output)
            return
        key = row["key"]
        if op == "get":
            yield key, output, None
        elif op == "cas":
            if output["succeeded"]:
                yield key, _expectation(row), ("put", row["value"])
            else:
                yield key, output, None
        elif op == "delete":
            yield key, _PRESENT if output["found"] else _ABSENT, ("delete", None) if output["found"] else None
        else:
            yield key, None, (op, row["value"])

    def _transacted(self, request: Request, output: Row) -> Iterator[_Observed]:
        if output["succeeded"]:
            for compare in request["compares"]:
                if compare["op"] == "=":
                    yield compare["key"], _equal(compare["target"], compare["value"]), None
        steps = request["success" if output["succeeded"] else "failure"]
        for step, result in zip(steps, output["results"], strict=True):
            if step["op"] == "range":
                yield from self._listed(step, result) if not step["revision"] else ()
            elif step["op"] == "get":
                yield step["key"], result, None
            elif step["op"] == "put":
                yield step["key"], None, ("put", step["value"])
            else:
                found = result["found"]
                yield step["key"], _PRESENT if found else _ABSENT, ("delete", None) if found else None

    def _listed(self, request: Request, output: Row) -> Iterator[_Observed]:
        if request["count_only"]:
            return
        listed: set[str] = set()
        for item in output["items"]:
            listed.add(item["key"])
            yield item["key"], {**item, "found": True}, None
        last = as_bytes(output["items"][-1]["key"]) if output["items"] else None
        full = bool(request["limit"]) and len(listed) >= request["limit"]
        cut = bool(output.get("more")) or (full and output.get("more") is None)
        for key in self._sorted if not (cut and last is None) else ():
            if key in listed or not covers(request, key):
                continue
            if cut and last is not None and (as_bytes(key) < last) == bool(request["reverse"]):
                continue
            yield key, _ABSENT, None

    def score(self, key: str, record: Record, step: int, revision: int, hints: bool) -> int:
        """Return how well a record fits the observations after `step`. `revision`: the revision of `step`."""
        history = self._by_key.get(key)
        if history is None:
            return FITS
        start = bisect_right(history.steps, step)
        rewritten = False
        for observation in history.observations[start : start + AHEAD_MAX]:
            if observation.seen is not None:
                judged = self._judge(record, observation, revision, rewritten, hints)
                if judged is not None:
                    return judged
            if observation.wrote is not None:
                kind, value = observation.wrote
                value = (record[0] or "") + (value or "") if kind == "append" else value
                record, rewritten = written(record, value, observation.revision), True
        return FITS

    def _has_gap(self, after: int, until: int) -> bool:
        """Return whether an unknown write may have a revision in (after, until]."""
        position = bisect_right(self._gaps, after)
        return position < len(self._gaps) and self._gaps[position] <= until

    def _judge(self, have: Record, observation: Observation, now: int, rewritten: bool, hints: bool) -> int | None:
        """Return the score of a record for one observation.

        The result is None if the record agrees with the observation, but does not yet decide the score. `now`: the
        revision that the replay has reached; all unknown writes that are not placed yet get higher revisions.
        """
        seen = observation.seen
        assert seen is not None
        value, mod, create, version = have
        if not seen["found"]:
            if value is None:
                deleted = seen.get("deleted_revision") if hints and seen.get("exact") else None
                return DOUBTFUL if deleted and deleted != mod else FITS
            return WANTING - 1 if self._has_gap(max(now, mod), observation.revision) else IMPOSSIBLE
        seen_mod, seen_create, seen_version = (seen.get(n) for n in ("mod_revision", "create_revision", "version"))
        if value is None:
            since = max(now, mod)
            possible = self._has_gap(since, observation.revision) if seen_mod is None else self._later(seen_mod, since)
            possible = possible and (seen_create is None or seen_create > since)
            return WANTING - min(seen_version or 1, _MISSING_MAX) if possible else IMPOSSIBLE
        if seen_mod is None:
            if _same(seen, have):
                return None if seen_version is None else FITS
            return WANTING - 1 if self._has_gap(now, observation.revision) else IMPOSSIBLE
        if seen_mod != mod:
            if not self._later(seen_mod, max(now, mod)):
                return IMPOSSIBLE
            return _missing(seen_create, seen_version, create, version + 1, now)
        if seen.get("value") not in (None, value):
            return IMPOSSIBLE
        if _same(seen, have):
            return None if seen_version is None else FITS
        # The revision agrees, but the version or the creation does not. So an unknown write before the write of the
        # record is missing, after `now`.
        if not rewritten or not self._has_gap(now, mod):
            return IMPOSSIBLE
        return _missing(seen_create, seen_version, create, version, now)

    def _later(self, revision: int, than: int) -> bool:
        return revision > than and revision in self._is_gap


def _same(seen: Row, have: Record) -> bool:
    reported = (seen.get("value"), seen.get("mod_revision"), seen.get("create_revision"), seen.get("version"))
    return all(t is None or t == is_ for t, is_ in zip(reported, have, strict=True))


def _missing(seen_create: int | None, seen_version: int | None, create: int, version: int, now: int) -> int:
    """Return the score of a record with `create` and `version`, for a response that reports `seen_create` and
    `seen_version`.

    The more writes are missing between this record and the reported record, the lower is the score.
    """
    if seen_create is not None and seen_create != create:
        return WANTING - _OTHER_LIFE if seen_create > now else IMPOSSIBLE
    if seen_version is None or seen_version == version:
        return WANTING
    if seen_version > version:
        return WANTING - min(seen_version - version, _MISSING_MAX)
    return WANTING - _OTHER_LIFE if seen_create is None else IMPOSSIBLE


def _expectation(row: Row) -> Row:
    if row.get("expected_mod_revision") is not None:
        return _equal("mod_revision", row["expected_mod_revision"])
    return _ABSENT if row.get("expected") is None else {"found": True, "value": row["expected"]}


def _equal(target: str, value: object) -> Row:
    """Return what a successful comparison for equality shows: a field of the record, or absence."""
    return _ABSENT if target in _NUMBERS and value == 0 else {"found": True, target: value}
