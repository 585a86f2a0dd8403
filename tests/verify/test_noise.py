"""The noise floor is the largest difference between runs of one model."""

from __future__ import annotations

import numpy as np
import pytest

from vengine.types import Budget, Sample
from vengine.verify.compare import Judge
from vengine.verify.noise import against_noise, noise_floor

ROWS = np.random.default_rng(0).normal(0, 2, (50, 8))


def nudged(place: tuple[int, int], by: float) -> np.ndarray:
    rows = ROWS.copy()
    rows[place] += by
    return rows


@pytest.mark.parametrize(
    ("runs", "max_abs"),
    [
        ([ROWS, ROWS], 0.0),
        ([ROWS, nudged((3, 4), 1e-3)], 1e-3),
        ([ROWS, ROWS, nudged((3, 4), -1e-3), nudged((7, 0), 2e-3)], 2e-3),
    ],
)
def test_noise_floor(runs: list[np.ndarray], max_abs: float) -> None:
    found = noise_floor([{"out": rows} for rows in runs])
    assert found.max_abs == pytest.approx(max_abs, abs=1e-12)
    assert found.max_relative == pytest.approx(max_abs / np.sqrt(np.mean(ROWS**2)), abs=1e-12)
    assert (found.max_cosine_distance > 1e-12) is (max_abs > 0)
    assert (found.runs, found.samples) == (len(runs), len(ROWS))


def test_lists_of_rows_and_integers_are_fine() -> None:
    lists = [{"out": [np.ones(3), np.ones(5)], "ids": np.arange(2)} for _ in range(2)]
    assert noise_floor(lists).max_abs == 0


@pytest.mark.parametrize(
    ("error", "noise", "words"),
    [
        (4.1e-5, 1e-6, "The largest error is 41 × the original's own noise"),
        (2.4e-6, 1e-6, "The largest error is 2.4 × the original's own noise"),
        (0.03, 1e-6, "The largest error is 30,000 × the original's own noise"),
        (1e-6, 1e-6, "No error is larger than the original's own noise"),
        (0.0, 1e-6, "No output differs from the original's in any bit"),
        (0.0, 0.0, "No output differs from the original's in any bit"),
        (0.03, 0.0, "The largest error is 0.03 of an output's usual size, where the original repeats itself exactly"),
        (0.03, None, ""),
    ],
)
def test_an_error_is_told_in_multiples_of_the_floor(error: float, noise: float | None, words: str) -> None:
    assert against_noise(error, noise) == words


@pytest.mark.parametrize("noise", [None, 0.0, 1e-3, 5.0])
def test_a_verdict_tells_error_and_noise_and_isnt_swayed_by_them(noise: float | None) -> None:
    samples = [Sample(text=str(i)) for i in range(50)]
    wrong = ROWS + np.random.default_rng(1).normal(0, 0.6, ROWS.shape)
    for rows, outcome in ((wrong, "fail"), (ROWS + 1e-3, "pass")):
        judge = Judge("embedding", {"out": ROWS}, samples, Budget())
        judge.noise = noise
        found = judge.verdict({"out": rows})
        size = np.sqrt(np.mean(ROWS**2))
        assert found.outcome == outcome
        assert found.error == pytest.approx(np.abs(rows - ROWS).max() / size)
        assert found.noise == noise
        assert ("noise" in found.reason or "repeats" in found.reason) is (noise is not None)
