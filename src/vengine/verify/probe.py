"""Class labels for a model that gives vectors: what would a linear head on top lose?

Two halves, drawn by class: a logistic regression fitted on the ORIGINAL's vectors of one half
judges the other half, and the reverse, so that every sample is judged once by a head that never
saw it. Both models go through the same two heads, as they would through a head that a user
trained before optimising.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vengine.verify.statistics import Floats

Array = NDArray[Any]
LEAST_SAMPLES = 20


@dataclass(frozen=True, kw_only=True)
class Probe:
    """Two fitted heads. `rows` are the samples that they judge, `truth` the classes of these."""

    classes: tuple[str, ...]
    rows: NDArray[np.intp]
    truth: NDArray[np.intp]
    half: NDArray[np.intp]  # 0 or 1 for each of `rows`: judged by the head of the other half
    heads: tuple[Any, Any]
    scale: float
    left_out: int  # samples of classes with a single sample, or without a label

    def predict(self, vectors: Array) -> NDArray[np.intp]:
        """Class numbers for `rows`, from vectors [all samples, width]."""
        chosen = vectors[self.rows].astype(np.float64) * self.scale
        answer = np.empty(len(self.rows), dtype=np.intp)
        for half, head in enumerate(self.heads):
            answer[self.half == half] = head.predict(chosen[self.half == half])
        return answer

    def probabilities(self, vectors: Array) -> Floats:
        """[rows, classes] as the heads see them."""
        chosen = vectors[self.rows].astype(np.float64) * self.scale
        likely = np.empty((len(self.rows), len(self.classes)))
        for half, head in enumerate(self.heads):  # every class stands in both halves, so the columns are the classes
            likely[self.half == half] = head.predict_proba(chosen[self.half == half])
        return likely


def split_by_class(truth: Array, seed: int) -> NDArray[np.intp]:
    """0 or 1 for each sample: halves that hold each class in equal parts, within one sample.

    Classes with at least two samples stand in both halves.
    """
    random = np.random.default_rng(seed)
    half = np.empty(len(truth), dtype=np.intp)
    next_half = 0
    for label in np.unique(truth):
        members = random.permutation(np.flatnonzero(truth == label))
        half[members] = (np.arange(len(members)) + next_half) % 2
        next_half = (next_half + len(members)) % 2
    return half


def unfit(labels: Sequence[str | None]) -> str:
    """Why these labels can't train two heads; "" where they can."""
    counts: dict[str, int] = {}
    for label in labels:
        if label is not None:
            counts[label] = counts.get(label, 0) + 1
    usable = [c for c in counts.values() if c >= 2]
    if len(usable) < 2:
        return f"only {len(usable)} of {len(counts)} classes have two samples or more"
    if sum(usable) < LEAST_SAMPLES:
        return f"only {sum(usable)} samples belong to a class of two or more; {LEAST_SAMPLES} are the least"
    if 2 * sum(usable) < len(labels):
        return f"{len(labels) - sum(usable)} of {len(labels)} samples have no label or are alone in their class"
    return ""


def fit_probe(vectors: Array, labels: Sequence[str | None], seed: int) -> Probe:
    """Fit the two heads on the original's vectors [samples, width]; `unfit(labels)` is "".

    Vectors are scaled to a mean square of one per element, so that the regression's penalty means
    the same for normalised and other embeddings.
    """
    counts: dict[str, int] = {}
    for label in labels:
        if label is not None:
            counts[label] = counts.get(label, 0) + 1
    classes = tuple(sorted(c for c, n in counts.items() if n >= 2))
    number = {c: i for i, c in enumerate(classes)}
    rows = np.array([i for i, label in enumerate(labels) if label in number], dtype=np.intp)
    truth = np.array([number[labels[i] or ""] for i in rows], dtype=np.intp)
    half = split_by_class(truth, seed)
    chosen: Floats = vectors[rows].astype(np.float64)
    square = float(np.mean(chosen**2))
    scale = 1 / math.sqrt(square) if square > 0 else 1.0
    heads = tuple(_fit(chosen[half != h] * scale, truth[half != h]) for h in (0, 1))
    return Probe(
        classes=classes,
        rows=rows,
        truth=truth,
        half=half,
        heads=(heads[0], heads[1]),
        scale=scale,
        left_out=len(labels) - len(rows),
    )


def _fit(vectors: Floats, truth: Array) -> Any:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # an unfinished head judges both models alike
        return LogisticRegression(C=1.0, max_iter=300, tol=1e-3).fit(vectors, truth)
