"""A payment provider's own books, in memory: the oracle for an order's money. It shares no code with the service.

What really moved is here, whoever was told of it: charges, refunds with their keys and ends, disputes. Each movement
leaves notices as providers write them, which may come late, twice, in any order, or never.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

TOTALS = "totals"  # such a provider tells only what went back in all
NOTICES = "notices"  # each movement has a notice of its own, and no id
IDS = "ids"  # refunds have ids, which each notice repeats, and totals come beside them


@dataclass
class Move:
    """A refund at the provider. `lasts`: it has not come back; `key`: the idempotency key, "" in the dashboard."""

    id: str
    ref: str
    amount: int
    key: str = ""
    lasts: bool = True


@dataclass
class Quarrel:
    """A dispute at the provider. `end`: "" while it is open, else "won" or "lost"."""

    id: str
    ref: str
    amount: int
    end: str = ""


class ProviderNotice(NamedTuple):
    """What the provider writes. `what`: refunded, total, failed, disputed, won or lost."""

    what: str
    ref: str
    amount: int
    id: str
    key: str
    at: int
    currency: str


@dataclass
class ModelBank:
    """The provider. `style`: how it tells what has happened. `ticks`: whether its clock moves between two notices."""

    style: str = IDS
    ticks: bool = True
    charges: dict[str, tuple[int, str]] = field(default_factory=dict)
    moves: list[Move] = field(default_factory=list)
    quarrels: list[Quarrel] = field(default_factory=list)
    notices: list[ProviderNotice] = field(default_factory=list)
    now: int = 1

    def charge(self, ref: str, amount: int, currency: str = "EUR") -> None:
        """A buyer pays."""
        self.charges[ref] = (amount, currency)

    def back(self, ref: str) -> int:
        """What has gone back of a payment, and has stayed there; what banks took is in it."""
        return sum(one.amount for one in self.moves if one.ref == ref and one.lasts) + self.lost(ref)

    def lost(self, ref: str) -> int:
        """What banks took of it."""
        return sum(one.amount for one in self.quarrels if one.ref == ref and one.end == "lost")

    def refund(self, ref: str, amount: int | None, key: str = "") -> Move | None:
        """Give some of a payment back (None: all that is left), once for each key; None if there is not so much."""
        made = next((one for one in self.moves if key and one.key == key), None)
        if made is not None:
            return made
        if ref not in self.charges or any(one.ref == ref and one.end != "won" for one in self.quarrels):
            return None
        left = self.charges[ref][0] - self.back(ref)
        amount = left if amount is None else amount
        if not 0 < amount <= left:
            return None
        move = Move(f"re_{len(self.moves) + 1}", ref, amount, key)
        self.moves.append(move)
        if self.style != TOTALS:
            self._tell("refunded", ref, amount, move.id, key)
        if self.style != NOTICES:
            self._tell("total", ref, self.back(ref) - self.lost(ref), "", "")
        return move

    def bounce(self, at: int) -> None:
        """One of the refunds comes back from the buyer's bank."""
        lasting = [one for one in self.moves if one.lasts]
        if lasting:
            gone = lasting[at % len(lasting)]
            gone.lasts = False
            self._tell("failed", gone.ref, gone.amount, gone.id, gone.key)

    def dispute(self, ref: str, amount: int) -> None:
        """The buyer asks their bank for some of it, at most what has not gone back."""
        amount = min(amount, self.charges[ref][0] - self.back(ref)) if ref in self.charges else 0
        if amount > 0 and not any(one.ref == ref for one in self.quarrels):
            self.quarrels.append(Quarrel(f"dp_{len(self.quarrels) + 1}", ref, amount))
            self._tell("disputed", ref, amount, self.quarrels[-1].id, "")

    def close(self, end: str) -> None:
        """The first open dispute ends."""
        for one in self.quarrels:
            if not one.end:
                one.end = end
                self._tell(end, one.ref, one.amount, one.id, "")
                return

    def made(self, ref: str) -> Iterator[Move]:
        """All refunds of a payment, also those that came back."""
        return (one for one in self.moves if one.ref == ref)

    def tell_again(self) -> None:
        """Write all notices once more, of what stands now."""
        for move in self.moves:
            self._tell("refunded", move.ref, move.amount, move.id, move.key)
            if not move.lasts:
                self._tell("failed", move.ref, move.amount, move.id, move.key)
        for one in self.quarrels:
            self._tell(one.end or "disputed", one.ref, one.amount, one.id, "")

    def _tell(self, what: str, ref: str, amount: int, own: str, key: str) -> None:
        self.now += self.ticks
        self.notices.append(ProviderNotice(what, ref, amount, own, key, self.now, self.charges[ref][1]))
