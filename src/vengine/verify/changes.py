"""Which samples answer differently now, worst first: the rows that a person looks at before trusting a number."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vengine.types import Change, Sample
from vengine.verify.arrange import Array, excerpt
from vengine.verify.statistics import Floats

MOST_CHANGES = 20
MOST_MOVED = 5
_STILL = 1e-6  # cosines and scores (in units of their spread) that move less have not moved


def of_classes(
    samples: Sequence[Sample], before: Sequence[str], after: Sequence[str], margins: Sequence[float] | Floats
) -> tuple[Change, ...]:
    """Samples whose class changed, those first of which the original was surest.

    Args:
        before, after: the answers in words.
        margins: the original's probability for its answer, less that for the new one.
    """
    changed = [i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
    changed.sort(key=lambda i: -margins[i])
    return tuple(
        Change(
            text=excerpt(samples[i]),
            label=label_words(samples[i]),
            original=before[i],
            optimized=after[i],
            margin=float(margins[i]),
        )
        for i in changed[:MOST_CHANGES]
    )


def label_words(sample: Sample) -> str | None:
    """The user's label in words."""
    if sample.labels is not None:
        return set_words(sample.labels)
    return sample.label


def set_words(names: Sequence[str]) -> str:
    """Several classes in words."""
    return ", ".join(names) or "none"


def margins(likely: Floats, before: Array, after: Array) -> Floats:
    """[samples] by how much the original preferred its class, from its probabilities [samples, classes]."""
    rows = np.arange(len(likely))
    return np.asarray(likely[rows, before] - likely[rows, after])


def of_vectors(samples: Sequence[Sample], cosine: Floats) -> tuple[Change, ...]:
    """The samples whose vectors turned furthest."""
    return tuple(
        Change(text=excerpt(samples[i]), label=label_words(samples[i]), distance=float(1 - cosine[i]))
        for i in _furthest(1 - cosine, 1.0)
    )


def of_scores(samples: Sequence[Sample], before: Floats, after: Floats) -> tuple[Change, ...]:
    """The samples whose scores moved furthest."""
    move = np.abs(after - before)
    return tuple(
        Change(
            text=excerpt(samples[i]),
            label=label_words(samples[i]) if samples[i].score is None else f"{samples[i].score:.4g}",
            original=f"{before[i]:.4g}",
            optimized=f"{after[i]:.4g}",
            distance=float(move[i]),
        )
        for i in _furthest(move, float(before.std()))
    )


def of_tokens(samples: Sequence[Sample], changed: Floats, tokens: Floats) -> tuple[Change, ...]:
    """The samples with the largest share of tokens whose class changed."""
    shares = changed / np.maximum(tokens, 1)
    order = [int(i) for i in np.argsort(-shares, kind="stable") if changed[i] > 0]
    return tuple(
        Change(
            text=excerpt(samples[i]), optimized=f"{changed[i]:.0f} of {tokens[i]:.0f} tokens", distance=float(shares[i])
        )
        for i in order[:MOST_CHANGES]
    )


def _furthest(distance: Floats, unit: float) -> list[int]:
    order = np.argsort(-distance, kind="stable")[:MOST_MOVED]
    return [int(i) for i in order if distance[i] > _STILL * unit]
