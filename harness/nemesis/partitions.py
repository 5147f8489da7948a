"""Faults of the network between members."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from harness.cluster.proxy_network import SLOW_SECONDS
from harness.nemesis.active_fault import ActiveFault


@asynccontextmanager
async def partitioned(active: ActiveFault) -> AsyncIterator[None]:
    """Frames between the victims and all other members are lost, or (`slow`) delayed, until the fault ends."""
    network, direction = active.cluster.network, active.record.direction
    assert network is not None, "partitions need a cluster whose links go through proxies"
    assert direction is not None, active.record
    slow = direction == "slow"
    flows = network.between(active.record.victims, direction)
    for flow in flows:
        if slow:
            flow.delay_seconds = SLOW_SECONDS
        else:
            flow.block()
    try:
        yield
    finally:
        for flow in flows:
            if slow:
                flow.delay_seconds = 0.0
            else:
                flow.unblock()
