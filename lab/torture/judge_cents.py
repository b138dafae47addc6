"""The judge's demands on the provider's books, in a run whose cashier gives back at one."""

from collections.abc import Iterator

from lab.torture.history import History


def each_has_what_is_due(history: History) -> Iterator[str]:
    """Of each buyer's money as much is left as should be, and no order waits for an operator."""
    for books in history.cents:
        yield from books.of_buyers


def books_agree(history: History) -> Iterator[str]:
    """The provider, the orders, the events and the auditor say the same, to the cent."""
    for books in history.cents:
        yield from books.wrong


def tested(history: History) -> Iterator[str]:
    """Somebody has paid, and the provider was asked for refunds."""
    for books in history.cents:
        if not (books.payments and books.asked):
            yield f"{books.payments} payments, {books.asked} requests for refunds"
