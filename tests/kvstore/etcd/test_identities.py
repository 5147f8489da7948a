"""The clients of the port: calls and watches without waiting tasks."""

from __future__ import annotations

from pathlib import Path

import trio
import trio.testing

from kvstore import open_node
from kvstore.client.calls import CallEnded
from kvstore.client.pump import now_ns
from kvstore.errors import Unavailable
from kvstore.etcd.identities import PortPump
from kvstore.protocol.addresses import IN_PROCESS_ADDRESS
from kvstore.protocol.messages import members_request

SECOND_NS = 1_000_000_000


async def test_a_call_that_the_end_of_another_call_submits_is_sent_at_once(tmp_path: Path) -> None:
    """The end of the first call comes while the pump flushes. Nothing else happens that would let it flush again."""
    with trio.fail_after(10):
        async with open_node(tmp_path / "data", bootstrap=True) as store:
            pump = PortPump([IN_PROCESS_ADDRESS], session_ttl_ns=0, dialer=store._dial_here_or_there)
            await pump.start()
            is_connected = trio.Event()
            pump.submit(members_request(), now_ns() + 5 * SECOND_NS, lambda _: is_connected.set())
            await is_connected.wait()
            answered = trio.Event()
            ends: list[CallEnded] = []

            def take_second(end: CallEnded) -> None:
                ends.append(end)
                answered.set()

            def take_first(end: CallEnded) -> None:
                ends.append(end)
                pump.submit(members_request(), now_ns() + 5 * SECOND_NS, take_second)

            pump.submit(members_request(), now_ns(), take_first)  # Its deadline has passed already.
            await trio.testing.wait_all_tasks_blocked()
            assert len(ends) >= 1
            assert pump._core is not None
            assert all(call.request_id for call in pump._core._calls.values()), "a call waits to be sent"
            await answered.wait()
            await pump.stop()
    assert isinstance(ends[0].error, Unavailable)
    assert ends[1].response is not None
