"""Every request is made without a user, with a wrong password, without the right, with the right, and by root
(docs/reference/specification.md#816-users-and-roles)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvstore.access.needs import NEEDS_OF_COMMANDS, NEEDS_OF_REQUESTS
from kvstore.access.requests import AccessTopic, access_request, authenticate_request
from kvstore.errors import ResultCode, Unauthenticated
from kvstore.protocol.access_commands import (
    AuthDisable,
    ChangeUserLimits,
    RoleRevoke,
    UserPassword,
    UserRemove,
    UserRevoke,
)
from kvstore.protocol.commands import (
    Command,
    CommandKind,
    Get,
    KeepAlive,
    LeaseGrant,
    LeaseRenew,
    Put,
    RegisterSession,
    encode_command,
    judged_command,
    judged_mark,
)
from kvstore.protocol.messages import (
    Code,
    Consistency,
    RequestKind,
    Response,
    SessionlessRequest,
    decode_response,
    encode_request,
    read_request,
)
from kvstore.protocol.watches import CancelReason, MessageKind, WatchSpec, watch_request
from kvstore.server.access_guard import PASSWORD_CHECKS_MAX, PasswordCheck
from raft import encode_item, frame
from tests.kvstore.access.request_table import (
    ADA,
    CALLERS,
    COMMANDS,
    EVE,
    LEASE_OF_ADA,
    NOBODY,
    REQUESTS,
    ROOT,
    ROWS,
    USERS,
    WITHOUT_RESPONSE,
    WRONG,
    commands,
)
from tests.kvstore.server.test_service import RawClient
from tests.kvstore.support.in_memory_cluster import Cluster
from tests.kvstore.support.users import PASSWORDS, commands_to_enable, verifier_of

REFUSALS = (Code.PERMISSION_DENIED, Code.UNAUTHENTICATED)


def test_every_request_and_every_command_has_a_row() -> None:
    assert {kind for kind, _, _ in REQUESTS} == set(RequestKind) == set(NEEDS_OF_REQUESTS)
    assert {kind for kind, _, _ in COMMANDS} == set(CommandKind) == set(NEEDS_OF_COMMANDS)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path, 1)
    cluster.leader()
    client = RawClient(cluster, 999)
    for command in commands_to_enable():
        if command == commands_to_enable()[-1]:
            for setup in (LeaseGrant(LEASE_OF_ADA, 60_000_000_000), Put(b"app/leased", b"", lease_id=LEASE_OF_ADA)):
                assert done(client.ask(of_command(setup)))
        assert done(client.ask(of_command(command))), command
    client.service.disconnected(999)
    yield cluster
    for host in cluster.hosts.values():
        host.service.check()
        host.kill()


def of_command(command: Command, session_id: int = 0, request_no: int = 0) -> bytes:
    request = SessionlessRequest(RequestKind.COMMAND, command)
    return encode_request(7, request, session_id=session_id, request_no=request_no)


def done(response: Response) -> bool:
    return response.code == Code.OK


def ask_as(cluster: Cluster, caller: str, connection_id: int = 1) -> RawClient:
    client = RawClient(cluster, connection_id)
    if caller != NOBODY:
        password = PASSWORDS[USERS[caller]] if caller != WRONG else "a wrong password"
        told = client.ask(encode_request(1, authenticate_request(USERS[caller], password)))
        assert told.code == (Code.OK if caller != WRONG else Code.UNAUTHENTICATED)
    return client


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize(("name", "asked", "allowed"), ROWS, ids=[f"{i}-{row[0]}" for i, row in enumerate(ROWS)])
def test_each_request_is_answered_to_whom_it_is_allowed(
    cluster: Cluster, name: str, asked: list[Any], allowed: set[str], caller: str
) -> None:
    client = ask_as(cluster, caller)
    before = cluster.hosts["s1"].machine.state_hash()
    client.send(frame(encode_item(asked)))
    cluster.wait(0.01)
    client.fetch()
    codes = [decode_response(body).code for body in client.bodies]
    if name in WITHOUT_RESPONSE:
        assert not codes, "they are about a watch of the same connection, and there is none"
    elif name == "JUDGED":
        assert codes == [Code.UNAUTHENTICATED if caller in (NOBODY, WRONG) else ResultCode.INVALID_REQUEST]
    elif caller in allowed:
        assert len(codes) == 1
        assert codes[0] not in REFUSALS, codes
    else:
        assert codes == [Code.UNAUTHENTICATED if caller in (NOBODY, WRONG) else Code.PERMISSION_DENIED]
        assert cluster.hosts["s1"].machine.state_hash() == before


def test_a_command_that_a_client_has_marked_itself_is_refused(cluster: Cluster) -> None:
    """If this command were not refused, a client could name any user."""
    client = ask_as(cluster, EVE)
    revision = cluster.hosts["s1"].machine.access.revision
    raw = judged_command(encode_command(Put(b"app/a", b"1")), judged_mark(revision, "root"))
    assert client.ask(b"\x83\x07\x02" + raw).code == ResultCode.INVALID_REQUEST


@pytest.mark.parametrize("count", [1, 40])
def test_puts_and_gets_are_judged_one_by_one_even_if_they_come_together(cluster: Cluster, count: int) -> None:
    """Puts and gets take another code path if many of them come at once."""
    client = ask_as(cluster, ADA)
    registered = client.ask(of_command(RegisterSession(9_000_000_000)))
    session = registered.fields[0][1]
    keys = [b"app/%d" % n if n % 7 else b"b/%d" % n for n in range(1, 2 * count + 1)]
    data = b""
    for number, key in enumerate(keys, start=1):
        request = SessionlessRequest(RequestKind.COMMAND, Put(key, b"v"))
        data += frame(encode_request(10 * number, request, session_id=session, request_no=number))
        data += frame(encode_request(10 * number + 1, read_request(Get(key), Consistency.LINEARIZABLE)))
    client.send(data)
    cluster.wait(0.05)
    client.fetch()
    codes = {r.request_id: r.code for r in map(decode_response, client.bodies)}
    for number, key in enumerate(keys, start=1):
        expected = Code.OK if key.startswith(b"app/") else Code.PERMISSION_DENIED
        assert codes[10 * number] == codes[10 * number + 1] == expected, key
    client.bodies.clear()


def test_the_session_of_another_user_is_not_there(cluster: Cluster) -> None:
    session = ask_as(cluster, ADA).ask(of_command(RegisterSession(9_000_000_000))).fields[0][1]
    assert ask_as(cluster, ROOT, 2).ask(of_command(Put(b"k", b"v"), session, 1)).code == ResultCode.SESSION_EXPIRED


def test_a_token_stands_for_the_password_until_the_password_changes(cluster: Cluster) -> None:
    token = ask_as(cluster, ADA).ask(encode_request(1, authenticate_request("ada", PASSWORDS["ada"]))).fields[0]
    other = RawClient(cluster, 2)
    assert done(other.ask(encode_request(1, authenticate_request("ada", token))))
    assert done(other.ask(of_command(Put(b"app/a", b"1"))))
    forged = RawClient(cluster, 3)
    assert forged.ask(encode_request(1, authenticate_request("root", token))).fields[0] == "refused"
    assert done(ask_as(cluster, ROOT, 4).ask(of_command(UserPassword("ada", verifier_of("eve")))))
    assert other.ask(of_command(Put(b"app/a", b"2"))).fields == ("outdated", "ada")
    assert other.ask(encode_request(1, authenticate_request("ada", token))).fields == ("outdated", "ada")
    assert other.ask(encode_request(1, authenticate_request("ada", PASSWORDS["ada"]))).fields == ("refused", "ada")
    assert done(other.ask(encode_request(1, authenticate_request("ada", PASSWORDS["eve"]))))


def test_a_token_expires_by_leader_time(cluster: Cluster) -> None:
    client = RawClient(cluster, 2)
    token = client.ask(encode_request(1, authenticate_request("ada", PASSWORDS["ada"]))).fields[0]
    cluster.wait(901)
    assert done(client.ask(of_command(Put(b"app/a", b"1"))))  # A connection stays authenticated.
    assert RawClient(cluster, 3).ask(encode_request(1, authenticate_request("ada", token))).fields[0] == "expired"


def test_a_certificate_names_the_user_until_the_connection_authenticates(cluster: Cluster) -> None:
    client = RawClient(cluster, 2)
    client.service.identify(2, "ada")
    assert done(client.ask(of_command(Put(b"app/a", b"1"))))
    assert client.ask(of_command(Put(b"b", b"1"))).code == Code.PERMISSION_DENIED
    assert done(client.ask(encode_request(1, authenticate_request("root", PASSWORDS["root"]))))
    assert done(client.ask(of_command(Put(b"b", b"1"))))
    stranger = RawClient(cluster, 3)
    stranger.service.identify(3, "mallory")
    refused = Unauthenticated(*stranger.ask(of_command(Put(b"app/a", b"1"))).fields)
    assert str(refused).endswith("authentication is on, and the certificate names 'mallory', which is no user")
    assert "`hwm user add mallory --no-password`" in refused.hint
    nobody = Unauthenticated(*RawClient(cluster, 4).ask(of_command(Put(b"app/a", b"1"))).fields)
    assert str(nobody).endswith("authentication is on, and the request names no user")
    assert "hwm user add" not in nobody.hint


CHANGES = [UserRevoke("ada", "apps"), RoleRevoke("apps", b"app/", b"app0"), UserRemove("ada"), UserPassword("ada", b"")]


@pytest.mark.parametrize("change", CHANGES)
def test_a_watch_ends_with_the_right_to_read_and_tells_nothing_that_comes_later(
    cluster: Cluster, change: Command
) -> None:
    client, root = ask_as(cluster, ADA), ask_as(cluster, ROOT, 2)
    client.send(frame(encode_request(50, watch_request(WatchSpec(b"app/", b"app0")))))
    assert decode_response(client.bodies.pop(0)).fields[0] == MessageKind.CREATED
    root.bodies.clear()
    cluster.hosts["s1"].service.receive(2, frame(of_command(change)) + frame(of_command(Put(b"app/secret", b"1"))))
    cluster.settle()
    output = cluster.hosts["s1"].service.take_output()
    frames = [
        decode_response(body) for connection, data in output if connection == 1 for body in client._splitter.feed(data)
    ]
    cancelled = [response for response in frames if response.request_id == 50]
    assert [response.fields[:2] for response in cancelled] == [
        (MessageKind.CANCELLED, CancelReason.PERMISSION_DENIED.value)
    ]
    assert not cluster.hosts["s1"].service.watches.count


def test_a_user_without_the_right_loses_a_lease_but_not_the_other_leases(cluster: Cluster) -> None:
    """A client may lead by holding a leased key. If its user loses the right, the lease is no longer renewed, so this
    leadership ends with the lease at the latest."""
    client, root = ask_as(cluster, ADA), ask_as(cluster, ROOT, 2)
    assert done(client.ask(of_command(LeaseGrant(5, 60_000_000_000))))
    renew = commands(CommandKind.LEASE_RENEW, LEASE_OF_ADA, 5)
    assert all(client.ask(encode_item(renew)).fields[0][1:])
    root.bodies.clear()
    root.service.receive(2, frame(of_command(RoleRevoke("apps", b"app/", b"app0"))))
    cluster.settle()
    root.service.take_output()
    told = client.ask(encode_item(renew))
    assert list(told.fields[0][1:]) == [0, 60_000_000_000]


def test_a_read_that_waits_is_judged_by_the_state_that_answers_it(cluster: Cluster) -> None:
    """The second answer waits until the client has read the first one. Meanwhile the client's user loses the right."""
    client, root = ask_as(cluster, ADA), ask_as(cluster, ROOT, 2)
    service = cluster.hosts["s1"].service
    size = service.limits.unsent_bytes_max // 8
    for number in range(10):
        assert done(root.ask(of_command(Put(b"app/%d" % number, bytes(size)))))
    request = read_request(Get(b"app/1"), Consistency.LINEARIZABLE)
    service.receive(1, b"".join(frame(encode_request(number, request)) for number in range(100, 112)))
    cluster.settle()
    ((_, data),) = service.take_output()
    answered = len(client._splitter.feed(data))
    assert answered < 12
    assert done(root.ask(of_command(RoleRevoke("apps", b"app/", b"app0"))))
    service.sent(1, len(data))
    cluster.settle()
    ((_, data),) = service.take_output()
    later = [decode_response(body) for body in client._splitter.feed(data)]
    assert [response.code for response in later] == [Code.PERMISSION_DENIED] * (12 - answered)


