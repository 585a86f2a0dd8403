"""The reference kernel: what a CPU without VNNI makes of a u8 × s8 product, in plain integers."""

from __future__ import annotations

import numpy as np

from vengine.graph.saturation import LIMIT, Integers, even

_ROWS = 64  # of activations at a time: pair sums take rows × channels × pairs × 4 bytes


def pair_sum_product(activations: Integers, weights: Integers) -> Integers:
    """u8 [rows, summed] × s8 [channels, summed] → s32 [rows, channels] as a CPU without VNNI computes it."""
    pairs = _pair_sums(activations, weights)
    product: Integers = np.clip(pairs, -LIMIT - 1, LIMIT).sum(axis=-1, dtype=np.int32)
    return product


def exact_product(activations: Integers, weights: Integers) -> Integers:
    """The same summed in 32 bits, as VNNI does."""
    product: Integers = activations.astype(np.int32) @ weights.astype(np.int32).T
    return product


def share_saturated(activations: Integers, weights: Integers) -> float:
    """Which share of the products' results differs from the exact one on these activations."""
    different = 0
    for start in range(0, len(activations), _ROWS):
        rows = activations[start : start + _ROWS]
        different += int((pair_sum_product(rows, weights) != exact_product(rows, weights)).sum())
    return different / max(1, len(activations) * len(weights))


def _pair_sums(activations: Integers, weights: Integers) -> Integers:
    """[rows, channels, pairs], not yet saturated."""
    a, w = even(activations).astype(np.int32), even(weights).astype(np.int32)
    sums: Integers = a[:, None, 0::2] * w[None, :, 0::2] + a[:, None, 1::2] * w[None, :, 1::2]
    return sums
