"""The errors that end a search for mutants, or make its result worthless."""

from __future__ import annotations

from harness.errors import HarnessError


class BadCatalogue(HarnessError):
    """A file of the catalogue does not describe a mutant correctly."""

    def __init__(self, place: str, problem: str) -> None:
        self.place, self.problem = place, problem
        super().__init__(place, problem)

    def __str__(self) -> str:
        return f"{self.place}: {self.problem}.\nhint: docs/internals/testing.md#add-a-mutant describes the fields"


class DoesNotApply(HarnessError):
    """The text that a mutant replaces is missing, or does not occur as many times as the mutant states."""

    def __init__(self, name: str, file: str, found: int, expected: int) -> None:
        self.name, self.file, self.found, self.expected = name, file, found, expected
        super().__init__(name, file, found, expected)

    def __str__(self) -> str:
        return (
            f"mutant {self.name!r} no longer applies: its text occurs {self.found} times in {self.file}, "
            f"not {self.expected}.\nhint: the code has changed; adapt the mutant to it (harness/mutants/catalogue)"
        )


class CleanCodeFails(HarnessError):
    """A seed breaks a rule even on the code without a mutant, so the seed proves nothing about a mutant."""

    def __init__(self, seed: int, rule: str, detail: str) -> None:
        self.seed, self.rule, self.detail = seed, rule, detail
        super().__init__(seed, rule, detail)

    def __str__(self) -> str:
        return (
            f"seed {self.seed} breaks a rule on the code as it is: {self.rule}: {self.detail}\n"
            "hint: correct that first; a rule that is broken without a mutant proves nothing about a mutant"
        )


class CleanTestsFail(HarnessError):
    """A test fails even on the code without a mutant, so it proves nothing about a mutant."""

    def __init__(self, test: str) -> None:
        self.test = test
        super().__init__(test)

    def __str__(self) -> str:
        return f"{self.test} fails on the code as it is\nhint: correct that first"


class NoTests(HarnessError):
    """Only tests can kill this mutant, and the tests are not installed."""

    def __str__(self) -> str:
        return "only tests can kill this mutant, and they are not installed\nhint: run the search in a checkout"


class TestsFailed(HarnessError):
    """The process that runs tests on a copy ended without a result."""

    __test__ = False

    def __init__(self, exit_code: int, tail: str) -> None:
        self.exit_code, self.tail = exit_code, tail
        super().__init__(exit_code, tail)

    def __str__(self) -> str:
        return (
            f"the tests do not run on the copy (exit code {self.exit_code}): {self.tail}\n"
            "hint: do the tests that the mutant names exist?"
        )


class WorkerFailed(HarnessError):
    """The process that runs seeds on a copy ended with an error."""

    def __init__(self, exit_code: int, tail: str) -> None:
        self.exit_code, self.tail = exit_code, tail
        super().__init__(exit_code, tail)

    def __str__(self) -> str:
        return (
            f"the copy does not even run (exit code {self.exit_code}): {self.tail}\n"
            "hint: a mutant must be caught by a run, not by an import"
        )
