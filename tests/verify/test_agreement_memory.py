"""Wide outputs (an image a sample) must not be multiplied out pair by pair."""

from __future__ import annotations

import tracemalloc

import numpy as np

from vengine.types import Budget, Sample
from vengine.verify.compare import verdict
from vengine.verify.soundness import cosine_pairs, strangers


def test_a_heat_map_a_sample_is_compared_in_bounded_memory() -> None:
    rng = np.random.default_rng(0)
    original = rng.random((24, 60_000), dtype=np.float32)
    optimized = original + rng.normal(0, 1e-3, original.shape).astype(np.float32)
    samples = [Sample(tensors={"x": i}) for i in range(24)]
    tracemalloc.start()
    found = verdict("tensor", {"map": original}, {"map": optimized}, samples, Budget())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.outcome == "pass"
    assert peak < 60 * original.nbytes, f"{peak >> 20} MiB for outputs of {original.nbytes >> 20} MiB"


def test_cosines_of_pairs_are_the_same_in_blocks() -> None:
    rows = np.random.default_rng(1).normal(size=(9, 1_500_000))
    pairs = strangers(9, 7, seed=2)
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    assert np.allclose(cosine_pairs(rows, pairs), [unit[a] @ unit[b] for a, b in pairs])
