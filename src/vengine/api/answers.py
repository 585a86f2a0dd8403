"""From logits to what a person wants to know: the label and its score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vengine.bundle.format import Content

if TYPE_CHECKING:
    import numpy as np


def answers(content: Content, outputs: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One answer a text: `label`, `score` and `scores` (best first) of a classifier, `score` of a scorer,
    `tokens` (label and score of each token) of a token classifier; [] for tasks whose outputs speak for themselves.

    Args:
        content: its `task` and `labels` decide; a class without a name is called by its number.
        outputs: `logits` [texts, classes], or a list of [length, classes].
    """
    logits = outputs.get("logits")
    if logits is None:
        return []
    if content.task == "classification":
        return [_best(row, content.labels) for row in logits]
    if content.task == "scoring":
        return [{"score": float(row.reshape(-1)[0])} for row in logits]
    if content.task == "token-classification":
        return [{"tokens": [_first(token, content.labels) for token in row]} for row in logits]
    return []


def _best(logits: np.ndarray, labels: Sequence[str]) -> dict[str, Any]:
    shares = _softmax(logits)
    order = sorted(range(len(shares)), key=lambda i: (-shares[i], i))
    scores = {_label(labels, i): shares[i] for i in order}
    return {**_first(logits, labels), "scores": scores}


def _first(logits: np.ndarray, labels: Sequence[str]) -> dict[str, Any]:
    shares = _softmax(logits)
    best = max(range(len(shares)), key=lambda i: shares[i])
    return {"label": _label(labels, best), "score": shares[best]}


def _label(labels: Sequence[str], index: int) -> str:
    return labels[index] if index < len(labels) else str(index)


def _softmax(logits: np.ndarray) -> list[float]:
    import numpy as np

    shifted = np.exp(logits.astype(np.float64) - logits.max())
    return [float(share) for share in shifted / shifted.sum()]
