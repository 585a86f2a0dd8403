"""Does a series grow, or does it only wander? A slope from all pairs of points, not from the first and the last.

The slope is the median over all pairs (Theil 1950, Sen 1968), the test is that of Mann and Kendall; several stretches
of one series are pooled without comparing across their borders, as Hirsch and Slack (1984) pool seasons. None of it
asks for a normal distribution, and a quarter of the points may be wild.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from vengine.types import Interval
from vengine.verify.statistics import Floats

LEAST_POINTS = 8
"""Fewer points in all, and no test of this kind can reach its level."""


@dataclass(frozen=True, kw_only=True)
class Trend:
    """The slope of a series with its interval, and how likely such an order is where nothing grows."""

    slope: Interval  # units of y for each unit of x
    p: float  # one-sided: that y doesn't rise
    points: int
    later: float  # the slope of the second halves alone: what fills up has none there

    @property
    def rises(self) -> bool:
        """Whether the order of the points speaks for growth at 99 %, and the growth lasts."""
        return self.p < 0.01 and self.slope.low > 0 and self.later > 0


Stretch = tuple[Sequence[float], Sequence[float]]  # x, which rises, and y


def trend(stretches: Sequence[Stretch], confidence: float = 0.95) -> Trend | None:
    """The common trend of some stretches of one series.

    Args:
        stretches: (x, y) of each; only points of the same stretch are compared.
        confidence: of the slope's interval, two-sided.

    Returns:
        None where there are fewer than `LEAST_POINTS` points.
    """
    found = [(np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)) for x, y in stretches]
    points = sum(len(x) for x, _ in found)
    slopes = np.sort(np.concatenate([_slopes(x, y) for x, y in found])) if found else np.zeros(0)
    if points < LEAST_POINTS or not len(slopes):
        return None
    score = sum(_score(y) for _, y in found)
    spread = math.sqrt(sum(_variance(y) for _, y in found))
    halves = [_slopes(x[len(x) // 2 :], y[len(y) // 2 :]) for x, y in found]
    later = np.concatenate(halves)
    return Trend(
        slope=_interval(slopes, spread, confidence),
        p=_upper_tail((score - 1) / spread) if spread > 0 and score > 0 else 1.0,
        points=points,
        later=float(np.median(later)) if len(later) else 0.0,
    )


def _slopes(x: Floats, y: Floats) -> Floats:
    first, second = np.triu_indices(len(x), 1)
    run = x[second] - x[first]
    moved = run > 0
    return np.asarray((y[second] - y[first])[moved] / run[moved])


def _score(y: Floats) -> int:
    """Pairs that rise, less pairs that fall."""
    first, second = np.triu_indices(len(y), 1)
    return int(np.sign(y[second] - y[first]).sum())


def _variance(y: Floats) -> float:
    """Of the score where there is no trend, with its correction for ties (Kendall 1975)."""
    _, ties = np.unique(y, return_counts=True)
    n = len(y)
    tied = float(np.sum(ties * (ties - 1.0) * (2.0 * ties + 5)))
    return (n * (n - 1.0) * (2.0 * n + 5) - tied) / 18


def _interval(slopes: Floats, spread: float, confidence: float) -> Interval:
    """The median of the sorted slopes, and Sen's interval: so many ranks to either side of the middle."""
    reach = NormalDist().inv_cdf((1 + confidence) / 2) * spread
    last = len(slopes) - 1
    low = max(0, round((len(slopes) - reach) / 2) - 1)
    high = min(last, round((len(slopes) + reach) / 2))
    return Interval(value=float(np.median(slopes)), low=float(slopes[low]), high=float(slopes[high]))


def _upper_tail(z: float) -> float:
    return math.erfc(z / math.sqrt(2)) / 2
