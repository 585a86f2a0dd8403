"""Intervals and sample sizes: how sure a number is, and what it takes to be surer.

All intervals are two-sided at `confidence`; the verdict reads its decision from the same interval
that the report shows. Everything here is deterministic: random draws come from `seed`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vengine.types import Interval

Floats = NDArray[np.float64]

MOST_SAMPLES = 1_000_000  # an estimate beyond this says "more than anyone will label"
_BLOCK_CELLS = 2_000_000  # resamples × samples held at once: 16 MB of float64


def clopper_pearson(events: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Exact two-sided interval of a proportion (Clopper and Pearson 1934).

    Args:
        events: how often it happened, 0 … trials.
        trials: how often it could have, ≥ 1.

    Returns:
        (low, high), both in 0 … 1. With no event, high is 1 − (α/2)^(1/trials).
    """
    from scipy.special import betaincinv

    assert trials >= 1
    assert 0 <= events <= trials, (events, trials)
    tail = (1 - confidence) / 2
    low = 0.0 if events == 0 else float(betaincinv(events, trials - events + 1, tail))
    high = 1.0 if events == trials else float(betaincinv(events + 1, trials - events, 1 - tail))
    return low, high


def mcnemar(losses: int, gains: int) -> float:
    """Two-sided exact p-value that losses and gains are equally likely (McNemar, binomial form)."""
    from scipy.stats import binom

    changed = losses + gains
    return 1.0 if changed == 0 else min(1.0, 2 * float(binom.cdf(min(losses, gains), changed, 0.5)))


def paired_difference(losses: int, gains: int, trials: int, confidence: float = 0.95) -> Interval:
    """Score interval of the fall of a paired proportion (Tango, Statistics in Medicine 17, 1998).

    Holds its level where few or no answers change, where a bootstrap collapses to zero width.

    Args:
        losses: samples that the original got right and the other wrong.
        gains: the reverse.
        trials: all samples, ≥ 1.

    Returns:
        The fall (losses − gains) / trials with its interval; positive is worse.
    """
    assert min(losses, gains) >= 0
    assert max(1, losses + gains) <= trials
    z = normal_quantile(0.5 + confidence / 2)
    fall = (losses - gains) / trials

    def excess(delta: float) -> float:
        return abs(_tango_score(losses, gains, trials, delta)) - z

    return Interval(value=fall, low=_edge(excess, fall, -1.0), high=_edge(excess, fall, 1.0))


def _tango_score(losses: int, gains: int, trials: int, delta: float) -> float:
    """Tango's z for the hypothesis "the fall is delta", with the nuisance estimated under it."""
    b = (2 * trials - losses + gains) * delta - losses - gains
    c = -gains * delta * (1 - delta)
    rare = (math.sqrt(max(b * b - 8 * trials * c, 0.0)) - b) / (4 * trials)
    variance = trials * (2 * rare + delta * (1 - delta))
    distance = losses - gains - trials * delta
    if variance <= 0:
        return 0.0 if distance == 0 else math.copysign(math.inf, distance)
    return distance / math.sqrt(variance)


def _edge(excess: Callable[[float], float], inside: float, outside: float) -> float:
    """The point between `inside` and `outside` where `excess` turns positive, by bisection."""
    if excess(outside) <= 0:
        return outside
    for _ in range(60):
        middle = (inside + outside) / 2
        inside, outside = (inside, middle) if excess(middle) > 0 else (middle, outside)
    return inside


def normal_quantile(probability: float) -> float:
    """The standard normal's quantile."""
    from statistics import NormalDist

    return NormalDist().inv_cdf(probability)


def tail_probability(samples: int, confidence: float) -> float:
    """The tail to cut from each side of a bootstrap of `samples` values.

    A percentile interval is too narrow for small samples (by √((n−1)/n), and normal instead of
    Student's t); the "expanded percentile" interval of Hesterberg (The American Statistician 69,
    2015) cuts a smaller tail instead.
    """
    from scipy.stats import t

    if samples < 2:
        return 0.0
    wide = float(t.ppf(0.5 + confidence / 2, samples - 1)) * math.sqrt(samples / (samples - 1))
    return 0.5 * math.erfc(wide / math.sqrt(2))


