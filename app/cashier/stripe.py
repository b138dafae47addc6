"""Refunds at Stripe, by its own library."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

import aiohttp

from app.cashier.provider import Became, RefundWish, Result, Unanswered
from app.errors import ConfigurationError, SeckillError
from app.payments import Kind, Report
from app.payments.reading import inner, name_of
from app.payments.reconcile import Movement, MovementKind
from app.payments.stripe_objects import REFUNDS, UNCAPTURED, report_of
from app.payments.units import STRIPE

try:
    import stripe as library
except ImportError:
    raise ConfigurationError("stripe:// needs Stripe's library; in the checkout: pip install '.[stripe]'") from None

_PAGE: Final = 100
_OBJECTS: Final = {"pi_": "payment_intent", "ch_": "charge", "py_": "charge"}
_WAITS: Final = "requires_action"  # it waits for the payer, and a callback will report the result
_BECAME: Final = {Kind.REFUNDED: Became.DONE, Kind.REFUND_FAILED: Became.REFUSED}
_LOST: Final = "lost"
_ALREADY: Final = "charge_already_refunded"
_NONE: Final = "resource_missing"


class _Http(library.AIOHTTPClient):
    """Stripe's client, except that an answer which breaks off is an error, and closes the connection."""

    async def request_async(self, method: Any, url: Any, headers: Any, post_data: Any = None) -> Any:
        arguments, options = self._get_request_args_kwargs(method, url, headers, post_data)
        try:
            async with self._session.request(*arguments, **options) as answer:
                return await answer.read(), answer.status, answer.headers
        except Exception as error:
            self._handle_request_error(error)


