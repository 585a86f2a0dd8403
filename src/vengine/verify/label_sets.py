"""Several labels a text: each logit stands for itself, and the answer is the set of those above zero."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from vengine.types import Budget, Sample
from vengine.verify import changes
from vengine.verify.agreement import change_interval, change_words, class_name, rate_at
from vengine.verify.arrange import Array, excerpt
from vengine.verify.labels import label_indices
from vengine.verify.outcome import Measured
from vengine.verify.statistics import Floats

Sets = NDArray[np.bool_]  # [samples, classes]


def true_sets(samples: Sequence[Sample], classes: Sequence[str], width: int) -> Sets:
    """The sets that the user's labels name; a single label is a set of one.

    Raises:
        DataError: a label is no class of the model.
    """
    found = np.zeros((len(samples), width), dtype=bool)
    each = [(i, Sample(text=s.text, pair=s.pair, label=name)) for i, s in enumerate(samples) for name in _names(s)]
    if each:
        rows = [i for i, _ in each]
        found[rows, label_indices([one for _, one in each], classes, width, rows)] = True
    return found


def _names(sample: Sample) -> tuple[str, ...]:
    if sample.labels is not None:
        return sample.labels
    return () if sample.label is None else (sample.label,)


def answered_sets(logits: Array) -> Sets:
    """The sets that a model answers, from logits [samples, classes]."""
    return np.asarray(logits > 0)


def set_codes(*sets: Sets) -> list[NDArray[np.intp]]:
    """A number for each set, equal for equal sets: what accuracy compares."""
    codes = np.unique(np.concatenate(sets), axis=0, return_inverse=True)[1].ravel()
    return list(np.split(codes, np.cumsum([len(s) for s in sets])[:-1]))


def losses_and_gains(before: Sets, after: Sets, truth: Sets, *, whole: bool) -> tuple[int, int]:
    """In how many samples fewer classes are right than before, and in how many more; `whole` sets only, or each."""
    if whole:
        right, still = ((one == truth).all(axis=1) for one in (before, after))
        return int(np.sum(right & ~still)), int(np.sum(~right & still))
    moved = np.sum(after == truth, axis=1) - np.sum(before == truth, axis=1)
    return int(np.sum(moved < 0)), int(np.sum(moved > 0))


@dataclass(frozen=True, kw_only=True)
class Flips:
    """What changed between two models' sets of some samples."""

    samples: Sequence[Sample]
    rows: Sequence[int]  # their places among all samples
    before: Array  # logits [samples, classes]
    after: Array
    names: Sequence[str]

    @property
    def moved(self) -> NDArray[np.bool_]:
        """[samples] whether the set changed."""
        return np.asarray((answered_sets(self.before) != answered_sets(self.after)).any(axis=1))

    def told(self, result: Measured) -> Measured:
        """The result with the changed answers, surest first, and the largest change of a class's probability."""
        words = self._words(self.before), self._words(self.after)
        rows = zip(self.samples, *words, strict=True)
        likely = _sigmoid(self.before)
        crossed = answered_sets(self.before) != answered_sets(self.after)
        move = np.abs(_sigmoid(self.after) - likely).max(axis=1)
        # Of the classes that crossed the line: how far from it the original was, as yes less no.
        margins = np.where(crossed, np.abs(2 * likely - 1), 0).max(axis=1)
        return replace(
            result,
            worst=float(move.max()),
            worst_sample=self.rows[int(np.argmax(move))],
            flipped=tuple(f"{excerpt(s, 60)}: {a} → {b}" for s, a, b in rows if a != b),
            changed=int(self.moved.sum()),
            changes=changes.of_classes(self.samples, *words, margins),
        )

    def _words(self, logits: Array) -> list[str]:
        return [
            changes.set_words([class_name(self.names, i) for i in np.flatnonzero(row).tolist()])
            for row in answered_sets(logits)
        ]


def _sigmoid(logits: Array) -> Floats:
    return np.asarray(0.5 * (1 + np.tanh(0.5 * logits.astype(np.float64))))


def agreement(flips: Flips, budget: Budget) -> Measured:
    """Share of samples that keep their whole set, where nobody labelled anything."""
    changed, samples = int(flips.moved.sum()), len(flips.samples)
    interval = change_interval(changed, samples, budget.confidence)
    return flips.told(
        Measured(
            metric="label set agreement",
            original=None,
            optimized=1 - interval.value,
            drop=interval,
            samples=samples,
            interval_at=rate_at(changed / samples, budget.confidence),
            implies=change_words(interval, budget.confidence),
        )
    )
