"""Checks recorded histories for linearizability, independently of the code that recorded them.

`check_rows` checks the rows of a history in the calling process. `hwm-audit check` (`spark_audit.cli`) checks history
files, in its own process or on Spark. Importing this package does not load Spark, pandas or numpy.
"""

from __future__ import annotations

from spark_audit.errors import AuditError, Fault, InputError, MalformedHistory, NothingToCheck
from spark_audit.local import check_rows
from spark_audit.testing.generate import Shape, generate
from spark_audit.testing.generate_services import ServiceShape, generate_services
from spark_audit.testing.inject_fault import ALL_FAULTS, FAULTS, inject
from spark_audit.testing.inject_service_fault import SERVICE_FAULTS
from spark_audit.testing.levels import LEVEL_FAULTS, inject_level, with_levels
from spark_audit.verdict.verdict import Property, ShownOperation, Undecided, Verdict, Violation

__all__ = [
    "ALL_FAULTS",
    "FAULTS",
    "LEVEL_FAULTS",
    "SERVICE_FAULTS",
    "AuditError",
    "Fault",
    "InputError",
    "MalformedHistory",
    "NothingToCheck",
    "Property",
    "ServiceShape",
    "Shape",
    "ShownOperation",
    "Undecided",
    "Verdict",
    "Violation",
    "check_rows",
    "generate",
    "generate_services",
    "inject",
    "inject_level",
    "with_levels",
]
