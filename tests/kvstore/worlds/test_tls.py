"""TLS in each world: the same certificates are accepted, and the same refusals are reported."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvstore import MemberTls, StoreError, Tls, Unavailable, UnusableCertificates
from raft import InvalidConfiguration
from tests.kvstore.worlds.world import WORLDS, MemberThread, World, in_each_world
from tests.raft.support.certificates import Certificates

pytestmark = [pytest.mark.timeout(60)]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def secure_address(made: Certificates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a member that requires a certificate of each client."""
    tls = MemberTls(cert=made.issue("port.pem", "127.0.0.1", "localhost"), client_ca=made.ca)
    with MemberThread(tmp_path_factory.mktemp("member") / "s1", tls=tls) as member:
        yield member.address


def client_tls(made: Certificates) -> Tls:
    return Tls(ca=made.ca, cert=made.issue("client.pem", "a-client"))


@in_each_world
async def test_a_client_with_a_certificate_is_served(
    world: World, made: Certificates, secure_address: str, name: str
) -> None:
    """Large values need many records, and more bytes than the socket takes at once."""
    large = bytes(range(256)) * 3_000
    async with world.client([secure_address], tls=client_tls(made)) as client:
        results = await client.put_many([(f"{name}{number}", large) for number in range(10)])
        assert not [each for each in results if isinstance(each, StoreError)]
        for number in range(10):
            assert (await client.get(f"{name}{number}")).record.value == large
        async with client.watch(prefix=name) as watch:
            await client.put(name, large)
            change = await anext(watch)
    assert change.record.value == large


@in_each_world
async def test_many_tasks_share_a_connection_with_tls(
    world: World, made: Certificates, secure_address: str, name: str
) -> None:
    async with world.client([secure_address], tls=client_tls(made)) as client:

        async def work(number: int) -> None:
            for turn in range(20):
                await client.put(f"{name}{number}", str(turn))

        async with world.tasks() as tasks:
            for number in range(20):
                tasks.start(work, number)
        assert [item.value async for item in client.items(prefix=name)] == [b"19"] * 20


def tls_of(made: Certificates, folder: Path, case: str) -> Tls | None:
    """The certificates of a client that a member refuses, or that refuses the member."""
    stranger = Certificates(folder / "strangers")
    if case == "no TLS":
        return None
    if case == "no certificate":
        return Tls(ca=made.ca)
    if case == "a certificate of strangers":
        return Tls(ca=made.ca, cert=stranger.issue("c.pem", "a-client"))
    if case == "an expired certificate":
        return Tls(ca=made.ca, cert=made.issue("expired.pem", "a-client", days=-1))
    assert case == "an authority of strangers", case
    return Tls(ca=stranger.ca, cert=client_tls(made).cert)


REFUSALS = {
    "no TLS": "this port takes only connections with TLS",
    "no certificate": "the other side requires a certificate of this side",
    "a certificate of strangers": "does not trust the authority",
    "an expired certificate": "has expired",
    "an authority of strangers": "the certificate of the other side is not accepted",
}


@in_each_world
@pytest.mark.parametrize("case", REFUSALS)
async def test_a_refusal_is_told_in_the_same_words(
    world: World, made: Certificates, secure_address: str, tmp_path: Path, case: str
) -> None:
    async with world.client([secure_address], tls=tls_of(made, tmp_path, case), deadline_seconds=1.0) as client:
        with pytest.raises(Unavailable, match=REFUSALS[case]) as refused:
            await client.get("a")
        assert refused.value.hint.startswith("check the certificates of the client: `--ca`")


@in_each_world
async def test_a_member_without_tls_is_no_partner(world: World, made: Certificates, member_address: str) -> None:
    async with world.client([member_address], tls=client_tls(made), deadline_seconds=1.0) as client:
        with pytest.raises(Unavailable, match="TLS") as refused:
            await client.get("a")
        assert refused.value.hint.startswith("check the certificates of the client: `--ca`")


def no_dialer(address: str) -> Any:
    raise AssertionError(address)


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
def test_a_dialer_and_certificates_exclude_each_other(world: World, made: Certificates) -> None:
    with pytest.raises(InvalidConfiguration, match="dialer"):
        world.client(["127.0.0.1:1"], dialer=no_dialer, tls=client_tls(made))


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
def test_unusable_files_are_refused_at_once(world: World, tmp_path: Path) -> None:
    with pytest.raises(UnusableCertificates):
        world.client(["127.0.0.1:1"], tls=Tls(ca=tmp_path / "none.pem"))
