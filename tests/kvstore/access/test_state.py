"""Users and roles in the state machine (docs/reference/specification.md#816-users-and-roles)."""

from __future__ import annotations

from typing import Any

import cbor2
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvstore.access.state import NO_ACCESS_STATE
from kvstore.errors import AccessReason, AccessRefused, AuthRevisionOld, InvalidRequest, ResultCode, SessionExpired
from kvstore.protocol.access_commands import (
    AccessCommand,
    AuthDisable,
    AuthEnable,
    ChangeUserLimits,
    RoleAdd,
    RoleGrant,
    RoleRemove,
    RoleRevoke,
    UserAdd,
    UserGrant,
    UserPassword,
    UserRemove,
    UserRevoke,
)
from kvstore.protocol.commands import (
    Get,
    Put,
    RaiseFeatureLevel,
    RegisterSession,
    encode_command,
    judged_command,
    judged_mark,
)
from kvstore.protocol.results import read_result
from kvstore.store.machine import KvMachine
from kvstore.store.snapshot_codec import InvalidSnapshot
from raft import Entry, EntryKind, encode_batch
from tests.kvstore.support.machine_fixture import SECOND, Fed, restored

KEY = bytes(32)


def enabled() -> Fed:
    """A store in which authentication is on, with the users root and ada."""
    fed = Fed(level=3)
    for command in (UserAdd("root", b"r"), UserGrant("root", "root"), UserAdd("ada", b"a"), AuthEnable(KEY)):
        fed.do(command)
    return fed


CHANGES: list[tuple[list[AccessCommand], AccessCommand, AccessReason | None]] = [
    ([], UserAdd("ada", b""), None),
    ([UserAdd("ada", b"")], UserAdd("ada", b"x"), AccessReason.USER_EXISTS),
    ([], UserRemove("ada"), AccessReason.USER_NOT_FOUND),
    ([], UserPassword("ada", b""), AccessReason.USER_NOT_FOUND),
    ([], UserGrant("ada", "root"), AccessReason.USER_NOT_FOUND),
    ([UserAdd("ada", b"")], UserGrant("ada", "apps"), AccessReason.ROLE_NOT_FOUND),
    ([UserAdd("ada", b""), RoleAdd("apps")], UserRevoke("ada", "apps"), AccessReason.ROLE_NOT_GRANTED),
    ([], ChangeUserLimits("ada", 1), AccessReason.USER_NOT_FOUND),
    ([RoleAdd("apps")], RoleAdd("apps"), AccessReason.ROLE_EXISTS),
    ([], RoleAdd("root"), AccessReason.ROLE_EXISTS),
    ([], RoleRemove("apps"), AccessReason.ROLE_NOT_FOUND),
    ([], RoleRemove("root"), AccessReason.ROOT_IS_FIXED),
    ([], RoleGrant("root", 1, b"", None), AccessReason.ROOT_IS_FIXED),
    ([], RoleGrant("apps", 1, b"", None), AccessReason.ROLE_NOT_FOUND),
    ([RoleAdd("apps")], RoleRevoke("apps", b"a", b"b"), AccessReason.RANGE_NOT_GRANTED),
    ([], AuthEnable(KEY), AccessReason.ROOT_NEEDED),
    ([UserAdd("root", b"")], AuthEnable(KEY), AccessReason.ROOT_NEEDED),
    ([], AuthDisable(), AccessReason.IS_DISABLED),
]


@pytest.mark.parametrize(("before", "command", "reason"), CHANGES)
def test_a_change_raises_the_auth_revision_and_a_refused_change_changes_nothing(
    before: list[AccessCommand], command: AccessCommand, reason: AccessReason | None
) -> None:
    fed = Fed(level=3)
    for each in before:
        fed.do(each)
    state = fed.machine.access
    if reason is None:
        fed.do(command)
        assert fed.machine.access.revision == state.revision + 1
    else:
        with pytest.raises(AccessRefused) as caught:
            fed.do(command)
        assert caught.value.reason is reason
        assert fed.machine.access is state


@pytest.mark.parametrize("command", [UserRemove("root"), UserRevoke("root", "root")])
def test_while_authentication_is_on_root_stays(command: AccessCommand) -> None:
    """Without root, nobody could turn authentication off or change a user."""
    fed = enabled()
    with pytest.raises(AccessRefused) as caught:
        read_result(fed.as_user("root", command))
    assert caught.value.reason is AccessReason.ROOT_NEEDED
    read_result(fed.as_user("root", AuthDisable()))
    fed.do(command)


def test_a_removed_role_is_taken_away_from_its_users() -> None:
    fed = Fed(level=3)
    for command in (UserAdd("ada", b""), RoleAdd("apps"), UserGrant("ada", "apps"), RoleRemove("apps")):
        fed.do(command)
    assert fed.machine.access.users["ada"].roles == ()


def test_users_and_roles_need_feature_level_3() -> None:
    fed = Fed(level=2)
    with pytest.raises(InvalidRequest, match="feature level"):
        fed.do(UserAdd("ada", b""))
    assert fed.machine.access is NO_ACCESS_STATE


def test_a_judged_command_below_level_3_is_no_command() -> None:
    """A build that knows no judged commands answers INVALID_REQUEST, too."""
    fed = Fed(level=2)
    assert fed.as_user("ada", Put(b"k", b"v"), revision=1)[0] == ResultCode.INVALID_REQUEST


