"""Each route, as the application has it, by each kind of caller: a route that is new is the operator's, or fails here.

Behind the doors there is nothing: whoever is let in finds that out. The doors themselves are the program's.
"""

import re
import time
from collections.abc import Iterator, Sequence
from http.cookies import SimpleCookie
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from app.main import create_app
from app.settings import load
from app.web.application import Application
from app.web.auth import CSRF_HEADER, AdminAuth, _Key, has_rights

ANN, ZOE, SHOP, OTHER = (letter * 32 for letter in "azso")
BUYERS_PORT, OPERATORS_PORT = 8080, 8081
# What anybody may ask: pages without data, what a buyer does, and what is signed in another way.
ANYBODY = {
    *("GET /", "GET /shop/order", "GET /shop/pictures/{name}", "GET /static/{digest}/{name}", "GET /static/{name}"),
    *("GET /favicon.ico", "GET /docs", "GET /docs/{name}", "GET /openapi.json", "GET /healthz", "GET /readyz"),
    *("GET /metrics", "GET /control", "GET /control/login", "POST /control/login", "GET /control/orders"),
    "GET /control/deliveries",
    *("GET /control/reconcile", "GET /stock", "GET /stock/live", "GET /stock/list", "GET /stock/list/live"),
    *("GET /stock/reduce", "POST /stock/reduce", "POST /holds", "GET /holds/{hold_id}", "GET /orders/{order_id}"),
    *("POST /holds/{hold_id}/extend", "POST /holds/{hold_id}/cancel", "POST /payments/webhook"),
    *("POST /payments/stripe", "POST /payments/alipay"),
}
BY_SHOP = {"POST /holds/{hold_id}/confirm", "GET /events"}
# Of those that anybody may ask, the ones that are not on the buyers' port, if the operator has one; and the reverse.
OPERATORS_PAGES = ("/docs", "/openapi.json", "/readyz", "/metrics", "/control")
BUYERS_PATHS = ("/stock/reduce", "/holds", "/payments/")


class LetIn(BaseException):
    """Somebody has come further than the door."""


class Behind:
    """What is behind the doors: nothing but what the doors themselves look at."""

    shop, signed, callbacks, request_ids, only_shop_holds, operator_port = (
        SimpleNamespace(has_buyers=False),
        *[None] * 5,
    )

    def __init__(self, auth: AdminAuth, operator_port: int | None) -> None:
        self.auth, self.operator_port = auth, operator_port

    def __getattr__(self, name: str) -> Any:
        raise LetIn(name)


class Caller(NamedTuple):
    """`reads`, `changes`: whether an operator's route that reads, or changes something, lets them in."""

    headers: Sequence[tuple[bytes, bytes]] = ()
    reads: bool = False
    changes: bool = False
    shop: bool = False


def bearer(token: str, scheme: str = "Bearer") -> tuple[bytes, bytes]:
    return b"authorization", f"{scheme} {token}".encode()


def cookie(auth: AdminAuth, name: str) -> tuple[tuple[bytes, bytes], str]:
    """The cookie of an operator who has logged in, and the second word that goes with it."""
    answer = Response()
    scope = {"type": "http", "scheme": "http", "path": "/", "query_string": b"", "headers": [(b"host", b"a")]}
    auth.log_in(name, Request(scope), answer)
    jar: SimpleCookie = SimpleCookie()
    for name_, value in answer.raw_headers:
        if name_ == b"set-cookie" and b"Max-Age=0" not in value:
            jar.load(value.decode())
    header = b"cookie", "; ".join(f"{one.key}={one.value}" for one in jar.values()).encode()
    session = auth.session(Request(scope | {"headers": [header]}))
    assert session is not None and session.operator == name
    return header, auth.csrf(session)


