"""The noise floor: how far the original differs from itself.

Other thread counts and batches change the order of float sums, and with it the last digits. What
two runs of the original differ by is no fault of an optimised model, and the errors of one are
stated in multiples of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vengine.verify.arrange import Output
from vengine.verify.soundness import form_fault, is_float, movement


@dataclass(frozen=True, kw_only=True)
class NoiseFloor:
    """The largest differences between repeated runs of one model on the same samples."""

    max_abs: float  # of one element, in the output's own units
    max_relative: float  # of one element, in units of the output's root mean square
    max_cosine_distance: float  # 1 − cosine of one sample
    runs: int
    samples: int


def noise_floor(runs: Sequence[Mapping[str, Output]]) -> NoiseFloor:
    """Compare every run with the first.

    Args:
        runs: outputs of the original, in the samples' order, under other thread counts, batches
            or paddings; at least two, all of the same form.

    Returns:
        The largest differences over all float outputs and samples; zero where runs are equal bit
        for bit, or where no output is of floating point numbers.
    """
    assert len(runs) >= 2, "one run has nothing to differ from"
    first = runs[0]
    for other in runs[1:]:
        fault = form_fault(first, other)
        assert not fault, fault
    names = [name for name, rows in first.items() if is_float(rows)]
    moves = [movement(n, first[n], other[n]) for n in names for other in runs[1:]]
    return NoiseFloor(
        max_abs=max((float(m.largest.max(initial=0.0)) for m in moves), default=0.0),
        max_relative=max((m.rounding for m in moves), default=0.0),
        max_cosine_distance=max((float((1 - m.cosine).max(initial=0.0)) for m in moves), default=0.0),
        runs=len(runs),
        samples=len(next(iter(first.values()))),
    )


def against_noise(error: float, noise: float | None) -> str:
    """An error in multiples of the noise floor, as a sentence; "" where no floor was measured.

    Args:
        error: the largest relative difference of one output element.
        noise: the same between two runs of the original; zero where it repeats itself bit for bit.
    """
    if noise is None:
        return ""
    if error == 0:
        return "No output differs from the original's in any bit"
    if noise == 0:
        return f"The largest error is {error:.2g} of an output's usual size, where the original repeats itself exactly"
    if error <= noise:
        return "No error is larger than the original's own noise"
    return f"The largest error is {_times(error / noise)} the original's own noise"


def _times(ratio: float) -> str:
    return f"{ratio:.2g} ×" if ratio < 10 else f"{ratio:,.0f} ×"
