"""How far the answers move where nobody labelled anything, and what that implies.

Vectors and tensors: the loss of a sample is 1 − cosine, and the mean loss is held against the
budget. Classes: the share of samples (or tokens) whose class changes, with its exact bound.
Scores: 1 − Lin's concordance, which a scaled or shifted score lowers too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from vengine.types import Budget, Interval, Sample
from vengine.verify import changes
from vengine.verify.arrange import PAIR, Array, Output, excerpt
from vengine.verify.metrics import concordance, concordance_weighted
from vengine.verify.outcome import Measured, percent
from vengine.verify.soundness import Movement, cosine_pairs, strangers
from vengine.verify.statistics import Floats, bootstrap, bootstrap_mean, clopper_pearson

_PAIRS = 20_000
_MOST_VALUES = 1 << 27  # of wide outputs fewer pairs are drawn: some seconds of arithmetic


def directions(
    moves: Sequence[Movement],
    original: Mapping[str, Output],
    optimized: Mapping[str, Output],
    samples: Sequence[Sample],
    budget: Budget,
    seed: int,
) -> Measured:
    """Mean cosine between original and optimised outputs; a sample counts by its worst output."""
    cosine = np.min([m.cosine for m in moves], axis=0)
    worst = int(np.argmin(cosine))
    return Measured(
        metric="cosine",
        original=None,
        optimized=float(cosine.mean()),
        drop=bootstrap_mean(1 - cosine, confidence=budget.confidence, seed=seed),
        samples=len(cosine),
        worst=float(cosine[worst]),
        worst_sample=worst,
        changes=changes.of_vectors(samples, cosine),
        implies=_similarity_words(moves[0].name, original, optimized, seed),
    )


def _similarity_words(name: str, original: Mapping[str, Output], optimized: Mapping[str, Output], seed: int) -> str:
    change = similarity_change(name, original, optimized, seed)
    if change is None:
        return ""
    return (
        f"the similarity of two of these samples moves by {change[0]:.2g} (median), and by at most "
        f"{change[1]:.2g} in 95 of 100 pairs"
    )


def similarity_change(
    name: str, original: Mapping[str, Output], optimized: Mapping[str, Output], seed: int
) -> tuple[float, float] | None:
    """By how much the cosine of two different samples moves: median and 95th percentile of random pairs.

    Returns:
        None where rows have no common width, or there is one sample only.
    """
    rows: list[Floats] = []
    for outputs in (original, optimized):
        parts = [outputs[n] for n in (name.removesuffix(PAIR), name.removesuffix(PAIR) + PAIR) if n in outputs]
        if any(isinstance(p, list) for p in parts) or len(parts[0]) < 2:
            return None
        rows.append(np.concatenate([np.reshape(p, (len(p), -1)) for p in parts]).astype(np.float64))
    pairs = strangers(len(rows[0]), min(_PAIRS, _MOST_VALUES // max(1, rows[0].shape[1])), seed)
    before, after = (cosine_pairs(r, pairs) for r in rows)
    middle, high = np.quantile(np.abs(after - before), (0.5, 0.95))
    return float(middle), float(high)


def classes(
    original: Array, optimized: Array, names: Sequence[str], samples: Sequence[Sample], budget: Budget
) -> Measured:
    """Share of samples that keep their class, from logits [samples, classes]."""
    before, after = decisions(original), decisions(optimized)
    changed = int(np.sum(before != after))
    interval = change_interval(changed, len(before), budget.confidence)
    move = probability_move(original, optimized)
    worst = int(np.argmax(move))
    words = [class_name(names, i) for i in before], [class_name(names, i) for i in after]
    return Measured(
        metric="argmax agreement",
        original=None,
        optimized=1 - interval.value,
        drop=interval,
        samples=len(before),
        interval_at=rate_at(changed / len(before), budget.confidence),
        worst=float(move[worst]),
        worst_sample=worst,
        flipped=flips(samples, *words),
        changed=changed,
        changes=changes.of_classes(samples, *words, changes.margins(probabilities(original), before, after)),
        implies=change_words(interval, budget.confidence),
    )


def token_classes(
    original: Output, optimized: Output, names: Sequence[str], samples: Sequence[Sample], budget: Budget, seed: int
) -> Measured:
    """Share of tokens that keep their class, from logits [tokens, classes] of each sample.

    Tokens of one text move together, so the interval is the wider of a bootstrap over texts and
    the exact one over tokens (the bootstrap alone has no width where nothing changed).
    """
    counts = np.array([_token_changes(a, b) for a, b in zip(original, optimized, strict=True)], dtype=np.float64)
    changed, tokens = counts[:, 0], counts[:, 1]
    total = int(tokens.sum())
    exact = change_interval(int(changed.sum()), total, budget.confidence)
    by_text = bootstrap(
        exact.value,
        lambda w: np.asarray((w @ changed) / np.maximum(w @ tokens, 1)),
        len(counts),
        confidence=budget.confidence,
        seed=seed,
    )
    interval = Interval(value=exact.value, low=min(exact.low, by_text.low), high=max(exact.high, by_text.high))
    shares = changed / np.maximum(tokens, 1)
    worst = int(np.argmax(shares))
    return Measured(
        metric="argmax agreement",
        original=None,
        optimized=1 - interval.value,
        drop=interval,
        samples=len(counts),
        worst=float(shares[worst]),
        worst_sample=worst,
        flipped=tuple(excerpt(samples[i]) for i in np.flatnonzero(changed).tolist()),
        changed=int(np.sum(changed > 0)),
        changes=changes.of_tokens(samples, changed, tokens),
        implies=change_words(interval, budget.confidence),
        note=f"Counted over {total} tokens of {len(counts)} samples",
    )


def _token_changes(original: Array, optimized: Array) -> tuple[int, int]:
    return int(np.sum(decisions(original) != decisions(optimized))), int(np.prod(original.shape[:-1]))


def decisions(logits: Array) -> NDArray[np.intp]:
    """Class numbers from logits [..., classes]. A single logit says yes (1) above zero, else no (0)."""
    return np.asarray(logits[..., 0] > 0 if logits.shape[-1] == 1 else logits.argmax(axis=-1), dtype=np.intp)


def scores(original: Array, optimized: Array, samples: Sequence[Sample], budget: Budget, seed: int) -> Measured:
    """Concordance of the scores [samples] that the two models give."""
    weighted = concordance_weighted(optimized, original)
    value = concordance(optimized, original)
    interval = bootstrap(1 - value, lambda w: 1 - weighted(w), len(original), confidence=budget.confidence, seed=seed)
    move = np.abs(optimized - original)
    worst = int(np.argmax(move))
    middle, high = np.quantile(move, (0.5, 0.95))
    return Measured(
        metric="concordance",
        original=None,
        optimized=value,
        drop=interval,
        samples=len(original),
        worst=float(move[worst]),
        worst_sample=worst,
        changes=changes.of_scores(samples, original, optimized),
        implies=f"a score moves by {middle:.2g} (median), and by at most {high:.2g} in 95 of 100 samples; the "
        f"original's scores spread over {float(original.std()):.2g} (standard deviation)",
    )


def equal_values(original: Mapping[str, Output], optimized: Mapping[str, Output], budget: Budget) -> Measured:
    """Share of samples whose outputs are equal, for outputs that aren't floating point numbers."""
    pairs = [zip(original[name], optimized[name], strict=True) for name in original]
    equal = np.array([[np.array_equal(a, b) for a, b in rows] for rows in pairs], dtype=np.float64)
    same = equal.min(axis=0)
    changed = int(np.sum(same < 1))
    interval = change_interval(changed, len(same), budget.confidence)
    return Measured(
        metric="equal outputs",
        original=None,
        optimized=1 - interval.value,
        drop=interval,
        samples=len(same),
        interval_at=rate_at(changed / len(same), budget.confidence),
        worst=float(same.min()),
        worst_sample=int(np.argmin(same)),
        implies=change_words(interval, budget.confidence),
    )


