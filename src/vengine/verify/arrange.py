"""From samples to the texts to run, and from outputs back to the samples' order.

A model that gives vectors (tasks `embedding` and `features`) reads the two texts of a pair one by
one; every other task reads them together. Equal texts run once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vengine.errors import DataError
from vengine.types import Sample, Task

Array = NDArray[Any]
Text = str | tuple[str, str]
Output = Array | list[Array]

PAIR = ":pair"  # suffix of the name of an output that belongs to the samples' second texts
VECTOR_TASKS: tuple[Task, ...] = ("embedding", "features")


@dataclass(frozen=True, kw_only=True)
class Index:
    """Where each sample's text (and its pair's) stands in the list of texts that was run."""

    first: tuple[int, ...]
    second: tuple[int, ...] = ()


def texts_of(samples: Sequence[Sample], task: Task) -> tuple[list[Text], Index]:
    """The texts to run for these samples, each once, and where they belong.

    Returns:
        Texts in order of appearance: strings, or (text, pair) for tasks that read a pair together.

    Raises:
        DataError: some samples are pairs and others aren't, where each text is run on its own.
    """
    if task not in VECTOR_TASKS:
        joint: list[Text] = [s.text if s.pair is None else (s.text, s.pair) for s in samples]
        place: dict[Text, int] = {}
        first = tuple(place.setdefault(t, len(place)) for t in joint)
        return list(place), Index(first=first)
    pairs = [s.pair for s in samples if s.pair is not None]
    if pairs and len(pairs) < len(samples):
        alone = next(i for i, s in enumerate(samples) if s.pair is None)
        raise DataError(
            "some samples are pairs of texts and others are not",
            where=f"sample {alone + 1} has no second text",
            next_step="give every sample a pair, or none",
        )
    place = {}
    first = tuple(place.setdefault(s.text, len(place)) for s in samples)
    second = tuple(place.setdefault(p, len(place)) for p in pairs)
    return list(place), Index(first=first, second=second)


def arrange(outputs: Mapping[str, Output], index: Index) -> dict[str, Output]:
    """Outputs of the texts that `texts_of` listed → outputs in the samples' order.

    Returns:
        For each output its rows for the samples' texts and, for pairs run one by one, the rows of
        the second texts under the same name with `:pair` behind it.
    """
    arranged: dict[str, Output] = {}
    for name, rows in outputs.items():
        arranged[name] = _take(rows, index.first)
        if index.second:
            arranged[name + PAIR] = _take(rows, index.second)
    return arranged


def _take(rows: Output, places: Sequence[int]) -> Output:
    if isinstance(rows, list):
        return [rows[i] for i in places]
    return rows[np.asarray(places, dtype=np.intp)]


def stacked(outputs: Mapping[str, Output]) -> dict[str, Output]:
    """The same outputs, with lists of equal shapes made into one array."""
    return {name: _stack(rows) for name, rows in outputs.items()}


def _stack(rows: Output) -> Output:
    if isinstance(rows, list) and len({np.shape(row) for row in rows}) == 1:
        return np.stack(rows)
    return rows


def excerpt(sample: Sample, width: int = 80) -> str:
    """The start of a sample, for a report."""
    text = sample.text if sample.pair is None else f"{sample.text} | {sample.pair}"
    if not text and sample.tensors:
        text = ", ".join(f"{name} {getattr(value, 'shape', value)}" for name, value in sample.tensors.items())
    text = " ".join(text.split())
    return text if len(text) <= width else text[: width - 1] + "…"
