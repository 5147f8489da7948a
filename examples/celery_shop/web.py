"""The web process of the shop, with Flask. It takes orders, and leaves the charging to the workers.

export STORE_URL=hwm://127.0.0.1:7101,127.0.0.1:7102,127.0.0.1:7103 BROKER_FOLDER=/tmp/shop
cd examples/celery_shop
flask --app web run
celery -A tasks worker --concurrency 2
python scheduler.py host-1                  # On every host. One of them is the leader.

curl -X POST http://127.0.0.1:5000/orders/7
curl http://127.0.0.1:5000/orders/7
"""

from __future__ import annotations

from flask import Flask, abort
from store import client
from tasks import charge

app = Flask(__name__)


@app.post("/orders/<order>")
def place(order: str) -> tuple[dict[str, object], int]:
    """Place an order. A caller that got no answer may call again: the order is still placed only once, and charged only
    once."""
    placed = client().compare_and_set(f"orders/{order}", "placed", expected=None)
    charge.delay(order)
    return {"order": order, "is_new": placed.succeeded}, 202


@app.get("/orders/<order>")
def state(order: str) -> dict[str, str]:
    found = client().get(f"orders/{order}")
    if not found:
        abort(404)
    return {"order": order, "state": found.value.decode()}


@app.get("/reports")
def reports() -> dict[str, int]:
    """The number of paid orders, by period."""
    return {each.key.decode().removeprefix("reports/"): int(each.value) for each in client().items(prefix="reports/")}
