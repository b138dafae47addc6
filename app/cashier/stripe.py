"""Refunds at Stripe, by its own library."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

import aiohttp

from app.cashier.provider import Became, Result, Wish
from app.errors import ConfigurationError, SeckillError
from app.payments.reading import name_of
from app.payments.reconcile import Movement, MovementKind
from app.payments.stripe import UNITS

try:
    import stripe as library
except ImportError:
    raise ConfigurationError("stripe:// needs Stripe's library; in the checkout: pip install '.[stripe]'") from None

_PAGE: Final = 100
_OBJECTS: Final = {"pi_": "payment_intent", "ch_": "charge", "py_": "charge"}
_WELL: Final = ("succeeded", "pending")  # a pending one that fails later is told by a callback
_BADLY: Final = ("failed", "canceled")
_LOST: Final = "lost"
_COMES: Final = "requires_action"  # of the payer: a callback tells how it ends
_ALREADY: Final = "charge_already_refunded"


class _Http(library.AIOHTTPClient):
    """Stripe's client as it is, except that an answer which breaks off leaves no connection open, and is an error."""

    async def request_async(self, method: Any, url: Any, headers: Any, post_data: Any = None) -> Any:
        arguments, options = self._get_request_args_kwargs(method, url, headers, post_data)
        try:
            async with self._session.request(*arguments, **options) as answer:
                return await answer.read(), answer.status, answer.headers
        except Exception as error:
            self._handle_request_error(error)


class Stripe:
    """Gives back payments of Stripe. `api`: another address of its API. It lives on one event loop."""

    def __init__(self, key: str, *, api: str | None, timeout_s: float) -> None:
        self.where = api or "https://api.stripe.com"
        self._timeout_s = timeout_s
        self._http: Any = _Http(timeout=aiohttp.ClientTimeout(total=timeout_s))
        addresses: Any = {"api": api} if api else None
        # No retries of its own: ours come with a pause, and are seen.
        self._client = library.StripeClient(
            key, http_client=self._http, base_addresses=addresses, max_network_retries=0
        )

    async def refund(self, wish: Wish, *, again: bool) -> Result:  # noqa: PLR0911 - a case each
        """See `Provider`. Stripe forgets a key after a day or later, so that a request of old is looked for first."""
        about = next((name for prefix, name in _OBJECTS.items() if wish.request.ref.startswith(prefix)), None)
        if about is None:
            return Result(Became.REFUSED, f"{wish.request.ref} is no payment of Stripe's")
        payment, made = {about: wish.request.ref}, None
        try:
            async with asyncio.timeout(self._timeout_s):
                made = await self._made(payment, wish.key) if again else None
                params: Any = {**payment, "metadata": {"seckill": wish.key, "order": wish.order.name}}
                if made is None and wish.request.amount is not None:
                    charged_in = await self._currency(about, wish.request.ref)
                    if charged_in != (wish.request.currency or charged_in):
                        why = f"was charged in {charged_in}, and the order is in {wish.request.currency}"
                        return Result(Became.REFUSED, f"{wish.request.ref} {why}")
                    params["amount"] = UNITS.theirs(wish.request.amount, charged_in)
                if made is None:
                    made = await self._client.v1.refunds.create_async(params, {"idempotency_key": wish.key})
        except TimeoutError:
            return Result(Became.UNKNOWN, f"no answer within {self._timeout_s:g} s")
        except library.StripeError as error:
            return _failed(error)
        status = getattr(made, "status", None)
        if status in _WELL:
            return Result(Became.DONE)
        if status == _COMES:
            return Result(Became.ACCEPTED)
        # Its fields are there only if they are in the answer.
        why = f"{getattr(made, 'id', '?')} is {status}: {getattr(made, 'failure_reason', None) or 'no reason'}"
        return Result(Became.REFUSED if status in _BADLY else Became.UNKNOWN, f"Stripe's refund {why}")

    async def _currency(self, about: str, ref: str) -> str:
        """The currency in which a payment was charged; the buyer's own, where Stripe has converted the price."""
        of: Any = self._client.v1.payment_intents if about == "payment_intent" else self._client.v1.charges
        return str((await of.retrieve_async(ref)).currency).upper()

    async def _made(self, payment: dict[str, str], key: str) -> Any:
        """The refund with this key, if it was made before."""
        params: Any = {**payment, "limit": _PAGE}
        page = await self._client.v1.refunds.list_async(params)
        async for one in page.auto_paging_iter():
            metadata: Any = one.metadata or {}
            if metadata["seckill"] == key if "seckill" in metadata else False:
                return one
        return None

    async def movements(self, since: float) -> AsyncIterator[Movement]:
        """All charges, refunds and lost disputes since a moment, in seconds since 1970. Raises `SeckillError`."""
        params: Any = {"created": {"gte": int(since)}, "limit": _PAGE}
        lists: tuple[tuple[MovementKind, Any], ...] = (
            (MovementKind.CHARGE, self._client.v1.charges),
            (MovementKind.REFUND, self._client.v1.refunds),
            (MovementKind.DISPUTE, self._client.v1.disputes),
        )
        try:
            for kind, service in lists:
                async for one in (await service.list_async(params)).auto_paging_iter():
                    if _moves(kind, one):
                        yield _movement(kind, one)
        except library.StripeError as error:
            raise SeckillError(_failed(error).why) from None

    async def close(self) -> None:
        """Close all connections."""
        await self._http.close_async()


def _moves(kind: MovementKind, of: Any) -> bool:
    match kind:
        case MovementKind.CHARGE:
            return bool(of.captured)
        case MovementKind.REFUND:
            return of.status in _WELL
        case MovementKind.DISPUTE:
            return bool(of.status == _LOST)


def _movement(kind: MovementKind, of: Any) -> Movement:
    """A line of Stripe's list. A payment is called by its intent, or by its charge if it has none."""
    is_charge = kind is MovementKind.CHARGE
    charge, amount = (of.id, of.amount_captured) if is_charge else (name_of(of.charge), of.amount)
    ref, currency = name_of(of.payment_intent) or charge, str(of.currency).upper()
    return Movement(str(ref), kind, UNITS.iso(amount, currency) or 0, currency, str(of.id), float(of.created))


def _failed(error: library.StripeError) -> Result:
    status, code = error.http_status or 0, getattr(error, "code", None)
    cause = error.__cause__ or error.__context__ or error
    why = f"Stripe: {status or 'no'} answer{f' {code}' if code else ''} ({type(cause).__name__})"
    if code == _ALREADY:
        return Result(Became.DONE)
    if isinstance(error, library.AuthenticationError | library.PermissionError):
        return Result(Became.UNKNOWN, f"{why}; is the key of SECKILL_REFUNDS right?", closed=True)
    if isinstance(error, library.InvalidRequestError | library.CardError) and status in (400, 402, 404):
        return Result(Became.REFUSED, why)
    return Result(Became.UNKNOWN, why)