def test_authentication_that_is_off_lets_everybody_in_and_checks_nothing(cluster: Cluster) -> None:
    assert done(ask_as(cluster, ROOT).ask(of_command(AuthDisable())))
    client = RawClient(cluster, 2)
    assert client.ask(encode_request(1, authenticate_request("nobody", "x"))).fields == (b"",)
    assert done(client.ask(of_command(Put(b"b", b"1"))))
    told = client.ask(encode_request(1, access_request(AccessTopic.SWITCH)))
    assert told.fields[0] is False
    assert told.fields[2] is None


def test_a_user_sees_the_own_user_and_roles_and_root_sees_all(cluster: Cluster) -> None:
    ada, root = ask_as(cluster, ADA), ask_as(cluster, ROOT, 2)

    def listed(client: RawClient, topic: AccessTopic, after: str = "") -> list[str]:
        client.bodies.clear()
        cluster.hosts["s1"].service.receive(
            client.connection_id, frame(encode_request(1, access_request(topic, after)))
        )
        for connection_id, data in cluster.hosts["s1"].service.take_output():
            assert connection_id == client.connection_id
            client.bodies += client._splitter.feed(data)
        return [row[0] for row in decode_response(client.bodies.pop(0)).fields[0]]

    assert listed(ada, AccessTopic.USERS) == ["ada"]
    assert listed(root, AccessTopic.USERS) == ["ada", "eve", "root"]
    assert listed(root, AccessTopic.USERS, "ada") == ["eve", "root"]
    assert listed(ada, AccessTopic.ROLES) == listed(root, AccessTopic.ROLES) == ["apps"]


