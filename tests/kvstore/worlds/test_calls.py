"""Every call of a client on keys, in each world: the request and the result are the same."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kvstore import (
    Accepted,
    Acknowledge,
    Add,
    Client,
    Compare,
    Comparison,
    Consistency,
    Delete,
    EntryFate,
    Get,
    InvalidAddress,
    InvalidRequest,
    KeyRecord,
    LeaseNotFound,
    LimitsRefused,
    MemberStatus,
    NotANumber,
    NotCommitted,
    Put,
    Range,
    RevisionAhead,
    SessionView,
    Target,
    Unsupported,
)
from kvstore.protocol.commands import KeepAlive
from kvstore.protocol.messages import status_request
from tests.kvstore.worlds.world import World, in_each_world

pytestmark = [pytest.mark.timeout(60)]

CALLS: dict[str, Callable[[Any, str], Awaitable[bool]]] = {}


def call(function: Callable[[Any, str], Awaitable[bool]]) -> Callable[[Any, str], Awaitable[bool]]:
    """Add a call. The function calls a client, and returns True if the result is the right one."""
    CALLS[function.__name__] = function
    return function


def value_of(found: Any) -> bytes | None:
    return None if found.record is None else found.record.value


@call
async def put_and_get(client: Client, name: str) -> bool:
    written = await client.put(name, "1")
    found = await client.get(name)
    return value_of(found) == b"1" and found.record is not None and found.record.mod_revision == written.revision


@call
async def get_of_an_absent_key(client: Client, name: str) -> bool:
    return (await client.get(name)).record is None


@call
async def put_with_the_previous_record(client: Client, name: str) -> bool:
    await client.put(name, b"1")
    previous = (await client.put(name, b"2", previous=True)).previous
    return previous is not None and previous.value == b"1"


@call
async def put_that_keeps_the_value(client: Client, name: str) -> bool:
    await client.put(name, b"1")
    await client.put(name, None)
    found = await client.get(name)
    return value_of(found) == b"1" and found.record is not None and found.record.version == 2


@call
async def put_accepted_by_the_leader(client: Client, name: str) -> bool:
    accepted = await client.put(name, b"1", acknowledge=Acknowledge.LEADER)
    fate = await client.outcome_of(accepted.index, accepted.term, wait_seconds=5)
    return type(accepted) is Accepted and fate is EntryFate.COMMITTED


@call
async def put_without_an_answer(client: Client, name: str) -> bool:
    await client.put(name, b"1", acknowledge=Acknowledge.NONE)
    await client.put(name + "after", b"")
    return value_of(await client.get(name)) == b"1"


@call
async def put_in_sync(client: Client, name: str) -> bool:
    return (await client.put(name, b"1", acknowledge=Acknowledge.IN_SYNC)).acknowledged_by == ("s1",)


@call
async def put_many(client: Client, name: str) -> bool:
    results = await client.put_many([(f"{name}{i:04}", str(i)) for i in range(300)])
    return [each.revision for each in results] == sorted({each.revision for each in results})  # type: ignore[union-attr]


@call
async def put_many_to_one_key(client: Client, name: str) -> bool:
    await client.put_many([(name, str(i)) for i in range(50)])
    return value_of(await client.get(name)) == b"49"


@call
async def put_many_as_one_change(client: Client, name: str) -> bool:
    results = await client.put_many({f"{name}{i}": "x" for i in range(5)}, atomic=True)
    return len({each.revision for each in results}) == 1  # type: ignore[union-attr]


@call
async def put_many_accepted_by_the_leader(client: Client, name: str) -> bool:
    results = await client.put_many([(name + "a", ""), (name + "b", "")], acknowledge=Acknowledge.LEADER)
    return [type(each) for each in results] == [Accepted, Accepted]


@call
async def put_many_with_an_empty_key(client: Client, name: str) -> bool:
    good, bad = await client.put_many([(name, ""), ("", "")])
    return type(bad) is InvalidRequest and good.revision > 0  # type: ignore[union-attr]


@call
async def get_many(client: Client, name: str) -> bool:
    await client.put_many([(name + "a", "1"), (name + "b", "2")])
    found = await client.get_many([name + "b", name + "none", name + "a"])
    return [value_of(each) for each in found] == [b"2", None, b"1"]


@call
async def delete(client: Client, name: str) -> bool:
    await client.put(name, "1")
    return ((await client.delete(name)).found, (await client.delete(name)).found) == (True, False)


@call
async def delete_accepted_by_the_leader(client: Client, name: str) -> bool:
    return type(await client.delete(name, acknowledge=Acknowledge.LEADER)) is Accepted


@call
async def delete_range_of_a_prefix(client: Client, name: str) -> bool:
    await client.put_many([(name + "a", "1"), (name + "b", "2")])
    deleted = await client.delete_range(prefix=name, previous=True)
    return deleted.count == 2 and [each.value for each in deleted.previous or ()] == [b"1", b"2"]


@call
async def delete_range_of_a_range(client: Client, name: str) -> bool:
    await client.put_many([(name + "a", "1"), (name + "b", "2")])
    return (await client.delete_range(name + "a", name + "b")).count == 1


@call
async def append(client: Client, name: str) -> bool:
    first, second = await client.append(name, "1"), await client.append(name, "2")
    return first.key < second.key and value_of(await client.get(second.key)) == b"2"


@call
async def add(client: Client, name: str) -> bool:
    return [(await client.add(name, 5)).number, (await client.add(name, -2)).number] == [5, 3]


@call
async def compare_and_set_by_value(client: Client, name: str) -> bool:
    done = [await client.compare_and_set(name, "1", None), await client.compare_and_set(name, "2", "0")]
    return [each.succeeded for each in done] == [True, False]


@call
async def compare_and_set_by_revision(client: Client, name: str) -> bool:
    written = await client.put(name, "1")
    return (await client.compare_and_set(name, "2", written.revision)).succeeded


@call
async def compare_and_delete(client: Client, name: str) -> bool:
    await client.put(name, "1")
    done = [await client.compare_and_delete(name, "2"), await client.compare_and_delete(name, "1")]
    return [each.succeeded for each in done] == [False, True]


@call
async def txn_that_succeeds(client: Client, name: str) -> bool:
    key = name.encode()
    absent = Compare(key, Target.CREATE_REVISION, Comparison.EQUAL, 0)
    result = await client.txn([absent], [Put(key, b"1"), Get(key), Add(key + b"n", 3)], [Delete(key)])
    return result.succeeded and result.results[1].record.value == b"1"  # type: ignore[union-attr]


@call
async def txn_that_fails(client: Client, name: str) -> bool:
    key = name.encode()
    present = Compare(key, Target.CREATE_REVISION, Comparison.GREATER, 0)
    return not (await client.txn([present], [Delete(key)], [Put(key, b"1")])).succeeded


@call
async def txn_that_only_reads(client: Client, name: str) -> bool:
    before = (await client.put(name, "1")).revision
    return (await client.txn(success=[Get(name.encode())])).revision == before


@call
async def range_of_a_prefix(client: Client, name: str) -> bool:
    await client.put_many([(name + "a", "1"), (name + "b", "2")])
    page = await client.range(prefix=name)
    return [(each.key, each.value) for each in page.items] == [
        (f"{name}a".encode(), b"1"),
        (f"{name}b".encode(), b"2"),
    ]


@call
async def range_with_a_limit(client: Client, name: str) -> bool:
    await client.put_many([(f"{name}{i}", "") for i in range(5)])
    page = await client.range(Range(name.encode(), f"{name}~".encode(), 2, reverse=True))
    return page.more and [each.key[-1:] for each in page.items] == [b"4", b"3"]


@call
async def range_at_an_old_revision(client: Client, name: str) -> bool:
    first = await client.put(name, "1")
    await client.delete(name)
    page = await client.range(prefix=name, at_revision=first.revision)
    return [each.value for each in page.items] == [b"1"]


@call
async def get_at_an_old_revision(client: Client, name: str) -> bool:
    first = await client.put(name, "1")
    await client.put(name, "2")
    return value_of(await client.get(name, at_revision=first.revision)) == b"1"


@call
async def get_that_may_be_stale(client: Client, name: str) -> bool:
    await client.put(name, "1")
    return value_of(await client.get(name, max_staleness_ms=60_000, consistency=Consistency.BOUNDED)) == b"1"


@call
async def get_from_one_member(client: Client, name: str) -> bool:
    await client.put(name, "1")
    return value_of(await client.get(name, consistency="local", member="s1")) == b"1"


@call
async def pages(client: Client, name: str) -> bool:
    await client.put_many([(f"{name}{i}", "") for i in range(7)])
    return [len(page.items) async for page in client.pages(prefix=name, page_limit=3)] == [3, 3, 1]


@call
async def pages_of_one_revision(client: Client, name: str) -> bool:
    await client.put_many([(f"{name}{i}", "") for i in range(4)])
    found: list[KeyRecord] = []
    async for page in client.pages(prefix=name, page_limit=2, one_revision=True):
        await client.put(name + "9", "")
        found += page.items
    return len(found) == 4


@call
async def items(client: Client, name: str) -> bool:
    await client.put_many([(f"{name}{i}", str(i)) for i in range(4)])
    found = [item async for item in client.items(prefix=name)]
    return [type(each) for each in found] == [KeyRecord] * 4 and [each.value for each in found] == [
        b"0",
        b"1",
        b"2",
        b"3",
    ]


@call
async def items_left_early(client: Client, name: str) -> bool:
    await client.put_many([(f"{name}{i}", "") for i in range(4)])
    async for item in client.items(prefix=name):
        return item.key == f"{name}0".encode()
    return False


@call
async def execute_a_write(client: Client, name: str) -> bool:
    answer = await client.execute(Put(name.encode(), b"1"))
    return (answer.node_id, answer.consistency, answer.session_id > 0) == ("s1", "", True)


@call
async def execute_a_read(client: Client, name: str) -> bool:
    answer = await client.execute(Get(name.encode()))
    return (answer.node_id, answer.consistency, answer.session_id) == ("s1", "linearizable", 0)


@call
async def ask(client: Client, name: str) -> bool:
    return (await client.ask(status_request(None, with_hash=False))).node_id == "s1"


@call
async def lease_grant_and_revoke(client: Client, name: str) -> bool:
    granted = await client.lease_grant(30)
    await client.put(name, "1", lease=granted.lease_id)
    await client.lease_revoke(granted.lease_id)
    return (await client.get(name)).record is None


@call
async def lease_renew(client: Client, name: str) -> bool:
    granted = await client.lease_grant(30)
    done = [await client.lease_renew(granted.lease_id), await client.lease_renew(granted.lease_id, deadline_seconds=5)]
    await client.lease_revoke(granted.lease_id)
    return done == [30.0, 30.0]


@call
async def lease_time_to_live(client: Client, name: str) -> bool:
    granted = await client.lease_grant(30)
    await client.put(name, "1", lease=granted.lease_id)
    details = await client.lease_time_to_live(granted.lease_id)
    await client.lease_revoke(granted.lease_id)
    after = await client.lease_time_to_live(granted.lease_id)
    return details is not None and details.keys == (name.encode(),) and after is None


@call
async def leases(client: Client, name: str) -> bool:
    granted = await client.lease_grant(30)
    page = await client.leases(after_id=granted.lease_id - 1)
    await client.lease_revoke(granted.lease_id)
    return [each.lease_id for each in page.items] == [granted.lease_id]


@call
async def members(client: Client, name: str) -> bool:
    view = await client.members()
    return (view.leader_id, [node_id for node_id, _ in view.members]) == ("s1", ["s1"])


@call
async def membership(client: Client, name: str) -> bool:
    return [each.node_id for each in (await client.membership(of_leader=True)).members] == ["s1"]


@call
async def status(client: Client, name: str) -> bool:
    return [(await client.status()).role, (await client.status("s1", state_hash=True)).node_id] == ["leader", "s1"]


@call
async def cluster_status(client: Client, name: str) -> bool:
    return {key: type(each) for key, each in (await client.cluster_status()).items()} == {"s1": MemberStatus}


@call
async def read_log(client: Client, name: str) -> bool:
    await client.put(name, "1")
    page = await client.read_log((await client.status()).first_index)
    return page.entries[0].index == 1 and page.commit_index >= page.entries[-1].index


@call
async def sessions(client: Client, name: str) -> bool:
    await client.put(name, "1")
    page = await client.sessions()
    return len(page.items) > 0 and {type(each) for each in page.items} == {SessionView}


@call
async def close_session(client: Client, name: str) -> bool:
    return not await client.close_session(1 << 60)


@call
async def close_sessions(client: Client, name: str) -> bool:
    return await client.close_sessions([1 << 60, (1 << 60) + 1]) == [False, False]


@call
async def limits(client: Client, name: str) -> bool:
    await client.set_limits(sessions_max=5_000)
    return (await client.limits()).limits.sessions_max == 5_000


@call
async def consumer_group(client: Client, name: str) -> bool:
    return await client.consumer_group("no-such-group") is None


@call
async def consumer_groups(client: Client, name: str) -> bool:
    return await client.consumer_groups(after="zzz") == []


@in_each_world
@pytest.mark.parametrize("what", CALLS)
async def test_a_call_has_its_result(client: Any, name: str, what: str) -> None:
    assert await CALLS[what](client, name)


async def add_to_text(client: Client, name: str) -> None:
    await client.put(name, "text")
    await client.add(name)


ERRORS: dict[str, tuple[type[Exception], Callable[[Any, str], Any]]] = {
    "an empty key": (InvalidRequest, lambda client, _: client.put("", "1")),
    "an empty key to read": (InvalidRequest, lambda client, _: client.get("")),
    "a key to keep that is absent": (InvalidRequest, lambda client, name: client.put(name, None)),
    "an addition to text": (NotANumber, lambda client, name: add_to_text(client, name)),
    "an absent lease": (LeaseNotFound, lambda client, name: client.put(name, "1", lease=1 << 50)),
    "an absent lease to revoke": (LeaseNotFound, lambda client, _: client.lease_revoke(1 << 50)),
    "an absent lease to renew": (LeaseNotFound, lambda client, _: client.lease_renew(1 << 50)),
    "a revision to come": (RevisionAhead, lambda client, name: client.get(name, at_revision=1 << 50)),
    "a revision to compact that is to come": (RevisionAhead, lambda client, _: client.compact(1 << 50)),
    "a limit that does not exist": (LimitsRefused, lambda client, _: client.set_limits(no_such_limit=1)),
    "a command about sessions": (Unsupported, lambda client, _: client.execute(KeepAlive())),
    "a member that does not exist": (InvalidAddress, lambda client, _: client.status("s9")),
    "an entry to come": (NotCommitted, lambda client, _: client.read_log(1 << 50)),
    "a key of another type": (TypeError, lambda client, _: client.put(1, "1")),
    "a value of another type": (TypeError, lambda client, name: client.put(name, 1)),
    "two ranges": (TypeError, lambda client, _: client.range(Range(b"a"), prefix="a")),
    "no range to delete": (TypeError, lambda client, _: client.delete_range()),
    "a deadline that is no number": (ValueError, lambda client, name: client.get(name, deadline_seconds=float("nan"))),
}


@in_each_world
@pytest.mark.parametrize("what", ERRORS)
async def test_a_call_that_is_refused_raises_the_same_error(client: Any, name: str, what: str) -> None:
    kind, refused = ERRORS[what]
    with pytest.raises(kind):
        await refused(client, name)
    assert (await client.put(name + "after", "1")).revision > 0  # The client goes on.


@in_each_world
async def test_a_client_without_a_session_writes(world: World, member_address: str, name: str) -> None:
    async with world.client([member_address], session=False) as client:
        assert (await client.execute(Put(name.encode(), b"1"))).session_id == 0


@in_each_world
async def test_calls_of_many_tasks_do_not_mix(world: World, client: Any, name: str) -> None:
    """Each task writes and reads keys of its own, all at the same time."""
    seen: dict[int, list[bytes | None]] = {}

    async def work(number: int) -> None:
        found = []
        for turn in range(20):
            await client.put(f"{name}{number}", f"{number}-{turn}")
            found.append(value_of(await client.get(f"{name}{number}")))
        seen[number] = found

    async with world.tasks() as tasks:
        for number in range(20):
            tasks.start(work, number)

    assert seen == {number: [f"{number}-{turn}".encode() for turn in range(20)] for number in range(20)}
