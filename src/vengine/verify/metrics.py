"""Metrics of labelled data: what a user loses when the optimised model answers differently.

A metric is a number for predictions and truths. `weighted` is the same number for many resamples
at once ([rows, samples] counts → [rows] values), so that a bootstrap takes milliseconds.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from vengine.errors import UsageError
from vengine.types import Interval
from vengine.verify.statistics import Floats, bootstrap

Array = NDArray[Any]
Weighted = Callable[[Array, Array], Callable[[Floats], Floats]]


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A named measure of (predictions, truths), both arrays [samples].

    `needs` says what the truths are: class names or numbers to correlate with. Below `floor` the
    original's value is too near zero for a relative drop: the drop is then absolute.
    """

    name: str
    direction: Literal["higher", "lower"]
    needs: Literal["class", "score", "any"]
    fn: Callable[[Array, Array], float]
    weighted: Weighted | None = None
    floor: float = 0.05


@dataclass(frozen=True, kw_only=True)
class Drop:
    """A metric's value for both models, and how much worse the second is."""

    original: float
    optimized: float
    drop: Interval  # relative to the original's value unless `absolute`; positive = worse
    absolute: bool


def accuracy(predicted: Array, truth: Array) -> float:
    """Share of right answers."""
    return float(np.mean(predicted == truth))


def macro_f1(predicted: Array, truth: Array) -> float:
    """Mean F1 over the classes that occur among truths or predictions (a class never hit counts 0)."""
    return float(_macro_f1(predicted, truth)(np.ones((1, len(truth))))[0])


def micro_f1(predicted: Array, truth: Array) -> float:
    """F1 over all decisions together: sets of classes as booleans [samples, classes]; of single classes, accuracy."""
    return float(_micro_f1(predicted, truth)(np.ones((1, len(truth))))[0])


def spearman(predicted: Array, truth: Array) -> float:
    """Rank correlation, ties at their mean rank; 0 where either side is constant."""
    return float(_spearman(predicted, truth)(np.ones((1, len(truth))))[0])


def pearson(predicted: Array, truth: Array) -> float:
    """Linear correlation; 0 where either side is constant."""
    return float(_pearson(predicted, truth)(np.ones((1, len(truth))))[0])


def mse(predicted: Array, truth: Array) -> float:
    """Mean squared error."""
    return float(np.mean((predicted - truth) ** 2))


def concordance(predicted: Array, truth: Array) -> float:
    """Lin's concordance correlation (Biometrics 45, 1989): 1 only where the numbers themselves agree.

    Unlike a correlation it falls when one side is scaled or shifted.
    """
    return float(concordance_weighted(predicted, truth)(np.ones((1, len(truth))))[0])


def _accuracy(predicted: Array, truth: Array) -> Callable[[Floats], Floats]:
    right = (predicted == truth).astype(np.float64)
    return lambda w: np.asarray(w @ right / w.sum(axis=1))


def _macro_f1(predicted: Array, truth: Array) -> Callable[[Floats], Floats]:
    is_predicted, is_true = _members(predicted, truth)

    def value(w: Floats) -> Floats:
        hits, size = w @ (is_predicted * is_true), w @ (is_predicted + is_true)
        f1 = np.divide(2 * hits, size, out=np.zeros_like(hits), where=size > 0)
        return np.asarray(f1.sum(axis=1) / np.maximum((size > 0).sum(axis=1), 1))

    return value


def _micro_f1(predicted: Array, truth: Array) -> Callable[[Floats], Floats]:
    is_predicted, is_true = _members(predicted, truth)
    hits, sizes = (is_predicted * is_true).sum(axis=1), (is_predicted + is_true).sum(axis=1)

    def value(w: Floats) -> Floats:
        size = w @ sizes
        # Nothing to find and nothing found is right.
        return np.asarray(np.divide(2 * (w @ hits), size, out=np.ones_like(size), where=size > 0))

    return value


def _members(predicted: Array, truth: Array) -> tuple[Floats, Floats]:
    """[samples, classes] of 0 and 1: whether each class is among the answers, and among the truths."""
    if truth.ndim == 2:
        return predicted.astype(np.float64), truth.astype(np.float64)
    classes = np.unique(np.concatenate([predicted, truth]))
    return (predicted[:, None] == classes).astype(np.float64), (truth[:, None] == classes).astype(np.float64)


