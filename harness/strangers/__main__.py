"""`python -m harness.strangers`: runs the strangers until standard input ends.

The first line of standard input is a JSON object: `seed`, `kinds` (a list of names) and `targets` (a list of rows, each
of a node id, client port, peer port and metrics port). At the end the process prints one line of JSON, with the number
of visits of each kind of stranger, and the number of each outcome.
"""

from __future__ import annotations

import contextlib
import json
import resource
import sys
from collections import Counter
from typing import Any

import trio

from harness.strangers.crowd import KINDS, run_crowd
from harness.strangers.wire import TargetMember


async def _run(plan: dict[str, Any]) -> Counter[str]:
    counts: Counter[str] = Counter()
    targets = [
        TargetMember(node_id=node_id, client_port=client, peer_port=peer, metrics_port=metrics)
        for node_id, client, peer, metrics in plan["targets"]
    ]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(
            run_crowd, targets, plan["seed"], counts, [kind for kind in KINDS if kind.name in plan["kinds"]]
        )
        # This call returns when the parent process ends or closes the pipe.
        await trio.to_thread.run_sync(sys.stdin.read)
        nursery.cancel_scope.cancel()
    return counts


def main() -> None:
    """Run until standard input ends."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # The strangers need thousands of descriptors, so the process raises its limit of open files.
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    plan = json.loads(sys.stdin.readline())
    with contextlib.suppress(KeyboardInterrupt):
        print(json.dumps(trio.run(_run, plan)), flush=True)


if __name__ == "__main__":
    main()
