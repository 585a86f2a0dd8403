"""One sample that gets another answer altogether, where the answer is a class or a number and not a direction.

One garbled text in 500 costs 0.2 % of an accuracy, which a budget of 1 % allows. But no rounding does that: what a
coarser precision does to one sample it does, more or less, to all. So a sample is a stray when its answer moved by much
of what tells answers apart at all, by many times what the others moved, and, of a classifier, when both models are sure
of what they say: an answer that flips by a hair is a loss for the metric to count.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vengine.types import Change, Sample, Task
from vengine.verify.agreement import class_name, decisions
from vengine.verify.arrange import Array, Output, excerpt
from vengine.verify.changes import MOST_CHANGES, label_words
from vengine.verify.soundness import Fault
from vengine.verify.statistics import Floats

# Half of the spread of all answers. Sound int8 variants of the planted models reach 0.07.
_FAR = 0.5
# Times the median move. Errors of quantisation spread like a lognormal with σ below 0.7: of 3,000 of them the largest
# is some 11 medians. Sound int8 variants of the planted models reach 3.1.
_APART = 12.0
# The margin, of either model for its own answer over the other's, in units of the spread.
_SURE = 0.25


def stray_fault(
    task: Task,
    original: Output,
    optimized: Output,
    samples: Sequence[Sample],
    labels: Sequence[str] = (),
    *,
    sets: bool = False,
) -> Fault | None:
    """The samples whose answer moved far and alone.

    Args:
        task: "classification", "token-classification" or "scoring"; of a classifier only a changed answer counts.
        original, optimized: logits [samples, classes], or for each sample [tokens, classes].
        labels: class names, for the words.
        sets: a sample has several classes, those whose logit is above zero.
    """
    before, after = ([_rows(row) for row in output] for output in (original, optimized))
    moved = np.array([_distance(a, b) for a, b in zip(before, after, strict=True)])
    spread = _spread(before)
    far = (moved > _FAR * spread) & (moved > _APART * np.median(moved))
    if task != "scoring":
        sure = _SURE * spread
        far &= np.array([bool((_margin(a, b, sets) > sure).mean() >= 0.5) for a, b in zip(before, after, strict=True)])
    if not far.any():
        return None
    order = [int(i) for i in np.argsort(-moved) if far[i]]
    worst = order[0]
    words = [_change(samples[i], before[i], after[i], float(moved[i]), labels, sets) for i in order[:MOST_CHANGES]]
    reason = (
        f"{len(order)} of {len(samples)} samples get another answer altogether: that of {excerpt(samples[worst])!r} "
        f"moved by {moved[worst] / max(spread, 1e-30):.2g} of all answers' spread, where half of the samples move by "
        f"{np.median(moved) / max(spread, 1e-30):.1g} at most; no rounding does that"
    )
    return Fault(check="wrong sample", reason=reason, sample=worst, value=float(moved[worst]), changes=tuple(words))


def _rows(row: Array) -> Floats:
    """[tokens, classes]; a sample without tokens has one row."""
    array = np.asarray(row, dtype=np.float64)
    return array.reshape(-1, array.shape[-1]) if array.ndim else array.reshape(1, 1)


def _distance(before: Floats, after: Floats) -> float:
    """Root mean square over the tokens of the distance between two rows of logits."""
    return float(np.sqrt(np.mean(np.sum((after - before) ** 2, axis=-1))))


def _spread(rows: Sequence[Floats]) -> float:
    """Root mean square distance of the answers from their mean."""
    together = np.concatenate(rows)
    return float(np.sqrt(np.mean(np.sum((together - together.mean(axis=0)) ** 2, axis=-1))))


def _margin(before: Floats, after: Floats, sets: bool) -> Floats:
    """[tokens] how sure the less sure of two models is of its own answer against the other's; 0 where they agree."""
    if sets or before.shape[1] == 1:  # each logit says yes or no for itself
        crossed = (before > 0) != (after > 0)
        return np.asarray(np.where(crossed, np.minimum(np.abs(before), np.abs(after)), 0).max(axis=1))
    rows, old, new = np.arange(len(before)), decisions(before), decisions(after)
    return np.asarray(np.minimum(before[rows, old] - before[rows, new], after[rows, new] - after[rows, old]))


def _change(sample: Sample, before: Floats, after: Floats, moved: float, labels: Sequence[str], sets: bool) -> Change:
    label = label_words(sample)
    return Change(
        text=excerpt(sample),
        label=label if label is not None or sample.score is None else f"{sample.score:.4g}",
        original=_answer(before, labels, sets),
        optimized=_answer(after, labels, sets),
        distance=moved,
    )


def _answer(rows: Floats, labels: Sequence[str], sets: bool) -> str:
    """An answer in words: numbers where there are no classes to name."""
    if len(rows) > 1:
        return f"{len(rows)} tokens"
    if rows.shape[1] == 1:
        return f"{rows[0, 0]:.4g}"
    if sets:
        return ", ".join(class_name(labels, i) for i in np.flatnonzero(rows[0] > 0).tolist()) or "none"
    return class_name(labels, int(decisions(rows)[0]))
