"""A client with the name of a user, against whole members (docs/reference/specification.md#816-users-and-roles)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstore.access.credentials import Credentials, credentials_of
from kvstore.access.requests import authenticate_request
from kvstore.client.watches.watch_stream import WatchStream
from kvstore.errors import OperationFailed, OutcomeUnknown, PermissionDenied, Unauthenticated
from kvstore.protocol.access_commands import AuthDisable, UserPassword, UserRevoke
from kvstore.protocol.commands import Get, Put
from kvstore.protocol.messages import Code, Consistency, decode_response, encode_client_hello, encode_request
from kvstore.protocol.watches import WatchSpec
from kvstore.server.access_guard import PasswordCheck
from raft import FRAME_BYTES_MAX_CLIENT, FrameSplitter, InvalidConfiguration, LevelRange, frame
from tests.kvstore.support.in_memory_cluster import Cluster, SimClient
from tests.kvstore.support.users import PASSWORDS, commands_to_enable, verifier_of


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster of three members without authentication."""
    cluster = Cluster(tmp_path, 3)
    cluster.leader()
    yield cluster
    for host in cluster.hosts.values():
        host.service.check()
        host.kill()


def user(cluster: Cluster, name: str, password: str | None = None) -> SimClient:
    return cluster.client(credentials=Credentials(name, password or PASSWORDS[name]))


def enable(cluster: Cluster, client: SimClient) -> None:
    for command in commands_to_enable():
        client.do(command)


def test_a_client_with_a_user_goes_on_while_authentication_is_turned_on_and_off(cluster: Cluster) -> None:
    """First each client gets a user, and then authentication is turned on."""
    root, ada, nobody = user(cluster, "root"), user(cluster, "ada"), cluster.client()
    for client in (root, ada, nobody):
        client.do(Put(b"app/a", b"1"))
    enable(cluster, root)
    ada.do(Put(b"app/a", b"2"))
    with pytest.raises(Unauthenticated) as caught:
        nobody.do(Put(b"app/a", b"3"))
    assert caught.value.reason == "missing"
    with pytest.raises(PermissionDenied) as denied:
        ada.do(Put(b"b", b"1"))
    assert denied.value.args == ("ada", "write", b"b", b"b\0")
    root.do(AuthDisable())
    nobody.do(Put(b"app/a", b"4"))
    ada.do(Put(b"b", b"1"))


def test_without_a_user_every_call_fails_at_once_and_certainly(cluster: Cluster) -> None:
    enable(cluster, user(cluster, "root"))
    client = cluster.client()  # This client has no session yet, and cannot open one.
    began = cluster.now
    with pytest.raises(Unauthenticated):
        client.do(Put(b"app/a", b"1"))
    for consistency in (Consistency.LINEARIZABLE, Consistency.LOCAL, Consistency.FOLLOWER):
        with pytest.raises(Unauthenticated):
            client.do(Get(b"app/a"), consistency=consistency)
    assert cluster.now - began < 1_000_000_000


def test_a_wrong_password_fails_every_call_at_once_and_certainly(cluster: Cluster) -> None:
    enable(cluster, user(cluster, "root"))
    client = user(cluster, "ada", "a wrong password")
    began = cluster.now
    with pytest.raises(Unauthenticated) as caught:
        client.do(Put(b"app/a", b"1"))
    assert caught.value.args == ("refused", "ada")
    assert cluster.now - began < 1_000_000_000
    with pytest.raises(Unauthenticated):
        client.do(Get(b"app/a"))


def test_a_client_that_moves_to_another_leader_needs_no_password_again(cluster: Cluster) -> None:
    """The client's token is valid at every member, so a failover does not wait for a thousand checks of passwords."""
    enable(cluster, user(cluster, "root"))
    ada = user(cluster, "ada")
    ada.do(Put(b"app/a", b"1"))
    checked: list[str] = []

    def note(check: PasswordCheck) -> None:
        checked.append(check.user)

    for host in cluster.hosts.values():
        host.service.check_password = note
    cluster.kill(cluster.leader())
    cluster.leader()
    ada.do(Put(b"app/a", b"2"))
    assert not checked


def test_a_changed_password_is_noticed_and_a_new_client_has_the_new_one(cluster: Cluster) -> None:
    root = user(cluster, "root")
    enable(cluster, root)
    ada = user(cluster, "ada")
    ada.do(Put(b"app/a", b"1"))
    root.do(UserPassword("ada", verifier_of("eve")))
    with pytest.raises((Unauthenticated, OutcomeUnknown)) as caught:
        ada.do(Put(b"app/a", b"2"))
    assert isinstance(caught.value, Unauthenticated)
    user(cluster, "ada", PASSWORDS["eve"]).do(Put(b"app/a", b"3"))


def test_a_watch_of_a_user_who_loses_the_right_ends_within_a_second_with_the_error(cluster: Cluster) -> None:
    root = user(cluster, "root")
    enable(cluster, root)
    ada = user(cluster, "ada")
    stream = WatchStream(WatchSpec(b"app/", b"app0"))
    ada.core.open_watch(stream)
    cluster.wait(0.2)
    root.do(Put(b"app/a", b"1"))
    assert stream.take() is not None
    root.do(UserRevoke("ada", "apps"))
    root.do(Put(b"app/a", b"2"))
    cluster.wait(1)
    with pytest.raises(PermissionDenied) as caught:
        stream.take()
    assert caught.value.args == ("ada", "read", b"app/", b"app0")


def test_below_level_3_there_are_no_users_and_a_client_with_one_is_served(tmp_path: Path) -> None:
    """A program may be configured with a user before the cluster is upgraded."""
    cluster = Cluster(tmp_path, 1, levels=LevelRange(1, 2))
    cluster.leader()
    user(cluster, "ada").do(Put(b"a", b"1"))
    for host in cluster.hosts.values():
        host.kill()


@pytest.mark.parametrize(("name", "password"), [("ada", None), (None, "x"), ("", "x")])
def test_a_user_and_a_password_belong_together(name: str | None, password: str | None) -> None:
    with pytest.raises(InvalidConfiguration, match="a user and a password"):
        credentials_of(name, password)


@pytest.mark.parametrize("password", ["", "x" * 1025])
def test_a_password_has_bounds(password: str) -> None:
    with pytest.raises(OperationFailed, match="1 to 1024 bytes"):
        credentials_of("ada", password)


def test_a_password_is_not_shown() -> None:
    assert "secret" not in repr(Credentials("ada", "secret"))


def test_a_follower_that_is_behind_does_not_refuse_a_new_password(cluster: Cluster) -> None:
    """Such a follower names the leader, which knows the newest password."""
    root = user(cluster, "root")
    enable(cluster, root)
    cluster.wait(0.5)
    behind = next(name for name in cluster.hosts if name != cluster.leader())
    cluster.cut.add(behind)
    root.do(UserPassword("ada", verifier_of("eve")))
    service = cluster.hosts[behind].service
    service.connected(7_000_000)
    service.receive(7_000_000, frame(encode_client_hello()))
    service.receive(7_000_000, frame(encode_request(1, authenticate_request("ada", PASSWORDS["eve"]))))
    ((_, data),) = service.take_output()
    _, body = FrameSplitter(FRAME_BYTES_MAX_CLIENT).feed(data)
    assert decode_response(body).code == Code.NOT_LEADER
    service.sent(7_000_000, len(data))
    cluster.cut.clear()
    user(cluster, "ada", PASSWORDS["eve"]).do(Put(b"app/a", b"1"))