def _mse(predicted: Array, truth: Array) -> Callable[[Floats], Floats]:
    squares = (predicted - truth).astype(np.float64) ** 2
    return lambda w: np.asarray(w @ squares / w.sum(axis=1))


def _moments(w: Floats, x: Floats, y: Floats) -> tuple[Floats, Floats, Floats, Floats, Floats]:
    """Weighted means, variances and covariance by row; x and y are [samples] or [rows, samples]."""
    total = w.sum(axis=1)
    mean_x, mean_y = (w * x).sum(axis=1) / total, (w * y).sum(axis=1) / total
    dx, dy = x - mean_x[:, None], y - mean_y[:, None]
    return (
        mean_x,
        mean_y,
        np.asarray((w * dx * dx).sum(axis=1) / total),
        np.asarray((w * dy * dy).sum(axis=1) / total),
        np.asarray((w * dx * dy).sum(axis=1) / total),
    )


def _correlation(w: Floats, x: Floats, y: Floats) -> Floats:
    mean_x, mean_y, var_x, var_y, cov = _moments(w, x, y)
    # Rounding leaves about 1e-30 × mean² of variance in a constant: that is zero.
    flat = (var_x <= 1e-24 * (mean_x**2 + 1e-300)) | (var_y <= 1e-24 * (mean_y**2 + 1e-300))
    size = np.sqrt(var_x * var_y)
    return np.divide(cov, size, out=np.zeros_like(cov), where=~flat & (size > 0))


def _pearson(predicted: Array, truth: Array) -> Callable[[Floats], Floats]:
    x, y = predicted.astype(np.float64), truth.astype(np.float64)
    return lambda w: _correlation(w, x, y)


def _spearman(predicted: Array, truth: Array) -> Callable[[Floats], Floats]:
    rank_x, rank_y = _ranker(predicted), _ranker(truth)
    return lambda w: _correlation(w, rank_x(w), rank_y(w))


