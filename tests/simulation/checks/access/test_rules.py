"""Each rule about users can fail.

See docs/reference/specification.md#816-users-and-roles.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from harness.sim.checks.access import rules
from harness.sim.checks.access.rules import AccessChecker, Visit
from harness.sim.checks.access.states import READ, WRITE, needs_of
from harness.sim.checks.history import Mark
from harness.sim.engine.errors import Violation
from kvstore import CommandKind, PermissionDenied, ResultCode

DENIED = PermissionDenied("ada", "read", b"b", b"b\0")

MADE: list[list[Any]] = [
    [CommandKind.USER_ADD, "root", b"0"],
    [CommandKind.USER_GRANT, "root", "root"],
    [CommandKind.USER_ADD, "ada", b"1"],
    [CommandKind.ROLE_ADD, "apps"],
    [CommandKind.ROLE_GRANT, "apps", READ | WRITE, b"a", b"b"],
    [CommandKind.USER_GRANT, "ada", "apps"],
    [CommandKind.AUTH_ENABLE, bytes(32)],
]
ON = 1 + len(MADE)
"""The auth revision under which authentication is on, and `ada` may read and write the keys from `a` to before `b`."""

OLD = (int(ResultCode.AUTH_REVISION_OLD), 1)


def a_checker() -> AccessChecker:
    """A checker with authentication on, at store revision 1."""
    checker = AccessChecker(lambda _: True, lambda _: None)
    for index, body in enumerate(MADE, 1):
        checker.applied(index, [([0, 0, 0, *body], None)], [(0, 1, (int(body[0]),))])
    assert checker.present.revision == ON
    return checker


def applies(checker: AccessChecker, user: str, body: list[Any], *, mark: int, result: Any) -> None:
    checker.applied(100, [([0, 0, 0, *body], Mark(mark, user))], [result])


def puts(checker: AccessChecker, key: bytes, store_revision: int, value: bytes = b"1") -> AccessChecker:
    body = [CommandKind.PUT, key, value]
    applies(checker, "ada", body, mark=checker.present.revision, result=(0, store_revision, (1,)))
    return checker


def loses_the_role(checker: AccessChecker, store_revision: int = 2) -> AccessChecker:
    body = [CommandKind.USER_REVOKE, "ada", "apps"]
    applies(checker, "root", body, mark=checker.present.revision, result=(0, store_revision, (29,)))
    return checker


def is_carried_out_after_a_refusal(checker: AccessChecker) -> None:
    checker.refused("ada", None, [b"1"], DENIED)
    puts(checker, b"a", 2)


def test_what_the_state_allows_is_allowed_until_the_right_is_lost() -> None:
    checker = a_checker()
    puts(checker, b"a", 2)
    needs = needs_of([CommandKind.RANGE, b"a", b"b"])
    assert needs is not None
    checker.read("ada", needs, 2, ON)
    visit = Visit("ada", b"1", b"a", b"b")
    checker.event(visit, 2)
    checker.watched(ON, visit)
    loses_the_role(checker)
    checker.read("ada", needs, 2, ON)  # The read was sent before the change.
    checker.event(visit, 2)  # The member may not have applied the change yet.
    checker.refused("ada", needs, [], DENIED)
    applies(checker, "ada", [CommandKind.PUT, b"a", b"2"], mark=ON, result=OLD)
    assert checker.values == {b"a": b"1"}


@pytest.mark.parametrize(
    ("rule", "breaks"),
    [
        pytest.param(
            rules.COMPARED,
            lambda c: applies(c, "ada", [CommandKind.PUT, b"a", b"1"], mark=ON - 1, result=(0, 2, (1,))),
            id="an earlier revision is carried out",
        ),
        pytest.param(
            rules.COMPARED,
            lambda c: applies(c, "ada", [CommandKind.PUT, b"a", b"1"], mark=ON, result=OLD),
            id="the revision in force is refused",
        ),
        pytest.param(
            rules.COMPARED,
            lambda c: c.applied(100, [([0, 0, 0, CommandKind.PUT, b"a", b"1"], None)], [(0, 2, (1,))]),
            id="a command that nobody has judged is carried out",
        ),
        pytest.param(rules.ALLOWED, lambda c: puts(c, b"b", 2), id="a key outside of the range"),
        pytest.param(
            rules.ALLOWED,
            lambda c: applies(c, "", [CommandKind.PUT, b"a", b"1"], mark=ON, result=(0, 2, (1,))),
            id="a put of no user",
        ),
        pytest.param(
            rules.READ_ALLOWED,
            lambda c: loses_the_role(c).read("ada", [(READ, b"a", b"b")], 2, ON + 1),
            id="a read that was sent after the right was lost",
        ),
        pytest.param(
            rules.READ_ALLOWED,
            lambda c: loses_the_role(c, 2).read("ada", [(READ, b"a", b"b")], 3, 1),
            id="a read of a revision after the right was lost",
        ),
        pytest.param(
            rules.EVENT_ALLOWED,
            lambda c: loses_the_role(c, 2).event(Visit("ada", b"1", b"a", b"b"), 3),
            id="an event after the right was lost",
        ),
        pytest.param(
            rules.WATCH_ENDS,
            lambda c: loses_the_role(c).watched(ON + 1, Visit("ada", b"1", b"a", b"b")),
            id="a watch after the right was lost",
        ),
        pytest.param(
            rules.WATCH_ENDS,
            lambda c: c.watched(ON, Visit("ada", b"an earlier password", b"a", b"b")),
            id="a watch with an earlier password",
        ),
        pytest.param(
            rules.NO_EFFECT,
            is_carried_out_after_a_refusal,
            id="a refused write is carried out later",
        ),
        pytest.param(
            rules.NO_EFFECT,
            lambda c: puts(c, b"a", 2).failed([b"1"], DENIED),
            id="a write that was carried out is reported as failed",
        ),
        pytest.param(
            rules.REFUSED_RIGHTLY,
            lambda c: c.refused("root", [(READ, b"", None)], [], DENIED),
            id="a user who never lacked the right is refused",
        ),
    ],
)
def test_the_rule_is_broken(rule: str, breaks: Callable[[AccessChecker], object]) -> None:
    with pytest.raises(Violation) as broken:
        breaks(a_checker())
    assert broken.value.rule == rule
