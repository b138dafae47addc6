"""While one secret of webhooks follows another, each receiver can verify the events, whichever it knows."""

import base64
import json
from datetime import UTC, datetime

import pytest
import standardwebhooks

from lab.servers import EtcdMember, Valkey
from tests.harness.receiver import receiver
from tests.harness.waiting import eventually_async
from tests.integration.test_outbox import held, selling

OLD, NEW = (f"whsec_{base64.b64encode(text * 8).decode()}" for text in (b"old", b"new"))


@pytest.mark.parametrize("secret", [OLD, NEW], ids=["old", "new"])
async def test_an_event_is_signed_with_each_secret(etcd: EtcdMember, valkey: Valkey, secret: str) -> None:
    """A receiver verifies it that knows only the old secret, or only the new one, which comes first."""
    async with receiver(secret) as end, selling(etcd, valkey, end, webhook_secret=f"{NEW} {OLD}") as shop:
        await held(shop, "ann")
        await eventually_async(lambda: end.got, "the event has come")
        body, head = json.dumps(end.got[0], separators=(",", ":"), ensure_ascii=False), end.heads[0]
        about = head["webhook-id"], datetime.fromtimestamp(int(head["webhook-timestamp"]), UTC), body
        signed = [standardwebhooks.Webhook(one).sign(*about) for one in (NEW, OLD)]
        assert head["webhook-signature"] == " ".join(signed)
