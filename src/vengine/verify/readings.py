"""What outputs say: the vector of a text, the row of a matrix, the one number of a scoring model."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from vengine.errors import DataError
from vengine.types import Sample, Task
from vengine.verify.arrange import PAIR, Array, Output


def score_of(sample: Sample, task: Task) -> float | None:
    """The number to correlate with; a numeric label of a scoring task counts as one."""
    if sample.score is not None:
        return float(sample.score)
    if task != "scoring" or sample.label is None:
        return None
    try:
        return float(sample.label)
    except ValueError:
        return None


def vectors(outputs: Mapping[str, Output], suffix: str = "") -> Array:
    """[samples, width] vectors: the embedding, or a bare encoder's pooled or mean hidden state."""
    for name in ("sentence_embedding", "pooler_output"):
        rows = outputs.get(name + suffix)
        if isinstance(rows, np.ndarray):
            return matrix(rows)
    names = [n for n in outputs if n.endswith(PAIR) == bool(suffix)]
    rows = outputs[next((n for n in names if n.startswith("last_hidden_state")), names[0])]
    return np.stack([np.asarray(r, dtype=np.float64).reshape(-1, np.shape(r)[-1]).mean(axis=0) for r in rows])


def matrix(rows: Output) -> Array:
    """[samples, everything else]."""
    array = np.asarray(rows, dtype=np.float64)
    return array.reshape(len(array), -1)


def scores(rows: Output) -> Array:
    """[samples] scores: the only logit, or yes minus no where there are two."""
    table = matrix(rows)
    if table.shape[1] == 1:
        return np.asarray(table[:, 0])
    if table.shape[1] == 2:
        return np.asarray(table[:, 1] - table[:, 0])
    raise DataError(
        f"a scoring model gives one or two numbers a sample, this one gives {table.shape[1]}",
        next_step="use --task classification",
    )
