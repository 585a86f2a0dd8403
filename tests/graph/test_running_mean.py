"""The mean that keeps a sum tells what NNCF's own tells, and keeps one tensor however many samples come."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from nncf.common.tensor_statistics.collectors import MeanAggregator
from nncf.tensor import Tensor

from vengine.graph.running_mean import running_means

Shapes = Sequence[tuple[int, ...]]


def _samples(shapes: Shapes) -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    return [rng.normal(7.0, 3.0, shape).astype(np.float32) for shape in shapes]


def _mean(samples: Sequence[np.ndarray], axes: tuple[int, ...]) -> tuple[np.ndarray, int]:
    """The mean, and how many things were kept for it."""
    aggregator = MeanAggregator(aggregation_axes=axes)
    for sample in samples:
        aggregator.register_reduced_input(Tensor(sample))
    return aggregator.aggregate().data, len(aggregator._container)


@pytest.mark.parametrize(
    ("axes", "shapes", "kept"),
    [
        ((0,), [(1, 6)] * 40, 1),
        ((0,), [()] * 40, 1),
        ((0, 1), [(5, 6)] * 40, 1),
        ((0, 1), [(n, 6) for n in range(1, 41)], 1),
        ((0, 1, 2), [(1, n, 6) for n in range(1, 41)], 1),
        ((1,), [(n, 6) for n in range(1, 41)], 40),
    ],
    ids=["per channel", "scalars", "two axes", "lengths differ", "three axes", "one mean a sample"],
)
def test_the_mean_is_that_of_the_quantiser(axes: tuple[int, ...], shapes: Shapes, kept: int) -> None:
    samples = _samples(shapes)
    wanted, _ = _mean(samples, axes)
    with running_means():
        told, containers = _mean(samples, axes)
    assert told.dtype == wanted.dtype
    assert told.shape == wanted.shape
    np.testing.assert_allclose(told, wanted, rtol=1e-6)
    assert containers == kept


def test_the_mean_of_many_is_as_good_as_in_float64() -> None:
    samples = [np.float32([1e4 + 1e-2 * i]) for i in range(5000)]
    with running_means():
        told, _ = _mean(samples, (0,))
    assert told[0] == np.float32(np.mean(np.stack(samples), dtype=np.float64))


def test_outside_the_quantiser_is_as_it_was() -> None:
    before = vars(MeanAggregator).copy()
    with pytest.raises(ZeroDivisionError), running_means():
        raise ZeroDivisionError
    assert {k: v for k, v in vars(MeanAggregator).items() if k in before} == before
    assert _mean(_samples([(1, 6)] * 3), (0,))[1] == 3
