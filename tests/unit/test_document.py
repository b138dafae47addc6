"""The OpenAPI document says who may ask, and at which port."""

from typing import Any

import pytest

from app.main import create_app
from app.settings import Settings
from app.web import operator_routes

ANYBODY: dict[str, list[str]] = {}
SHOP: dict[str, list[str]] = {"shop": []}
OPERATOR: dict[str, list[str]] = {"operator": []}


def document(**given: Any) -> dict[str, Any]:
    return create_app(Settings(_env_file=None, admin_token="open-sesame", **given)).openapi()


def needs(document: dict[str, Any], path: str, method: str = "post") -> Any:
    return document["paths"][path][method].get("security")


@pytest.mark.parametrize(
    ("given", "hold", "confirm"),
    [
        ({}, [ANYBODY, SHOP, OPERATOR], [SHOP, OPERATOR]),
        ({"shop_token": "open-sesame-too"}, [SHOP, OPERATOR], [SHOP, OPERATOR]),
        ({"extension": "lab.rehearsal"}, [ANYBODY, SHOP, OPERATOR], [ANYBODY, SHOP, OPERATOR]),
    ],
)
def test_whose_token_is_needed(given: dict[str, Any], hold: Any, confirm: Any) -> None:
    """As the settings have it: the shop's, the operator's, or none."""
    found = document(**given)
    assert needs(found, "/holds") == hold
    assert needs(found, "/holds/{hold_id}/confirm") == confirm
    assert needs(found, "/holds/{hold_id}/extend") is None
    assert needs(found, "/orders/{order_id}/refund") == [OPERATOR]
    assert found["components"]["securitySchemes"].keys() == {"shop", "operator"}


def test_one_port_has_everything() -> None:
    """Without a port for operators the instance itself is the server of all operations."""
    found = document()
    assert [one["url"] for one in found["servers"]] == ["/"]
    assert not [path for path, methods in found["paths"].items() for one in methods.values() if "servers" in one]


def test_each_operation_names_the_port_that_has_it() -> None:
    """With two ports, what only one of them has is said to be there, and what both have is at either."""
    found = document(port=8081, operator_port=9081)
    buyers, operators = (f"http://{{host}}:{port}" for port in (8081, 9081))
    assert [one["url"] for one in found["servers"]] == [buyers, operators]
    seen = set()
    for path, methods in found["paths"].items():
        for method, operation in methods.items():
            said = {one["url"] for one in operation.get("servers", found["servers"])}
            has = {buyers: False, operators: True}
            of_port = {
                url
                for url, from_operator in has.items()
                if not operator_routes.is_hidden(method.upper(), path, from_operator=from_operator)
            }
            assert said == of_port, (method, path)
            seen.add(frozenset(said))
    assert len(seen) == 3
