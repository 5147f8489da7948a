"""A client from a URL, and a client with the id of its cluster, in each world."""

from __future__ import annotations

from pathlib import Path
from traceback import format_exception
from typing import Any

import pytest

from kvstore import InvalidAddress, InvalidUrl, StoreError, Tls, Unavailable, UnusablePassword
from kvstore.access.requests import authenticate_request, read_authenticate
from kvstore.connection_url import parse_url
from kvstore.protocol.messages import decode_request, encode_request
from kvstore.server.request_judge import AuthenticationWanted
from raft import InvalidConfiguration
from tests.kvstore.worlds.world import WORLDS, World, in_each_world

pytestmark = [pytest.mark.timeout(60)]


@in_each_world
async def test_a_url_names_members_and_a_prefix(world: World, member_address: str, name: str) -> None:
    async with world.connect(f"hwm://{member_address}/{name}?deadline=7.5") as view:
        assert view.deadline_seconds == 7.5
        await view.put("a", "1")
    async with world.connect(f"hwm://{member_address}") as client:
        assert (await client.get(name + "a")).value == b"1"


@in_each_world
async def test_a_client_refuses_members_of_another_cluster(world: World, member_address: str) -> None:
    other = "ab" * 16
    async with world.connect(f"hwm://{member_address}?cluster={other}&deadline=0.5") as client:
        with pytest.raises(Unavailable, match=f"and this client wants {other}"):
            await client.put("a", "1")


@in_each_world
async def test_a_client_takes_members_of_the_cluster_that_it_wants(world: World, member_address: str) -> None:
    async with world.client([member_address]) as client:
        cluster_id = (await client.status()).cluster_id
    for wanted in (cluster_id, cluster_id.hex()):
        async with world.client([member_address], cluster_id=wanted) as client:
            await client.put("a", "1")


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
@pytest.mark.parametrize("cluster_id", [b"short", "xy" * 16, "ab"])
def test_what_is_no_cluster_id_is_refused_at_once(world: World, cluster_id: Any) -> None:
    with pytest.raises(InvalidConfiguration, match="a cluster id has 16 bytes"):
        world.client(["127.0.0.1:1"], cluster_id=cluster_id)


def test_every_part_of_a_url_is_read() -> None:
    found = parse_url(
        "hwm://[::1]:1,s2.example.org:2/a%2Fb/%FF?session=no&cluster=00ff&ca=/ca.pem&cert=c.pem&key=k.pem"
    )

    assert found.endpoints == ("[::1]:1", "s2.example.org:2")
    assert found.prefix == b"a/b/\xff"
    assert found.options == {
        "session": False,
        "cluster_id": "00ff",
        "tls": Tls(ca=Path("/ca.pem"), cert=Path("c.pem"), key=Path("k.pem")),
    }


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("127.0.0.1:7101", "does not begin with hwm://"),
        ("https://127.0.0.1:7101", "does not begin with hwm://"),
        ("hwm:///prefix", "names no member"),
        ("hwm://h:1?colour=green", "there is no parameter 'colour'"),
        ("hwm://h:1?deadline=1&deadline=2", "there twice"),
        ("hwm://h:1?deadline=soon", "a number of seconds above 0"),
        ("hwm://h:1?deadline=0", "a number of seconds above 0"),
        ("hwm://h:1?deadline=nan", "a number of seconds above 0"),
        ("hwm://h:1?session=maybe", "session is yes or no"),
        ("hwm://h:1?cert=c.pem", "needs the authorities"),
        ("hwm://h:1?deadline", "cannot be read"),
        ("hwm://h:1/a#b", "write # in a prefix as %23"),
        ("hwm://@h:1", "there is no name before @"),
        ("hwm://%FF@h:1", "is not UTF-8"),
        ("hwm://h:1?password_file=f", "password_file is of no use without a user"),
    ],
)
def test_a_wrong_url_is_refused_with_the_reason(url: str, words: str) -> None:
    with pytest.raises(InvalidUrl, match=words) as caught:
        parse_url(url)
    assert "hwm://user@host:port" in caught.value.hint
    assert isinstance(caught.value, StoreError)


