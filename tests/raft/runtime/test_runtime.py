"""The trio runtime on real loopback sockets. Every test has an absolute time-out.

See docs/reference/specification.md#7-wire.
"""

from __future__ import annotations

import logging
from random import Random

import pytest
import trio

from raft import (
    Applied,
    Configuration,
    Hello,
    HelloRole,
    Identity,
    Member,
    NodeStopped,
    ReadReady,
    Refusal,
    Role,
    VoteRequest,
    decode_hello,
    encode_item,
    encode_message,
    frame,
)
from raft.runtime import (
    CONNECTIONS_MAX,
    CannotListen,
    Driver,
    InsecureAddress,
    InvalidAddress,
    Transport,
    is_loopback,
    parse_address,
)
from raft.runtime.connection_log import WARNINGS_MAX
from raft.runtime.handshake import HELLO_BYTES_MAX
from tests.raft.support.machines import CLUSTER_ID, Machine, a_cluster, a_listener, peer_hello, the_leader, until

pytestmark = pytest.mark.timeout(30)


async def first_answer(port: int, data: bytes) -> Hello | Refusal | None:
    """Connect, send, and return the first frame of the answer. The result is None if the member closed the connection
    without an answer."""
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    async with stream:
        await stream.send_all(data)
        received = b""
        try:
            while data := await stream.receive_some():
                received += data
                if len(received) >= 4 and len(received) - 4 >= int.from_bytes(received[:4], "big"):
                    return decode_hello(received[4:])
        except trio.BrokenResourceError:
            return None
    return None


async def test_three_members_elect_a_leader_and_replicate() -> None:
    """Raft §5.2 and §5.3 over TCP."""
    with trio.fail_after(20):
        async with a_cluster() as machines:
            leader = await the_leader(machines)

            for ticket in range(100):
                leader.propose(f"item {ticket}", ticket)
            await leader.recorder.wait_for(lambda: len(leader.recorder.applied) == 100)
            await until(lambda: all(len(machine.machine.items) == 100 for machine in machines))

            assert [completion.result for completion in leader.recorder.applied] == list(range(100))
            assert len({machine.machine.state_hash() for machine in machines}) == 1
            assert len(leader.disk.names) == 0  # All disk work went through the disk's thread.


async def test_a_linearizable_read_is_answered_over_the_network() -> None:
    """Thesis §6.4."""
    with trio.fail_after(20):
        async with a_cluster() as machines:
            leader = await the_leader(machines)
            leader.node.read(7)
            leader.driver.wake()

            await leader.recorder.wait_for(lambda: ReadReady(7) in leader.recorder.completions)


async def test_the_others_elect_a_new_leader_when_one_stops() -> None:
    """The core detects silence; the runtime only reports that a connection is lost."""
    with trio.fail_after(20):
        voters = ["s1", "s2", "s3"]
        listeners = {voter: await a_listener() for voter in voters}
        dial = {voter: address for voter, (_, address) in listeners.items()}
        machines = [Machine(voter, voters, listeners[voter][0], dial) for voter in voters]
        async with trio.open_nursery() as nursery:
            for machine in machines:
                await nursery.start(machine.driver.run)
            old = await the_leader(machines)
            old.propose("before", 1)
            await old.recorder.wait_for(lambda: bool(old.recorder.applied))

            old.driver.request_stop()
            others = [machine for machine in machines if machine is not old]
            new = await the_leader(others)
            new.propose("after", 2)
            await new.recorder.wait_for(lambda: bool(new.recorder.applied))

            assert new.machine.items == ["before", "after"]
            assert old.node.is_stopped
            nursery.cancel_scope.cancel()


async def test_garbage_on_the_peer_port_closes_only_that_connection() -> None:
    """The member closes this connection and continues."""
    with trio.fail_after(20):
        async with a_cluster() as machines:
            leader = await the_leader(machines)
            port = leader.transport.port
            garbage = [
                b"GET / HTTP/1.1\r\n\r\n",
                b"\xff" * 100,
                bytes(8),
                frame(b"\xd8\x23aa"),
                frame(encode_item([1])),
            ]

            for data in garbage:
                answer = await first_answer(port, data)
                assert isinstance(answer, Refusal)
                assert answer.code == "not_a_hello"
            leader.propose("still here", 1)
            await leader.recorder.wait_for(lambda: bool(leader.recorder.applied))

            assert leader.recorder.applied[0].result == 0


