"""Compares medians of quarters, to see whether a quantity is flat: pure, over times and values.

The first quarter is warm-up: pools, caches and the interpreter's arenas fill, and every kind of fault has struck. Of
the rest, the median of the last quarter must not be above that of the second by more than a share and a constant.

- Noise and single peaks, such as those at a fault, do not move a median.
- A saw-tooth is flat if it has several teeth in each quarter: both medians are in the middle of one.
- A slow leak lies between the medians with its growth of half the run. So of a linear leak an hour's run notices what
  adds more than the bound in half an hour.
- A step counts as what it adds. In the warm-up it is in both medians; later on it is growth if it is larger than the
  bound: one larger step can't be told from the first of many. In the last eighth of the run it is not seen.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

SHARE: Final = 0.05  # of the second quarter's median; the spread between two healthy quarters is a third of that
_ENOUGH: Final = 5  # values that a median needs


@dataclass(frozen=True, slots=True)
class Flatness:
    """The verdict on a series: its medians in the second and the last quarter, and the most that the latter may be."""

    before: float
    after: float
    most: float

    @property
    def flat(self) -> bool:
        """True if it does not grow."""
        return self.after <= self.most


def flatness(at_s: Sequence[float], values: Sequence[float | None], slack: float) -> Flatness | None:
    """Compare quarters; None if there is too little to compare. `slack`: the constant; a None was not to be had."""
    end_s = at_s[-1] if at_s else 0.0
    second, last = (
        [value for at, value in zip(at_s, values, strict=True) if value is not None and begin <= at / end_s <= end]
        if end_s
        else []
        for begin, end in ((0.25, 0.5), (0.75, 1.0))
    )
    if min(len(second), len(last)) < _ENOUGH:
        return None
    before, after = statistics.median(second), statistics.median(last)
    return Flatness(before, after, before * (1 + SHARE) + slack)
