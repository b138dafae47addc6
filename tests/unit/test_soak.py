"""The soak test tells flat from growing series: forged ones of an hour with a value each five seconds."""

import math
import random
from collections.abc import Callable

import pytest

from loadtest.soak import QUANTITIES, SHARE, Sample, medians, rows

AT_S = [5.0 * number for number in range(1, 721)]
END_S = AT_S[-1]


def is_flat(value: Callable[[float], float | None], slack: float = 4.0) -> bool:
    found = medians(AT_S, [value(at_s) for at_s in AT_S])
    assert found is not None
    return found[1] <= found[0] * (1 + SHARE) + slack


def noise(spread: float) -> Callable[[], float]:
    dice = random.Random(7)
    return lambda: dice.gauss(0, spread)


def test_noise_is_flat() -> None:
    more = noise(3.0)
    assert is_flat(lambda _: 100 + more())


def test_warming_up_is_flat() -> None:
    """A series may grow from nothing during the first quarter of the run."""
    assert is_flat(lambda at_s: 100 * (1 - math.exp(-at_s / (END_S / 20))))


def test_shrinking_is_flat() -> None:
    assert is_flat(lambda at_s: 200 - 100 * at_s / END_S)


def test_peaks_are_flat() -> None:
    """A few values during each fault may be as far from the others as they like."""
    assert is_flat(lambda at_s: 1000.0 if at_s % 60 < 15 else 100.0)


def test_gaps_are_flat() -> None:
    """A missing value during a fault does not count as zero."""
    assert is_flat(lambda at_s: None if at_s % 60 < 15 else 100.0)


@pytest.mark.parametrize("teeth", [12, 60])
def test_a_saw_tooth_is_flat(teeth: int) -> None:
    """Memory that rises until a new sale forgets the old one is flat, even if it doubles within a tooth."""
    assert is_flat(lambda at_s: 100 + 100 * (at_s * teeth / END_S % 1))


@pytest.mark.parametrize(("per_hour", "flat"), [(12, True), (25, False)])
def test_a_slow_leak_grows(per_hour: float, flat: bool) -> None:
    """Half of what an hour adds lies between the medians; 5 % of 100 and a slack of 4 are allowed."""
    more = noise(1.0)
    assert is_flat(lambda at_s: 100 + per_hour * at_s / END_S + more()) is flat


def test_a_leak_beneath_a_saw_tooth_grows() -> None:
    assert not is_flat(lambda at_s: 100 + 50 * (at_s * 12 / END_S % 1) + 50 * at_s / END_S)


def test_a_leak_of_one_with_each_fault_grows() -> None:
    assert not is_flat(lambda at_s: 50 + at_s // 60)


@pytest.mark.parametrize(
    ("part", "height", "flat"),
    [
        (0.2, 50, True),  # in the warm-up
        (0.6, 8, True),  # no larger than the bound
        (0.6, 12, False),
        (0.8, 12, False),
        (0.9, 12, True),  # too late for its median
    ],
)
def test_a_step(part: float, height: float, flat: bool) -> None:
    assert is_flat(lambda at_s: 100.0 + (height if at_s > part * END_S else 0.0)) is flat


@pytest.mark.parametrize("values", [[], [1.0] * 12, [None] * 700 + [1.0] * 20])
def test_too_little_to_compare(values: list[float | None]) -> None:
    assert medians(AT_S[: len(values)], values) is None


def test_what_grows_is_named() -> None:
    """Each growing or missing series is named in a sentence; a series that is not judged never is."""
    each = {"rss_mib", "open_files", "threads"}
    columns = [f"{one} {name}" for one in ("instance-1", "instance-2") for name in each] + [*set(QUANTITIES) - each]
    samples: list[Sample] = [{**dict.fromkeys(columns, 100.0), "latency_p99_ms": at_s} for at_s in AT_S]

    def complaints() -> list[str]:
        return [complaint for *_, complaint in rows(AT_S, samples) if complaint]

    assert len(list(rows(AT_S, samples))) == len(columns)
    assert complaints() == []
    for at_s, sample in zip(AT_S, samples, strict=True):
        sample["instance-2 open_files"] = 100.0 + at_s / 10
        del sample["etcd_leases"]
    grown, unseen = complaints()
    assert grown.startswith("instance-2: open file descriptors grew from 234.8 (median")
    assert grown.endswith(" to 415.0 (of the last one); 251.5 is allowed")
    assert unseen == "leases in etcd: too seldom seen to judge"
