"""Means of calibration as running sums, so that memory doesn't grow with the number of samples.

NNCF's mean keeps one tensor a sample until the end: 0.2 MB a sample for a model as small as MiniLM, gigabytes for a
large one. Sums in float64 tell the same mean to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod
from typing import Any

import numpy as np


class _Sum:
    """Samples in, their sum over samples and over `axes` kept; shapes may differ along `axes`."""

    def __init__(self, axes: tuple[int, ...]) -> None:
        self.axes = axes
        self.total: np.ndarray | float = 0.0
        self.count = 0

    def add(self, values: np.ndarray) -> None:
        self.total = self.total + values.sum(axis=self.axes, keepdims=True, dtype=np.float64)
        self.count += prod(values.shape[axis] for axis in self.axes)
        self.dtype = values.dtype

    def mean(self) -> np.ndarray:
        return np.asarray(self.total / self.count, dtype=self.dtype)


@contextmanager
def running_means() -> Iterator[None]:
    """Inside, NNCF's `MeanAggregator` keeps a sum; whatever isn't a mean over all samples stays as it is."""
    from nncf.common.tensor_statistics.collectors import MeanAggregator
    from nncf.tensor import Tensor

    register: Callable[[Any, Any], None] = MeanAggregator._register_reduced_input_impl
    aggregate: Callable[[Any], Any] = MeanAggregator._aggregate_impl

    def add(self: Any, sample: Any) -> None:
        over_samples = 0 in self._aggregation_axes and self._window_size is None
        if not (over_samples and isinstance(sample.data, np.ndarray)):
            register(self, sample)
            return
        if not self._container:
            self._container.append(_Sum(tuple(axis - 1 for axis in self._aggregation_axes if axis > 0)))
        self._container[0].add(sample.data)

    def mean(self: Any) -> Any:
        return Tensor(self._container[0].mean()) if isinstance(self._container[0], _Sum) else aggregate(self)

    MeanAggregator._register_reduced_input_impl, MeanAggregator._aggregate_impl = add, mean
    try:
        yield
    finally:
        MeanAggregator._register_reduced_input_impl, MeanAggregator._aggregate_impl = register, aggregate
