"""Holds a unit, confirms its payment, looks at the order and notes a refund, with a client made from /openapi.json.

python flow.py http://127.0.0.1:8080 TOKEN
"""

import sys
from uuid import uuid4

from seckill_client import AuthenticatedClient
from seckill_client.api.holds import confirm, hold
from seckill_client.api.operator import refund
from seckill_client.api.sale import order
from seckill_client.models import ConfirmRequest, Effect, HoldRequest, HoldView, ItemRequest, Problem, RefundRequest


def main(url: str, token: str) -> None:
    """Print the outcome of each step."""
    with AuthenticatedClient(url, token) as client:
        cart = [ItemRequest(sku="default", quantity=2)]
        wish = HoldRequest(buyer="ann", items=cart, ref="cart 7")
        held = hold.sync(client=client, body=wish, idempotency_key=str(uuid4()))
        if not isinstance(held, HoldView) or not held.id:
            sys.exit(f"not held: {held}")
        print(held.outcome)
        paid = ConfirmRequest(payment_ref=f"pay-{held.id}", amount=held.to_pay, currency=held.currency)
        for _ in range(3):  # whatever was lost: the same payment counts once
            confirmed = confirm.sync(held.id, client=client, body=paid)
            if isinstance(confirmed, HoldView):
                print(confirmed.outcome)
            elif isinstance(confirmed, Problem) and confirmed.effect is Effect.NOTHING:
                sys.exit(f"{confirmed.type_}: {confirmed.detail}")
        found = order.sync(held.id, client=client)
        if found is None or isinstance(found, Problem):
            sys.exit(f"no order: {found}")
        print(found.state, found.paid)
        given_back = refund.sync(held.id, client=client, body=RefundRequest(restock=True))
        if given_back is None or isinstance(given_back, Problem):
            sys.exit(f"not refunded: {given_back}")
        print(given_back.outcome, given_back.state)
        wrong = hold.sync(client=client, body=HoldRequest(sku="nowhere", buyer="ann"))
        print(wrong.type_ if isinstance(wrong, Problem) else wrong)


if __name__ == "__main__":
    main(*sys.argv[1:])