def change_interval(changed: int, trials: int, confidence: float) -> Interval:
    """The share that changed, with its exact interval."""
    low, high = clopper_pearson(changed, trials, confidence)
    return Interval(value=changed / trials, low=low, high=high)


def rate_at(rate: float, confidence: float) -> Callable[[int], Interval]:
    """Sample size → the interval that the same share of changes would give at that size."""
    return lambda samples: change_interval(round(rate * samples), samples, confidence)


def change_words(interval: Interval, confidence: float) -> str:
    """What a share of changed answers says about an accuracy that nobody measured."""
    return (
        f"{percent(interval.value)} of the answers change; on more texts like these at most {percent(interval.high)} "
        f"would ({confidence:.0%} confidence), so accuracy can fall by at most {100 * interval.high:.2f} points"
    )


def probability_move(original: Array, optimized: Array) -> Floats:
    """Largest change of any class probability, sample by sample, from logits [samples, classes]."""
    return np.asarray(np.abs(probabilities(optimized) - probabilities(original)).max(axis=1))


def probabilities(logits: Array) -> Floats:
    """[samples, classes] of logits [samples, classes]; of a single logit, no and yes."""
    if logits.shape[1] == 1:
        logits = np.concatenate([np.zeros_like(logits), logits], axis=1)  # a sigmoid
    powers = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def class_name(names: Sequence[str], number: int) -> str:
    """A class for people."""
    return names[number] if number < len(names) else f"class {number}"


def flips(samples: Sequence[Sample], before: Sequence[str], after: Sequence[str]) -> tuple[str, ...]:
    """The changed answers for the report: "the text's start: class → other class"."""
    rows = zip(samples, before, after, strict=True)
    return tuple(f"{excerpt(s, 60)}: {a} → {b}" for s, a, b in rows if a != b)
