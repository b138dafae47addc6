"""The fence behind HTTP: a header for the client, and an ASGI middleware for the server.

    Fencing-Token: "33";source="etcd:cdf818194e3a8c32"

is an Item of RFC 9651 (Structured Field Values; RFC 8941 before): the token, with one parameter, whose number it is.
The token is a String. An Integer of that RFC has 15 digits at most, and tokens may have 19: the `local` lock's have 16.
The RFC's own advice for larger numbers is a String.

A lower token is answered with 412, Precondition Failed. The header is a condition that the client sets, "only if nobody
was here after me"; it is evaluated before the method, and was false: that is RFC 9110, 15.5.13. 409 would say that the
request is at odds with the state of the resource, and may be sent again once that is resolved. This one never may. And
409 remains the application's own.
"""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from contextlib import ExitStack
from typing import Any, Final, Protocol
from weakref import WeakValueDictionary

from .errors import FenceRefused
from .granted import LARGEST, Fencing, Granted, checked

HEADER: Final = "Fencing-Token"
_NAME: Final = HEADER.lower().encode()
_FIELD: Final = re.compile(r' *"([1-9][0-9]{0,18})"; *source="((?:[ !#-\[\]-~]|\\["\\]){1,510})" *')
_FORM: Final = f'must be "<token>";source="<source>" with a token from 1 to {LARGEST} and 1 to 255 characters of source'
_READS: Final = ("GET", "HEAD")
_NEITHER: Final = ("OPTIONS", "TRACE")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


def fencing_header(grant: Granted) -> dict[str, str]:
    """The header that tells a server our token: for the reads and for the writes. Raises `ValueError` without a token.

    >>> httpx.put(url, content=b"5", headers=fencing_header(grant))       # doctest: +SKIP
    """
    token, source = checked(grant)
    quoted = re.sub(r'(["\\])', r"\\\1", source)
    return {HEADER: f'"{token}";source="{quoted}"'}


class Fences(Protocol):
    """Where a middleware keeps the highest token of each resource: `MemoryFences`, `RedisFences`, or yours."""

    async def raise_to(self, resource: str, token: int, source: str) -> None:
        """Raise the resource's fence to this token, in one atomic step; equal ones pass. Raises `FenceRefused`."""


class MemoryFences:
    """Fences in the memory of one process: for a server of one process, whose data are as short-lived as it is.

    A restart forgets them. They are never removed: about 200 bytes for each resource. `instead_of`: the source whose
    tokens the fences may have had up to now; each is the next grant's source's from then on.

    >>> app = FenceMiddleware(app, MemoryFences())        # doctest: +SKIP
    """

    def __init__(self, *, instead_of: str | None = None) -> None:
        self._instead_of = instead_of
        self._seen: dict[str, Fencing] = {}

    async def raise_to(self, resource: str, token: int, source: str) -> None:
        """See `Fences.raise_to`. Nothing is awaited here, so it is one step for all tasks of an event loop."""
        ours = checked(Fencing(token, source))
        seen = self._seen.get(resource, ours)
        if seen.token > token if seen.source == source else seen.source != self._instead_of:
            raise FenceRefused(token, source, seen.token, seen.source)
        self._seen[resource] = ours


