"""A shop's back end: it holds the units of a cart, sends the buyer to pay, ships once, and gives back what is owed.

It may be killed at any line: what it knows is in SQLite. It gives back what no cashier does (`SECKILL_REFUNDS` unset).
"""

import asyncio
import contextlib
import json
import os
import sqlite3
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import httpx
import uvicorn
from standardwebhooks import Webhook, WebhookVerificationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

SECKILL, PROVIDER = os.environ["SECKILL_URL"], os.environ["PROVIDER_URL"]
CURRENCY = "EUR"
TOKEN = {"Authorization": f"Bearer {os.environ['SECKILL_SHOP_TOKEN']}"}

webhook = Webhook(os.environ["SECKILL_WEBHOOK_SECRET"])
http = httpx.AsyncClient(timeout=30)  # longer than the service's own time-out, so that it says 503 first
db = sqlite3.connect(os.environ.get("SHOP_DB", "shop.db"))
db.executescript("""
    CREATE TABLE IF NOT EXISTS cart (id TEXT PRIMARY KEY, buyer TEXT, items TEXT, wait INTEGER, hold TEXT,
        state TEXT DEFAULT 'new', number INTEGER DEFAULT 0, odd INTEGER DEFAULT 0, paid INTEGER DEFAULT 0);
    CREATE TABLE IF NOT EXISTS seen (event TEXT PRIMARY KEY, cart TEXT);
    CREATE TABLE IF NOT EXISTS mail (cart TEXT PRIMARY KEY, pay_by REAL);
    CREATE TABLE IF NOT EXISTS shipment (cart TEXT, sku TEXT, quantity INTEGER, PRIMARY KEY (cart, sku));
    CREATE TABLE IF NOT EXISTS refund (id TEXT PRIMARY KEY, payment TEXT, amount INTEGER, done INTEGER DEFAULT 0);
""")


async def ask(url: str, body: dict[str, Any], headers: dict[str, str]) -> dict[str, Any]:
    """POST until there is an answer: the same request with the same key is done once, whatever is lost on the way."""
    for _ in range(30):
        wait_s = 1.0
        with contextlib.suppress(httpx.TransportError):
            answer = await http.post(url, json=body, headers=headers)
            if answer.is_success:
                return dict(answer.json())
            if answer.status_code < 500 and answer.status_code not in (408, 429):  # asking again would not help
                raise HTTPException(502, answer.text)
            wait_s = float(answer.headers.get("Retry-After", 1))
        await asyncio.sleep(wait_s)
    raise HTTPException(503, "not decided yet: send the same request again")


async def put_cart(request: Request) -> Response:
    """Hold a cart, all of it or nothing, or get in line. The buyer's page has made its id, and may send this again."""
    cart, wish = request.path_params["cart"], await request.json()
    with db:
        new = "INSERT OR IGNORE INTO cart (id, buyer, items, wait) VALUES (?, ?, ?, ?)"
        db.execute(new, (cart, str(wish["buyer"]), json.dumps(wish["items"]), bool(wish.get("wait"))))
    [(buyer, items, wait)] = db.execute("SELECT buyer, items, wait FROM cart WHERE id = ?", (cart,))
    wanted = {"buyer": buyer, "items": json.loads(items), "wait": bool(wait), "ref": cart}  # `ref` is in each event
    held = await ask(f"{SECKILL}/holds", wanted, {**TOKEN, "Idempotency-Key": cart})
    if held["outcome"] not in ("held", "waiting"):  # `already_held`: the buyer has to pay another cart first
        return JSONResponse({name: held[name] for name in ("outcome", "line") if name in held})
    with db:
        db.execute("UPDATE cart SET hold = ? WHERE id = ?", (held["id"], cart))
    if held["state"] == "waiting":  # a repeated request has no place: it is another one by now
        held |= (await http.get(f"{SECKILL}/holds/{quote(held['id'])}")).json()
    if held["state"] != "held":
        return JSONResponse({"outcome": held["state"], "place": held.get("place")})
    return JSONResponse({"outcome": "held", "pay": f"{PROVIDER}/?hold={quote(held['id'], safe='')}"})


async def events(request: Request) -> Response:
    """Take an event. The cart and what follows from it are written together, or the event comes again."""
    try:
        event = webhook.verify(await request.body(), dict(request.headers))
    except (WebhookVerificationError, ValueError):
        return Response(status_code=400)
    data = event["data"] | {"event": request.headers["webhook-id"]}
    news = "UPDATE cart SET state = :state, odd = odd + (:number != number + 1), number = :number WHERE id = :ref"
    with db:  # what was here before comes under its id; a number that does not follow is for a person to look at
        if db.execute("INSERT OR IGNORE INTO seen SELECT :event, id FROM cart WHERE id = :ref", data).rowcount:
            db.execute(news, data)
            note(event["type"], data)
    return Response()


def note(kind: str, data: dict[str, Any]) -> None:
    """Note what follows from an event: a shipment, what the order has kept of its money, and refunds."""
    if kind == "order.offered":  # the buyer may be away: their mail says until when the unit is held
        db.execute("INSERT OR IGNORE INTO mail VALUES (:ref, :pay_by)", data)
    if kind == "order.confirmed":  # there may be fewer units than were held
        lines = [one | {"ref": data["ref"]} for one in data["items"] if one["quantity"]]
        db.executemany("INSERT OR IGNORE INTO shipment VALUES (:ref, :sku, :quantity)", lines)
    if "sums" in data:
        kept = sum(one["kept"] for one in data["sums"] if one["currency"] == CURRENCY)
        db.execute("UPDATE cart SET paid = ? WHERE id = ?", (kept, data["ref"]))
    for one in data.get("refunds", []):  # one that has failed waits for an operator, who has another one made
        if one["state"] == "due":
            new = "INSERT INTO refund (id, payment, amount) VALUES (?, ?, ?)"
            again = " ON CONFLICT DO UPDATE SET amount = excluded.amount"  # a part of it has gone back
            db.execute(new + again, (one["name"], data["payment_ref"], one["amount"]))
        else:
            db.execute("UPDATE refund SET done = 1 WHERE id = ?", (one["name"],))


async def give_back() -> None:
    """Have the provider give back what is owed. It does so once for a refund's name, and reports it to the service."""
    while True:
        for name, payment, amount in db.execute("SELECT id, payment, amount FROM refund WHERE NOT done").fetchall():
            with contextlib.suppress(HTTPException):
                wish = {"payment_ref": payment, "amount": amount, "refund_name": name}
                await ask(f"{PROVIDER}/refunds", wish, {"Idempotency-Key": name})
                with db:
                    db.execute("UPDATE refund SET done = 1 WHERE id = ?", (name,))
        await asyncio.sleep(1)


@contextlib.asynccontextmanager
async def lifespan(_: Starlette) -> AsyncIterator[None]:
    """Give back in the background, from the start: what was owed before a restart still is."""
    task = asyncio.create_task(give_back())
    yield
    task.cancel()


routes = [Route("/carts/{cart}", put_cart, methods=["PUT"]), Route("/events", events, methods=["POST"])]
app = Starlette(routes=routes, lifespan=lifespan)

if __name__ == "__main__":
    uvicorn.run(app, port=int(os.environ.get("PORT", "8060")), log_level="warning")
