"""What 16-bit pair sums do to an integer product on a CPU without VNNI, in plain integers.

`vpmaddubsw` multiplies unsigned bytes by signed bytes and adds neighbouring products in pairs, *saturating at 16
bits*: 255 × 127 + 255 × 127 = 64,770 becomes 32,767, in silence. VNNI's `vpdpbusd` adds four products in 32 bits. So
an artefact that was verified on one CPU may answer otherwise on the other, unless its weights can't reach the limit.

`pair_sum_product` is the reference kernel; `reach` proves from the weights alone that no input whatever saturates;
`share_saturated` counts on given activations. Layout: weights [channels out, summed], neighbours along the sum.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

LIMIT = 32767  # of a 16-bit sum upwards; downwards it is one more
HIGHEST = 255  # of an unsigned activation
_ROWS = 64  # of activations at a time: pair sums take rows × channels × pairs × 4 bytes
Integers = npt.NDArray[Any]


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


def reach(weights: Integers) -> npt.NDArray[np.float64]:
    """[channels]: the largest pair sum that any activations can cause ÷ the limit; at most 1: it can't saturate."""
    w = _even(weights).astype(np.int64)
    up = np.maximum(w, 0).reshape(len(w), -1, 2).sum(axis=2).max(axis=1, initial=0) * HIGHEST
    down = np.minimum(w, 0).reshape(len(w), -1, 2).sum(axis=2).min(axis=1, initial=0) * HIGHEST
    found: npt.NDArray[np.float64] = np.maximum(up / LIMIT, -down / (LIMIT + 1))
    return found


def _pair_sums(activations: Integers, weights: Integers) -> Integers:
    """[rows, channels, pairs], not yet saturated."""
    a, w = _even(activations).astype(np.int32), _even(weights).astype(np.int32)
    sums: Integers = a[:, None, 0::2] * w[None, :, 0::2] + a[:, None, 1::2] * w[None, :, 1::2]
    return sums


def _even(values: Integers) -> Integers:
    """An odd one is left over: its neighbour is 0."""
    return np.pad(values, ((0, 0), (0, values.shape[1] % 2)))
