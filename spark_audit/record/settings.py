"""Checks of what a program passes to a recorder."""

from __future__ import annotations

from spark_audit.record.errors import BadSetting


def check(name: str, given: object, good: bool, wanted: str) -> None:
    """Raise BadSetting unless `good`. `wanted`: the values that are allowed."""
    if not good:
        raise BadSetting(f"{name} is {given!r}; it must be {wanted}")


def check_errors(given: object) -> None:
    """Raise BadSetting unless `given` is a tuple of types of exceptions."""
    good = isinstance(given, tuple) and all(
        isinstance(kind, type) and issubclass(kind, BaseException) for kind in given
    )
    check("did_not_happen", given, good, "a tuple of exceptions, such as (ConnectionRefusedError,)")
