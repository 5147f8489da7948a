"""Replays the whole store. At each gap, the search chooses the unknown write that took effect there, or no write.

A gap is a revision that no acknowledged change carries. At every gap, the content of the store is known, so the effect
of each candidate is computed exactly. Several deletions by the same lease may take effect at one gap. Candidates that
some response suggests are tried first. If a later response contradicts the store, the search undoes its choices, the
last one first, until it can try another candidate. It does not change a choice if none of the candidates could affect
the contradicted keys.

`wide` decides which operations affect a key. If `wide` is false, only operations that write the key affect it. Such a
search is fast and nearly always finds an explanation. If `wide` is true, all operations that are connected with the key
through shared keys, directly or indirectly, affect it. If a wide search has tried all choices without success, no
explanation exists.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from spark_audit.model.store import Conflict, WholeStore, written
from spark_audit.store.lookahead import FITS, IMPOSSIBLE
from spark_audit.store.replay_plan import ReplayPlan, ReplayStep
from spark_audit.store.unknown_writes import Branch, UnknownWrite

Row: TypeAlias = Mapping[str, Any]
Marks: TypeAlias = frozenset[Any]  # A set of keys, or, in a wide search, of numbers of parts (`UnknownWrite.part`).

# After it undoes choices, a search repeats steps of the replay. It repeats at most this many in total, which takes a
# few seconds. For histories of real runs, it repeats some hundreds.
STEPS_AGAIN_MAX = 200_000


@dataclass(frozen=True, slots=True)
class Contradiction:
    """A row that does not agree with the store at its revision.

    `certain`: if False, an unknown write might explain the row.
    """

    row: Row
    reason: str
    certain: bool


@dataclass(frozen=True, slots=True)
class _Fault:
    """A contradiction that the search may still explain by another choice. `keys`: the keys on which the contradiction
    depends.
    """

    step: int
    row: Row
    reason: str
    keys: frozenset[str]


@dataclass(slots=True)
class _Choice:
    """A gap (a revision without an acknowledged operation), the write chosen for it, and the writes tried before.

    `chosen`: the chosen write; None if no unknown write takes effect at the gap. `store_mark`, `mark`: the points at
    which `_undo` must stop to restore the state before the choice.
    """

    step: int
    store_mark: int
    mark: int
    chosen: UnknownWrite | None
    tried: list[UnknownWrite | None]
    conflict: Marks = frozenset()


@dataclass(slots=True)
class _Deepest:
    fault: _Fault
    decisions: dict[int, UnknownWrite | None]


@dataclass(slots=True)
class Outcome:
    """The outcome of a search.

    `explained`: True if no choice of unknown writes could have prevented the contradictions in `found`.
    """

    found: list[Contradiction] = field(default_factory=list)
    explained: bool = True


class BacktrackingSearch:
    """One search. `hints`: whether weak reads and reported revisions of deletions suggest candidates."""

    def __init__(self, plan: ReplayPlan, *, hints: bool, wide: bool, steps_again_max: int = STEPS_AGAIN_MAX) -> None:
        self._plan, self._hints, self._wide = plan, hints, wide
        self._left = steps_again_max
        self._store = WholeStore(reversible=True)
        self._trail: list[tuple[dict[Any, Any], Any, Any]] = []
        self._scores: dict[str, int] = {}  # Key → score, for keys whose record does not fit the next observation.
        self._placed: dict[int, int] = {}  # op_id → gap.
        # Key → the last unknown write that was placed and that wrote the key.
        self._author: dict[str, UnknownWrite] = {}
        self._choices: list[_Choice] = []
        self._forced: dict[int, UnknownWrite | None] = {}
        self._deepest: _Deepest | None = None
        self._accept_at = -1
        self._floor = (0, 0, 0)  # (step, store mark, mark): choices before this step are final.
        self._reported: set[int] = set()
        self._unsure: set[int] = set()  # op_ids of pinned writes that could not be placed at their gap.
        self._outcome = Outcome()

    def run(self, *, stop: bool) -> Outcome:
        """Replay the whole plan. `stop`: whether to end at the first contradiction that the search cannot explain."""
        for key in self._plan.by_key:
            self._appraise(key, -1, 1)
        step, steps = 0, self._plan.steps
        while step < len(steps):
            fault = self._take(step, steps[step])
            step = step + 1 if fault is None else self._settle(fault)
            if stop and not self._outcome.explained:
                break
        return self._outcome

    def _take(self, number: int, step: ReplayStep) -> _Fault | None:
        if step.row is None:
            return self._decide(number, step.revision) if step.revision >= self._plan.first_gap else None
        conflict = self._store.meet(step.row, step.request)
        for key in step.touched:
            self._appraise(key, number, step.revision)
        if conflict is not None:
            return self._fault(number, step, conflict)
        if step.lease is not None:
            self._join(number, step.revision, self._plan.by_lease[step.lease])
        return None

    def _fault(self, number: int, step: ReplayStep, conflict: Conflict) -> _Fault:
        assert step.row is not None
        reason, author = conflict.reason, self._author.get(step.row.get("key") or "")
        if step.request is None and author is not None and len(author.named) > 1:
            reason = f"it does not show the write of txn #{author.op_id}, which another key shows to have happened"
        return _Fault(number, step.row, reason, self._plan.keys_of(step, conflict.keys))

    # -- State that can be undone ------------------------------------------------------------------------------------

    def _set(self, where: dict[Any, Any], key: Any, value: Any) -> None:
        have = where.get(key)
        if have != value:
            self._trail.append((where, key, have))
            _assign(where, key, value)

    def _undo(self, store_mark: int, mark: int) -> None:
        self._store.undo(store_mark)
        while len(self._trail) > mark:
            _assign(*self._trail.pop())

    def _appraise(self, key: str, step: int, revision: int) -> None:
        score = self._plan.lookahead.score(key, self._store.record(key), step, revision, self._hints)
        self._set(self._scores, key, None if score == FITS else score)

    # -- Choosing ---------------------------------------------------------------------------------------------------

    def _decide(self, step: int, gap: int) -> _Fault | None:
        if step in self._forced:
            self._choose(self._mark(step, self._forced[step]), gap)
            return None
        options = [(gain, one) for gain, one in self._options(step, gap, self._suggested(gap)) if gain > 0]
        if options or gap not in self._plan.shown or step in self._reported:
            self._choose(self._mark(step, options[0][1] if options else None), gap)
            return None
        key, (_, row) = next(iter(self._plan.shown[gap].items()))
        everyone = [one for key in self._plan.shown[gap] for one in self._plan.by_key[key] if one.earliest <= gap]
        options = self._options(step, gap, everyone)
        if options:
            self._choose(self._mark(step, options[0][1]), gap)
            return None
        reason = f"it shows {key} as written at revision {gap}, where no write of unknown outcome can have written it"
        keys = frozenset(key for one in everyone for key in one.named)
        return _Fault(step, row, reason, keys)

    def _join(self, step: int, revision: int, deletions: Sequence[UnknownWrite]) -> None:
        """At the revision of an acknowledged deletion by a lease, let its unknown deletions also take effect."""
        if step in self._forced:
            self._choose(self._mark(step, self._forced[step]), revision)
            return
        options = [one for gain, one in self._options(step, revision, deletions) if gain > 0]
        self._choose(self._mark(step, options[0] if options else None), revision)

    def _suggested(self, gap: int) -> Iterator[UnknownWrite]:
        """Yield the unknown writes to some keys. For each of these keys, a response or a hint names this revision, or a
        later response shows that a write is missing.
        """
        plan = self._plan
        if gap in plan.owner:
            yield plan.owner[gap]
            return
        keys = dict.fromkeys(plan.shown.get(gap, ()))
        keys |= dict.fromkeys(self._scores)
        if self._hints:
            keys |= dict.fromkeys(plan.hinted.get(gap, ()))
        seen: set[int] = set()
        for key in keys:
            for one in plan.by_key.get(key, ()):
                if one.op_id not in seen:
                    seen.add(one.op_id)
                    yield one

    def _options(self, step: int, gap: int, candidates: Iterable[UnknownWrite]) -> list[tuple[int, UnknownWrite]]:
        """Return (gain, write) for the candidates that can have taken effect at this gap, the greatest gain first. At
        the step of an acknowledged deletion by a lease, only deletions by this lease can take effect.

        If two gains are equal, the write called later comes first.
        """
        owner, here = self._plan.owner.get(gap), self._plan.steps[step]
        found: list[tuple[int, UnknownWrite]] = []
        for one in candidates:
            if here.row is not None and one.lease != here.lease:
                continue
            if one.op_id in self._placed or one.earliest > gap or one.pinned not in (None, gap):
                continue
            if owner is not None and one is not owner:
                continue
            effect = one.effect(self._store.record)
            gain = self._gain(one, effect, step, gap) if effect else None
            if gain is not None:
                found.append((gain, one))
        found.sort(key=lambda pair: (-pair[0], -pair[1].row["call_ns"], pair[1].op_id))
        return found

    def _gain(self, one: UnknownWrite, effect: Branch, step: int, gap: int) -> int | None:
        """Return how much better the later responses would fit if the write took effect here; None if they exclude
        this.
        """
        for key, (value, _) in self._plan.shown.get(gap, {}).items():
            if effect.get(key) is None or (value is not None and effect[key] != value):
                return None
        gain = 0
        for key, value in effect.items():
            after = written(self._store.record(key), value, gap)
            score = self._plan.lookahead.score(key, after, step, gap, self._hints)
            if score == IMPOSSIBLE and one.pinned != gap:
                return None
            gain += score - self._scores.get(key, FITS)
        if gap in self._plan.shown:
            gain = max(gain, 0) + FITS
        if self._hints:
            hinted = self._plan.hinted.get(gap, {})
            gain += FITS * sum(key in effect and effect[key] == value for key, value in hinted.items())
            if one.hinted not in (None, gap):
                gain = min(gain, -1)
        return gain

    def _mark(self, step: int, chosen: UnknownWrite | None) -> _Choice:
        return _Choice(step, self._store.mark(), len(self._trail), chosen, [chosen])

    def _choose(self, choice: _Choice, gap: int) -> None:
        self._choices.append(choice)
        one = choice.chosen
        if one is None:
            return
        self._place(choice, one, gap)
        for other in self._plan.by_lease[one.lease] if one.lease is not None else ():
            if any(gain > 0 for gain, _ in self._options(choice.step, gap, [other])):
                self._place(choice, other, gap)

    def _place(self, choice: _Choice, one: UnknownWrite, gap: int) -> None:
        self._set(self._placed, one.op_id, gap)
        for key, value in one.effect(self._store.record).items():
            self._store.write(key, value, gap)
            self._set(self._author, key, one)
            self._appraise(key, choice.step, gap)

    # -- Undoing ----------------------------------------------------------------------------------------------------

    def _settle(self, fault: _Fault) -> int:
        """Handle a contradiction: report it, or make another choice. Return the step to continue with."""
        following = fault.step + 1
        if fault.step in self._reported:
            return following
        if fault.keys & self._plan.wrong:  # The key is a violation by itself, and the violation is already reported.
            self._reported.add(fault.step)
            return following
        if self._stands(fault):
            self._reported.add(fault.step)
            self._outcome.found.append(Contradiction(fault.row, fault.reason, True))
            self._note_unsure(fault)
            return following
        if fault.step == self._accept_at:
            return self._accept(fault)
        back = self._back(fault)
        if back is not None:
            return back
        self._outcome.explained = False
        assert self._deepest is not None
        self._forced, self._accept_at = self._deepest.decisions, self._deepest.fault.step
        step, store_mark, mark = self._floor
        self._choices.clear()
        self._undo(store_mark, mark)
        return step

    def _accept(self, fault: _Fault) -> int:
        """Report a contradiction that no tried choice explains. Make all choices before it final, and continue after
        it.
        """
        proven = self._left > 0 and self._wide and self._floor[0] == 0
        self._outcome.found.append(Contradiction(fault.row, fault.reason, proven))
        self._reported.add(fault.step)
        self._note_unsure(fault)
        self._choices.clear()
        self._forced, self._accept_at, self._deepest = {}, -1, None
        self._floor = (fault.step + 1, self._store.mark(), len(self._trail))
        return fault.step + 1

    def _note_unsure(self, fault: _Fault) -> None:
        step = self._plan.steps[fault.step]
        if step.row is None and step.revision in self._plan.owner:
            self._unsure.add(self._plan.owner[step.revision].op_id)

    def _stands(self, fault: _Fault) -> bool:
        """Return whether it is certain which writes had changed the keys of the fault by the revision of the fault."""
        revision = self._plan.steps[fault.step].revision
        return not any(
            one.earliest <= revision and (one.pinned is None or not one.sure or one.op_id in self._unsure)
            for key in fault.keys
            for one in self._plan.by_key.get(key, ())
        )

    def _back(self, fault: _Fault) -> int | None:
        """Change one of the choices on which the fault depends; return the step to continue with, or None."""
        if self._deepest is None or fault.step > self._deepest.fault.step:
            decisions = {choice.step: choice.chosen for choice in self._choices}
            self._deepest = _Deepest(fault, decisions)
        conflict = self._marks(fault.keys)
        while self._choices and self._left > 0:
            choice = self._choices.pop()
            self._undo(choice.store_mark, choice.mark)
            gap = self._plan.steps[choice.step].revision
            # Some candidates in `tried` failed because of an earlier contradiction, not because of this one.
            bears = any(one is not None and self._bears(one, conflict) for one in choice.tried)
            if not bears and not self._untried(choice, gap, conflict):
                continue
            choice.conflict |= conflict
            untried = self._untried(choice, gap, choice.conflict)
            if untried:
                choice.chosen = untried[0]
                choice.tried.append(untried[0])
                self._choose(choice, gap)
                self._left -= 1 + fault.step - choice.step
                return choice.step + 1
            conflict = choice.conflict
            for one in choice.tried:
                conflict |= self._marks(one.named | one.with_lease) if one is not None else frozenset()
        return None

    def _untried(self, choice: _Choice, gap: int, conflict: Marks) -> list[UnknownWrite | None]:
        """Return the candidates that are not tried yet at this gap and that affect the keys of the conflict, best
        first.
        """
        bearing = [one for one in self._plan.unknowns if self._bears(one, conflict) and one not in choice.tried]
        options: list[tuple[int, UnknownWrite | None]] = list(self._options(choice.step, gap, bearing))
        tried = any(one is not None and self._bears(one, conflict) for one in choice.tried)
        if tried and None not in choice.tried and gap not in self._plan.shown:
            position = next((i for i, (gain, _) in enumerate(options) if gain <= 0), len(options))
            options.insert(position, (0, None))
        return [one for _, one in options]

    def _marks(self, keys: Iterable[str]) -> Marks:
        part_of = self._plan.part_of
        return frozenset(part_of[key] for key in keys if key in part_of) if self._wide else frozenset(keys)

    def _bears(self, one: UnknownWrite, conflict: Marks) -> bool:
        return one.part in conflict if self._wide else not conflict.isdisjoint(one.with_lease)


def _assign(where: dict[Any, Any], key: Any, value: Any) -> None:
    if value is None:
        where.pop(key, None)
    else:
        where[key] = value
