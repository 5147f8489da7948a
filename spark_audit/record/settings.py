"""The settings of a recorder, and checks of what a program passes."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field

from spark_audit.history.recorded_files import SharedSettings
from spark_audit.record.errors import BadSetting

PARTS = 16  # The number of parts of the keys, if keys are dropped at a bound. One part is dropped at a time.
ROTATE_BYTES = 64 * 2**20
FLUSH_SECONDS = 1.0
SECRET_BYTES_MAX = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class RecorderSettings:
    """The settings of one recorder, with the meanings and defaults of `Recorder`. Raises BadSetting."""

    values: str
    secret: bytes = field(repr=False)
    sample: float
    bytes_max: int | None
    rate_max: int | None
    at_bound: str
    rotate_bytes: int
    flush_seconds: float
    did_not_happen: tuple[type[BaseException], ...]
    run_id: str | None
    error_bound_ns: int | None

    def __post_init__(self) -> None:
        check("values", self.values, self.values in ("hash", "plain"), '"hash" or "plain"')
        is_secret = isinstance(self.secret, bytes) and len(self.secret) <= SECRET_BYTES_MAX
        check("secret", "of another type, or longer", is_secret, f"bytes, at most {SECRET_BYTES_MAX}")
        check("sample", self.sample, _is_number(self.sample) and 0 < self.sample <= 1, "more than 0 and at most 1")
        check("at_bound", self.at_bound, self.at_bound in ("error", "drop"), '"error" or "drop"')
        check("rotate_bytes", self.rotate_bytes, _is_whole(self.rotate_bytes, 1), "a whole number, 1 or more")
        good = _is_number(self.flush_seconds) and 0 <= self.flush_seconds < math.inf
        check("flush_seconds", self.flush_seconds, good, "0 or more, and finite")
        for name, bound in (("bytes_max", self.bytes_max), ("rate_max", self.rate_max)):
            check(name, bound, bound is None or _is_whole(bound, 1), "None, or a whole number, 1 or more")
        good = self.error_bound_ns is None or _is_whole(self.error_bound_ns, 0)
        check("error_bound_ns", self.error_bound_ns, good, "None, or a whole number, 0 or more")
        good = self.run_id is None or (isinstance(self.run_id, str) and self.run_id != "")
        check("run_id", self.run_id, good, "None, or text that is not empty")
        check_errors(self.did_not_happen)

    @property
    def shared(self) -> SharedSettings:
        """The settings that all processes of a run must share."""
        secret = hashlib.blake2b(b"secret", digest_size=8, key=self.secret).hexdigest()
        return SharedSettings(self.values, self.sample, self.at_bound, secret)


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


def check_revision(given: object, expected: object) -> None:
    """Raise BadSetting unless `given` is a revision that a compare-and-set can expect, without an expected value."""
    good = isinstance(given, int) and _is_whole(given, 1) and given < 2**63
    check("expected_mod_revision", given, good, "a whole number from 1 to 2⁶³ − 1, or None")
    check("expected", expected, expected is None, "None if expected_mod_revision is given")


def _is_number(given: object) -> bool:
    return isinstance(given, int | float) and not isinstance(given, bool)


def _is_whole(given: object, least: int) -> bool:
    return isinstance(given, int) and not isinstance(given, bool) and given >= least
