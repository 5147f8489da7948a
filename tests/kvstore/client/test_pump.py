"""The trio part of the client, with memory streams, a clock that jumps, and a member that a test plays."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from kvstore import Client, Unavailable
from kvstore.protocol.messages import MembersView, RequestKind, decode_request, encode_response, members_fields
from raft import FRAME_BYTES_MAX_CLIENT, FrameSplitter, Hello, HelloRole, frame
from raft.runtime import now_ns

ADDRESS = "s1:1"
HELLO = Hello(cluster_id=b"c" * 16, group_id=0, node_id="s1", incarnation_id=b"i" * 16, role=HelloRole.PEER).encode()


async def play_a_leader(stream: trio.abc.Stream, seconds: list[float]) -> None:
    """Greet, act as the leader, and answer the n-th read `seconds[n]` after it came. Each answer says that the key is
    absent. Later reads are never answered."""
    splitter, reads = FrameSplitter(FRAME_BYTES_MAX_CLIENT), iter(seconds)
    is_greeted = False

    async def answer(request_id: int, after: float) -> None:
        await trio.sleep(after)
        await stream.send_all(frame(encode_response(request_id, 0, 1, 1, "s1", ((2, None, 0, True),))))

    async with trio.open_nursery() as nursery:
        while data := await stream.receive_some():
            for body in splitter.feed(data):
                if not is_greeted:
                    is_greeted = True
                    await stream.send_all(frame(HELLO))
                    continue
                asked = decode_request(body)
                if asked.kind == RequestKind.MEMBERS:
                    fields = members_fields(MembersView("s1", ADDRESS, 1, (("s1", ADDRESS),)))
                    await stream.send_all(frame(encode_response(asked.request_id, 0, 1, 0, "s1", fields)))
                elif (after := next(reads, None)) is not None:
                    nursery.start_soon(answer, asked.request_id, after)
        nursery.cancel_scope.cancel()


async def test_silence_is_counted_from_the_moment_in_which_something_was_heard(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The client keeps a member that answers from time to time, always within a second. The client measures this second
    from the last answer, not from the time when it last had work."""
    dials = 0
    async with trio.open_nursery() as nursery:

        async def dial(address: str) -> trio.abc.Stream:
            nonlocal dials
            dials += 1
            near, far = trio.testing.memory_stream_pair()
            nursery.start_soon(play_a_leader, far, [0.9, 1.8])
            return near

        async with Client([ADDRESS], session=False, dialer=dial) as client, trio.open_nursery() as callers:
            callers.start_soon(client.get, "a")
            callers.start_soon(client.get, "b")

        assert dials == 1
        nursery.cancel_scope.cancel()


async def test_no_call_has_a_task_of_its_own_and_those_of_one_turn_leave_in_one_send(
    mock_clock: trio.testing.MockClock,
) -> None:
    """A call costs its client only bookkeeping. docs/reference/client.md promises this, and 15,000 calls a second need
    it."""
    sends = 0
    async with trio.open_nursery() as nursery:

        async def dial(address: str) -> trio.abc.Stream:
            near, far = trio.testing.memory_stream_pair()
            deliver = near.send_stream.send_all_hook
            assert deliver is not None

            async def count_and_deliver() -> None:
                nonlocal sends
                sends += 1
                await deliver()

            near.send_stream.send_all_hook = count_and_deliver
            nursery.start_soon(play_a_leader, far, [])
            return near

        async with Client([ADDRESS], session=False, dialer=dial) as client, trio.open_nursery() as callers:
            callers.start_soon(client.get, "connected")
            await trio.testing.wait_all_tasks_blocked()
            tasks, sends = trio.lowlevel.current_statistics().tasks_living, 0

            for number in range(500):
                callers.start_soon(client.get, f"{number}")
            await trio.testing.wait_all_tasks_blocked()
            assert (trio.lowlevel.current_statistics().tasks_living, sends) == (tasks + 500, 1)  # The callers' own.

            callers.start_soon(client.get_many, [f"{number}" for number in range(500)])
            await trio.testing.wait_all_tasks_blocked()
            assert (trio.lowlevel.current_statistics().tasks_living, sends) == (tasks + 501, 2)
            callers.cancel_scope.cancel()
        nursery.cancel_scope.cancel()


async def test_a_call_ends_at_its_deadline_though_a_later_one_was_set_first(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A deadline may move to an earlier time. Then the client must not wait until the later time."""
    ends: list[float] = []

    async def refuse(address: str) -> trio.abc.Stream:
        raise OSError("nobody")

    async def get(client: Client, seconds: float) -> None:
        results = await client.get_many(["a"], deadline_seconds=seconds)
        assert len(results) == 1
        ends.append(round(trio.current_time() - began, 3))

    began = trio.current_time()
    async with Client([ADDRESS], dialer=refuse) as client, trio.open_nursery() as callers:
        callers.start_soon(get, client, 60)
        await trio.sleep(1)
        callers.start_soon(get, client, 0.25)

    assert ends == [1.25, 60]


async def test_a_dial_that_fails_in_the_moment_in_which_it_is_given_up_breaks_no_client(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def dial(address: str) -> trio.abc.Stream:
        await trio.lowlevel.checkpoint()
        # The jump is longer than an attempt may take, and no task runs between the jump and the attempt's end.
        autojump_clock.jump(1.5)
        raise OSError("refused")

    async with Client(["s1:1"], session=False, dialer=dial) as client:
        with pytest.raises(Unavailable):
            await client.get("k", deadline_seconds=4)


async def test_a_client_that_was_idle_gives_a_named_member_its_time(autojump_clock: trio.testing.MockClock) -> None:
    async def dial(address: str) -> trio.abc.Stream:
        await trio.sleep(0.2)
        raise OSError("refused")

    async with Client(["s1:1"], session=False, dialer=dial) as client:
        await trio.sleep(1.1)
        began = trio.current_time()
        with pytest.raises(Unavailable):
            await client.status("s1:1", deadline_seconds=4)
        assert trio.current_time() - began > 0.1, "given up before it was dialed"


async def test_a_caller_that_is_cancelled_right_after_its_call_has_ended_breaks_no_client(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A call with a named member passes the current time to the client's core, and this may end other calls. The
    callers of the ended calls learn of the end in the next flush. They may be cancelled before that."""

    async def dial(address: str) -> trio.abc.Stream:
        await trio.sleep_forever()
        raise AssertionError(address)

    gone = trio.CancelScope()

    async def call_and_go(client: Client) -> None:
        with gone:
            await client.get("a", deadline_seconds=1.0)

    async with Client([ADDRESS], session=False, dialer=dial) as client, trio.open_nursery() as callers:
        callers.start_soon(call_and_go, client)
        await trio.testing.wait_all_tasks_blocked()
        core = client._pump._core
        assert core is not None
        autojump_clock.jump(2.0)
        core.tick(now_ns())
        gone.cancel()
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(Unavailable):
            await client.get("b", deadline_seconds=1.0)
    assert gone.cancelled_caught