def _ranker(values: Array) -> Callable[[Floats], Floats]:
    """[rows, samples] counts → mid-ranks in each resample. Sorts once: resampling keeps the order."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    group = np.empty(len(values), dtype=np.intp)
    group[order] = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(values))))

    def ranks(w: Floats) -> Floats:
        size = np.add.reduceat(w[:, order], starts, axis=1)
        middle = np.cumsum(size, axis=1) - size + (size + 1) / 2
        return np.asarray(middle[:, group])

    return ranks


def concordance_weighted(predicted: Array, truth: Array) -> Callable[[Floats], Floats]:
    """`concordance` for many resamples at once. Two equal constants agree wholly: 1."""
    x, y = predicted.astype(np.float64), truth.astype(np.float64)

    def value(w: Floats) -> Floats:
        mean_x, mean_y, var_x, var_y, cov = _moments(w, x, y)
        size = var_x + var_y + (mean_x - mean_y) ** 2
        return np.divide(2 * cov, size, out=np.ones_like(cov), where=size > 0)

    return value


METRICS: dict[str, Metric] = {
    m.name: m
    for m in (
        Metric(name="accuracy", direction="higher", needs="class", fn=accuracy, weighted=_accuracy),
        Metric(name="macro_f1", direction="higher", needs="class", fn=macro_f1, weighted=_macro_f1),
        Metric(name="micro_f1", direction="higher", needs="class", fn=micro_f1, weighted=_micro_f1),
        Metric(name="spearman", direction="higher", needs="score", fn=spearman, weighted=_spearman),
        Metric(name="pearson", direction="higher", needs="score", fn=pearson, weighted=_pearson),
        Metric(name="mse", direction="lower", needs="score", fn=mse, weighted=_mse, floor=1e-6),
    )
}


def get_metric(name: str, direction: Literal["higher", "lower"] = "higher") -> Metric:
    """A built-in metric by name, or the user's own as "module:function".

    Args:
        direction: which way is better, for the user's own metric only.

    Raises:
        UsageError: no such metric; the message lists the names.
    """
    if ":" in name:
        return load_metric(name, direction)
    wanted = name.lower().replace("-", "_")
    if wanted not in METRICS:
        raise UsageError(
            f"there is no metric {name!r}",
            next_step=f"use one of {', '.join(METRICS)}, ndcg@10, agreement, or your own as module:function or "
            "file.py:function",
        )
    return METRICS[wanted]


def load_metric(name: str, direction: Literal["higher", "lower"] = "higher") -> Metric:
    """The user's own metric: "module:function", or "path/to/file.py:function".

    The function gets (predictions, truths): arrays [samples] of class names for labelled data, of
    numbers for scored data, booleans [samples, classes] where a text has several labels, and returns one number.

    Raises:
        UsageError: the module or the function can't be found.
    """
    place, _, function = name.rpartition(":")
    fn = getattr(_module(place, name), function, None)
    if not callable(fn):
        raise UsageError(f"metric {name!r}: {place} has no function {function!r}", next_step="check the spelling")
    return Metric(name=name, direction=direction, needs="any", fn=fn, floor=1e-6)


def _module(place: str, name: str) -> ModuleType:
    try:
        if not place.endswith(".py"):
            return importlib.import_module(place)
        spec = importlib.util.spec_from_file_location(Path(place).stem, place)
        if spec is None or spec.loader is None:
            raise ImportError(f"{place} is not a Python file")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except Exception as error:  # the user's own code may raise anything while it is imported
        raise UsageError(
            f"metric {name!r} can't be imported: {type(error).__name__}: {error}",
            next_step="name an importable module, or the file itself: path/to/file.py:function",
        ) from error
    return module


def measure(
    metric: Metric,
    original: Array,
    optimized: Array,
    truth: Array,
    *,
    confidence: float = 0.95,
    seed: int = 0,
) -> Drop:
    """Paired bootstrap of how much worse `optimized` does than `original` on the same samples.

    The drop is relative to the original's value. Where that is below `metric.floor` (a metric near
    zero, or negative) a ratio says nothing, and the drop is absolute.

    Raises:
        UsageError: the user's own metric raises, or gives no finite number.
    """
    before, after = _evaluate(metric, original, truth), _evaluate(metric, optimized, truth)
    absolute = before < metric.floor
    sign = 1.0 if metric.direction == "higher" else -1.0

    def fall(a: Floats, b: Floats) -> Floats:
        base = np.ones_like(a) if absolute else np.maximum(np.abs(a), metric.floor)
        return np.asarray(sign * (a - b) / base)

    if metric.weighted is None:
        statistic, resamples = _by_rows(metric, original, optimized, truth, fall), 400
    else:
        first, second = metric.weighted(original, truth), metric.weighted(optimized, truth)
        statistic, resamples = (lambda w: fall(first(w), second(w))), 2000
    value = float(fall(np.array([before]), np.array([after]))[0])
    interval = bootstrap(value, statistic, len(truth), confidence=confidence, seed=seed, resamples=resamples)
    return Drop(original=before, optimized=after, drop=interval, absolute=absolute)


def _by_rows(
    metric: Metric, original: Array, optimized: Array, truth: Array, fall: Callable[[Floats, Floats], Floats]
) -> Callable[[Floats], Floats]:
    """The slow road, for a metric that knows no weights: repeat the rows, call the function."""

    def one(counts: Floats) -> tuple[float, float]:
        rows = np.repeat(np.arange(len(truth)), counts.astype(np.intp))
        try:
            return float(metric.fn(original[rows], truth[rows])), float(metric.fn(optimized[rows], truth[rows]))
        except Exception:  # a resample may lack a class that the metric needs: leave that resample out
            return math.nan, math.nan

    def statistic(w: Floats) -> Floats:
        pairs = np.array([one(counts) for counts in w])
        missing = float(np.mean(~np.isfinite(pairs).all(axis=1)))
        if missing > 0.1:
            raise UsageError(
                f"metric {metric.name!r} gives no finite number on {missing:.0%} of the resamples",
                next_step="return a finite number for any draw of the samples, or give more samples",
            )
        return fall(pairs[:, 0], pairs[:, 1])

    return statistic


def _evaluate(metric: Metric, predicted: Array, truth: Array) -> float:
    try:
        value = float(metric.fn(predicted, truth))
    except Exception as error:  # the user's own code may raise anything
        raise UsageError(
            f"metric {metric.name!r} raised {type(error).__name__}: {error}",
            next_step="it gets two arrays [samples], predictions and truths, and returns one number",
        ) from error
    if not math.isfinite(value):
        raise UsageError(f"metric {metric.name!r} gave {value}", next_step="return a finite number")
    return value
