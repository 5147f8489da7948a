"""Members with TLS between them: which callers are accepted as which member, and the log messages of both sides."""

from __future__ import annotations

import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest
import trio

from raft import FrameSplitter, Refusal, decode_hello, frame
from raft.runtime import Credentials, Transport, caller_credentials, peer_credentials, port_credentials
from raft.runtime.errors import InsecureAddress
from raft.runtime.tls.contexts import PROTOCOL_PEER
from raft.runtime.tls.handshakes import Handshakes, call
from tests.raft.runtime.test_connection_log import events
from tests.raft.support.certificates import Certificates
from tests.raft.support.machines import Machine, a_cluster, a_listener, peer_hello, the_leader, until

pytestmark = pytest.mark.timeout(60)

SECRET = "a value that nobody may read on the way"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


def all_of(made: Certificates, *, is_mixed: bool = False) -> dict[str, Credentials]:
    return {node_id: made.peer(node_id, is_mixed=is_mixed) for node_id in ("s1", "s2", "s3")}


async def replicates(machines: list[Machine]) -> None:
    leader = await the_leader(machines)
    leader.propose([SECRET, "x" * 200_000], 1)
    await until(lambda: all(each.machine.items for each in machines))


@asynccontextmanager
async def a_member(credentials: Credentials | None) -> AsyncIterator[Machine]:
    """The member s1 of three members, which cannot reach any other member."""
    with trio.fail_after(20):
        listener, _ = await a_listener()
        s1 = Machine("s1", ["s1", "s2", "s3"], listener, credentials=credentials)
        async with trio.open_nursery() as nursery:
            await nursery.start(s1.driver.run)
            yield s1
            nursery.cancel_scope.cancel()


async def answer_to(s1: Machine, credentials: Credentials | None, node_id: str = "s2") -> object:
    """The answer of s1 to the hello of `node_id`: a Hello, a Refusal, or None if s1 only closes the connection."""
    stream: trio.abc.Stream = await trio.open_tcp_stream("127.0.0.1", s1.transport.port)
    try:
        if credentials is not None:
            assert isinstance(stream, trio.SocketStream)
            stream = await call(stream, credentials, None)
        await stream.send_all(peer_hello(node_id))
        bodies = FrameSplitter(1 << 16).feed(bytes(await stream.receive_some()))
        return decode_hello(bodies[0]) if bodies else None
    finally:
        await trio.aclose_forcefully(stream)


async def test_members_with_certificates_elect_and_replicate(made: Certificates) -> None:
    with trio.fail_after(20):
        async with a_cluster(3, credentials=all_of(made)) as machines:
            await replicates(machines)


@pytest.mark.parametrize("without", [("s3",), ("s1", "s2"), ()])
async def test_members_with_and_without_tls_work_together_while_tls_is_turned_on_or_off(
    made: Certificates, without: tuple[str, ...]
) -> None:
    """Members in mixed mode call each other with TLS. They call members without TLS as before."""
    mixed = {node_id: each for node_id, each in all_of(made, is_mixed=True).items() if node_id not in without}
    with trio.fail_after(20):
        async with a_cluster(3, credentials=mixed) as machines:
            await replicates(machines)
            await until(lambda: all(len(each.transport.connected) == 2 for each in machines))


async def test_members_that_take_only_tls_work_with_mixed_ones(made: Certificates) -> None:
    some = all_of(made) | {"s3": made.peer("s3", is_mixed=True)}
    with trio.fail_after(20):
        async with a_cluster(3, credentials=some) as machines:
            await replicates(machines)


async def test_a_member_cannot_pose_as_another_one(made: Certificates, caplog: pytest.LogCaptureFixture) -> None:
    """The certificate is valid, but it names s3. Only the first refusal is a warning."""
    caplog.set_level(logging.WARNING, "raft.transport")
    async with a_member(made.peer("s1")) as s1:
        for _ in range(3):
            answer = await answer_to(s1, made.peer("s3"), node_id="s2")
            assert isinstance(answer, Refusal)
            assert answer.code == "wrong_certificate"
            assert "its certificate names 's3', not 's2'" in answer.text
        assert s1.transport.hellos_refused["wrong_certificate"] == 3
        assert not isinstance(await answer_to(s1, made.peer("s2")), Refusal)

    (refused,) = events(caplog, "refused", "s1")
    assert (refused["peer_id"], refused["code"]) == ("s2", "wrong_certificate")


