"""The operator's endpoints: the lock queues, the log, the stock. They need the admin token."""

import dataclasses
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from fastapi import APIRouter, Header, Query, Request, Response
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, create_model

from app.orders import DEFAULT_SKU, SKU_PATTERN, TERMS, TermsChange
from app.orders.terms import LANGUAGE_PATTERN, LANGUAGES_MAX, Term
from app.web.auth import OPERATOR, Operator
from app.web.problems import invalid_field, responses, whole
from app.web.state import state_of
from app.web.stock import ItemView, Sku, etag
from fencelock import Contender

router = APIRouter(tags=["operator"], dependencies=[OPERATOR], responses=responses(401, 403, 503))

_TOGETHER: Final = {"price": "currency", "paused": "paused_texts"}  # a new one of these takes the other away
_ETAG: Final = '^("[0-9]{1,15}-[0-9]{1,15}")?$'


class ContenderView(BaseModel):
    """A contender for a lock; the first of each queue owns it."""

    key: str
    token: int
    holds: bool
    instance: str | None
    pid: int | None
    thread: str | None
    waited_s: float | None
    ttl_left_s: float | None

    @classmethod
    def of(cls, contender: Contender) -> "ContenderView":
        """Make the view of a contender; entries that others wrote into the queue may hold anything."""
        owner = contender.owner
        return cls(
            key=contender.key,
            token=contender.token,
            holds=contender.holds,
            instance=_text(owner.get("instance")),
            pid=owner["pid"] if isinstance(owner.get("pid"), int) else None,
            thread=_text(owner.get("thread")),
            waited_s=contender.waited_s,
            ttl_left_s=contender.ttl_left_s,
        )


class _Change(BaseModel):
    """The stock to set."""

    model_config = ConfigDict(
        extra="forbid",  # a misspelt `new_sale` must not be a restock
        json_schema_extra={
            "anyOf": [{"required": [name]} for name in ("stock", *TERMS)],
            "dependentRequired": {"add": ["stock"], "new_sale": ["stock"], "forget_orders": ["new_sale"]},
        },
    )

    stock: Annotated[int, BeforeValidator(whole)] = Field(
        0, strict=True, ge=0, le=10**12, description="units left from now on; left out: as many as there are"
    )
    add: bool = Field(False, strict=True, description="`stock` is added to the units that are left")
    new_sale: bool = Field(False, strict=True, description="forget what was sold: orders, buyers and idempotency keys")
    forget_orders: Annotated[int, Field(strict=True, ge=0, le=10**15), BeforeValidator(whole)] | Literal["all"] = Field(
        0, description="how many orders a new sale may forget; if there are others, nothing is changed"
    )

    if_initial: Annotated[int | None, Field(strict=True, ge=0, le=10**15), BeforeValidator(whole)] = Field(
        None,
        description="change it only if this is `initial` of `GET /stock`: no sale changes that, so a restock that was "
        "not answered can be sent again, and counts once",
    )

    @property
    def terms(self) -> TermsChange:
        """The changes to the item's own terms; terms that are not named stay."""
        named = self.model_fields_set & TERMS.keys()
        named |= {with_it for name, with_it in _TOGETHER.items() if name in named}
        return {name: None if (value := getattr(self, name)) in ("", {}) else value for name in named}


def _kept(term: Term, value: object) -> object:
    if not term.may_be_kept(value):
        raise ValueError(term.wanted)  # with the name of the field, which a text by language has not
    return value


def _field_of(term: Term) -> tuple[Any, Any]:
    kind: Any = Annotated[int | None, BeforeValidator(whole)] if term.kind is int else term.kind | None
    otherwise, limits = "as everywhere" if term.has_default else "none", term.limits
    if term.kind is dict:
        language = Annotated[str, Field(pattern=LANGUAGE_PATTERN)]
        texts = dict[language, Annotated[str, Field(min_length=1, **limits)]]
        shape = Field(max_length=LANGUAGES_MAX, json_schema_extra={"additionalProperties": False})
        kind, limits = Annotated[texts, shape, BeforeValidator(partial(_kept, term))] | None, {}
    return kind, Field(None, strict=True, **limits, description=f"{term.text}; null: {otherwise}")


