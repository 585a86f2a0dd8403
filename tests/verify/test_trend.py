"""A trend is found where there is one, and not where a series wanders, fills up or has two odd ends."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from vengine.verify.trend import LEAST_POINTS, Trend, trend

N = 40
Series = Callable[[np.ndarray, np.random.Generator], np.ndarray]
RISES: dict[str, Series] = {
    "a line": lambda x, r: 3.0 * x,
    "a line in noise": lambda x, r: 3.0 * x + 20 * r.standard_normal(len(x)),
    "steps": lambda x, r: 40.0 * (x // 4),
    "a quarter wild": lambda x, r: 3.0 * x + np.where(r.random(len(x)) < 0.2, -5000, 0),
}
STAYS: dict[str, Series] = {
    "constant": lambda x, r: np.full(len(x), 7.0),
    "noise": lambda x, r: r.standard_normal(len(x)),
    "falls": lambda x, r: -3.0 * x,
    "fills up and stays": lambda x, r: 1000.0 * np.minimum(x, 10),
    "fills up for half of the time": lambda x, r: 1000.0 * np.minimum(x, 19),
    "first and last differ": lambda x, r: np.where(x == 0, -9e6, np.where(x == N - 1, 9e6, 5.0)),
    "saw teeth": lambda x, r: 10.0 * (x % 5),
}


def found(make: Series, seed: int = 0) -> Trend:
    x = np.arange(N, dtype=np.float64)
    told = trend([(x, make(x, np.random.default_rng(seed)))])
    assert told is not None
    return told


@pytest.mark.parametrize("name", RISES)
def test_growth_is_found(name: str) -> None:
    told = found(RISES[name])
    assert told.rises
    assert told.slope.low <= told.slope.value <= told.slope.high


@pytest.mark.parametrize("name", STAYS)
def test_what_does_not_grow_is_left_in_peace(name: str) -> None:
    assert not found(STAYS[name]).rises


def test_stretches_are_not_compared_with_each_other() -> None:
    flat = [(range(k * 20, k * 20 + 20), [1e6 * k] * 20) for k in range(3)]
    told = trend(flat)
    assert told is not None
    assert (told.slope.value, told.rises) == (0.0, False)
    joined = trend([([x for xs, _ in flat for x in xs], [y for _, ys in flat for y in ys])])
    assert joined is not None
    assert joined.p < 1e-6  # the jumps are there for whoever looks across the borders


def test_too_few_points_say_nothing() -> None:
    few = range(LEAST_POINTS - 1)
    assert trend([(few, few)]) is None
    assert trend([]) is None


@pytest.mark.parametrize("seed", range(3))
def test_slope_interval_and_p_are_scipys(seed: int) -> None:
    stats = pytest.importorskip("scipy.stats")
    x = np.arange(30.0)
    y = 0.1 * x + np.random.default_rng(seed).standard_normal(30).round(1)
    told = trend([(x, y)])
    assert told is not None
    slope, _, low, high = stats.theilslopes(y, x, 0.95)
    assert (told.slope.value, told.slope.low, told.slope.high) == pytest.approx((slope, low, high))
    p = stats.kendalltau(x, y, alternative="greater", method="asymptotic").pvalue
    assert told.p == pytest.approx(p, rel=0.2)  # ours takes one pair off the score, for continuity


def test_noise_rarely_rises() -> None:
    """At 1 % about 2 of 200 would; the demand on the later half makes it fewer."""
    assert sum(found(STAYS["noise"], seed).rises for seed in range(200)) <= 4
