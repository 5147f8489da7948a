"""The errors of scenarios: a line has an error, an expectation does not hold, or the core raises."""

from __future__ import annotations

from harness.errors import BadInput, HarnessError


class BadScenario(BadInput):
    """A line cannot be carried out as written. `line` counts from 1."""

    def __init__(self, path: str, line: int, problem: str, hint: str) -> None:
        self.path, self.line = path, line
        super().__init__(f"{path}:{line}: {problem}", hint)
        self.args = (path, line, problem, hint)


class Mismatch(HarnessError):
    """An expectation does not hold. `text`: the expectation and its members, without the value."""

    def __init__(self, path: str, line: int, text: str, expected: str, actual: str) -> None:
        self.path, self.line, self.text, self.expected, self.actual = path, line, text, expected, actual
        super().__init__(path, line, text, expected, actual)

    def __str__(self) -> str:
        width = max(len(self.expected), len("expected"))
        return (
            f"{self.path}:{self.line}: {self.text}\n"
            f"    {'expected':<{width}}  |  actual\n"
            f"    {self.expected or '(nothing)':<{width}}  |  {self.actual or '(nothing)'}"
        )


class Broken(HarnessError):
    """A step made the production code raise an exception. The defect is in the code, not in the scenario file."""

    def __init__(self, path: str, line: int, text: str, problem: str) -> None:
        self.path, self.line, self.text, self.problem = path, line, text, problem
        super().__init__(path, line, text, problem)

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}\n    the core did not hold: {self.problem}"