if TYPE_CHECKING:
    StockChange = _Change
else:
    _FIELDS = {name: _field_of(term) for name, term in TERMS.items()}
    StockChange = create_model("StockChange", __base__=_Change, __doc__=_Change.__doc__, **_FIELDS)


@router.get("/locks")
async def locks(request: Request) -> list[ContenderView]:
    """The queues of the locks, once a second at most: for each the holder first, then the waiters in order."""
    return [ContenderView.of(contender) for contender in await state_of(request).locks.at()]


class SetView(ItemView):
    """An item after it was set."""

    warnings: list[str] = Field(description="why nothing of it is sold all the same: its hours")


class ChangeView(BaseModel):
    """A line of the operators' log: a change, and the operator's name."""

    at: float = Field(description="seconds since 1970")
    by: str = Field(description="the operator's name")
    what: str = Field(examples=["new sale"])
    sku: str
    before: dict[str, Any]
    after: dict[str, Any]


@router.get("/log", responses=responses(422))
async def log(
    request: Request,
    sku: Annotated[str | None, Query(pattern=f"^{SKU_PATTERN}$", description="the item; all of them without")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> list[ChangeView]:
    """The changes that operators have made, the last one first."""
    found = await state_of(request).stock.log(sku, limit=limit)
    return [ChangeView(**dataclasses.asdict(change)) for change in found]


@router.delete("/stock", status_code=204, responses=responses(400, 404, 412, 422))
async def remove(request: Request, by: Operator, sku: Sku) -> None:
    """Remove an item of which nothing was sold; 412 if something was. It has to be named."""
    await state_of(request).stock.remove(sku, by=by)


@router.put("/stock", responses=responses(400, 404, 408, 412, 413, 422))
async def set_stock(
    request: Request,
    response: Response,
    change: StockChange,
    by: Operator,
    sku: Sku = DEFAULT_SKU,
    if_match: Annotated[
        str, Header(pattern=_ETAG, description="the ETag of `GET /stock`: change it only if that is so")
    ] = "",
) -> SetView:
    """Set the units left, or add some, and the item's own terms: under the lock and past the fence, like any write.

    A new sale forgets all orders. If there are any, `forget_orders` must be their number, or "all"; else it is refused
    (412, with the number in `orders`).
    """
    state = state_of(request)
    said = change.model_fields_set
    if "stock" not in said and (said & {"add", "new_sale"} or not change.terms):
        raise invalid_field("stock", "how many units?", where="body")
    price, currency = (change.terms.get(name) for name in ("price", "currency"))
    if (price is None) != (currency is None):
        name = "currency" if currency is None else "price"
        raise invalid_field(name, "a price and its currency go together", where="body")
    if "forget_orders" in said and "new_sale" not in said:
        raise invalid_field("new_sale", "orders are forgotten by a new sale only", where="body")
    level = await state.stock.set_stock(
        sku,
        change.stock,
        add=change.add or "stock" not in said,
        new_sale=change.new_sale,
        forget_orders=None if change.forget_orders == "all" else change.forget_orders,
        if_match=_units(if_match) if if_match else None,
        if_initial=change.if_initial,
        terms=change.terms,
        by=by,
    )
    response.headers["ETag"] = etag(level)
    why = state.stock.closed(level)
    item = ItemView.on(state.shop.terms_of(level), level)
    return SetView(**item.model_dump(), warnings=[f"{why}: see `starts_at` and `ends_at`"] if why else [])


def _units(tag: str) -> tuple[int, int]:
    left, _, sold = tag.strip('"').partition("-")
    return int(left), int(sold)


def _text(value: object) -> str | None:
    return None if value is None else str(value)
