"""The purchase as a route of FastAPI's, for OpenAPI."""

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from fastapi import APIRouter, Request
from fastapi.responses import Response

from app.orders import DEFAULT_SKU, SKU_PATTERN, Outcome
from app.web.call import asgi
from app.web.holds import KEY_OPENS
from app.web.identity import BUYER_PATTERN
from app.web.problems import responses
from app.web.purchase import PATH, ROUTE
from app.web.raw_endpoint import RawEndpoint


async def reduce(_: Request) -> Response:
    """Buy. Answers 200 once the purchase was processed, whether it was sold or sold out.

    The articles' text (`8080 reduce stock end!`), or JSON to a client that asks for `application/json`. A purchase has
    no body. Unknown or repeated parameters are refused.
    """
    return RawEndpoint(partial(asgi, ROUTE))


def router(methods: Sequence[str], *, quantity_max: int, buyer_max: int) -> APIRouter:
    """The route, with its description."""
    found = APIRouter(tags=["sale"])
    # A route for each method, as OpenAPI wants an operation id for each.
    for method in methods:
        found.add_api_route(
            PATH,
            reduce,
            methods=[method],
            operation_id=f"reduce_stock_{method.lower()}",
            response_class=Response,
            responses={200: _ANSWER, **responses(400, 403, 404, 422, 429, 503)},
            openapi_extra={"parameters": _parameters(quantity_max, buyer_max)},
        )
    return found


_ANSWER: Final[dict[str, Any]] = {
    "description": "processed; the outcome is in the body (JSON) and in a header",
    "headers": {
        "X-Seckill-Outcome": {
            "description": "what became of the purchase",
            "required": True,
            "schema": {"enum": [str(one) for one in Outcome]},
        },
        "X-Seckill-Order": {"description": "the order's id, if sold", "schema": {"type": "string"}},
        "X-Request-Id": {
            "description": "the request's own or a new one, which the order keeps, too; only with SECKILL_REQUEST_IDS",
            "schema": {"type": "string"},
        },
    },
    "links": {
        "order": {
            "operationId": "order",
            "parameters": {"order_id": "$response.header.X-Seckill-Order"},
            "description": "the order, if it was sold",
        },
    },
    "content": {
        "text/plain": {"schema": {"type": "string"}, "example": "8080 reduce stock end!"},
        "application/json": {"schema": {"$ref": "#/components/schemas/PurchaseView"}},
    },
}


def _parameters(quantity_max: int, buyer_max: int) -> list[dict[str, Any]]:
    def parameter(name: str, where: str, description: str, **schema: Any) -> dict[str, Any]:
        return {"name": name, "in": where, "required": False, "description": description, "schema": schema}

    return [
        parameter("sku", "query", "the item", type="string", pattern=f"^{SKU_PATTERN}$", default=DEFAULT_SKU),
        parameter(
            "quantity",
            "query",
            "units; a purchase gets all of them or none",
            type="integer",
            minimum=1,
            maximum=quantity_max,
            default=1,
        ),
        parameter(
            "buyer",
            "query",
            "who is buying; printable characters. A signed buyer's token may be in `Authorization: Bearer` instead",
            type="string",
            minLength=1,
            maxLength=buyer_max,
            pattern=f"^{BUYER_PATTERN}$",
        ),
        parameter(
            "Idempotency-Key",
            "header",
            KEY_OPENS,
            type="string",
            minLength=1,
            maxLength=100,
            pattern=r"^[\x21-\x7e]+$",
        ),
    ]
