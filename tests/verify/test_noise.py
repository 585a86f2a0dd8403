"""The noise floor is the largest difference between runs of one model."""

from __future__ import annotations

import numpy as np
import pytest

from vengine.verify.noise import noise_floor

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
    assert found.runs == len(runs)


def test_lists_of_rows_and_integers_are_fine() -> None:
    lists = [{"out": [np.ones(3), np.ones(5)], "ids": np.arange(2)} for _ in range(2)]
    assert noise_floor(lists).max_abs == 0