class StripeRefunds:
    """Gives back payments of Stripe. It lives on one event loop.

    `api`: another address of its API; `account`: the connected account that has the payments; `shared`: other products
    use this account, too, and only payments that name a hold are ours.
    """

    def __init__(self, key: str, *, api: str | None, timeout_s: float, account: str = "", shared: bool = False) -> None:
        self.where = api or "https://api.stripe.com"
        self._timeout_s, self._shared = timeout_s, shared
        self._http: Any = _Http(timeout=aiohttp.ClientTimeout(total=timeout_s))
        how: dict[str, Any] = {"base_addresses": {"api": api} if api else None, "stripe_account": account or None}
        # No retries of its own: ours come with a pause, and are seen.
        self._client = library.StripeClient(key, http_client=self._http, max_network_retries=0, **how)

    async def refund(self, wish: RefundWish) -> Result:
        """See `Provider`."""
        about = _about(wish.payment_ref)
        if about is None:
            return Result(Became.REFUSED, f"{wish.payment_ref} is no payment of Stripe's")
        params: Any = {about: wish.payment_ref, "metadata": {"seckill": wish.name, "order": wish.order.name}}
        try:
            async with asyncio.timeout(self._timeout_s):
                if wish.amount is not None:
                    charged_in = await self._currency(about, wish.payment_ref)
                    if charged_in != (wish.currency or charged_in):
                        why = f"was charged in {charged_in}, and the order is in {wish.currency}"
                        return Result(Became.REFUSED, f"{wish.payment_ref} {why}")
                    params["amount"] = STRIPE.theirs(wish.amount, charged_in)
                made = await self._client.v1.refunds.create_async(params, {"idempotency_key": wish.key})
        except (TimeoutError, library.StripeError) as error:
            return self._failed(error)
        of = made.to_dict()
        status, told = str(of.get("status")), Became.ACCEPTED if of.get("status") == _WAITS else Became.UNKNOWN
        became = _BECAME[REFUNDS[status]] if status in REFUNDS else told
        why = f"Stripe's refund {of.get('id')} is {status}: {of.get('failure_reason') or 'no reason'}"
        amount = STRIPE.iso(of.get("amount"), str(of.get("currency")).upper())
        return Result(became, "" if became is Became.DONE else why, refund_id=of.get("id"), amount=amount)

    async def _currency(self, about: str, ref: str) -> str:
        """The currency in which a payment was charged; the buyer's own, where Stripe has converted the price."""
        of: Any = self._client.v1.payment_intents if about == "payment_intent" else self._client.v1.charges
        return str((await of.retrieve_async(ref)).currency).upper()

    async def made(self, payment_ref: str) -> list[Report] | None:
        """See `Provider`. When a refund failed is not in the list: `at` is when it was made."""
        about = _about(payment_ref)
        if about is None:
            return None
        params: Any = {about: payment_ref, "limit": _PAGE}
        try:
            async with asyncio.timeout(self._timeout_s):
                page = await self._client.v1.refunds.list_async(params)
                found = [one.to_dict() async for one in page.auto_paging_iter()]
            reports = [report_of(Kind.REFUNDED, of, of["id"], of.get("created")) for of in found]
            waits = (of["id"] for of in found if of.get("status") == _WAITS and "seckill" in inner(of, "metadata"))
            if (ours := next(waits, None)) is not None:  # not reported yet: a second request would make a second refund
                raise Unanswered(Result(Became.ACCEPTED, f"{ours} waits for its payer at Stripe", refund_id=ours))
        except ValueError as error:
            raise Unanswered(Result(Became.UNKNOWN, f"Stripe's refunds of {payment_ref}: {error}")) from None
        except (TimeoutError, library.StripeError) as error:
            if getattr(error, "code", None) == _NONE:
                return []  # and it will refuse to give back a payment that it doesn't have
            raise Unanswered(self._failed(error)._replace(became=Became.UNKNOWN)) from None
        return [one for one in reports if one is not None]

    async def movements(self, since: float) -> AsyncIterator[Movement]:
        """All charges, refunds and lost disputes since a moment, in seconds since 1970. Raises `SeckillError`."""
        api: Any = self._client.v1
        try:
            for kind, service in zip(MovementKind, (api.charges, api.refunds, api.disputes), strict=True):
                params: Any = {"created": {"gte": int(since)}, "limit": _PAGE}
                if self._shared and kind is not MovementKind.CHARGE:
                    params["expand"] = ["data.charge"]
                async for one in (await service.list_async(params)).auto_paging_iter():
                    if (line := _movement(kind, one.to_dict(), self._shared)) is not None:
                        yield line
        except library.StripeError as error:
            raise SeckillError(self._failed(error).why) from None
        except ValueError as error:
            raise SeckillError(f"Stripe's list: {error}") from None

    async def close(self) -> None:
        """Close all connections."""
        await self._http.close_async()

    def _failed(self, error: Exception) -> Result:
        if isinstance(error, TimeoutError):
            return Result(Became.UNKNOWN, f"no answer within {self._timeout_s:g} s")
        status, code = getattr(error, "http_status", None) or 0, getattr(error, "code", None)
        cause = error.__cause__ or error.__context__ or error
        why = f"Stripe: {status or 'no'} answer{f' {code}' if code else ''} ({type(cause).__name__})"
        if code == _ALREADY:
            return Result(Became.UNKNOWN, "all of it was given back at Stripe")
        if isinstance(error, library.AuthenticationError | library.PermissionError):
            return Result(Became.UNKNOWN, f"{why}; is the key of SECKILL_REFUNDS right?", closed=True)
        if isinstance(error, library.InvalidRequestError | library.CardError) and status in (400, 402, 404):
            return Result(Became.REFUSED, why)
        return Result(Became.UNKNOWN, why)


def _about(payment_ref: str) -> str | None:
    return next((name for prefix, name in _OBJECTS.items() if payment_ref.startswith(prefix)), None)


def _movement(kind: MovementKind, of: dict[str, Any], shared: bool) -> Movement | None:
    """A line of Stripe's list, if it moved money, and is not likely another product's.

    A payment is called by its intent, or by its charge if it has none.
    """
    is_charge, status, currency = kind is MovementKind.CHARGE, of.get("status"), of["currency"].upper()
    charge, amount = (of, of["amount_captured"]) if is_charge else (of.get("charge"), of["amount"])
    given_back = REFUNDS.get(str(status)) is Kind.REFUNDED and of.get("reason") != UNCAPTURED
    moved = of["captured"] if is_charge else given_back if kind is MovementKind.REFUND else status == _LOST
    if not moved or (shared and isinstance(charge, dict) and not inner(charge, "metadata").get("hold")):
        return None
    ref = name_of(of.get("payment_intent")) or name_of(charge)
    return Movement(str(ref), kind, STRIPE.iso(amount, currency) or 0, currency, of["id"], float(of["created"]))
