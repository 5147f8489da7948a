"""TLS without I/O. The tests cut the bytes at random places. In one test, the other end is `trio.SSLStream`, as the
oracle."""

from __future__ import annotations

import gc
import ssl
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
import trio
import trio.testing
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from raft.runtime.tls.contexts import PROTOCOL_CLIENT
from raft.runtime.tls.credentials import Credentials, caller_credentials
from raft.runtime.tls.errors import TlsFailed
from raft.runtime.tls.session import HANDSHAKE_BYTES_MAX, RECORDS_WITHOUT_DATA_MAX, TlsSession
from tests.raft.support.certificates import Certificates
from tests.raft.support.key_updates import Forger

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Credentials, Credentials]:
    """The credentials of the members s1 and s2."""
    made = Certificates(tmp_path_factory.mktemp("certificates"))
    return made.peer("s1"), made.peer("s2")


def sessions(pair: tuple[Credentials, Credentials]) -> tuple[TlsSession, TlsSession]:
    """A caller and an answerer that have not begun."""
    return TlsSession(pair[1].client, is_server=False), TlsSession(pair[0].server, is_server=True)


def pieces(data: bytes, random: Random) -> Iterator[bytes]:
    """Cut bytes at random places. Often each piece is a single byte, and sometimes nothing is cut."""
    size = random.choice([1, 7, 100, 5_000, 100_000])
    begin = 0
    while begin < len(data):
        end = begin + random.randint(1, size)
        yield data[begin:end]
        begin = end


def shake_hands(caller: TlsSession, answerer: TlsSession, random: Random) -> None:
    caller.handshake()
    while caller.has_output or answerer.has_output:
        for piece in pieces(caller.take_output(), random):
            answerer.feed(piece)
        for piece in pieces(answerer.take_output(), random):
            caller.feed(piece)
    assert caller.is_established
    assert answerer.is_established


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), sizes=st.lists(st.sampled_from([1, 2, 300, 16_384, 16_385, 70_000]), max_size=6))
def test_bytes_arrive_whole_and_in_order_wherever_the_wire_cuts_them(
    pair: tuple[Credentials, Credentials], seed: int, sizes: list[int]
) -> None:
    random = Random(seed)
    caller, answerer = sessions(pair)
    shake_hands(caller, answerer, random)
    for sender, receiver in ((caller, answerer), (answerer, caller)):
        sent = [random.randbytes(size) for size in sizes]
        wire = b"".join(map(sender.send, sent)) + sender.close()
        received = b"".join(receiver.feed(piece) for piece in pieces(wire, random))

        assert received == b"".join(sent)
        assert receiver.is_ended


@pytest.mark.parametrize("at_server", [True, False])
async def test_the_other_end_may_be_the_stream_of_trio(pair: tuple[Credentials, Credentials], at_server: bool) -> None:
    """Our session exchanges bytes with `trio.SSLStream`, in both roles. A generator with a seed cuts the bytes into
    pieces."""
    near, far = trio.testing.memory_stream_pair()
    context = pair[0].client if at_server else pair[0].server
    oracle = trio.SSLStream(far, context, server_side=not at_server, https_compatible=True)
    ours = TlsSession(pair[1].server if at_server else pair[1].client, is_server=at_server)
    random = Random(4)
    data = random.randbytes(300_000)
    received = bytearray()

    async def echo() -> None:
        while taken := await oracle.receive_some():
            await oracle.send_all(taken)
        await oracle.aclose()

    async with trio.open_nursery() as nursery:
        with trio.fail_after(20):
            nursery.start_soon(echo)
            ours.handshake()
            await near.send_all(ours.take_output() or b"")
            while not ours.is_established:
                for piece in pieces(bytes(await near.receive_some()), random):
                    ours.feed(piece)
                await near.send_all(ours.take_output())
            assert ours.protocol == "hwm-peer"
            for piece in pieces(ours.send(data), random):
                await near.send_all(piece)
            while len(received) < len(data):
                for piece in pieces(bytes(await near.receive_some()), random):
                    received += ours.feed(piece)
            await near.send_all(ours.close())
            while not ours.is_ended:
                received += ours.feed(bytes(await near.receive_some()))
    assert received == data


def test_an_end_without_a_close_notify_is_an_end(pair: tuple[Credentials, Credentials]) -> None:
    """A process that is killed does not announce the end of its connection. Each protocol above TLS states
    its own lengths, so it notices a cut."""
    caller, answerer = sessions(pair)
    shake_hands(caller, answerer, Random(1))

    assert answerer.feed(caller.send(b"half a fra")[:-3]) == b""
    assert answerer.feed(b"") == b""
    assert answerer.is_ended


def test_a_changed_byte_breaks_the_connection(pair: tuple[Credentials, Credentials]) -> None:
    caller, answerer = sessions(pair)
    shake_hands(caller, answerer, Random(1))
    wire = bytearray(caller.send(b"the amount is 100"))
    wire[-1] ^= 1

    with pytest.raises(TlsFailed, match="bad record mac"):
        answerer.feed(bytes(wire))
    with pytest.raises(TlsFailed):
        caller.feed(answerer.take_output())  # The alert.


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\x05hello", bytes(100), b"\xff" * 50_000])
def test_bytes_of_another_protocol_are_told_from_tls(pair: tuple[Credentials, Credentials], garbage: bytes) -> None:
    for session in sessions(pair):
        session.handshake()
        with pytest.raises(TlsFailed, match="does not speak TLS on this port") as caught:
            session.feed(garbage)
        assert caught.value.is_plain


