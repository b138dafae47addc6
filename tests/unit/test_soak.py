"""The soak test tells flat from growing series: forged ones of an hour with a value each five seconds."""

import math
import random
from collections.abc import Callable

import pytest

from loadtest.soak import QUANTITIES, SHARE, Sample, medians, rows

AT_S = [5.0 * number for number in range(1, 721)]
END_S = AT_S[-1]


def noise(spread: float) -> Callable[[], float]:
    dice = random.Random(7)
    return lambda: dice.gauss(0, spread)


MORE, LESS = noise(1.0), noise(3.0)


@pytest.mark.parametrize(
    ("value", "flat"),
    [
        pytest.param(lambda _: 100 + LESS(), True, id="noise"),
        pytest.param(lambda at_s: 100 * (1 - math.exp(-at_s / (END_S / 20))), True, id="from nothing in the warm-up"),
        pytest.param(lambda at_s: 200 - 100 * at_s / END_S, True, id="shrinking"),
        pytest.param(lambda at_s: 1000.0 if at_s % 60 < 15 else 100.0, True, id="peaks in each fault"),
        pytest.param(lambda at_s: None if at_s % 60 < 15 else 100.0, True, id="a missing value is no zero"),
        *(
            pytest.param(lambda at_s, teeth=teeth: 100 + 100 * (at_s * teeth / END_S % 1), True, id=f"{teeth} teeth")
            for teeth in (12, 60)
        ),
        # Half of what an hour adds lies between the medians; 5 % of 100 and a slack of 4 are allowed.
        pytest.param(lambda at_s: 100 + 12 * at_s / END_S + MORE(), True, id="a leak that is too slow"),
        pytest.param(lambda at_s: 100 + 25 * at_s / END_S + MORE(), False, id="a slow leak"),
        pytest.param(
            lambda at_s: 100 + 50 * (at_s * 12 / END_S % 1) + 50 * at_s / END_S, False, id="a leak beneath a saw-tooth"
        ),
        pytest.param(lambda at_s: 50 + at_s // 60, False, id="one with each fault"),
        *(
            pytest.param(
                lambda at_s, part=part, height=height: 100.0 + (height if at_s > part * END_S else 0.0),
                flat,
                id=f"a step of {height} at {part}: {why}",
            )
            for part, height, flat, why in [
                (0.2, 50, True, "in the warm-up"),
                (0.6, 8, True, "no larger than the bound"),
                (0.6, 12, False, "larger"),
                (0.9, 12, True, "too late for its median"),
            ]
        ),
    ],
)
def test_what_is_flat(value: Callable[[float], float | None], flat: bool) -> None:
    found = medians(AT_S, [value(at_s) for at_s in AT_S])
    assert found is not None
    assert (found[1] <= found[0] * (1 + SHARE) + 4) is flat


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
