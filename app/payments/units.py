"""A provider's own minor units, if they differ from ISO 4217."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from app import money


@dataclass(frozen=True, slots=True)
class MinorUnits:
    """The minor units of a provider. `decimals`: the currencies by their number of decimals; all others have two.

    `steps`: by the number of decimals, the number of which an amount must be a multiple; `unknown`: currencies that it
    doesn't charge.
    """

    provider: str
    decimals: Mapping[int, str]
    steps: Mapping[int, int] = field(default_factory=dict)
    unknown: str = ""

    def iso(self, amount: int | None, currency: str | None) -> int | None:
        """The same amount in the minor unit of ISO 4217. Raises `ValueError` where it can't be one."""
        if amount is None or currency is None:
            return amount
        if currency in self.unknown:
            raise ValueError(f"amount: {self.provider} doesn't charge in {currency}")
        whole, rest = divmod(amount * int(10 ** money.decimals(currency)), int(10 ** self._decimals(currency)))
        if rest:
            raise ValueError(f"amount: {amount} is no whole number of {currency}'s minor unit")
        return whole

    def theirs(self, amount: int, currency: str | None) -> int:
        """Convert an amount from the minor unit of ISO 4217; a charged amount has no fraction there."""
        if currency is None:
            return amount
        return amount * int(10 ** self._decimals(currency)) // int(10 ** money.decimals(currency))

    def why_not(self, price: int, currency: str) -> str | None:
        """Why such a price, in the minor unit of ISO 4217, can't be charged; None if it can."""
        if currency in self.unknown:
            return f"{self.provider} doesn't charge in {currency}"
        its = self._decimals(currency)
        step = max(10 ** max(0, money.decimals(currency) - its), self.steps.get(its, 1))
        return f"{self.provider} charges multiples of {money.written(step, currency)}" if price % step else None

    def _decimals(self, currency: str) -> int:
        return next((count for count, those in self.decimals.items() if currency in those), 2)


_OF_STRIPE: Final = {0: "BIF CLP DJF GNF JPY KMF KRW MGA PYG RWF VND VUV XAF XOF XPF", 3: "BHD JOD KWD OMR TND"}
STRIPE: Final = MinorUnits("Stripe", _OF_STRIPE, steps={3: 10}, unknown="CLF IQD LYD UYI UYW")
