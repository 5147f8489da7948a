"""Errors of the harness itself, as opposed to the cluster under test.

The messages of the errors say what the user can do.
"""

from __future__ import annotations

from pathlib import Path


class HarnessError(Exception):
    """The harness cannot go on.

    `str()` of the error is a sentence for a person; the command line prints this sentence and exits 1.
    """


class BadInput(HarnessError):
    """A request that cannot be carried out as asked. The command line exits 2."""

    def __init__(self, problem: str, hint: str) -> None:
        self.problem, self.hint = problem, hint
        super().__init__(problem, hint)

    def __str__(self) -> str:
        return f"{self.problem}\nhint: {self.hint}"


class NodeDied(HarnessError):
    """A member ended by itself, although no fault allowed that."""

    def __init__(self, node_id: str, exit_code: int, log_path: Path, tail: str) -> None:
        self.node_id, self.exit_code, self.log_path, self.tail = node_id, exit_code, log_path, tail
        super().__init__(node_id, exit_code, log_path, tail)

    def __str__(self) -> str:
        return (
            f"member {self.node_id} ended by itself with exit code {self.exit_code}. The end of its log:\n"
            f"{self.tail}\nhint: the whole log is {self.log_path}"
        )


class NotReady(HarnessError):
    """The cluster was not ready in time, at its start or after faults."""

    def __init__(self, what: str, waited_seconds: float, folder: Path) -> None:
        self.what, self.waited_seconds, self.folder = what, waited_seconds, folder
        super().__init__(what, waited_seconds, folder)

    def __str__(self) -> str:
        return (
            f"{self.what} after {self.waited_seconds:.0f} s.\nhint: the members' logs are {self.folder}/*.log; "
            f"a busy machine may need a longer --ready-seconds"
        )


class VolumeFailed(HarnessError):
    """A file system of a member could not be made, mounted or changed."""

    def __init__(self, command: str, reason: str) -> None:
        self.command, self.reason = command, reason
        super().__init__(command, reason)

    def __str__(self) -> str:
        return f"{self.command}: {self.reason}"


class ExtraMissing(HarnessError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, wanted_for: str, extra: str = "audit") -> None:
        self.package, self.wanted_for, self.extra = package, wanted_for, extra
        super().__init__(package, wanted_for, extra)

    def __str__(self) -> str:
        return (
            f"{self.wanted_for} needs the package {self.package}, which is not installed.\n"
            f"hint: pip install 'highwatermark[{self.extra}]'"
        )
