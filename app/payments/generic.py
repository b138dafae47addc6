"""Notices signed by Standard Webhooks, from providers, and from shops that translate other providers' notices."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Final, Literal, Self, get_args

import standardwebhooks
from pydantic import BaseModel, Field, model_validator
from typing_extensions import override

from app.orders import CURRENCY_PATTERN
from app.payments.reading import NoticeHead, ensure_signed
from app.payments.report import Amount, Kind, Reader, Report

_FAMILY: Final = "payment."


class Payment(BaseModel):
    """A payment of a hold; only a payment that succeeded must name it."""

    hold: str | None = Field(None, min_length=1, max_length=200, description="the id of the hold")
    payment_ref: str = Field(min_length=1, max_length=200, description="the provider's own name of the payment")
    amount: Annotated[
        Amount | None, Field(description="what was paid, is disputed, or was given back by this one refund")
    ] = None
    currency: Annotated[str | None, Field(pattern=CURRENCY_PATTERN)] = None
    subtotal: Annotated[
        Amount | None, Field(description="of the amount, what is for the goods: without tax, shipping and discounts")
    ] = None
    paid_at: float | None = Field(
        None, ge=0, le=1e11, allow_inf_nan=False, description="when the buyer paid, in seconds since 1970"
    )
    refund_id: str | None = Field(
        None, min_length=1, max_length=200, description="the provider's own name of the refund or dispute"
    )
    refund_name: str | None = Field(
        None, min_length=1, max_length=200, description="of a refund that was requested: `refund_name` of that request"
    )
    why: str = Field("", max_length=200, description="the reason of a dispute, or of a refund that failed")


class Callback(BaseModel):
    """A provider's report on a payment. `timestamp`: when that happened, in ISO 8601."""

    type: Literal[
        "payment.succeeded",
        "payment.failed",
        "payment.canceled",
        "payment.refunded",
        "payment.refund_failed",
        "payment.disputed",
        "payment.dispute_won",
        "payment.dispute_lost",
    ]
    timestamp: str | None = None
    data: Payment

    @model_validator(mode="after")
    def _says_of_what(self) -> Self:
        if self.data.hold is None and self.type == "payment.succeeded":
            raise ValueError("data.hold is needed")
        return self

    @property
    def at(self) -> float | None:
        """The timestamp in seconds since 1970; None if it is none."""
        try:
            found = datetime.fromisoformat(self.timestamp or "")
        except ValueError:
            return None
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


_TYPES: Final = get_args(Callback.model_fields["type"].annotation)


class StandardWebhooks(Reader):
    """Standard Webhooks."""

    def __init__(self, secrets: Sequence[str]) -> None:
        self._verifiers = [standardwebhooks.Webhook(secret) for secret in secrets]

    @override
    def read(self, body: bytes, headers: Mapping[str, str]) -> Report | None:
        def verify(own: standardwebhooks.Webhook) -> None:
            own.verify(body, dict(headers), json_parse=False)

        ensure_signed(self._verifiers, verify, standardwebhooks.WebhookVerificationError)
        if NoticeHead.model_validate_json(body).type not in _TYPES:
            return None
        said = Callback.model_validate_json(body)
        kind = Kind(said.type.removeprefix(_FAMILY))
        return Report(kind=kind, message=headers["webhook-id"], at=said.at, **said.data.model_dump())