async def test_garbage_after_a_good_hello_closes_only_that_connection() -> None:
    """Garbage is broken frames, oversized lengths, unknown kinds and messages for another group."""
    with trio.fail_after(20):
        async with a_cluster() as machines:
            leader = await the_leader(machines)
            peer_id = next(machine.identity.node_id for machine in machines if machine is not leader)
            message = VoteRequest(term=1, last_index=0, last_term=0, transfer=False)
            bad = [
                frame(b"\xff"),
                b"\xff\xff\xff\xff",
                frame(encode_item([99, 0, 1])),
                frame(encode_message(5, message)),
            ]

            for data in bad:
                stream = await trio.open_tcp_stream("127.0.0.1", leader.transport.port)
                async with stream:
                    await stream.send_all(peer_hello(peer_id))
                    assert await stream.receive_some()  # Its hello.
                    await stream.send_all(data)
                    assert await read_to_the_end(stream) == b""
            leader.propose("still here", 1)
            await leader.recorder.wait_for(lambda: bool(leader.recorder.applied))


async def read_to_the_end(stream: trio.SocketStream) -> bytes:
    received = b""
    try:
        while data := await stream.receive_some():
            received += data
    except trio.BrokenResourceError:
        pass
    return received


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"cluster_id": b"another cluster."}, "wrong_cluster"),
        ({"group_id": 3}, "wrong_group"),
        ({"node_id": "s9"}, "not_a_member"),
        ({"node_id": "s1"}, "own_id"),
        ({"version_min": 2, "version_max": 9}, "version"),
        ({"role": HelloRole.CLIENT}, "wrong_port"),
        ({"incarnation_id": b"a new data folder"[:16]}, "wrong_incarnation"),
    ],
)
async def test_a_caller_that_does_not_belong_here_is_told_why(fields: dict[str, object], code: str) -> None:
    """Magic, version, cluster, group, id and incarnation are checked.

    See docs/reference/specification.md#75-refusals-of-a-hello.
    """
    with trio.fail_after(20):
        async with a_cluster() as machines:
            s1 = machines[0]
            await until(lambda: s1.transport.connected == {"s2", "s3"})
            await the_leader(machines)
            await until(lambda: s1.node.core.hears_a_leader)

            answer = await first_answer(s1.transport.port, peer_hello(**fields))  # type: ignore[arg-type]

            assert isinstance(answer, Refusal)
            assert answer.code == code
            assert s1.transport.hellos_refused == {code: 1}


async def test_a_build_that_does_not_know_the_level_in_force_is_refused_with_a_word_for_it() -> None:
    """The refusal names the level of the cluster and the level of the build. The same build was accepted before the
    level was raised, and a newer build is still accepted.

    See docs/reference/specification.md#75-refusals-of-a-hello.
    """
    with trio.fail_after(20):
        async with a_cluster() as machines:
            s1 = machines[0]
            await until(lambda: s1.transport.connected == {"s2", "s3"})
            assert isinstance(await first_answer(s1.transport.port, peer_hello("s2")), Hello)

            s1.machine.level = 2

            refusal = await first_answer(s1.transport.port, peer_hello("s2"))
            assert isinstance(refusal, Refusal)
            assert refusal.code == "feature_level"
            assert "its build knows feature level 1, and this cluster is at 2" in refusal.text
            newer = await first_answer(s1.transport.port, peer_hello("s2", level_min=1, level_max=3))
            assert isinstance(newer, Hello)


async def test_a_client_that_sends_at_once_is_told_that_clients_have_another_port() -> None:
    """A client does not wait for the answer to its hello, so the member ignores the bytes after the hello."""
    with trio.fail_after(20):
        async with a_cluster() as machines:
            port = machines[0].transport.port

            client = await first_answer(port, peer_hello(role=HelloRole.CLIENT) + frame(encode_item([1, 2])))
            peer = await first_answer(port, peer_hello("s2") + frame(encode_item([1, 2])))

            assert isinstance(client, Refusal)
            assert (client.code, "clients have another" in client.text) == ("wrong_port", True)
            assert isinstance(peer, Refusal)
            assert peer.code == "not_a_hello"  # A peer must wait for the answer to its hello.


async def test_a_member_of_the_same_cluster_is_answered_with_a_hello() -> None:
    """Each side sends a hello (docs/reference/specification.md#74-hello)."""
    with trio.fail_after(20):
        async with a_cluster() as machines:
            s1 = machines[0]

            answer = await first_answer(s1.transport.port, peer_hello("s2"))

            assert isinstance(answer, Hello)
            assert (answer.node_id, answer.incarnation_id) == ("s1", s1.identity.incarnation_id)


