"""Secrets are changed in mid-sale, instance by instance, and nobody is refused at any step."""

import base64
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Any, NamedTuple

import httpx
import jwt
import pytest
import standardwebhooks
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from lab.callback import signed
from lab.servers import EtcdMember, Valkey
from tests.harness.receiver import receiver
from tests.harness.shop import TOKEN, client
from tests.harness.waiting import eventually_async
from tests.integration.test_outbox import held, selling
from tests.integration.test_payments import HAS_STRIPE

PRIVATE = ed25519.Ed25519PrivateKey.generate()
PEM = PRIVATE.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


class Side(NamedTuple):
    """The secrets of a shop and its payment provider; `signs`, `algorithm`: what its buyers' tokens are signed with."""

    buyer_key: str
    shop_token: str
    payments_secret: str
    stripe_secret: str
    signs: Any
    algorithm: str


OLD = Side("o" * 32, "the-old-token", "whsec_" + base64.b64encode(b"old" * 8).decode(), "whsec_old", "o" * 32, "HS256")
NEW = Side(PEM, "the-new-token", "whsec_" + base64.b64encode(b"new" * 8).decode(), "whsec_new", PRIVATE, "EdDSA")


def known(*sides: Side) -> dict[str, str]:
    """Return the settings of an instance that knows these, the first one first."""
    names = ["buyer_key", "shop_token", "payments_secret", *(["stripe_secret"] if HAS_STRIPE else [])]
    return {name: "\n".join(getattr(side, name) for side in sides) for name in names}


async def sells(http: httpx.AsyncClient, side: Side) -> None:
    """Hold for a buyer and have it paid, in each way in which that can be said."""
    ways = [confirmed, reported, *([reported_by_stripe] if HAS_STRIPE else [])]
    for number, way in enumerate(ways):
        token = jwt.encode({"sub": f"buyer {number}", "exp": time.time() + 60}, side.signs, side.algorithm)
        begun = await http.post("/holds", json={"buyer": token})
        assert (begun.status_code, begun.json().get("outcome")) == (200, "held"), begun.text
        paid = await way(http, side, begun.json()["id"])
        assert (paid.status_code, paid.json().get("outcome")) == (200, "confirmed"), paid.text


async def confirmed(http: httpx.AsyncClient, side: Side, hold: str) -> httpx.Response:
    by = {"Authorization": f"Bearer {side.shop_token}"}
    return await http.post(f"/holds/{hold}/confirm", json={"payment_ref": hold}, headers=by)


async def reported(http: httpx.AsyncClient, side: Side, hold: str) -> httpx.Response:
    body = json.dumps({"type": "payment.succeeded", "data": {"hold": hold, "payment_ref": hold}})
    return await http.post("/payments/webhook", content=body, headers=signed(side.payments_secret, hold, body))


async def reported_by_stripe(http: httpx.AsyncClient, side: Side, hold: str) -> httpx.Response:
    from stripe import WebhookSignature

    about = {"id": f"pi_{hold}", "metadata": {"hold": hold}, "amount_received": 1}
    body = json.dumps({"id": "evt", "type": "payment_intent.succeeded", "data": {"object": about}})
    signature = WebhookSignature.generate_signature_header(body, side.stripe_secret)
    return await http.post("/payments/stripe", content=body, headers={"Stripe-Signature": signature})


@pytest.fixture
async def instances(etcd: EtcdMember, valkey: Valkey) -> AsyncIterator[dict[str, httpx.AsyncClient]]:
    """Of one sale: as they are before a rotation, in it, and after it."""
    async with AsyncExitStack() as stack:
        found = {
            name: await stack.enter_async_context(client(etcd.endpoint, valkey.url, instance=name, **known(*sides)))
            for name, sides in {"old": [OLD], "both": [NEW, OLD], "new": [NEW]}.items()
        }
        stock = {"stock": 100, "new_sale": True, "forget_orders": "all"}
        answer = await found["old"].put("/stock", json=stock, headers={"Authorization": f"Bearer {TOKEN}"})
        assert answer.status_code == 200
        yield found


async def test_a_rotation_in_mid_sale_refuses_nobody(instances: dict[str, httpx.AsyncClient]) -> None:
    """While instances are replaced the others use what all instances know; they change over between two roll-outs."""
    steps: Sequence[tuple[Sequence[str], Sequence[Side]]] = (
        (["old", "both"], [OLD]),
        (["both"], [OLD, NEW]),
        (["both", "new"], [NEW]),
    )
    for running, sides in steps:
        for name in running:
            for side in sides:
                await sells(instances[name], side)
    level = (await instances["new"].get("/stock")).json()
    assert (level["stock"] + level["lucky"], level["held"]) == (100, 0)


async def test_a_secret_is_over_after_its_rotation(instances: dict[str, httpx.AsyncClient]) -> None:
    """An instance that was not told of a secret refuses it as any other."""
    token = jwt.encode({"sub": "ann", "exp": time.time() + 60}, OLD.signs, OLD.algorithm)
    assert (await instances["new"].post("/holds", json={"buyer": token})).status_code == 403
    hold = f"default~1-1~{32 * '0'}"
    assert (await confirmed(instances["new"], OLD, hold)).status_code == 401
    assert (await reported(instances["new"], OLD, hold)).status_code == 400
    if HAS_STRIPE:
        assert (await reported_by_stripe(instances["new"], OLD, hold)).status_code == 400


@pytest.mark.parametrize("side", [OLD, NEW], ids=["old", "new"])
async def test_an_event_is_signed_with_each_secret(etcd: EtcdMember, valkey: Valkey, side: Side) -> None:
    """A receiver verifies it that knows only the old secret, or only the new one, which comes first."""
    both = {"webhook_secret": f"{NEW.payments_secret} {OLD.payments_secret}"}
    async with receiver(side.payments_secret) as end, selling(etcd, valkey, end, **both) as shop:
        await held(shop, "ann")
        await eventually_async(lambda: end.got, "the event has come")
        body, head = json.dumps(end.got[0], separators=(",", ":"), ensure_ascii=False), end.heads[0]
        about = head["webhook-id"], datetime.fromtimestamp(int(head["webhook-timestamp"]), UTC), body
        signed = [standardwebhooks.Webhook(one.payments_secret).sign(*about) for one in (NEW, OLD)]
        assert head["webhook-signature"] == " ".join(signed)