def test_the_rates_of_a_user_are_bounded_and_the_refusal_names_the_bound(cluster: Cluster) -> None:
    root = ask_as(cluster, ROOT)
    assert done(root.ask(of_command(ChangeUserLimits("ada", requests_per_second=3))))
    client = ask_as(cluster, ADA, 2)
    codes = [client.ask(of_command(Put(b"app/a", b"1"))) for _ in range(5)]
    assert [response.code for response in codes] == [Code.OK] * 3 + [Code.BUSY] * 2
    assert "requests_per_second of user ada" in codes[-1].fields[0]
    cluster.wait(0.4)
    assert done(client.ask(of_command(Put(b"app/a", b"1"))))
    assert client.ask(of_command(Put(b"app/a", b"1"))).code == Code.BUSY


def test_the_bytes_of_a_user_are_bounded(cluster: Cluster) -> None:
    root = ask_as(cluster, ROOT)
    assert done(root.ask(of_command(ChangeUserLimits("ada", bytes_per_second=10_000))))
    client = ask_as(cluster, ADA, 2)
    assert done(client.ask(of_command(Put(b"app/a", bytes(20_000)))))
    assert "bytes_per_second of user ada" in client.ask(of_command(Put(b"app/a", b""))).fields[0]
    cluster.wait(1.2)
    assert done(client.ask(of_command(Put(b"app/a", b""))))