def callers(auth: AdminAuth) -> Iterator[tuple[str, Caller]]:
    own, word = cookie(auth, "ann")
    another, others_word = cookie(auth, "zoe")
    foreign, foreign_word = cookie(AdminAuth({"ann": OTHER}), "ann")
    csrf = CSRF_HEADER.lower().encode()
    yield "nobody", Caller()
    yield "a wrong token", Caller([bearer(OTHER)])
    yield "half a token", Caller([bearer(ANN[:-1])])
    yield "an empty token", Caller([bearer("")])
    yield "another scheme", Caller([bearer(ANN, "Basic")])
    yield "an operator's token", Caller([bearer(ANN)], reads=True, changes=True, shop=True)
    yield "the other operator's token", Caller([bearer(ZOE)], reads=True, changes=True, shop=True)
    yield "two tokens", Caller([bearer(ANN), bearer(ANN)])
    yield "the shop's token", Caller([bearer(SHOP)], shop=True)
    yield "a cookie alone", Caller([own], reads=True)
    yield "a cookie with its word", Caller([own, (csrf, word.encode())], reads=True, changes=True)
    yield "a cookie with a wrong word", Caller([own, (csrf, b"x" * 64)], reads=True)
    yield "a cookie with another's word", Caller([own, (csrf, others_word.encode())], reads=True)
    yield "another's cookie with its word", Caller([another, (csrf, others_word.encode())], reads=True, changes=True)
    yield "a word alone", Caller([(csrf, word.encode())])
    yield "a cookie of another token", Caller([foreign, (csrf, foreign_word.encode())])
    yield "a cookie beside a wrong token", Caller([own, (csrf, word.encode()), bearer(OTHER)])
    yield "a cookie beside the shop's token", Caller([own, (csrf, word.encode()), bearer(SHOP)], shop=True)


def made(**settings: Any) -> Application:
    own: dict[str, Any] = {"lock": "local://", "store": "redis://127.0.0.1:1", "admin_token": ANN, "shop_token": SHOP}
    app = create_app(load(**own | settings))
    assert isinstance(app, Application)
    return app


def routes(of: Any) -> Iterator[tuple[str, str]]:
    """Each method and path that an application has."""
    for route in of.routes:
        if (
            inner := getattr(route, "original_router", None)
        ) is not None:  # FastAPI's own, of a router that is included
            yield from routes(inner)
        elif isinstance(route, APIRoute) or hasattr(route, "methods"):
            yield from ((method, route.path) for method in sorted(route.methods or ()))


def filled(path: str) -> str:
    return re.sub("{.*?}", "a", path)


async def ask(
    app: Application, state: Behind, method: str, path: str, headers: Any, port: int = BUYERS_PORT
) -> tuple[int, bytes]:
    """The answer; status 200 and no body, if the caller was let in."""
    scope = {
        "type": "http",
        "method": method,
        "path": filled(path),
        "query_string": b"",
        "headers": [(b"host", b"a"), *headers],
        "server": ("127.0.0.1", port),
        "client": ("127.0.0.1", 1),
        "scheme": "http",
        "state": {"seckill": state, "control": state},
    }
    status, parts = 200, [b""]

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        nonlocal status
        status = message.get("status", status)
        parts.append(message.get("body", b""))

    try:
        await app(scope, receive, send)
    except LetIn:
        return 200, b""
    return status, b"".join(parts)


async def test_each_route_by_each_caller() -> None:
    """Operators may do all; a cookie changes nothing without its second word; the shop does what is its own."""
    app = made(rehearsal=True)
    auth = AdminAuth({"ann": ANN, "zoe": ZOE}, shop_tokens=[OTHER[::-1] + "s", SHOP])
    state, there = Behind(auth, None), set(routes(app))
    assert {f"{method} {path}" for method, path in there} > ANYBODY | BY_SHOP
    for name, caller in callers(auth):
        for method, path in there:
            route = f"{method.replace('HEAD', 'GET')} {path}"
            status, _ = await ask(app, state, method, path, caller.headers)
            if route in ANYBODY:
                assert status not in (401, 403) or (name == "two tokens" and status == 401), (route, name)
                continue
            reads = method in ("GET", "HEAD")
            let_in = caller.shop if route in BY_SHOP else caller.reads if reads else caller.changes
            assert (status not in (401, 403)) == let_in, (route, name, status)
            half = route not in BY_SHOP and caller.reads and not reads and not let_in
            assert let_in or status == (403 if half else 401), (route, name, status)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_cookie_is_for_this_service_alone(scheme: str) -> None:
    """No script reads it, no other site's form sends it, and it goes over HTTPS only if it came so."""
    headers = [(b"host", b"a")]
    answer, scope = Response(), {"type": "http", "scheme": scheme, "path": "/", "query_string": b"", "headers": headers}
    AdminAuth({"ann": ANN}).log_in("ann", Request(scope), answer)
    about = set(answer.headers.getlist("set-cookie")[-1].split("; "))
    assert about > {"HttpOnly", "SameSite=lax", "Max-Age=43200", "Path=/"}
    assert ("Secure" in about) == (scheme == "https")


