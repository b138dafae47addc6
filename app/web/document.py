"""The OpenAPI document: the parts that FastAPI lacks, such as the events that leave, and the port of each route."""

from typing import Any, Final

from pydantic.json_schema import models_json_schema

from app.orders import EventKind
from app.orders.view import OrderEventView
from app.web import operator_routes, problems, purchase

_TO: Final = "#/components/schemas/{model}"
_HAPPENED: Final = {
    EventKind.SOLD: "A unit was sold at once, without a hold.",
    EventKind.WAITING: "None is left, and the order waits in line for units that others hold.",
    EventKind.OFFERED: "Its place has come: units that came back are held for it until `pay_by`.",
    EventKind.HELD: "Units are held until `pay_by`.",
    EventKind.EXTENDED: "The second window has begun: they are held until another `pay_by`.",
    EventKind.CONFIRMED: "The order is paid: ship it, once.",
    EventKind.AMOUNT_MISMATCH: "A payment of another amount than `expected` has come; the hold goes on.",
    EventKind.EXPIRED: "The hold has run out, and its units are on sale again.",
    EventKind.CANCELLED: "The hold was cancelled, and its units are on sale again; or a place in line has ended.",
    EventKind.REFUND_DUE: "`payment_ref` is to be given back: it came too late, or is one too many.",
    EventKind.REFUND_REQUESTED: "The provider is about to be asked to give it back.",
    EventKind.REFUND_FAILED: "It was not given back after all, for the reason in `why`; an operator has to look.",
    EventKind.REFUND_NAMED: "The provider has told more of a refund that was known; no sum is another by it.",
    EventKind.REFUNDED: "Money was given back. Only where `about` is `order` is it the order's, which has ended.",
    EventKind.DISPUTED: "The buyer wants `payment_ref` back from their bank.",
    EventKind.DISPUTE_WON: "The bank has decided for the shop.",
    EventKind.DISPUTE_LOST: "The bank has decided for the buyer: the money is gone.",
}


def completed(made: dict[str, Any], *, port: int, operator_port: int | None) -> dict[str, Any]:
    """Complete the document that FastAPI has made: the ports, and models that only our own responses refer to."""
    models = (problems.Problem, purchase.PurchaseView, OrderEventView)
    _, found = models_json_schema([(one, "serialization") for one in models], ref_template=_TO)
    components = made.setdefault("components", {})
    components.setdefault("schemas", {}).update(found["$defs"])
    for methods in made["paths"].values():
        for operation in methods.values():
            _name_body(operation, components["schemas"])
    made["webhooks"] = {f"order.{kind}": {"post": _webhook(kind, said)} for kind, said in _HAPPENED.items()}
    if operator_port is None:
        return made | {"servers": [{"url": "/", "description": "this instance"}]}
    buyers, operators = _server(port, "for buyers, the shop and payments"), _server(operator_port, "for operators")
    for path, methods in made["paths"].items():
        for method, operation in methods.items():
            hidden = [operator_routes.is_hidden(method.upper(), path, from_operator=one) for one in (False, True)]
            if any(hidden):
                operation["servers"] = [operators if hidden[0] else buyers]
    return made | {"servers": [buyers, operators]}


def _name_body(operation: dict[str, Any], schemas: dict[str, Any]) -> None:
    """Give the body of a request that has a title, and its parts, a place among the models: clients call it by that."""
    for content in operation.get("requestBody", {}).get("content", {}).values():
        if name := content["schema"].get("title"):
            schemas |= content["schema"].pop("$defs", {})
            schemas[name] = content["schema"]
            content["schema"] = {"$ref": _TO.format(model=name)}


def _server(port: int, whose: str) -> dict[str, Any]:
    return {"url": f"http://{{host}}:{port}", "description": whose, "variables": {"host": {"default": "localhost"}}}


def _webhook(kind: EventKind, said: str) -> dict[str, Any]:
    header = {"in": "header", "required": True, "schema": {"type": "string"}}
    return {
        "operationId": f"order_{kind}",
        "tags": ["events"],
        "summary": said,
        "description": f"{said} Sent to `SECKILL_WEBHOOK_URL` at least once, in order per order, and signed as "
        "Standard Webhooks has it.",
        "parameters": [header | {"name": f"webhook-{name}"} for name in ("id", "timestamp", "signature")],
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": {"$ref": _TO.format(model="OrderEventView")}}},
        },
        "responses": {"2XX": {"description": "it was taken, and is not sent again"}},
    }