def test_the_bytes_that_a_user_receives_are_bounded_too(cluster: Cluster) -> None:
    """A large answer is sent, but later requests are refused until the user is within the bound again. The bytes of
    these refusals are not counted."""
    root = ask_as(cluster, ROOT)
    assert done(root.ask(of_command(Put(b"app/large", bytes(20_000)))))
    assert done(root.ask(of_command(ChangeUserLimits("ada", bytes_per_second=10_000))))
    client = ask_as(cluster, ADA, 2)
    read = encode_request(7, read_request(Get(b"app/large"), Consistency.LINEARIZABLE))
    assert done(client.ask(read))
    for _ in range(200):
        assert "bytes_per_second of user ada" in client.ask(read).fields[0]
    cluster.wait(1.2)
    assert done(client.ask(read))


def test_the_events_of_a_watch_count_as_bytes_of_its_user(cluster: Cluster) -> None:
    root, client = ask_as(cluster, ROOT), ask_as(cluster, ADA, 2)
    assert done(root.ask(of_command(ChangeUserLimits("ada", bytes_per_second=10_000))))
    assert client.ask(encode_request(50, watch_request(WatchSpec(b"app/", b"app0")))).fields[0] == MessageKind.CREATED
    cluster.hosts["s1"].service.receive(1, frame(of_command(Put(b"app/large", bytes(20_000)))))
    cluster.settle()
    output = dict(cluster.hosts["s1"].service.take_output())
    assert len(output[2]) > 20_000
    get = encode_request(7, read_request(Get(b"app/a"), Consistency.LINEARIZABLE))
    client._splitter.feed(output[2])
    assert "bytes_per_second of user ada" in client.ask(get).fields[0]


def test_a_large_event_after_a_pause_is_not_forgiven(cluster: Cluster) -> None:
    """After a pause, a user may use at most the unused bytes of one second."""
    root, client = ask_as(cluster, ROOT), ask_as(cluster, ADA, 2)
    assert done(root.ask(of_command(ChangeUserLimits("ada", bytes_per_second=10_000))))
    assert client.ask(encode_request(50, watch_request(WatchSpec(b"app/", b"app0")))).fields[0] == MessageKind.CREATED
    cluster.wait(30)
    cluster.hosts["s1"].service.receive(1, frame(of_command(Put(b"app/large", bytes(50_000)))))
    cluster.settle()
    client._splitter.feed(dict(cluster.hosts["s1"].service.take_output())[2])
    get = encode_request(7, read_request(Get(b"app/a"), Consistency.LINEARIZABLE))
    cluster.wait(3)
    assert "bytes_per_second of user ada" in client.ask(get).fields[0]
    cluster.wait(2)
    assert done(client.ask(get))


