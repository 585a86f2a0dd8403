"""The halves of the probe: every class in both, every sample judged by a head that never saw it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vengine.verify.probe import fit_probe, split_by_class, unfit


@given(st.lists(st.integers(0, 5), min_size=1, max_size=60), st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_halves_share_out_each_class(labels: list[int], seed: int) -> None:
    truth = np.array(labels)
    half = split_by_class(truth, seed)
    for label in set(labels):
        first, second = (int(np.sum((truth == label) & (half == h))) for h in (0, 1))
        assert abs(first - second) <= 1
    assert abs(int(np.sum(half == 0)) - int(np.sum(half == 1))) <= 1
    assert np.array_equal(half, split_by_class(truth, seed))


@pytest.mark.parametrize(
    ("labels", "fit"),
    [
        (["a", "b"] * 10, True),
        (["a", "b"] * 9, False),  # too few
        (["a"] * 40, False),  # one class
        (["a"] * 40 + ["b"], False),  # the second class can't stand in both halves
        (["a", "b"] * 10 + [None] * 20, True),
        (["a", "b"] * 10 + [None] * 21, False),
        (["a", "b"] * 10 + [str(i) for i in range(21)], False),
    ],
)
def test_which_labels_can_train_a_probe(labels: list[str | None], fit: bool) -> None:
    assert (unfit(labels) == "") is fit


def test_nobody_is_judged_by_a_head_that_saw_it() -> None:
    # Labels drawn by lot, in more dimensions than samples: a head that saw a sample knows its label by heart.
    random = np.random.default_rng(0)
    vectors, labels = random.normal(0, 1, (200, 300)), [str(c) for c in random.integers(0, 2, 200)]
    probe = fit_probe(vectors, labels, seed=0)
    assert 0.35 < np.mean(probe.predict(vectors) == probe.truth) < 0.65


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_the_size_of_vectors_does_not_matter(scale: float) -> None:
    random = np.random.default_rng(1)
    truth = random.integers(0, 3, 90)
    vectors = np.eye(3)[truth] + random.normal(0, 0.3, (90, 3))
    probe = fit_probe(vectors * scale, [str(c) for c in truth], seed=0)
    assert np.mean(probe.predict(vectors * scale) == probe.truth) > 0.9


def test_vectors_that_are_all_zero_dont_stop_it() -> None:
    labels = ["a", "b"] * 20
    probe = fit_probe(np.zeros((40, 4)), labels, seed=0)
    assert len(probe.predict(np.zeros((40, 4)))) == 40
