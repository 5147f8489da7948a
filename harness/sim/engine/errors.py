"""The failures of a simulated run.

A `Violation` carries only strings, so that it can be pickled and sent to another process.
"""

from __future__ import annotations

import traceback
from typing import NoReturn


class Violation(Exception):
    """A rule does not hold, because of a bug in the product or in the simulator. `rule`: the name of the rule, which
    never varies between runs.
    """

    def __init__(self, rule: str, detail: str) -> None:
        super().__init__(rule, detail)
        self.rule, self.detail = rule, detail

    def __str__(self) -> str:
        return f"{self.rule}: {self.detail}"


def require(holds: bool, rule: str, *detail: object) -> None:
    """Raise `Violation(rule)` unless `holds`. The parts of `detail` are joined only if the rule does not hold."""
    if not holds:
        broken(rule, *detail)


def broken(rule: str, *detail: object) -> NoReturn:
    """Raise `Violation(rule)`.

    A frequent check calls this function only after its rule has failed, so that it builds `detail` only in this case.
    """
    raise Violation(rule, " ".join(str(part) for part in detail))


def escaped(error: Exception) -> Violation:
    """Return a Violation for an exception that the production code raised, because such an exception is a bug too.

    The detail of the Violation names the innermost stack frames of the exception.
    """
    steps = traceback.extract_tb(error.__traceback__)[-8:]
    path = " < ".join(f"{step.filename.rpartition('/')[2]}:{step.lineno} {step.name}" for step in reversed(steps))
    return Violation("no exception leaves a node", f"{type(error).__name__}: {error} at {path}")
