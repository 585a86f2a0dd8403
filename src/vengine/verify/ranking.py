"""How well passages are ordered for a query: normalised discounted cumulative gain, query by query.

As scikit-learn's `ndcg_score` has it (Järvelin and Kekäläinen, ACM TOIS 20, 2002): the gain is the relevance itself,
discounted by log₂(1 + rank); passages of equal score share the mean of their places' discounts (McSherry and Najork,
ECIR 2008). Queries of which nothing is relevant, or everything equally so, tell nothing and are left out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from vengine.errors import DataError, UsageError
from vengine.types import Sample
from vengine.verify.metrics import Metric
from vengine.verify.statistics import Floats

DEFAULT = "ndcg@10"
_NAME = re.compile(r"ndcg(?:@(\d+))?")


def depth_of(name: str | None) -> int | None:
    """Places that count of a metric's name, 0 for all: "ndcg@10" → 10; None where it is no such name.

    Raises:
        UsageError: no place counts.
    """
    found = _NAME.fullmatch((name or "").lower())
    if found is None:
        return None
    if found[1] is not None and int(found[1]) == 0:
        raise UsageError("ndcg@0 looks at no passage", next_step="name a depth, as ndcg@10")
    return int(found[1] or 0)


def groups_of(samples: Sequence[Sample], rows: Sequence[int]) -> list[NDArray[np.intp]]:
    """Places within `rows` of each query's passages, of queries that can be ordered rightly or wrongly.

    Raises:
        DataError: a relevance is below zero.
    """
    found: dict[str, list[int]] = {}
    for place, i in enumerate(rows):
        sample = samples[i]
        found.setdefault(sample.text if sample.group is None else sample.group, []).append(place)
        score = sample.score
        if score is not None and score < 0:
            raise DataError(
                f"a relevance is {score:g}",
                where=f"sample {i + 1}",
                next_step="give 0 for no relevance, and more for more",
            )
    scores = {key: {samples[rows[p]].score for p in places} for key, places in found.items()}
    return [np.array(places, dtype=np.intp) for key, places in found.items() if len(scores[key]) > 1]


def ndcg(predicted: Floats, relevance: Floats, depth: int = 0) -> float:
    """Of one query.

    Args:
        predicted: [passages] scores by which they are ordered, the highest first.
        relevance: [passages] ≥ 0, one of them above.
        depth: places that count; 0 takes all.
    """
    discount = 1 / np.log2(np.arange(len(relevance)) + 2.0)
    discount[depth or len(discount) :] = 0
    best = float(np.sort(relevance)[::-1] @ discount)
    _, tied, sizes = np.unique(-predicted, return_inverse=True, return_counts=True)
    gains = np.zeros(len(sizes))
    np.add.at(gains, tied, relevance)
    places = np.concatenate([[0.0], np.cumsum(discount)])
    ends = np.cumsum(sizes)
    return float((gains / sizes) @ (places[ends] - places[ends - sizes])) / best


def by_query(predicted: Floats, relevance: Floats, groups: Sequence[NDArray[np.intp]], depth: int) -> Floats:
    """[queries] of scores and relevances [passages]."""
    return np.array([ndcg(predicted[places], relevance[places], depth) for places in groups])


def metric(name: str) -> Metric:
    """The mean over queries: a metric whose answers are the queries' own values, so that queries are resampled."""
    return Metric(
        name=name,
        direction="higher",
        needs="score",
        fn=lambda values, _: float(values.mean()),
        weighted=lambda values, _: lambda w: np.asarray(w @ values / w.sum(axis=1)),
    )
