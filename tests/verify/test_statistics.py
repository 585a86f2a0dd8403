"""Intervals hold their level, agree with other implementations, and sample sizes move the right way."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq, minimize_scalar
from scipy.stats import binomtest, norm

from vengine.types import Interval
from vengine.verify.agreement import rate_at
from vengine.verify.statistics import (
    MOST_SAMPLES,
    bootstrap_mean,
    clopper_pearson,
    mcnemar,
    paired_difference,
    ratio_interval,
    samples_needed,
    samples_needed_for_rate,
    tail_probability,
)


@pytest.mark.parametrize(
    ("events", "trials", "low", "high"),
    [  # the usual textbook table, 95 %
        (0, 10, 0.0, 0.3085),
        (1, 10, 0.0025, 0.4450),
        (5, 10, 0.1871, 0.8129),
        (10, 10, 0.6915, 1.0),
        (0, 100, 0.0, 0.0362),
    ],
)
def test_clopper_pearson_has_the_known_values(events: int, trials: int, low: float, high: float) -> None:
    assert clopper_pearson(events, trials) == pytest.approx((low, high), abs=5e-5)


@given(st.integers(1, 2000), st.floats(0, 1), st.sampled_from([0.8, 0.95, 0.99]))
@settings(max_examples=60, deadline=None)
def test_clopper_pearson_agrees_with_scipy(trials: int, share: float, confidence: float) -> None:
    events = round(share * trials)
    other = binomtest(events, trials).proportion_ci(confidence, method="exact")
    assert clopper_pearson(events, trials, confidence) == pytest.approx((other.low, other.high), abs=1e-9)


@pytest.mark.parametrize(
    ("losses", "gains", "p"),
    [(0, 0, 1.0), (1, 0, 1.0), (5, 5, 1.0), (10, 0, 2 / 1024), (0, 10, 2 / 1024), (8, 1, 2 * 10 / 512)],
)
def test_mcnemar(losses: int, gains: int, p: float) -> None:
    assert mcnemar(losses, gains) == pytest.approx(p)


@given(st.integers(0, 60), st.integers(0, 60))
@settings(max_examples=30, deadline=None)
def test_mcnemar_agrees_with_scipy(losses: int, gains: int) -> None:
    assume(losses + gains)
    assert mcnemar(losses, gains) == pytest.approx(binomtest(losses, losses + gains).pvalue, rel=1e-9)


def tango_by_likelihood(losses: int, gains: int, trials: int, delta: float) -> float:
    """The score of a fixed fall, its nuisance found by maximising the likelihood numerically."""

    def unlikely(rare: float) -> float:
        cells = ((losses, rare + delta), (gains, rare), (trials - losses - gains, 1 - 2 * rare - delta))
        return -sum(n * math.log(max(p, 1e-300)) for n, p in cells if n)

    least, most = max(0.0, -delta), (1 - delta) / 2
    rare = minimize_scalar(unlikely, bounds=(least, most), method="bounded", options={"xatol": 1e-12}).x
    return (losses - gains - trials * delta) / math.sqrt(trials * (2 * rare + delta * (1 - delta)))


@pytest.mark.parametrize(
    ("losses", "gains", "trials"), [(3, 1, 100), (12, 9, 300), (1, 7, 50), (40, 20, 200), (2, 2, 500)]
)
def test_paired_difference_agrees_with_a_numeric_likelihood(losses: int, gains: int, trials: int) -> None:
    found = paired_difference(losses, gains, trials)
    z = norm.ppf(0.975)
    low = brentq(lambda d: tango_by_likelihood(losses, gains, trials, d) - z, found.low - 0.02, found.value - 1e-6)
    high = brentq(lambda d: tango_by_likelihood(losses, gains, trials, d) + z, found.value + 1e-6, found.high + 0.02)
    assert (found.low, found.high) == pytest.approx((low, high), abs=1e-5)


@pytest.mark.parametrize("trials", [20, 100, 381, 1000])
def test_paired_difference_has_width_where_nothing_changed(trials: int) -> None:
    z2 = norm.ppf(0.975) ** 2
    found = paired_difference(0, 0, trials)
    assert (found.low, found.value, found.high) == pytest.approx((-z2 / (trials + z2), 0, z2 / (trials + z2)))


def test_paired_difference_covers() -> None:
    random, fall, rare, trials = np.random.default_rng(1), 0.01, 0.01, 300
    draws = random.multinomial(trials, [rare + fall, rare, 1 - 2 * rare - fall], size=1000)
    inside = [(i := paired_difference(int(b), int(c), trials)).low <= fall <= i.high for b, c, _ in draws]
    assert 0.93 <= np.mean(inside) <= 0.98


@pytest.mark.parametrize(
    ("draw", "mean", "samples", "least"),
    [
        (lambda r, n: r.normal(3, 1, n), 3.0, 15, 0.92),
        (lambda r, n: r.normal(3, 1, n), 3.0, 100, 0.92),
        (lambda r, n: r.exponential(1, n), 1.0, 100, 0.90),  # skewed: somewhat below the level, known and accepted
    ],
    ids=["normal-15", "normal-100", "exponential-100"],
)
def test_bootstrap_of_a_mean_covers(draw, mean: float, samples: int, least: float) -> None:
    random = np.random.default_rng(7)
    found = [bootstrap_mean(draw(random, samples), seed=i) for i in range(300)]
    assert least <= np.mean([i.low <= mean <= i.high for i in found]) <= 0.99


def test_bootstrap_has_the_width_of_students_t() -> None:
    values = np.random.default_rng(3).normal(0, 1, 200)
    found, error = bootstrap_mean(values), values.std(ddof=1) / math.sqrt(200)
    assert found.high - found.low == pytest.approx(2 * 1.972 * error, rel=0.06)


def test_bootstrap_repeats_itself() -> None:
    values = np.random.default_rng(3).normal(0, 1, 50)
    assert bootstrap_mean(values, seed=5) == bootstrap_mean(values, seed=5)
    assert bootstrap_mean(values, seed=5) != bootstrap_mean(values, seed=6)


@pytest.mark.parametrize(("samples", "tail"), [(2, 0.0), (10, 0.0086), (100, 0.0231), (100_000, 0.025)])
def test_tails_are_cut_less_deep_for_few_samples(samples: int, tail: float) -> None:
    assert tail_probability(samples, 0.95) == pytest.approx(tail, abs=5e-4)


def test_ratio_interval_covers_and_pairs_by_round() -> None:
    random, inside, widths = np.random.default_rng(2), [], []
    for i in range(300):
        busy = random.lognormal(0, 0.5, 11)  # a busy machine slows both sides of a round
        a, b = 8 * busy * random.lognormal(0, 0.02, 11), 2 * busy * random.lognormal(0, 0.02, 11)
        found = ratio_interval(a.tolist(), b.tolist(), seed=i)
        inside.append(found.low <= 4 <= found.high)
        widths.append((found.high - found.low) / 4)
    assert np.mean(inside) >= 0.9
    assert np.median(widths) < 0.15, "unpaired, rounds that vary by half would give about 1"


@pytest.mark.parametrize(
    ("a", "b", "ratio", "excludes_one"),
    [
        ([10, 10, 10], [5, 5, 5], 2.0, True),
        ([10, 11, 10, 12, 10], [10, 11, 10, 12, 10], 1.0, False),
        ([10, 20, 10, 9, 11], [11, 10, 20, 10, 9], 1.0, False),
    ],
)
def test_ratio_interval(a: list[float], b: list[float], ratio: float, excludes_one: bool) -> None:
    found = ratio_interval(a, b)
    assert found.value == pytest.approx(ratio)
    assert found.low <= found.value <= found.high
    assert (found.low > 1 or found.high < 1) is excludes_one


@pytest.mark.parametrize(
    ("value", "low", "high", "max_drop", "samples", "needed"),
    [
        (0.002, 0.0, 0.009, 0.01, 500, 500),  # decided: pass
        (0.03, 0.02, 0.04, 0.01, 500, 500),  # decided: fail
        (0.005, -0.005, 0.015, 0.01, 500, 2000),  # half a width of 0.01 must shrink to 0.005: 4 ×
        (0.015, 0.005, 0.025, 0.01, 500, 2000),  # the same from the other side
        (0.01, 0.0, 0.02, 0.01, 500, MOST_SAMPLES),  # on the line: nobody can decide
    ],
)
def test_samples_needed(value: float, low: float, high: float, max_drop: float, samples: int, needed: int) -> None:
    drop = Interval(value=value, low=low, high=high)
    assert samples_needed(drop, max_drop, samples) == pytest.approx(needed, abs=1)


share = st.floats(0.0001, 0.05)


@given(share, share, share, share, st.integers(20, 5000))
@settings(max_examples=200, deadline=None)
def test_wider_intervals_and_nearer_budgets_need_more_samples(
    value: float, half: float, more: float, distance: float, samples: int
) -> None:
    def needed(half: float, distance: float) -> int:
        return samples_needed(Interval(value=value, low=value - half, high=value + half), value + distance, samples)

    assert needed(half, distance) <= needed(half + more, distance)
    assert needed(half, distance + more) <= needed(half, distance)
    assert samples <= needed(half, distance) <= MOST_SAMPLES


@pytest.mark.parametrize(
    ("changed", "samples", "max_drop", "needed"),
    [
        (0, 100, 0.01, 368),  # the smallest n with 1 − 0.025^(1/n) ≤ 0.01
        (0, 368, 0.01, 368),
        (0, 100, 0.001, 3688),
        (50, 100, 0.01, 100),  # decided: fail
    ],
)
def test_samples_needed_for_an_exact_rate(changed: int, samples: int, max_drop: float, needed: int) -> None:
    assert samples_needed_for_rate(rate_at(changed / samples, 0.95), max_drop, samples) == needed


@pytest.mark.parametrize(("changed", "samples"), [(2, 500), (1, 300), (4, 600)])
def test_samples_needed_for_a_rate_really_decide(changed: int, samples: int) -> None:
    at = rate_at(changed / samples, 0.95)
    needed = samples_needed_for_rate(at, 0.01, samples)
    assert samples < needed < 20 * samples
    assert at(needed).high <= 0.01
