"""The scheduler of the shop: it runs on every host, and one of them, the leader, sends the periodic tasks.

    python scheduler.py host-1

Two schedulers may both believe for a moment that they lead. So the leader first claims a period, in a transaction that
is carried out only while it leads, and then sends the task. No period can be claimed twice. If a leader dies after the
claim and before it has sent the task, the report of this period is missing.
"""

from __future__ import annotations

import os
import sys
import time

from tasks import report

from kvstore import LeadershipLost, LeaseLost, OutcomeUnknown, Unavailable
from kvstore.blocking import Client, connect

PERIOD_SECONDS = float(os.environ.get("PERIOD_SECONDS", "60"))
LEADER_TTL_SECONDS = float(os.environ.get("LEADER_TTL_SECONDS", "10"))
"""If the host of the leader dies, another scheduler leads after this time."""


def lead(store: Client, host: str) -> None:
    """Wait until this host leads. Then send the tasks that are due, until it no longer leads."""
    with store.election("scheduler", ttl_seconds=LEADER_TTL_SECONDS) as election:
        leadership = election.campaign(host)
        print(host, "leads, fence", leadership.fence, flush=True)
        while True:
            leadership.check()
            period = int(time.time() / PERIOD_SECONDS)
            if int(store.get("schedule/reports").value or 0) < period:
                leadership.guarded().put("schedule/reports", str(period)).commit()
                report.delay(period)
                print(host, "sent period", period, flush=True)
            time.sleep(PERIOD_SECONDS / 10)


def main(host: str) -> None:
    with connect(os.environ["STORE_URL"]) as store:
        while True:
            try:
                lead(store, host)
            except (LeaseLost, LeadershipLost, Unavailable, OutcomeUnknown) as error:
                print(host, "does not lead:", error, flush=True)
                time.sleep(PERIOD_SECONDS / 10)


if __name__ == "__main__":
    main(sys.argv[1])
