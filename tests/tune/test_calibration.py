"""What the quantiser sees: every label, every length, the outliers; and what is said to be missing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.tune.making import texts, toy, workload

from vengine.tune.calibration import calibration, choose, uncovered
from vengine.tune.prepare import prepare
from vengine.types import Settings

LENGTHS = [4] * 50 + [8] * 30 + [16] * 15 + [200] * 5
RARE = ["common"] * 97 + ["rare"] * 3
NONE: list[str | None] = [None] * 100


@pytest.mark.parametrize("vectors", [None, np.random.default_rng(0).standard_normal((100, 4))], ids=["none", "vectors"])
@pytest.mark.parametrize("count", [8, 20])
def test_every_label_and_every_length_is_seen(count: int, vectors: np.ndarray | None) -> None:
    chosen = choose(LENGTHS, RARE, vectors, count)
    assert len(chosen) == len(set(chosen)) == count
    assert {RARE[i] for i in chosen} == {"common", "rare"}
    assert {LENGTHS[i] for i in chosen} == {4, 8, 16, 200}


def test_an_outlier_is_chosen_and_a_crowd_is_not_taken_twice() -> None:
    vectors = np.zeros((100, 2))
    vectors[[17, 42, 77]] = [[9, 0], [0, 9], [-9, -9]]
    assert {17, 42, 77} <= set(choose([5] * 100, NONE, vectors, 4))
    assert not {17, 42, 77} <= set(choose([5] * 100, NONE, None, 4))


def test_few_samples_are_all_seen() -> None:
    assert choose([3, 2, 1], [None] * 3, None, 8) == [0, 1, 2]


@pytest.mark.parametrize(
    ("labels", "lengths", "chosen", "says"),
    [
        (["a", "b", "c"], [1, 1, 1], [0, 1], ["without 1 of 3 labels: c"]),
        (["a", "a", "a"], [1, 1, 1], [0, 1], ["on one class only (a)"]),
        ([None, None, None], [1, 5, 90], [0, 1], ["up to 5 tokens, and the longest sample has 90"]),
        (["a", "b", "a"], [1, 5, 5], [0, 1], []),
        ([None], [1], [0], []),
    ],
    ids=["a label", "one class", "long texts", "nothing", "a single sample"],
)
def test_what_is_not_covered_is_told(
    labels: list[str | None], lengths: list[int], chosen: list[int], says: list[str]
) -> None:
    notes = uncovered(lengths, labels, chosen)
    assert len(notes) == len(says)
    assert all(part in note for part, note in zip(says, notes, strict=True))


def test_calls_are_single_texts_shortest_first_with_the_longest_among_them(tmp_path: Path) -> None:
    ready = prepare(toy(tmp_path, {}), workload(texts(80)), Settings())
    rows = np.random.default_rng(0).standard_normal((80, 4)).astype(np.float32)
    calls, notes = calibration(ready, {"sentence_embedding": rows}, 16)
    lengths = [call["input_ids"].shape for call in calls]
    assert all(batch == 1 for batch, _ in lengths)
    assert lengths == sorted(lengths)
    assert lengths[-1][1] == max(encoding.length for encoding in ready.encodings)
    assert notes == ()