@pytest.mark.parametrize("seed", range(20))
def test_random_bytes_after_a_true_beginning_break_the_handshake(
    pair: tuple[Credentials, Credentials], seed: int
) -> None:
    random = Random(seed)
    caller, answerer = sessions(pair)
    caller.handshake()
    hello = bytearray(caller.take_output())
    hello[random.randrange(5, len(hello)) :] = random.randbytes(30_000)

    def feed_all() -> None:
        answerer.feed(bytes(hello))
        answerer.feed(b"")

    with pytest.raises(TlsFailed):
        feed_all()


def test_a_handshake_has_a_bound_in_bytes(pair: tuple[Credentials, Credentials]) -> None:
    """A caller cannot make the buffer grow by a handshake message that never ends."""
    answerer = sessions(pair)[1]
    record = b"\x16\x03\x01\x40\x00" + b"\x01\x01\xff\xff" + bytes(16_380)

    def feed_all() -> None:
        for _ in range(HANDSHAKE_BYTES_MAX // len(record) + 2):
            answerer.feed(record)

    with pytest.raises(TlsFailed):
        feed_all()


@pytest.mark.parametrize("data", [b"", b"x"])
def test_changes_of_keys_are_bounded(tmp_path: Path, data: bytes) -> None:
    """Each change of keys costs up to 80 µs, and a read of 64 KiB can contain 2,400 changes. Such a read would stop the
    member for 0.2 s, even if there was a byte of data between two changes."""
    made, key_log = Certificates(tmp_path), tmp_path / "key_log"
    caller_context = made.caller().client
    caller_context.keylog_filename = str(key_log)
    caller = TlsSession(caller_context, is_server=False, server_name="127.0.0.1")
    answerer = TlsSession(made.port().server, is_server=True)
    shake_hands(caller, answerer, Random(1))
    forger = Forger(key_log)

    few = [forger.key_update(is_answer_wanted=True) + forger.data(b"data") for _ in range(RECORDS_WITHOUT_DATA_MAX)]
    assert answerer.feed(b"".join(few)) == b"data" * RECORDS_WITHOUT_DATA_MAX
    answerer.take_output()
    with pytest.raises(TlsFailed, match="without data"):
        answerer.feed(b"".join(forger.key_update() + (forger.data(data) if data else b"") for _ in range(10)))


def test_changes_of_keys_are_allowed_between_much_data(tmp_path: Path) -> None:
    made, key_log = Certificates(tmp_path), tmp_path / "key_log"
    caller_context = made.caller().client
    caller_context.keylog_filename = str(key_log)
    caller = TlsSession(caller_context, is_server=False, server_name="127.0.0.1")
    answerer = TlsSession(made.port().server, is_server=True)
    shake_hands(caller, answerer, Random(1))
    forger, block = Forger(key_log), bytes(16_000)

    for _ in range(3 * RECORDS_WITHOUT_DATA_MAX):
        wire = forger.key_update() + b"".join(forger.data(block) for _ in range(66))
        assert b"".join(answerer.feed(piece) for piece in (wire[:70_000], wire[70_000:])) == block * 66


def test_a_session_of_tls_1_2_that_a_caller_offers_is_refused_and_forgotten(tmp_path: Path) -> None:
    """OpenSSL keeps sessions of TLS 1.2 in memory even without tickets. The session is refused, and the next attempt
    makes a full handshake."""
    made = Certificates(tmp_path)
    port, context = made.port().server, made.caller().client
    context.maximum_version = ssl.TLSVersion.TLSv1_2

    def connect(earlier: ssl.SSLSession | None) -> ssl.SSLSession | None:
        answerer, incoming, outgoing = TlsSession(port, is_server=True), ssl.MemoryBIO(), ssl.MemoryBIO()
        caller = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1", session=earlier)
        while not answerer.is_established:
            with suppress(ssl.SSLWantReadError):
                caller.do_handshake()
            answerer.feed(outgoing.read())
            incoming.write(answerer.take_output())
        incoming.write(answerer.close())
        with suppress(ssl.SSLError):
            caller.unwrap()
        answerer.feed(outgoing.read())
        return caller.session

    earlier = connect(None)
    with pytest.raises(TlsFailed, match="resume an earlier session"):
        connect(earlier)
    gc.collect()  # The error, its traceback and the connection are a cycle.
    assert connect(earlier) is not None
    assert port.session_stats()["hits"] == 1


@pytest.mark.parametrize("kind", [0x81, 0x82, 0x86])
def test_a_certificate_that_cannot_be_decoded_breaks_only_its_own_handshake(tmp_path: Path, kind: int) -> None:
    """OpenSSL accepts a name (SAN: a mail address, a DNS name, a URI) that is not valid text. Python cannot decode such
    a name."""
    made = Certificates(tmp_path)
    cert = made.issue_with_names("odd.pem", bytes([0x30, 4, kind, 2, 0xFF, 0xFE]))
    odd = caller_credentials(cert, None, made.ca, PROTOCOL_CLIENT)
    caller = TlsSession(odd.client, is_server=False, server_name="127.0.0.1")
    answerer = TlsSession(made.port().server, is_server=True)

    with pytest.raises(TlsFailed, match="cannot be decoded"):
        shake_hands(caller, answerer, Random(1))
    assert not answerer.is_established


def test_no_session_is_resumed(pair: tuple[Credentials, Credentials]) -> None:
    """A resumed session would skip the check of the certificate, which may have been withdrawn in the meantime."""
    caller, answerer = sessions(pair)
    shake_hands(caller, answerer, Random(1))

    assert answerer.feed(caller.send(b"x")) == b"x"
    assert caller.feed(answerer.send(b"y")) == b"y"
    assert caller._object.session is None or not caller._object.session.has_ticket