def test_a_user_in_a_url_is_percent_encoded() -> None:
    found = parse_url("hwm://team%2Fada%40home@h:1,i:2/users@/?password_file=/run/ada%20file")

    assert (found.user, found.endpoints, found.prefix) == ("team/ada@home", ("h:1", "i:2"), b"users@/")
    assert found.password_file == Path("/run/ada file")
    assert parse_url("hwm://h:1/users@/").user is None


@pytest.mark.parametrize(
    "url",
    [
        "hwm://ada:secret@h:1",
        "hwm://ada:secret@h:1?colour=green",
        "hwm://ada:secret@",
        "hwm://ada:secret@h",
        "hwm://ada:sec/secret@h:1/prefix",
        "hwm://ada:sec@secret@h:1",
        "hwm://ada:sec?secret@h:1",
        "hwm://ada:1?secret@h:1",
        "hwm://ada:1/#secret@h:1",
        "hwm://ada@h:1?password=secret",
        "hwm://ada@h:1?password_file=f&deadline=soon&x=secret",
        "https://ada:secret@h:1",
    ],
)
def test_no_error_about_a_url_shows_a_password(url: str) -> None:
    with pytest.raises(InvalidUrl) as caught:
        parse_url(url)
    for shown in (str(caught.value), repr(caught.value), caught.value.url, "".join(format_exception(caught.value))):
        assert "secret" not in shown


@pytest.mark.parametrize("url", ["hwm://ada:secret@h:1", "hwm://ada@h:1?password=secret"])
def test_a_password_in_a_url_is_refused(url: str) -> None:
    with pytest.raises(InvalidUrl, match="a password does not belong in a URL: name a file with password_file=FILE"):
        parse_url(url)


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
def test_a_user_in_a_url_needs_a_password(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing password is reported when the client is made, and not only when a member refuses the client."""
    for variable in ("HWM_PASSWORD", "HWM_PASSWORD_FILE"):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(UnusablePassword, match="the URL names the user 'ada', and there is no password") as caught:
        world.connect("hwm://ada@127.0.0.1:1")
    assert "HWM_PASSWORD_FILE" in caught.value.hint
    with pytest.raises(UnusablePassword, match="missing cannot be read: no such file"):
        world.connect(f"hwm://ada@127.0.0.1:1?password_file={tmp_path / 'missing'}")
    (tmp_path / "empty").write_text("\nsecond line")
    with pytest.raises(UnusablePassword, match="a password has 1 to 1024 bytes, on the first line"):
        world.connect(f"hwm://ada@127.0.0.1:1?password_file={tmp_path / 'empty'}")
    (tmp_path / "binary").write_bytes(b"\xff\n")
    with pytest.raises(UnusablePassword, match="does not begin with a line of UTF-8"):
        world.connect(f"hwm://ada@127.0.0.1:1?password_file={tmp_path / 'binary'}")
    with pytest.raises(InvalidConfiguration, match="a user and a password"):
        world.connect("hwm://127.0.0.1:1", password="secret")


def test_a_url_and_a_request_do_not_show_the_password(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("secret\n")
    url = parse_url(f"hwm://ada@h:1?password_file={tmp_path / 'file'}")
    assert url.client_options()["password"] == "secret"
    request = authenticate_request("ada", "secret")
    asked = decode_request(encode_request(1, request))
    wanted = AuthenticationWanted(*read_authenticate(asked.items))
    assert wanted.secret == "secret"
    for each in (url, request, asked, wanted):
        assert "secret" not in repr(each)


def test_a_wrong_address_in_a_url_is_named() -> None:
    with pytest.raises(InvalidAddress, match="host"):
        parse_url("hwm://host")
    with pytest.raises(InvalidAddress, match="host"):
        parse_url("hwm://ada@host")
