"""The OpenAPI document and a real instance agree: schemathesis builds requests from it and checks the answers.

All of its checks are on. `_rightly_refused` has the answers that one of them rejects and that are right here.
"""

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
import redis
import schemathesis
from schemathesis.checks import load_all_checks
from schemathesis.config import SchemathesisConfig
from schemathesis.schemas import BaseSchema
from schemathesis.specs.openapi.checks import positive_data_acceptance

from app.main import create_app
from app.web.problem_types import URN, types
from lab.servers import EtcdMember, Valkey
from tests.harness.shop import TOKEN, Instance, settings

Test = Callable[..., None]
PLENTY = 1_000_000
BUYER = {"Accept": "text/plain"}
OPERATOR = {"Accept": "application/json", "Authorization": f"Bearer {TOKEN}"}

# The first three never end; the others' effects go on after their answer: rushes of thousands of buyers, and pauses
# that hold other requests up. They are in tests/integration/test_live.py and test_control.py. The last one reads a file
# that no schema describes: test_reconcile_http.py.
LEFT_OUT = [
    *("/stock/live", "/stock/list/live", "/control/live", "/control/rush", "/control/pause"),
    "/orders/reconcile",
]

NOWHERE = settings("http://127.0.0.1:1", "redis://127.0.0.1:1")  # the document needs no server


def described(*, with_token: bool) -> BaseSchema:
    """Return the operations, with the same requests in each run. Existing names come up often."""
    load_all_checks()
    likely = {"sku": ["rare"], "buyer": ["ann"], "key": ["press-1"]}  # a request without a sku is for "default"
    config = {
        "seed": 1,
        "phases": {"coverage": {"enabled": False}},  # test_schemathesis.py has it
        "generation": {
            "deterministic": True,
            "database": "none",
            "max-examples": 4,  # test_schemathesis.py has more
            "with-security-parameters": not with_token,  # else a generated token would overwrite ours
        },
        "dictionaries": {name: {"values": values} for name, values in likely.items()},
        "parameters": {
            "query.sku": {"dictionary": "sku", "probability": 0.5},
            "query.buyer": {"dictionary": "buyer", "probability": 0.3},
            "header.idempotency-key": {"dictionary": "key", "probability": 0.15},
        },
    }
    document = schemathesis.openapi.from_dict(
        create_app(NOWHERE).openapi(), config=SchemathesisConfig.from_dict(config)
    )
    return document.exclude(path=LEFT_OUT)


@pytest.fixture(scope="module")
def for_operators() -> BaseSchema:
    """The requests are made when they are needed: else each worker would make all of them to learn the tests' names."""
    return described(with_token=True)


@pytest.fixture(scope="module")
def for_buyers() -> BaseSchema:
    return described(with_token=False)


def each_of(fixture: str) -> Callable[[Test], Test]:
    """Give a test the requests for each operation; it looks only here for what is left out."""
    return schemathesis.pytest.from_fixture(fixture).exclude(path=LEFT_OUT).parametrize()


class Shopfront(Instance):
    """An instance, and the answers that were seen."""

    def __init__(self, etcd: str, store: str, **others: Any) -> None:
        super().__init__(etcd, store, **others)
        self.seen: Counter[tuple[str, str, int, str | None]] = Counter()
        self._opened_for = ""

    def opens_for(self, what: str) -> None:
        """Begin new sales, once for this: plenty of one item, nearly nothing of another."""
        if what == self._opened_for:
            return
        self._opened_for = what
        for sku, stock in (("default", PLENTY), ("rare", 2)):
            change = {"stock": stock, "new_sale": True, "forget_orders": "all", "paused": None}
            change |= {"limit_per_buyer": None, "starts_at": None, "ends_at": None}
            httpx.put(f"{self.url}/stock", params={"sku": sku}, json=change, headers=OPERATOR).raise_for_status()

    def judge(self, who: str, case: schemathesis.Case[Any], headers: dict[str, str]) -> Any:
        """Send the request, check the answer. A 503 fails like any 5xx, as all servers are up."""
        answer = case.call(self.url, headers=headers)
        outcome = answer.headers.get("x-seckill-outcome", [None])[0]
        self.seen[who, case.operation.label, answer.status_code, outcome] += 1
        assert answer.status_code != 503, f"{answer.text}\n{self.last_lines(40)}"  # only its log has the reason
        case.validate_response(
            answer,
            headers=headers,
            excluded_checks=[positive_data_acceptance] if _rightly_refused(answer) else [],
            transport_kwargs={"base_url": self.url, "headers": headers},
        )
        if answer.status_code >= 400:
            problem = answer.json()
            kind = types()[problem["type"].removeprefix(URN)]
            assert (kind.status, kind.effect) == (answer.status_code, problem["effect"]), problem
        return answer


def _rightly_refused(answer: Any) -> bool:
    """Return whether a valid request was refused because of the store's data, which no schema can describe."""
    if answer.status_code != 422:
        return bool(answer.status_code == 412)
    problem = answer.json()
    rightly = [
        ("after", "not an order of item"),
        ("after", "not a cursor: give w"),
        ("ends_at", "ends_at must be late"),
        ("zone", "not the name of a ti"),
        ("receiver", "no receiver "),
        ("price", "a price and its curr"),
        ("currency", "a price and its curr"),
        ("Idempotency-Key", "a part needs one: tw"),
        ("units", "needs an Idempotency"),
        ("sku", "say it in `items`"),
        ("quantity", "say it in `items`"),
        ("wait", "a basket of several "),
    ]
    said = [(error["field"], error["message"]) for error in problem["errors"]]
    known = len(said) == 1 and any(said[0][0] == name and said[0][1].startswith(begin) for name, begin in rightly)
    return problem["type"] == "urn:seckill:key-reused" or known