def test_a_user_with_too_many_bytes_keeps_its_leases_and_its_session(cluster: Cluster) -> None:
    """Events that others cause must not cost a user its locks."""
    root = ask_as(cluster, ROOT)
    assert done(root.ask(of_command(Put(b"app/large", bytes(50_000)))))
    assert done(root.ask(of_command(LeaseGrant(77, 10**12))))
    assert done(root.ask(of_command(ChangeUserLimits("ada", bytes_per_second=1_000))))
    client = ask_as(cluster, ADA, 2)
    assert done(client.ask(encode_request(7, read_request(Get(b"app/large"), Consistency.LINEARIZABLE))))
    assert "bytes_per_second of user ada" in client.ask(of_command(Put(b"app/a", b""))).fields[0]
    assert done(client.ask(of_command(LeaseRenew((77,)))))
    assert client.ask(of_command(KeepAlive())).code != Code.BUSY


def test_a_new_bound_does_not_count_what_came_before_it(cluster: Cluster) -> None:
    root = ask_as(cluster, ROOT)
    assert done(root.ask(of_command(ChangeUserLimits("ada", requests_per_second=100))))
    client = ask_as(cluster, ADA, 2)
    assert done(client.ask(of_command(Put(b"app/a", bytes(50_000)))))
    assert done(root.ask(of_command(ChangeUserLimits("ada", bytes_per_second=10_000))))
    assert done(client.ask(of_command(Put(b"app/a", b""))))


def test_the_connections_and_watches_of_a_user_are_bounded(cluster: Cluster) -> None:
    root = ask_as(cluster, ROOT)
    assert done(root.ask(of_command(ChangeUserLimits("ada", connections_max=1, watches_max=1))))
    client = ask_as(cluster, ADA, 2)
    second = RawClient(cluster, 3).ask(encode_request(1, authenticate_request("ada", PASSWORDS["ada"])))
    assert (second.code, "connections_max of user ada" in second.fields[0]) == (Code.BUSY, True)
    watch = encode_request(50, watch_request(WatchSpec(b"app/", b"app0")))
    assert client.ask(watch).fields[0] == MessageKind.CREATED
    refused = client.ask(encode_request(51, watch_request(WatchSpec(b"app/", b"app0"))))
    assert (refused.code, "watches_max of user ada" in refused.fields[0]) == (Code.BUSY, True)


def test_only_so_many_passwords_wait_for_their_check(cluster: Cluster) -> None:
    service = cluster.hosts["s1"].service
    waiting: list[PasswordCheck] = []
    service.check_password = waiting.append
    clients = [RawClient(cluster, number) for number in range(1, PASSWORD_CHECKS_MAX + 2)]
    for client in clients[:-1]:
        client.send(frame(encode_request(1, authenticate_request("ada", PASSWORDS["ada"]))))
    refused = clients[-1].ask(encode_request(1, authenticate_request("ada", PASSWORDS["ada"])))
    assert (refused.code, "password_checks_max" in refused.fields[0]) == (Code.BUSY, True)
    service.check()
    service.disconnected(1)
    for check in waiting:
        check.is_right = True
        service.password_checked(check)
    assert len(service.take_output()) == PASSWORD_CHECKS_MAX - 1


@pytest.mark.parametrize(
    "body",
    [
        [CommandKind.USER_LIMITS, "ada", -1, 0, 0, 0],
        [CommandKind.USER_LIMITS, "ada", 1, 0, 0],
        [CommandKind.USER_ADD, "a b", b""],
        [CommandKind.USER_ADD, "", b""],
        [CommandKind.USER_ADD, "x" * 65, b""],
        [CommandKind.USER_ADD, "bob", bytes(129)],
        [CommandKind.USER_ADD, b"bob", b""],
        [CommandKind.ROLE_GRANT, "apps", 4, b"a", None],
        [CommandKind.ROLE_GRANT, "apps", 1, b"b", b"a"],
        [CommandKind.ROLE_GRANT, "apps", 1, b"a", bytes(1_026)],
        [CommandKind.AUTH_ENABLE, b"short"],
    ],
)
def test_what_is_beyond_a_bound_is_refused_by_its_form(cluster: Cluster, body: list[Any]) -> None:
    assert ask_as(cluster, ROOT).ask(encode_item(commands(*body))).code == ResultCode.INVALID_REQUEST