async def test_the_refused_side_logs_what_the_other_said(caplog: pytest.LogCaptureFixture) -> None:
    """A member of another cluster uses the address of this member. The logs of both members give the reason."""
    caplog.set_level(logging.WARNING, "raft")
    with trio.fail_after(20):
        async with a_cluster(2, cluster_ids={"s2": b"another cluster."}):
            await until(lambda: caplog.text.count("wrong_cluster") >= 4)

    assert "s2: peer s1: it refuses this connection (wrong_cluster)" in caplog.text
    assert "s1: a connection is refused (wrong_cluster)" in caplog.text


async def test_a_member_that_lost_its_disk_is_refused_and_ends_when_it_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The member is refused until a new member replaces it
    (docs/reference/specification.md#13-incarnations-and-pins)."""
    caplog.set_level(logging.WARNING, "raft")
    with trio.fail_after(20):
        (first, first_address), (second, second_address) = await a_listener(), await a_listener()
        dial = {"s1": first_address, "s2": second_address}
        s1 = Machine("s1", ["s1", "s2"], first, dial, pins={"s2": b"its former life."})
        s2 = Machine("s2", ["s1", "s2"], second, dial)
        with pytest.RaisesGroup(NodeStopped):
            async with trio.open_nursery() as nursery:
                await nursery.start(s1.driver.run)
                await nursery.start(s2.driver.run)

    assert "s2: peer s1: it refuses this connection (wrong_incarnation)" in caplog.text
    assert "s1: a connection is refused (wrong_incarnation)" in caplog.text
    assert s2.node.failure is not None
    assert s1.node.core.role is not Role.LEADER


async def test_a_member_that_lost_its_disk_is_refused_where_it_is_dialled(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "raft")
    with trio.fail_after(20):
        (first, _), (second, second_address) = await a_listener(), await a_listener()
        s1 = Machine("s1", ["s1", "s2"], first, {"s2": second_address}, pins={"s2": b"its former life."})
        s2 = Machine("s2", ["s1", "s2"], second)  # s2 cannot call s1, so it does not learn of the refusal.
        async with trio.open_nursery() as nursery:
            await nursery.start(s1.driver.run)
            await nursery.start(s2.driver.run)

            await until(lambda: "s1: peer s2: peer s2 is refused" in caplog.text)
            assert {machine.node.core.role for machine in (s1, s2)}.isdisjoint({Role.LEADER})
            nursery.cancel_scope.cancel()


async def test_an_address_where_another_member_answers_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    """A common mistake of users is to swap two addresses."""
    caplog.set_level(logging.WARNING, "raft")
    with trio.fail_after(20):
        listeners = {voter: await a_listener() for voter in ("s1", "s2", "s3")}
        dial = {"s1": listeners["s1"][1], "s2": listeners["s3"][1], "s3": listeners["s2"][1]}
        machines = [Machine(voter, ["s1", "s2", "s3"], listeners[voter][0], dial) for voter in listeners]
        async with trio.open_nursery() as nursery:
            for machine in machines:
                await nursery.start(machine.driver.run)
            await until(lambda: "it is s3 that answers" in caplog.text)
            nursery.cancel_scope.cancel()


async def test_a_silent_stranger_does_not_hold_up_anybody(monkeypatch: pytest.MonkeyPatch) -> None:
    """The member closes connections beyond the bound immediately, and closes silent connections after a while."""
    monkeypatch.setattr("raft.runtime.transport.HANDSHAKE_SECONDS_MAX", 0.2)
    with trio.fail_after(20):
        async with a_cluster(1) as machines:
            port = machines[0].transport.port
            async with trio.open_nursery() as nursery:
                ended = []

                async def keep_silent() -> None:
                    stream = await trio.open_tcp_stream("127.0.0.1", port)
                    async with stream:
                        ended.append(await read_to_the_end(stream))

                for _ in range(CONNECTIONS_MAX + 10):
                    nursery.start_soon(keep_silent)
            assert ended == [b""] * (CONNECTIONS_MAX + 10)
            assert isinstance(await first_answer(port, peer_hello("s9")), Refusal)


async def test_a_stranger_cannot_make_a_member_keep_much() -> None:
    """The member keeps at most HELLO_BYTES_MAX bytes of a caller before its hello is complete, and remembers at most
    WARNINGS_MAX different warnings."""
    with trio.fail_after(20):
        async with a_cluster(1) as machines:
            transport = machines[0].transport
            await the_leader(machines)

            answer = await first_answer(transport.port, (HELLO_BYTES_MAX + 1).to_bytes(4, "big"))
            assert isinstance(answer, Refusal)
            assert answer.code == "not_a_hello"
            for number in range(WARNINGS_MAX + 5):
                answer = await first_answer(transport.port, peer_hello(f"stranger-{number}"))
                assert isinstance(answer, Refusal)
                assert len(transport._log._warned) <= WARNINGS_MAX


async def test_a_failed_sync_stops_the_driver_after_telling_the_application() -> None:
    """The node first answers the waiting callers, and then stops (docs/reference/specification.md#37-failed-sync)."""
    with trio.fail_after(20):
        machine = Machine("s1", ["s1"])

        async def fail_a_sync() -> None:
            await the_leader([machine])
            machine.disk.error = OSError(5, "Input/output error")
            machine.propose("one", 1)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail_a_sync)
            with pytest.raises(NodeStopped, match="Input/output error"):
                await machine.driver.run()

        assert [completion.ticket for completion in machine.recorder.completions] == [1]


