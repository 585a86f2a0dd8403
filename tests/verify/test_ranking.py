"""nDCG is scikit-learn's, queries are what is counted, and a reranker that orders worse is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vengine.errors import DataError, UsageError
from vengine.types import Budget, Sample
from vengine.verify.compare import Judge, verdict
from vengine.verify.ranking import depth_of, ndcg
from vengine.workload import read_workload

QUERIES, PASSAGES = 200, 12
RANDOM = np.random.default_rng(11)
RELEVANCE = RANDOM.choice([0, 0, 0, 1, 2], (QUERIES, PASSAGES)).astype(float)
RELEVANCE[:, 0] = 2
SCORES = (RELEVANCE + RANDOM.normal(0, 0.7, RELEVANCE.shape)).reshape(-1, 1)
SAMPLES = tuple(
    Sample(text=f"query {q}", pair=f"passage {p}", score=RELEVANCE[q, p], group=str(q))
    for q in range(QUERIES)
    for p in range(PASSAGES)
)
LEVELS = st.lists(st.tuples(st.integers(0, 3), st.integers(-4, 4)), min_size=2, max_size=12)


@given(LEVELS, st.integers(0, 12))
def test_it_is_scikit_learns(pairs: list[tuple[int, int]], depth: int) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    relevance, scores = (np.array(column, dtype=np.float64) for column in zip(*pairs, strict=True))
    if not relevance.any():
        return
    theirs = metrics.ndcg_score(relevance[None], scores[None], k=depth or None)
    assert ndcg(scores, relevance, depth) == pytest.approx(theirs, abs=1e-12)


def judged(after: np.ndarray, samples: Any = SAMPLES, **budget: Any) -> Any:
    return verdict("scoring", {"logits": SCORES}, {"logits": after}, samples, Budget(**budget))


@pytest.mark.parametrize(
    ("after", "outcome"),
    [
        (SCORES, "pass"),
        (SCORES + 0.01 * RANDOM.standard_normal(SCORES.shape), "pass"),
        (SCORES + 0.9 * RANDOM.standard_normal(SCORES.shape), "fail"),
        (SCORES[::-1], "fail"),
        (-SCORES, "fail"),
    ],
)
def test_a_reranker_that_orders_worse_is_refused(after: np.ndarray, outcome: str) -> None:
    found = judged(after)
    assert found.outcome == outcome, found.reason
    if found.metric == "ndcg@10":
        assert found.samples == QUERIES
        assert found.original == pytest.approx(0.9, abs=0.1)


def test_it_is_what_is_asked_for_or_what_groups_want() -> None:
    alone = tuple(Sample(text=s.text, pair=s.pair, score=s.score) for s in SAMPLES)
    assert judged(SCORES).metric == "ndcg@10"
    assert judged(SCORES, metric="ndcg").metric == "ndcg"
    assert judged(SCORES, metric="spearman").metric == "spearman"
    assert judged(SCORES, alone).metric == "spearman"
    assert judged(SCORES, alone, metric="ndcg@3").metric == "ndcg@3"  # a query is known by its text
    assert judged(SCORES, alone, metric="ndcg@3").original != judged(SCORES, alone, metric="ndcg").original


def test_an_embedding_ranks_by_its_cosine() -> None:
    queries, passages = np.eye(8)[[i % 8 for i in range(160)]], RANDOM.standard_normal((160, 8))
    score = (queries * passages).sum(axis=1) / np.linalg.norm(passages, axis=1)
    samples = [
        Sample(text=f"q{i // 8}", pair=f"p{i}", score=float(s > 0), group=str(i // 8)) for i, s in enumerate(score)
    ]
    outputs = {"sentence_embedding": queries, "sentence_embedding:pair": passages}
    judge = Judge("embedding", outputs, samples, Budget())
    assert judge.verdict(outputs).original == pytest.approx(1.0)
    turned = {"sentence_embedding": queries, "sentence_embedding:pair": np.roll(passages, 1, axis=0)}
    assert judge.verdict(turned).outcome == "fail"


@pytest.mark.parametrize(
    ("samples", "says"),
    [
        ([Sample(text="q", pair="p"), Sample(text="q", pair="r")], "several passages"),
        ([Sample(text="q", pair="p", score=1), Sample(text="q", pair="r", score=1)], "several passages"),
        ([Sample(text="q", pair="p", score=1), Sample(text="q", pair="r", score=-1)], "relevance is -1"),
    ],
)
def test_what_cannot_be_ranked_is_refused(samples: list[Sample], says: str) -> None:
    with pytest.raises(DataError, match=says):
        Judge("scoring", {"logits": SCORES[: len(samples)]}, samples, Budget(metric="ndcg@10"))


@pytest.mark.parametrize(
    ("name", "depth"), [("ndcg", 0), ("ndcg@10", 10), ("NDCG@3", 3), ("spearman", None), (None, None)]
)
def test_names(name: str | None, depth: int | None) -> None:
    assert depth_of(name) == depth


def test_no_place_at_all() -> None:
    with pytest.raises(UsageError, match="no passage"):
        depth_of("ndcg@0")


def test_a_file_of_queries(tmp_path: Path) -> None:
    path = tmp_path / "ranking.jsonl"
    lines = [{"query": f"q{i}", "passages": ["a", "b", "c"], "relevance": [2, 0, 1]} for i in range(2)]
    path.write_text("\n".join(map(json.dumps, lines)))
    found = read_workload(path).samples
    assert [(s.text, s.pair, s.score) for s in found[:3]] == [("q0", "a", 2), ("q0", "b", 0), ("q0", "c", 1)]
    assert len({s.group for s in found}) == 2


@pytest.mark.parametrize("relevance", [[1, 0], None, 1, [1, "x", 0]])
def test_a_file_whose_lists_do_not_fit(tmp_path: Path, relevance: Any) -> None:
    path = tmp_path / "ranking.jsonl"
    line = {"query": "q", "passages": ["a", "b", "c"]} | ({} if relevance is None else {"relevance": relevance})
    path.write_text(json.dumps(line))
    with pytest.raises(DataError, match="line 1"):
        read_workload(path)
