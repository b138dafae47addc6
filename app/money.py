"""Amounts of money: kept as whole numbers in the minor unit of their currency, and written with its decimals.

How many decimals a currency has is ISO 4217's to say, and not how it is usually shown: forints are shown without any,
and still have two.
"""

import re
from typing import Final

# Those that don't have two. The shop's pages have the same table: static/money.js.
DECIMALS: Final = {
    currency: count
    for count, currencies in (
        (0, "BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX UYI VND VUV XAF XOF XPF"),
        (3, "BHD IQD JOD KWD LYD OMR TND"),
        (4, "CLF UYW"),
    )
    for currency in currencies.split()
}
MOST: Final = 10**11  # the highest price, in the minor unit
_WRITTEN: Final = re.compile(r"([0-9]{1,12})(?:\.([0-9]{1,4}))? ?([A-Z]{3})")


def decimals(currency: str) -> int:
    """The number of decimals of a currency, by its code in ISO 4217."""
    return DECIMALS.get(currency, 2)


def read(text: str) -> tuple[int, str]:
    """Parse an amount such as `499EUR` or `499.00 EUR`: the minor units, and the currency.

    Raises `ValueError`, whose text names the mistake.
    """
    match = _WRITTEN.fullmatch(text)
    if match is None:
        raise ValueError("an amount and its currency are such as 499EUR or 499.95EUR")
    whole, part, currency = match[1], match[2] or "", match[3]
    most = decimals(currency)
    if len(part) > most:
        raise ValueError(f"{currency} has {most or 'no'} decimals")
    amount = int(whole + part.ljust(most, "0"))
    if amount > MOST:
        raise ValueError(f"a price is at most {written(MOST, currency)}")
    return amount, currency


def written(amount: int, currency: str | None) -> str:
    """An amount for people, such as `499.00 EUR`; one without a currency is in an unknown minor unit."""
    if currency is None:
        return f"{amount} in the minor unit of no currency"
    return f"{decimal(amount, currency)} {currency}"


def decimal(amount: int, currency: str | None) -> str:
    """An amount with the decimals of its currency, such as `499.00`; as it is without a currency."""
    most = decimals(currency) if currency is not None else 0
    digits = str(abs(amount)).rjust(most + 1, "0")
    sign = "-" if amount < 0 else ""
    return f"{sign}{digits[: len(digits) - most]}{'.' if most else ''}{digits[len(digits) - most :]}"