async def test_stopping_on_request_finishes_what_was_begun() -> None:
    """A closing node writes the proof of its last batch. After that, `run` returns.

    See docs/reference/specification.md#49-proof-of-the-last-frame.
    """
    with trio.fail_after(20):
        machine = Machine("s1", ["s1"])
        async with trio.open_nursery() as nursery:
            await nursery.start(machine.driver.run)
            await the_leader([machine])
            machine.propose("one", 1)
            machine.driver.request_stop()
        # The nursery ends because `run` returned.

        assert machine.recorder.completions == [Applied(1, 2, 0)]
        assert machine.node.is_stopped


async def test_a_member_alone_needs_no_transport() -> None:
    """A single embedded node opens no port."""
    with trio.fail_after(20):
        machine = Machine("s1", ["s1"])
        driver = Driver(machine.node, completions=machine.completions, application=machine.recorder)
        async with trio.open_nursery() as nursery:
            assert await nursery.start(driver.run) == 0
            await the_leader([machine])
            nursery.cancel_scope.cancel()


async def test_a_port_in_use_is_a_clear_error() -> None:
    """The error is raised directly, not inside an exception group."""
    with trio.fail_after(20):
        listener, address = await a_listener()
        machine = Machine("s1", ["s1", "s2"])
        transport = Transport(
            identity=machine.identity,
            configuration=machine.node.core.configuration,
            random=Random(1),
            listen_port=int(address.rpartition(":")[2]),
        )
        driver = Driver(
            machine.node, completions=machine.completions, application=machine.recorder, transport=transport
        )

        async with listener:
            with pytest.raises(CannotListen, match="another server"):
                await driver.run()


def test_other_addresses_than_loopback_need_a_word() -> None:
    """A peer port without TLS listens only on loopback unless an option allows more.

    See docs/reference/specification.md#714-tls.
    """
    identity = Identity(cluster_id=CLUSTER_ID, group_id=0, node_id="s1", incarnation_id=bytes(16))
    configuration = Configuration.of([Member("s1"), Member("s2")])
    for host in ("0.0.0.0", "192.168.1.5", "::", "example.com"):
        with pytest.raises(InsecureAddress, match="insecure"):
            Transport(identity=identity, configuration=configuration, random=Random(1), listen_host=host)
        Transport(identity=identity, configuration=configuration, random=Random(1), listen_host=host, insecure=True)
    assert all(map(is_loopback, ("localhost", "127.0.0.1", "127.8.8.8", "::1")))


@pytest.mark.parametrize(
    "address", ["", "7001", ":7001", "host:", "host:port", "host:70000", "::1:7001", "h:-1", "h:٣"]
)
def test_what_is_no_address_is_a_clear_error(address: str) -> None:
    """An address is `host:port`, or `[v6]:port`."""
    with pytest.raises(InvalidAddress, match="host:port"):
        parse_address(address)


def test_addresses_are_taken_apart() -> None:
    """Hosts are names, IPv4 or IPv6."""
    assert parse_address("localhost:7001") == ("localhost", 7001)
    assert parse_address("[::1]:0") == ("::1", 0)