@pytest.fixture(scope="module")
def shopfront(etcd: EtcdMember, valkey_server: Valkey) -> Iterator[Shopfront]:
    with redis.Redis.from_url(valkey_server.url) as store:
        store.flushall()  # once: orders that are gone from under an instance block their item
    # Locks of its own: the auditors of other tests have recorded orders of the store as it was.
    with Shopfront(etcd.endpoint, valkey_server.url, lock_prefix="/openapi/lock") as started:
        yield started


@pytest.fixture(autouse=True)
def under_its_former_name(request: pytest.FixtureRequest) -> None:
    """Keep a node's id where it was before pytest 9.2, and where schemathesis looks for it."""
    request.node._nodeid = request.node.nodeid


@pytest.mark.timeout(900)  # all operations are one test
@each_of("for_operators")
def test_the_operator_gets_documented_answers(case: schemathesis.Case[Any], shopfront: Shopfront) -> None:
    """With the token, JSON answers have the documented status, content type, headers and body, never a 5xx."""
    shopfront.opens_for(f"operator: {case.operation.label}")
    shopfront.judge("operator", case, OPERATOR)


@pytest.mark.timeout(900)
@each_of("for_buyers")
def test_everybody_gets_documented_answers(case: schemathesis.Case[Any], shopfront: Shopfront) -> None:
    """Without a token, text answers do as well, but the operator's endpoints are closed."""
    shopfront.opens_for(f"buyer: {case.operation.label}")
    shopfront.judge("buyer", case, BUYER)


def test_what_chance_would_not_find(for_operators: BaseSchema, shopfront: Shopfront) -> None:
    """Answers that need an order's id, or a key used before, are as documented, too."""
    shopfront.opens_for("what chance would not find")

    def ask(method: str, path: str, **parts: Any) -> Any:
        return shopfront.judge("operator", for_operators[path][method].Case(**parts), OPERATOR)

    # The tests above have set terms of the others, such as a price.
    assert ask("PUT", "/stock", query={"sku": "own"}, body={"stock": 9}).status_code == 200
    for method in ("GET", "POST"):
        press = {"headers": {"Idempotency-Key": f"press-{method}"}}
        wish = {"sku": "own", "buyer": "Ann Lee"}
        sold = ask(method, "/stock/reduce", query=wish, **press).json()
        assert sold["outcome"] == "sold"
        assert ask(method, "/stock/reduce", query=wish, **press).json() == sold | {"replayed": True}
        assert ask(method, "/stock/reduce", query={"sku": "own", "quantity": 2}, **press).status_code == 422
        assert ask(method, "/stock/reduce", query={"sku": "own", "quantity": 20}).json()["outcome"] == "sold_out"
        assert ask(method, "/stock/reduce", query={"sku": "nope"}).status_code == 404
        assert ask("GET", "/orders/{order_id}", path_parameters={"order_id": sold["order"]}).status_code == 200
    assert ask("GET", "/orders/{order_id}", path_parameters={"order_id": 201 * "x"}).status_code == 422
    assert ask("GET", "/stock", query={"sku": "own"}).json()["stock"] == 7
    assert ask("GET", "/stock", query={"sku": "nope"}).status_code == 404
    for who, headers in (("operator", OPERATOR), ("buyer", BUYER)):
        refused: list[tuple[str, str, dict[str, Any]]] = [
            ("GET", "/stock", {"sku": "no item"}),
            *((method, "/stock/reduce", {"quantity": 0}) for method in ("GET", "POST")),
        ]
        for method, path, query in refused:
            assert shopfront.judge(who, for_operators[path][method].Case(query=query), headers).status_code == 422
    page = ask("GET", "/orders", query={"sku": "own", "limit": 1}).json()
    assert (
        ask("GET", "/orders", query={"sku": "own", "limit": 1, "after": page["next"]}).json()["orders"][0]["id"]
        == sold["order"]
    )


def test_the_instance_was_asked_enough(for_buyers: BaseSchema, shopfront: Shopfront) -> None:
    """The instance serves the document that was used, and the tests above saw all kinds of answers."""
    assert shopfront.get("/openapi.json") == (200, json.loads(json.dumps(create_app(NOWHERE).openapi())))
    if len({(who, label) for who, label, _, _ in shopfront.seen}) < 2 * len(list(for_buyers.get_all_operations())):
        # A caller may select tests; but in CI all are meant to run.
        (pytest.fail if os.environ.get("CI") else pytest.skip)("only some of the tests above were run")
    answers = {(who, label, status) for who, label, status, _ in shopfront.seen}
    for label in ("GET /orders", "GET /locks", "PUT /stock"):
        assert ("operator", label, 200) in answers, label
        assert ("buyer", label, 401) in answers, label
        assert ("buyer", label, 200) not in answers, label
    assert {("operator", "GET /orders/{order_id}", 404), ("operator", "GET /orders/{order_id}", 422)} <= answers
    for label in ("GET /stock/reduce", "POST /stock/reduce", "GET /stock"):
        assert {("operator", label, 404), ("operator", label, 422), ("buyer", label, 422)} <= answers, label
    for label in ("GET /stock/reduce", "POST /stock/reduce"):
        for outcome in ("sold", "sold_out"):
            assert shopfront.seen["operator", label, 200, outcome], (label, outcome)
    assert shopfront.seen.total() > 250
