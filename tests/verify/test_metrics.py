"""Metrics against scikit-learn and scipy, their resampled forms against plain repetition, and odd values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr
from sklearn.metrics import accuracy_score, f1_score

from vengine.errors import UsageError
from vengine.verify.metrics import METRICS, concordance, get_metric, measure, spearman

RANDOM = np.random.default_rng(0)
TRUTH = RANDOM.integers(0, 4, 200)
GUESS = np.where(RANDOM.random(200) < 0.8, TRUTH, RANDOM.integers(0, 4, 200))
SCORES = RANDOM.integers(0, 6, 200).astype(float)  # many ties, as people give scores
COSINES = SCORES / 5 + RANDOM.normal(0, 0.2, 200)


def test_metrics_agree_with_other_libraries() -> None:
    assert METRICS["accuracy"].fn(GUESS, TRUTH) == pytest.approx(accuracy_score(TRUTH, GUESS))
    assert METRICS["macro_f1"].fn(GUESS, TRUTH) == pytest.approx(f1_score(TRUTH, GUESS, average="macro"))
    assert METRICS["spearman"].fn(COSINES, SCORES) == pytest.approx(spearmanr(COSINES, SCORES).statistic)
    assert METRICS["pearson"].fn(COSINES, SCORES) == pytest.approx(np.corrcoef(COSINES, SCORES)[0, 1])


@pytest.mark.parametrize("name", list(METRICS))
@given(seed=st.integers(0, 10_000), samples=st.integers(2, 40))
@settings(max_examples=25, deadline=None)
def test_resampled_forms_equal_repeated_rows(name: str, seed: int, samples: int) -> None:
    random, metric = np.random.default_rng(seed), METRICS[name]
    truth, guess = random.integers(0, 3, samples), random.integers(0, 3, samples)
    drawn = random.integers(0, samples, (5, samples))
    counts = np.stack([np.bincount(rows, minlength=samples) for rows in drawn]).astype(float)
    assert metric.weighted is not None
    plain = [metric.fn(guess[rows], truth[rows]) for rows in drawn]
    assert metric.weighted(guess, truth)(counts) == pytest.approx(plain, abs=1e-9)


@pytest.mark.parametrize(
    ("predicted", "truth", "value"),
    [
        ([1, 2, 3], [10, 20, 30], 1.0),
        ([3, 2, 1], [10, 20, 30], -1.0),
        ([5, 5, 5], [1, 2, 3], 0.0),  # a model that collapsed
    ],
)
def test_spearman_of_odd_values(predicted: list[float], truth: list[float], value: float) -> None:
    assert spearman(np.array(predicted), np.array(truth)) == pytest.approx(value)


@pytest.mark.parametrize(
    ("change", "low", "high"),
    [
        (lambda x: x, 1.0, 1.0),
        (lambda x: x + 0.01, 0.999, 1.0),
        (lambda x: x * 100, 0.0, 0.1),
        (lambda x: x + 5, 0.0, 0.1),
        (lambda x: -x, -1.0, -0.5),
        (lambda x: x[::-1], -0.3, 0.3),
    ],
    ids=["same", "hardly", "scaled", "shifted", "sign", "reversed"],
)
def test_concordance_sees_scale_and_shift(change, low: float, high: float) -> None:
    x = RANDOM.normal(0, 1, 300)
    assert low - 1e-9 <= concordance(change(x), x) <= high + 1e-9


def test_a_drop_is_relative_and_signed_by_the_direction() -> None:
    worse = np.where(np.arange(200) < 20, (TRUTH + 1) % 4, GUESS)
    found = measure(METRICS["accuracy"], GUESS, worse, TRUTH)
    before, after = accuracy_score(TRUTH, GUESS), accuracy_score(TRUTH, worse)
    assert (found.original, found.optimized) == (before, after)
    assert found.drop.value == pytest.approx((before - after) / before)
    assert found.drop.low <= found.drop.value <= found.drop.high
    lower = measure(METRICS["mse"], COSINES, COSINES + 1, SCORES)
    assert (lower.drop.value > 0) == (lower.optimized > lower.original)


@pytest.mark.parametrize(
    ("original", "optimized", "absolute", "drop"),
    [
        (SCORES, SCORES, False, 0.0),
        (-SCORES, SCORES, True, -2.0),  # a negative correlation that became good: no ratio, no alarm
        (np.zeros(200), np.zeros(200), True, 0.0),
    ],
    ids=["good", "negative", "zero"],
)
def test_a_metric_near_zero_falls_in_absolute_terms(
    original: np.ndarray, optimized: np.ndarray, absolute: bool, drop: float
) -> None:
    found = measure(METRICS["spearman"], original, optimized, SCORES)
    assert found.absolute is absolute
    assert found.drop.value == pytest.approx(drop)


OWN = """
def cost(predicted, truth):
    return float((predicted != truth).mean())
def broken(predicted, truth):
    raise KeyError("no such class")
def infinite(predicted, truth):
    return float("inf")
"""


def test_the_users_own_metric(tmp_path) -> None:
    file = tmp_path / "own.py"
    file.write_text(OWN)
    metric = get_metric(f"{file}:cost", "lower")
    same, worse = (measure(metric, GUESS, g, TRUTH) for g in (GUESS, (GUESS + 1) % 4))
    assert same.drop.value == 0
    assert worse.drop.low > 0


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("acuracy", "there is no metric 'acuracy'"),
        ("no.such.module:cost", "can't be imported"),
        ("math:no_such_function", "has no function 'no_such_function'"),
        ("math:pi", "has no function 'pi'"),
    ],
)
def test_a_wrong_name_is_refused(name: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        get_metric(name)


@pytest.mark.parametrize(("function", "says"), [("broken", "raised KeyError"), ("infinite", "gave inf")])
def test_the_users_own_metric_may_fail(tmp_path, function: str, says: str) -> None:
    file = tmp_path / "own.py"
    file.write_text(OWN)
    with pytest.raises(UsageError, match=says):
        measure(get_metric(f"{file}:{function}"), GUESS, GUESS, TRUTH)


def test_a_metric_that_fails_on_most_resamples_is_refused() -> None:
    calls = iter(range(10_000))

    def fails_later(predicted: np.ndarray, truth: np.ndarray) -> float:
        return 0.5 if next(calls) < 2 else float("nan")

    metric = METRICS["accuracy"].__class__(name="own", direction="higher", needs="any", fn=fails_later)
    with pytest.raises(UsageError, match="100% of the resamples"):
        measure(metric, GUESS, GUESS, TRUTH)


def test_names_may_have_hyphens() -> None:
    assert get_metric("Macro-F1").name == "macro_f1"