async def test_a_member_that_is_dialled_must_be_the_one_that_its_certificate_names(
    made: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    """A stranger took the address of s2, and has a certificate of the same authority."""
    caplog.set_level(logging.WARNING, "raft.transport")
    impostor = made.peer("s3")
    with trio.fail_after(20):
        async with a_cluster(2, credentials={"s1": made.peer("s1"), "s2": impostor}) as (s1, _):
            await until(lambda: bool(events(caplog, "refused", "s1")))
            assert s1.transport.connected == frozenset()
    assert events(caplog, "refused", "s1")[0]["code"] == "wrong_certificate"


async def test_a_refusal_counts_only_from_the_member_that_was_dialled(
    made: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    """A client with a certificate of the same authority took the address of s2, and claims that s1 was removed. If s1
    believed that, it would stop permanently."""
    caplog.set_level(logging.WARNING, "raft.transport")
    answerer = port_credentials("s2", "clients", (PROTOCOL_PEER,), made.issue("c.pem", "a-client"), None, made.ca)
    heard: list[bytes] = []

    async def refuse(plain: trio.SocketStream) -> None:
        stream = await Handshakes(answerer).accept(plain)
        try:
            await stream.send_all(frame(Refusal("removed", "you are no longer a member").encode()))
            heard.append(bytes(await stream.receive_some()))
        finally:
            await trio.aclose_forcefully(stream)

    with trio.fail_after(20):
        own, _ = await a_listener()
        taken, address = await a_listener()
        s1 = Machine("s1", ["s1", "s2"], own, {"s2": address}, credentials=made.peer("s1"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.serve_listeners, refuse, [taken])
            await nursery.start(s1.driver.run)
            await until(lambda: bool(heard))
            nursery.cancel_scope.cancel()

    assert not s1.node.is_removed
    assert events(caplog, "refused", "s1")[0]["code"] == "wrong_certificate"
    refusal = decode_hello(FrameSplitter(1 << 16).feed(heard[0])[0])  # s1 has not sent its hello and its incarnation.
    assert isinstance(refusal, Refusal)
    assert refusal.code == "wrong_certificate"


@pytest.mark.parametrize("flaw", ["expired", "foreign", "none"])
async def test_a_peer_without_a_good_certificate_is_refused_and_the_reason_is_logged_once(
    made: Certificates, tmp_path: Path, flaw: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "raft.transport")
    cert = {
        "expired": made.issue("old.pem", "s2", days=-1),
        "foreign": Certificates(tmp_path).issue("foreign.pem", "s2"),
        "none": None,
    }[flaw]
    caller = caller_credentials(cert, None, made.ca, PROTOCOL_PEER)
    caller.client.check_hostname = False
    async with a_member(made.peer("s1")) as s1:
        for _ in range(2):
            with pytest.raises(trio.BrokenResourceError):
                await answer_to(s1, caller)
        await until(lambda: s1.transport.hellos_refused["tls_failed"] == 2)
        assert not isinstance(await answer_to(s1, made.peer("s2")), Refusal)

    (refused,) = events(caplog, "refused", "s1")
    assert (refused["code"], refused["host"]) == ("tls_failed", "127.0.0.1")


async def test_a_plain_peer_is_told_that_the_port_takes_only_tls(
    made: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "raft.transport")
    async with a_member(made.peer("s1")) as s1:
        answer = await answer_to(s1, None)
        assert isinstance(answer, Refusal)
        assert answer.code == "tls_required"
        await until(lambda: s1.transport.hellos_refused["tls_required"] == 1)
    with trio.fail_after(20):
        async with a_cluster(2, credentials={"s1": made.peer("s1")}):
            await until(lambda: bool(events(caplog, "refused_by_peer", "s2")))
            await until(lambda: bool(events(caplog, "tls_failed", "s1")))
    assert events(caplog, "refused_by_peer", "s2")[0]["code"] == "tls_required"
    assert events(caplog, "tls_failed", "s1")[0]["reason"] == "the other side does not speak TLS on this port"


async def test_a_caller_with_tls_at_a_plain_port_is_refused_with_the_reason(
    made: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "raft.transport")
    async with a_member(None) as s1:
        with pytest.raises(trio.BrokenResourceError, match="does not speak TLS on this port"):
            await answer_to(s1, made.peer("s2"))
        assert not isinstance(await answer_to(s1, None), Refusal)
    assert "it began with a TLS handshake, and this port has no TLS" in events(caplog, "refused", "s1")[0]["reason"]


async def test_a_new_certificate_counts_from_the_next_connection_on(made: Certificates, tmp_path: Path) -> None:
    """Another authority replaces the old one: first both are trusted, and then only the new one."""
    others = Certificates(tmp_path / "others")
    ca, cert = tmp_path / "ca.pem", tmp_path / "s1.pem"
    ca.write_bytes(made.ca.read_bytes())
    cert.write_bytes(made.issue("s1.pem", "s1").read_bytes())
    async with a_member(s1_credentials := peer_credentials("s1", cert, None, ca)) as s1:

        async def lets_in(caller: Credentials) -> bool:
            try:
                return not isinstance(await answer_to(s1, caller), Refusal)
            except trio.BrokenResourceError:
                return False

        both = tmp_path / "both.pem"
        both.write_bytes(made.ca.read_bytes() + others.ca.read_bytes())
        old, new_cert = made.peer("s2"), others.issue("s2.pem", "s2")
        assert await lets_in(old)

        ca.write_bytes(both.read_bytes())
        assert s1_credentials.reread_if_changed()
        trusts_both = peer_credentials("s2", new_cert, None, both)
        assert (await lets_in(old), await lets_in(trusts_both)) == (True, True)

        cert.write_bytes(others.issue("s1.pem", "s1").read_bytes())
        ca.write_bytes(others.ca.read_bytes())
        assert s1_credentials.reread_if_changed()
        assert (await lets_in(old), await lets_in(trusts_both)) == (False, True)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_both_versions_carry_large_messages(made: Certificates, version: ssl.TLSVersion) -> None:
    some = all_of(made)
    for credentials in some.values():
        credentials.client.maximum_version = version
    with trio.fail_after(20):
        async with a_cluster(3, credentials=some) as machines:
            await replicates(machines)


async def test_without_tls_only_loopback_is_listened_on(made: Certificates) -> None:
    machine = Machine("s1", ["s1", "s2"])

    def transport(credentials: Credentials | None) -> Transport:
        return Transport(
            identity=machine.identity,
            configuration=machine.node.core.configuration,
            random=Random(1),
            listen_host="0.0.0.0",
            credentials=credentials,
        )

    assert transport(made.peer("s1")).port == 0
    for credentials in (None, made.peer("s1", is_mixed=True)):
        with pytest.raises(InsecureAddress):
            transport(credentials)
