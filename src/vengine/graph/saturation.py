"""What 16-bit pair sums do to an integer product on a CPU without VNNI, in plain integers.

`vpmaddubsw` multiplies unsigned bytes by signed bytes and adds neighbouring products in pairs, *saturating at 16
bits*: 255 × 127 + 255 × 127 = 64,770 becomes 32,767, in silence. VNNI's `vpdpbusd` adds four products in 32 bits. So
an artefact that was verified on one CPU may answer otherwise on the other, unless its weights can't reach the limit.

`reach` proves from the weights alone that no input whatever saturates. Layout: weights [channels out, summed],
neighbours along the sum. The tests hold it to a kernel in plain integers (tests/graph/pair_sums.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

LIMIT = 32767  # of a 16-bit sum upwards; downwards it is one more
HIGHEST = 255  # of an unsigned activation
Integers = npt.NDArray[Any]


def reach(weights: Integers) -> npt.NDArray[np.float64]:
    """[channels]: the largest pair sum that any activations can cause ÷ the limit; at most 1: it can't saturate."""
    w = even(weights).astype(np.int64)
    up = np.maximum(w, 0).reshape(len(w), -1, 2).sum(axis=2).max(axis=1, initial=0) * HIGHEST
    down = np.minimum(w, 0).reshape(len(w), -1, 2).sum(axis=2).min(axis=1, initial=0) * HIGHEST
    found: npt.NDArray[np.float64] = np.maximum(up / LIMIT, -down / (LIMIT + 1))
    return found


def even(values: Integers) -> Integers:
    """[rows, values], one more column of zeros where their number is odd: the last one's neighbour is 0."""
    return np.pad(values, ((0, 0), (0, values.shape[1] % 2)))
