"""The tasks of the shop, for Celery workers: celery -A tasks worker

The broker delivers a task at least once. A task may be delivered to two workers at the same time, but must not charge
twice. So only the worker that holds the lock of an order may charge the order, and the guarded transaction writes only
while the lock is held.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from celery import Celery
from celery.utils.log import get_task_logger
from store import client

from kvstore import Busy, LeaseLost, LockLost, LockTimeout, OutcomeUnknown, Unavailable

FOLDER = Path(os.environ["BROKER_FOLDER"])
"""The messages are files in this folder, so that the example needs no broker. A real shop uses a real broker."""

RETRY_SECONDS = 1

NOT_SERVED = (Unavailable, Busy)
"""Nothing was read or written. The store may serve the next attempt."""

NOT_CHARGED = (LockTimeout, LockLost)
"""Another worker holds the lock of the order, or has taken it over. The order was not changed."""

UNDECIDED = (OutcomeUnknown, LeaseLost)
"""Perhaps the order is paid already, or will be paid a moment later. The next attempt reads the final state: once this
attempt holds the lock, a write of an earlier holder has either happened already or will be refused, because the lock
guards the write."""

logger = get_task_logger(__name__)

for name in ("queue", "control"):
    (FOLDER / name).mkdir(parents=True, exist_ok=True)

app = Celery("shop", broker="filesystem://")
app.conf.update(
    broker_transport_options={
        "data_folder_in": str(FOLDER / "queue"),
        "data_folder_out": str(FOLDER / "queue"),
        "control_folder": str(FOLDER / "control"),
    },
    task_ignore_result=True,
)


@app.task(bind=True, max_retries=None)
def charge(task, order: str) -> None:
    """Charge an order, unless it was charged."""
    store = client()
    try:
        with store.lock(f"locks/{order}", ttl_seconds=10, wait_seconds=2) as lock:
            if store.get(f"orders/{order}").value != b"placed":
                logger.info("charged before: %s", order)
                return
            # A real shop calls its bank here. It passes the order, so that the bank recognizes a second attempt as the
            # same charge. It also passes `lock.fence`, so that the bank can refuse a lower fence than the last one for
            # this order.
            time.sleep(0.2)
            lock.guarded().put(f"orders/{order}", "paid").put(f"charges/{order}/{lock.fence}", task.request.id).commit()
            logger.info("charged: %s", order)
    except (*NOT_SERVED, *NOT_CHARGED, *UNDECIDED) as error:
        raise task.retry(exc=error, countdown=RETRY_SECONDS) from error


@app.task(autoretry_for=(*NOT_SERVED, OutcomeUnknown), default_retry_delay=RETRY_SECONDS, max_retries=None)
def report(period: int) -> None:
    """Count the paid orders. The report of a period may be written twice; the second then replaces the first."""
    store = client()
    paid = sum(record.value == b"paid" for record in store.items(prefix="orders/"))
    store.put(f"reports/{period}", str(paid))
    logger.info("report of period %d", period)