class FenceMiddleware:
    """Refuses requests of an earlier holder: a plain ASGI middleware, for any framework.

    >>> app = FenceMiddleware(app, MemoryFences())        # doctest: +SKIP

    A GET or HEAD with the header raises the fence of its resource; one without it is nobody's concern. Every other
    method (but OPTIONS and TRACE) must have the header. `resource`: what a request is about, by its ASGI scope (None:
    nothing that is fenced); its path, unless you say otherwise, so say so if several paths are about one thing.
    `body_max`: bytes of a write's body.

    It answers 400 (no header, or a wrong one), 412 (the fence has refused) and 413 (too much of a body) with a problem
    document (RFC 9457). If the store fails, its error goes up, and the application is not called.

    In one process a write is one step with its check: from the check until the application begins to answer, no other
    request with a token enters for that resource. So write before you answer, not in the background. The body is read
    before the check, so a client that stands still in the middle of it holds nobody up.

    Several processes that share their fences check in one place and write in another, and between the two a later
    holder may come. There the store of the data must have a fence, too: hand it `scope["fence"]`, a grant for
    `SqlFence.write` and `RedisFence.write`.

    Whoever may send the header can shut out all lower tokens, for good. Authenticate before this.
    """

    def __init__(
        self,
        app: App,
        store: Fences,
        *,
        resource: Callable[[Scope], str | None] = lambda scope: str(scope["path"]),
        body_max: int = 2**20,
    ) -> None:
        self._app = app
        self._store = store
        self._resource = resource
        self._body_max = body_max
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # of those that are in use

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let one request in, or answer it."""
        resource = self._resource(scope) if scope["type"] == "http" else None
        if resource is None or scope["method"] in _NEITHER:
            return await self._app(scope, receive, send)
        fields = [value for name, value in scope["headers"] if name == _NAME]
        reads = scope["method"] in _READS
        if reads and not fields:
            return await self._app(scope, receive, send)
        try:
            ours = _parsed(fields)
        except ValueError as error:
            field = {"field": HEADER, "message": str(error)}
            return await _problem(send, 400, "bad-header", f"{HEADER} {error}", errors=[field])
        try:
            again = receive if reads else await self._whole_body(receive)
        except ValueError as error:
            return await _problem(send, 413, "body-too-large", str(error))
        lock = self._locks.setdefault(resource, asyncio.Lock())
        with ExitStack() as alone:
            await lock.acquire()
            alone.callback(lock.release)
            try:
                await self._store.raise_to(resource, ours.token, ours.source)
            except FenceRefused as refused:
                alone.close()
                return await _refuse(send, refused)
            if reads:
                alone.close()  # what it reads is after all that lower tokens have written

            async def answer(message: MutableMapping[str, Any]) -> None:
                if message["type"] == "http.response.start":
                    alone.close()  # it has written; the client may be slow to listen
                await send(message)

            return await self._app({**scope, "fence": ours}, again, answer)

    async def _whole_body(self, receive: Receive) -> Receive:
        """Read the body: what gives it to the application again. Raises `ValueError` if it is too large."""
        body = bytearray()
        first: MutableMapping[str, Any] | None = None
        while True:
            message = await receive()
            if message["type"] != "http.request":
                first = message  # the client has gone
                break
            body += message.get("body", b"")
            if len(body) > self._body_max:
                raise ValueError(f"the body of a write may have {self._body_max} bytes at most")
            if not message.get("more_body", False):
                first = {"type": "http.request", "body": bytes(body), "more_body": False}
                break

        async def again() -> MutableMapping[str, Any]:
            nonlocal first
            message, first = first, None
            return await receive() if message is None else message

        return again


def _parsed(fields: Sequence[bytes]) -> Fencing:
    if len(fields) != 1:
        raise ValueError("is there more than once" if fields else "is missing; it " + _FORM)
    found = _FIELD.fullmatch(fields[0].decode("latin-1"))
    if found is None:
        raise ValueError(_FORM)
    try:
        return checked(Fencing(int(found[1]), re.sub(r"\\(.)", r"\1", found[2])))
    except ValueError:
        raise ValueError(_FORM) from None


async def _refuse(send: Send, refused: FenceRefused) -> None:
    # Not the other source's name: it says how machines are called. The number as text: JSON's are doubles for many.
    if refused.foreign:
        await _problem(send, 412, "foreign-source", "the fence has tokens of another source")
    else:
        detail = f"the fence has seen token {refused.highest}, and yours is {refused.token}: another holder came later"
        await _problem(send, 412, "fence-refused", detail, highest=str(refused.highest))


_TITLES: Final = {400: "Not a fencing token", 412: "Refused by the fence", 413: "Content too large"}


async def _problem(send: Send, status: int, kind: str, detail: str, **more: Any) -> None:
    said = {"type": f"urn:fencelock:{kind}", "title": _TITLES[status], "status": status, "detail": detail, **more}
    body = json.dumps(said).encode()
    headers = [
        (b"content-type", b"application/problem+json"),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