def resample_counts(samples: int, resamples: int, seed: int) -> Iterator[Floats]:
    """Blocks [some, samples] that together hold `resamples` rows: how often each sample was drawn."""
    random = np.random.default_rng(seed)
    rows = max(1, min(resamples, _BLOCK_CELLS // max(1, samples)))
    for start in range(0, resamples, rows):
        count = min(rows, resamples - start)
        drawn = random.integers(0, samples, (count, samples)) + samples * np.arange(count)[:, None]
        yield np.bincount(drawn.ravel(), minlength=count * samples).reshape(count, samples).astype(np.float64)


def bootstrap(
    value: float,
    statistic: Callable[[Floats], Floats],
    samples: int,
    *,
    confidence: float = 0.95,
    seed: int = 0,
    resamples: int = 2000,
) -> Interval:
    """Expanded-percentile bootstrap interval of any statistic of weighted samples.

    Args:
        value: the statistic on the samples as they are.
        statistic: [rows, samples] counts → [rows] values.

    Returns:
        `value` and the interval, which always holds `value`.
    """
    drawn = np.concatenate([statistic(w) for w in resample_counts(samples, resamples, seed)])
    drawn = drawn[np.isfinite(drawn)]
    if not len(drawn):
        return Interval(value=value, low=value, high=value)
    tail = tail_probability(samples, confidence)
    low, high = (float(q) for q in np.quantile(drawn, (tail, 1 - tail)))
    return Interval(value=value, low=min(low, value), high=max(high, value))


def bootstrap_mean(values: Sequence[float] | NDArray[Any], *, confidence: float = 0.95, seed: int = 0) -> Interval:
    """Interval of the mean of independent values."""
    array = np.asarray(values, dtype=np.float64)
    n = len(array)
    return bootstrap(float(array.mean()), lambda w: w @ array / n, n, confidence=confidence, seed=seed)


def ratio_interval(
    a_ms: Sequence[float],
    b_ms: Sequence[float],
    *,
    confidence: float = 0.95,
    seed: int = 0,
    resamples: int = 2000,
) -> Interval:
    """How many times faster `b` is than `a`: median of `a` ÷ median of `b`, paired bootstrap by round.

    Args:
        a_ms, b_ms: times of the same work in the same interleaved rounds, in the same order, at
            least three rounds. Pairing keeps a round in which the machine was busy from counting
            against one side only.

    Returns:
        The ratio (> 1: `b` is faster) with its interval.
    """
    a, b = np.asarray(a_ms, dtype=np.float64), np.asarray(b_ms, dtype=np.float64)
    assert a.shape == b.shape == (len(a),), (a.shape, b.shape)
    assert len(a) >= 3, "three rounds are the least"
    assert min(a.min(), b.min()) > 0, "times are positive"
    drawn = np.random.default_rng(seed).integers(0, len(a), (resamples, len(a)))
    ratios = np.median(a[drawn], axis=1) / np.median(b[drawn], axis=1)
    value = float(np.median(a) / np.median(b))
    tail = tail_probability(len(a), confidence)
    low, high = (float(q) for q in np.quantile(ratios, (tail, 1 - tail)))
    return Interval(value=value, low=min(low, value), high=max(high, value))


def samples_needed(drop: Interval, max_drop: float, samples: int) -> int:
    """About how many samples in all would decide, from an interval that shrinks with 1/√samples.

    The half of the interval that reaches across the budget must shrink to the distance between the
    measured value and the budget: samples × (half width ÷ distance)².

    Returns:
        A count in samples … MOST_SAMPLES; `samples` where the interval decides already.
    """
    if drop.high <= max_drop or drop.low > max_drop:
        return samples
    half = drop.high - drop.value if drop.value <= max_drop else drop.value - drop.low
    distance = abs(max_drop - drop.value)
    if distance * math.sqrt(MOST_SAMPLES) <= half * math.sqrt(samples):
        return MOST_SAMPLES
    return min(MOST_SAMPLES, max(samples + 1, math.ceil(samples * (half / distance) ** 2)))


def samples_needed_for_rate(interval_at: Callable[[int], Interval], max_drop: float, samples: int) -> int:
    """Like `samples_needed`, for exact intervals that don't shrink with 1/√samples.

    Args:
        interval_at: sample size → the interval that the same rates would give at that size.

    Returns:
        The smallest size that decides (found by doubling, then bisection), at most MOST_SAMPLES.
    """

    def decides(size: int) -> bool:
        interval = interval_at(size)
        return interval.high <= max_drop or interval.low > max_drop

    high = samples
    while not decides(high):
        if high >= MOST_SAMPLES:
            return MOST_SAMPLES
        high = min(MOST_SAMPLES, high * 2)
    low = max(samples - 1, high // 2)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if decides(middle) else (middle, high)
    return high
