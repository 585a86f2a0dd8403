"""Which samples the quantiser sees: every label and every range of lengths, and within these the most different ones.

Stratified, then farthest-point: samples are divided by label and by quarter of the lengths; the strata take turns, and
each gives the sample whose answer of the original lies farthest from those chosen so far (Gonzalez, Clustering to
minimize the maximum intercluster distance, 1985). A range that no calibration sample reached is cut off by static
quantisation, so what the choice could not cover is told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from vengine.tune.prepare import Feeds, Prepared
from vengine.verify.arrange import PAIR, Output

_QUARTERS = 4
_MOST_NAMED = 5
_WIDEST = 2048  # numbers of an answer by which samples are told apart; wider ones are thinned


def choose(
    lengths: Sequence[int],
    labels: Sequence[str | None],
    vectors: npt.NDArray[np.floating] | None,
    count: int,
) -> list[int]:
    """Places of up to `count` samples, in the order chosen.

    Args:
        lengths: of each sample, in tokens.
        labels: of each sample; None where there is none.
        vectors: [samples, width] the original's outputs; None: samples of a stratum are spread over their lengths.
    """
    if len(lengths) <= count:
        return list(range(len(lengths)))
    strata = _strata(lengths, labels)
    nearest = np.full(len(lengths), np.inf)  # squared distance to the nearest one chosen
    chosen: list[int] = []
    while len(chosen) < count:
        for members in strata:
            if not members or len(chosen) == count:
                continue
            place = _next(members, nearest, vectors)
            members.remove(place)
            chosen.append(place)
            if vectors is not None:
                nearest = np.minimum(nearest, ((vectors - vectors[place]) ** 2).sum(axis=1))
    return chosen


def uncovered(lengths: Sequence[int], labels: Sequence[str | None], chosen: Sequence[int]) -> tuple[str, ...]:
    """What the chosen samples don't cover, and what the data itself lacks, in sentences."""
    notes = []
    known = {label for label in labels if label is not None}
    missed = sorted(known - {labels[i] for i in chosen})
    if missed:
        named = ", ".join(missed[:_MOST_NAMED]) + (", …" if len(missed) > _MOST_NAMED else "")
        notes.append(f"int8 was calibrated without {len(missed)} of {len(known)} labels: {named}")
    if len(known) == 1 and len(labels) > 1:
        notes.append(f"int8 was calibrated on one class only ({known.pop()}): ranges of other inputs are unknown")
    longest, reached = max(lengths), max(lengths[i] for i in chosen)
    if reached < longest:
        notes.append(f"int8 was calibrated on up to {reached} tokens, and the longest sample has {longest}")
    return tuple(notes)


def _strata(lengths: Sequence[int], labels: Sequence[str | None]) -> list[list[int]]:
    """Places by (quarter of the lengths, label); the longest quarter first, so that a short turn keeps it."""
    edges = np.quantile(lengths, np.arange(1, _QUARTERS) / _QUARTERS)
    found: dict[tuple[int, str], list[int]] = {}
    for place in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        quarter = int(np.searchsorted(edges, lengths[place], side="left"))
        found.setdefault((-quarter, labels[place] or ""), []).append(place)
    return [found[key] for key in sorted(found)]


def _next(members: Sequence[int], nearest: npt.NDArray[np.floating], vectors: npt.NDArray[np.floating] | None) -> int:
    """The first of a stratum is its longest; then the one farthest from all chosen, or the middle of what is left."""
    if vectors is None:
        return members[len(members) // 2] if np.isinf(nearest[members[0]]) and len(members) > 1 else members[0]
    if np.isinf(nearest[members[0]]):
        return members[0]
    return members[int(np.argmax(nearest[list(members)]))]


def calibration(prepared: Prepared, outputs: Mapping[str, Output], count: int) -> tuple[list[Feeds], tuple[str, ...]]:
    """Up to `count` single calls, shortest first, and what they don't cover.

    Args:
        outputs: the original's answers to the samples, by which they are told apart.
    """
    if prepared.tokenizer is None:
        labels = [sample.label for sample in prepared.samples]
        lengths, vectors = [1] * len(labels), _vectors(outputs)
        places = sorted(choose(lengths, labels, vectors, count))
        calls = prepared.tensors()
        return [calls[i] for i in places], uncovered(lengths, labels, places)
    lengths = [encoding.length for encoding in prepared.encodings]
    labels, rows = _of_texts(prepared, outputs)
    places = sorted(choose(lengths, labels, rows, count), key=lambda i: (lengths[i], i))
    return [prepared.call([prepared.encodings[i]]) for i in places], uncovered(lengths, labels, places)


def _of_texts(
    prepared: Prepared, outputs: Mapping[str, Output]
) -> tuple[list[str | None], npt.NDArray[np.floating] | None]:
    """Labels and the original's answers by text: several samples may share one, and pairs have two."""
    assert prepared.index is not None
    labels: list[str | None] = [None] * len(prepared.encodings)
    for place, sample in zip(prepared.index.first, prepared.samples, strict=True):
        labels[place] = labels[place] or sample.label
    first = _vectors({name: rows for name, rows in outputs.items() if not name.endswith(PAIR)})
    if first is None:
        return labels, None
    found = np.zeros((len(prepared.encodings), first.shape[1]), np.float32)
    found[list(prepared.index.first)] = first
    second = _vectors({name: rows for name, rows in outputs.items() if name.endswith(PAIR)})
    if prepared.index.second and second is not None:
        found[list(prepared.index.second)] = second
    return labels, found


def _vectors(outputs: Mapping[str, Output]) -> npt.NDArray[np.floating] | None:
    """[samples, width] of the first output that has one shape for all samples and isn't too wide; rounded, so that
    the choice doesn't hang on the last bits."""
    for rows in outputs.values():
        if isinstance(rows, np.ndarray) and rows.dtype.kind == "f" and rows.ndim > 1:
            flat = rows.reshape(len(rows), -1)
            if flat.shape[1] > _WIDEST:
                flat = flat[:, :: -(-flat.shape[1] // _WIDEST)]
            return np.round(flat.astype(np.float32), 3)
    return None