@pytest.mark.parametrize("revision", [0, 4, 6])
def test_a_command_judged_at_another_auth_revision_has_no_effect_and_may_be_repeated(revision: int) -> None:
    """Only the number of the auth revision is compared, so all members decide alike."""
    fed = enabled()
    assert fed.machine.access.revision == 5
    result = fed.as_user("root", RegisterSession(9 * SECOND))
    session = result[2][1]
    stale = fed.as_user("root", Put(b"k", b"v"), session, 1, revision=revision)
    with pytest.raises(AuthRevisionOld):
        read_result(stale)
    assert stale[2:] == (revision, 5)
    assert fed.machine.get(b"k").record is None
    assert read_result(fed.as_user("root", Put(b"k", b"v"), session, 1)).revision == 2
    kept = fed.as_user("root", Put(b"k", b"other"), session, 1)
    assert read_result(kept).revision == 2  # This is the result of the first attempt that was carried out.


def test_while_authentication_is_on_a_command_that_nobody_judged_has_no_effect() -> None:
    fed = enabled()
    with pytest.raises(AuthRevisionOld):
        fed.do(Put(b"k", b"v"))


def test_a_command_judged_before_authentication_was_turned_off_may_be_repeated() -> None:
    fed = enabled()
    read_result(fed.as_user("root", AuthDisable()))
    with pytest.raises(AuthRevisionOld):
        read_result(fed.as_user("root", Put(b"k", b"v"), revision=5))
    fed.do(Put(b"k", b"v"))


def test_the_session_of_a_user_is_not_there_for_other_users() -> None:
    """A kept result may contain records that the other user must not read."""
    fed = enabled()
    session = fed.as_user("ada", RegisterSession(9 * SECOND))[2][1]
    assert fed.machine.sessions.by_id[session].owner == "ada"
    read_result(fed.as_user("ada", Get(b"k"), session, 1))
    with pytest.raises(SessionExpired):
        read_result(fed.as_user("root", Get(b"k"), session, 1))


def entries_of(fed: Fed, entries: list[list[tuple[str | None, int, Any]]]) -> list[Entry]:
    """Entries after the log of `fed`: each command with its user (None: not judged) and its auth revision."""
    made = []
    for number, commands in enumerate(entries, start=len(fed.entries) + 1):
        encoded = []
        for user, revision, command in commands:
            raw = encode_command(command)
            encoded.append(raw if user is None else judged_command(raw, judged_mark(revision, user)))
        made.append(Entry(number, 1, EntryKind.COMMANDS, encode_batch(number, encoded)))
    return made


USERS = st.sampled_from([None, "root", "ada"])
COMMANDS = st.one_of(
    st.builds(Put, st.sampled_from([b"a", b"b"]), st.sampled_from([b"1", b"\x18\x23"])),
    st.sampled_from([RegisterSession(5), UserAdd("bob", b""), UserRemove("bob"), AuthEnable(KEY), AuthDisable()]),
)
LOGS = st.lists(st.lists(st.tuples(USERS, st.integers(4, 8), COMMANDS), min_size=1, max_size=6), min_size=1, max_size=4)


@example([[(None, 0, AuthEnable(KEY)), (None, 0, Put(b"a", b"1"))], [(None, 0, Put(b"b", b"1"))]], False)
@example([[(None, 0, AuthEnable(KEY))], [("root", 7, Put(b"b", b"1")), ("root", 6, Put(b"b", b"2"))]], False)
@given(LOGS, st.booleans())
def test_entries_have_the_same_effect_one_by_one_and_together(
    log: list[list[tuple[str | None, int, Any]]], is_on: bool
) -> None:
    """Members apply the entries of a log in batches of any size."""
    fed = enabled()
    if not is_on:
        read_result(fed.as_user("root", AuthDisable()))
    entries = entries_of(fed, log)
    one, other = restored(fed.machine), restored(fed.machine)
    assert [one.apply(entry) for entry in entries] == other.apply_batch(entries)
    one.check()
    assert one.state_hash() == other.state_hash()
    again = restored(one)
    assert (again.access, again.state_hash()) == (one.access, one.state_hash())


def test_a_snapshot_has_users_roles_and_owners() -> None:
    fed = enabled()
    fed.as_user("ada", RegisterSession(9 * SECOND))
    again = restored(fed.machine)
    assert again.access == fed.machine.access
    assert [session.owner for session in again.sessions.by_id.values()] == ["ada"]
    assert again.state_hash() == fed.machine.state_hash()


@pytest.mark.parametrize(
    ("field", "value"),
    [("auth_enabled", 1), ("auth_revision", 0), ("token_key", b"short"), ("users", 3), ("roles", 1), ("token_key", "")],
)
def test_a_header_that_does_not_fit_is_refused(field: str, value: object) -> None:
    picture = enabled().machine.snapshot()
    header, chunks = {**picture.header, field: value}, list(picture.chunks)
    with pytest.raises(InvalidSnapshot):
        KvMachine().restore(header, chunks)


def test_raising_the_level_from_2_to_3_changes_no_user() -> None:
    fed = Fed(level=2)
    fed.do(RaiseFeatureLevel(3))
    fed.do(UserAdd("ada", b""))
    assert list(fed.machine.access.users) == ["ada"]


HEADERS = st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1))


@given(HEADERS, st.lists(st.integers(0, 2**40), max_size=300), st.integers(1, 2**40), st.text(max_size=16))
def test_a_mark_goes_between_the_header_and_the_body(
    header: tuple[int, int, int], body: list[int], revision: int, user: str
) -> None:
    """This holds for any sizes of the numbers and of the array."""
    raw = cbor2.dumps([*header, 23, *body])
    marked = cbor2.loads(judged_command(raw, judged_mark(revision, user)))
    assert marked == [*header, 8, revision, user, 23, *body]
