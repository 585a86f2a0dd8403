"""Two models' answers to the same labelled samples: the fall of a metric, and which answers were lost and won."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from vengine.types import Budget, Interval, Sample
from vengine.verify import agreement, changes
from vengine.verify.arrange import Array
from vengine.verify.metrics import Metric, measure
from vengine.verify.outcome import Measured
from vengine.verify.statistics import mcnemar, paired_difference


def compare_classes(
    metric: Metric,
    before: NDArray[np.intp],
    after: NDArray[np.intp],
    truth: NDArray[np.intp],
    names: Sequence[str],
    rows: NDArray[np.intp],
    likely: NDArray[np.float64],
    samples: Sequence[Sample],
    budget: Budget,
    seed: int,
) -> Measured:
    """One class a sample.

    Args:
        before, after, truth: class numbers of the samples that are judged.
        names: of the classes.
        rows: places of the judged samples among all.
        likely: [judged samples, classes] the original's probabilities.
    """
    right, still = before == truth, after == truth
    losses, gains = int(np.sum(right & ~still)), int(np.sum(~right & still))
    if metric.needs == "class":
        result = widen(measured(metric, before, after, truth, budget, seed), losses, gains, budget.confidence)
    else:  # the user's own metric reads names
        words = np.array(names)
        result = measured(metric, words[before], words[after], words[truth], budget, seed)
    judged = [samples[i] for i in rows]
    answers = [names[i] for i in before], [names[i] for i in after]
    moved = changes.of_classes(judged, *answers, changes.margins(likely, before, after))
    result = with_mcnemar(result, losses, gains)
    flipped, changed = agreement.flips(judged, *answers), int(np.sum(before != after))
    return replace(result, flipped=flipped, changed=changed, changes=moved)


def measured(metric: Metric, before: Array, after: Array, truth: Array, budget: Budget, seed: int) -> Measured:
    """The metric on both, with the interval of its fall."""
    drop = measure(metric, before, after, truth, confidence=budget.confidence, seed=seed)
    note = ""
    if drop.absolute:
        note = (
            f"The original's {metric.name} is only {drop.original:.3g} on this data, too near zero for a relative "
            "drop: the drop is absolute, and the labels may not fit the model"
        )
    return Measured(
        metric=metric.name,
        original=drop.original,
        optimized=drop.optimized,
        drop=drop.drop,
        samples=len(truth),
        absolute=drop.absolute,
        note=note,
    )


def with_mcnemar(result: Measured, losses: int, gains: int) -> Measured:
    """The result with a note on the paired counts, and how likely they are where both are equally likely."""
    words = "No right answer was lost or won"
    if losses + gains:
        words = (
            f"{losses} answers became wrong and {gains} right (exact McNemar test: p = {mcnemar(losses, gains):.2g})"
        )
    return replace(result, note=". ".join(part for part in (words, result.note) if part))


def widen(result: Measured, losses: int, gains: int, confidence: float) -> Measured:
    """Replace or widen a bootstrap by the score interval of the paired fall in accuracy.

    Where few answers change a bootstrap has little or no width, whatever the number of samples.
    For accuracy the score interval stands alone; for another metric of classes the wider counts.
    """
    n, base = result.samples, 1.0 if result.absolute or not result.original else result.original

    def at(samples: int) -> Interval:
        lost, won = round(losses * samples / n), round(gains * samples / n)
        fall = paired_difference(lost, won, samples, confidence)
        return Interval(value=fall.value / base, low=fall.low / base, high=fall.high / base)

    exact = at(n)
    if result.metric == "accuracy":
        return replace(result, drop=exact, interval_at=at)
    drop = result.drop
    return replace(
        result,
        drop=Interval(value=drop.value, low=min(drop.low, exact.low), high=max(drop.high, exact.high)),
    )