@pytest.mark.parametrize(
    ("hours", "there"), [(-0.1, True), (0, True), (11.99, True), (12.01, False)], ids=["of a clock ahead", *"abc"]
)
def test_a_cookie_lasts_for_half_a_day(monkeypatch: pytest.MonkeyPatch, hours: float, there: bool) -> None:
    """By the clock of whichever instance is asked, which may be behind that of the one that set it."""
    auth, later = AdminAuth({"ann": ANN}), time.time() + hours * 3600
    header, _ = cookie(auth, "ann")
    monkeypatch.setattr("itsdangerous.timed.time", SimpleNamespace(time=lambda: later))
    assert (auth.session(Request({"type": "http", "headers": [header]})) is not None) is there


def test_who_logs_in_is_no_other_operator_any_more() -> None:
    """The cookies of all others are deleted."""
    auth, answer = AdminAuth({"ann": ANN, "zoe": ZOE}), Response()
    auth.log_in("zoe", Request({"type": "http", "path": "/", "query_string": b"", "headers": []}), answer)
    deleted = [one for one in answer.headers.getlist("set-cookie") if "Max-Age=0" in one]
    assert {one.partition("=")[0] for one in deleted} == {_Key(ANN).cookie, _Key(ZOE).cookie}


@pytest.mark.parametrize(("operators", "shops", "status"), [({}, [], 403), ({"ann": ANN}, [], 401), ({}, [SHOP], 401)])
def test_how_a_stranger_who_confirms_is_refused(operators: Any, shops: list[str], status: int) -> None:
    """Where an operator or the shop could, a token is missing; else nobody can, but for a rehearsal."""
    with pytest.raises(HTTPException) as refused:
        AdminAuth(operators, shop_tokens=shops).refuse_stranger()
    assert refused.value.status_code == status
    AdminAuth(operators, shop_tokens=shops, anybody_confirms=True).refuse_stranger()


def test_whose_bodies_are_read() -> None:
    """Those of everybody who is let in somewhere as an operator; a stranger's is not waited for."""
    auth = AdminAuth({"ann": ANN, "zoe": ZOE}, shop_tokens=[SHOP])
    for name, caller in callers(auth):
        if name != "two tokens":
            scope = {"type": "http", "headers": caller.headers, "state": {"seckill": Behind(auth, None)}}
            assert has_rights(Request(scope)) == (caller.reads or name.startswith("a cookie beside")), name


async def test_without_tokens_everything_of_the_operator_is_switched_off() -> None:
    """No token is right where there is none, and no cookie."""
    app, auth = made(admin_token=None, shop_token=None), AdminAuth({})
    for name, caller in callers(AdminAuth({"ann": ANN, "zoe": ZOE})):
        for method, path in routes(app):
            if f"{method.replace('HEAD', 'GET')} {path}" not in ANYBODY and name != "two tokens":
                status, _ = await ask(app, Behind(auth, None), method, path, caller.headers)
                assert status == 403, (method, path, name)


async def test_each_port_has_its_own_paths() -> None:
    """Where the operator has a port, theirs are not on the buyers' one, and what buys and pays is not on theirs."""
    app, auth = made(operator_port=OPERATORS_PORT), AdminAuth({"ann": ANN, "zoe": ZOE}, shop_tokens=[SHOP])
    state = Behind(auth, OPERATORS_PORT)
    for method, path in routes(app):
        route = f"{method.replace('HEAD', 'GET')} {path}"
        own = route not in ANYBODY | BY_SHOP or path.startswith(OPERATORS_PAGES)
        for port, there in ((BUYERS_PORT, not own), (OPERATORS_PORT, not path.startswith(BUYERS_PATHS))):
            status, body = await ask(app, state, method, path, [bearer(ANN), (b"accept", b"application/json")], port)
            hidden = status == 404 and f"{method} {filled(path)}: Not Found".encode() in body
            assert hidden != there or path.endswith("{name}"), (route, port, status)
