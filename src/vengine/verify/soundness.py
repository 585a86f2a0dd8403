"""What no accuracy budget allows, looked at before any metric.

A metric can be blind: a cosine to outputs scaled × 100, a rank correlation to a rotated space, an
accuracy to one garbled sample in a thousand. These checks ask whether the outputs are the same
outputs at all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vengine.errors import DataError
from vengine.types import Change, Sample, Task
from vengine.verify.arrange import Array, Output, excerpt
from vengine.verify.statistics import Floats

# Another order of the same float32 sums moves an output by 1e-7 … 1e-5 of its size; nothing that
# quantises stays below this.
ROUNDING = 1e-4
# Relative error of all outputs together: 0.45 is a cosine of 0.9 between unit vectors. Beyond it
# this is another answer, not a coarser one.
GROSS_ERROR = 0.45
# A sample is wrong when it stands no nearer to its own original than 1 in 20 strangers do …
STRANGERS = 0.95
# … where the strangers' closeness counts between these cosines,
STRANGER_COSINES = (0.5, 0.9)
# and when it moved by this share of an output's usual size (a short vector's angle says little).
WRONG_MOVE = 0.4
_STRANGER_PAIRS = 4000
_BLOCK_VALUES = 1 << 22  # 32 MB of float64 at a time


@dataclass(frozen=True, kw_only=True)
class Movement:
    """How far one output moved, sample by sample; every array is [samples]."""

    name: str
    cosine: Floats
    original_norm: Floats
    optimized_norm: Floats
    moved: Floats  # ‖optimised − original‖
    largest: Floats  # largest |difference| of one element
    offset: Floats  # sum of differences
    elements: NDArray[np.intp]

    @property
    def size(self) -> float:
        """Root mean square of one element of the original."""
        return float(np.sqrt(np.sum(self.original_norm**2) / max(1, int(self.elements.sum()))))

    @property
    def relative_error(self) -> float:
        """‖difference‖ ÷ ‖original‖ over all samples together; 0 where both are zero."""
        return _ratio(float(np.linalg.norm(self.moved)), float(np.linalg.norm(self.original_norm)))

    @property
    def rounding(self) -> float:
        """Largest difference of one element, in units of `size`."""
        return _ratio(float(self.largest.max(initial=0.0)), self.size)

    @property
    def scale(self) -> float:
        """Median of ‖optimised‖ ÷ ‖original‖ over the samples whose original isn't zero."""
        some = self.original_norm > 0
        return float(np.median(self.optimized_norm[some] / self.original_norm[some])) if some.any() else 1.0

    @property
    def shift(self) -> float:
        """Mean difference of one element, in units of `size`."""
        return _ratio(abs(float(self.offset.sum())) / max(1, int(self.elements.sum())), self.size)


def _ratio(part: float, whole: float) -> float:
    if part == 0:
        return 0.0
    return part / whole if whole > 0 else 1e9  # finite: verdicts are written as JSON


def movement(name: str, original: Output, optimized: Output) -> Movement:
    """Compare two outputs of the same shapes, one sample at a time (so lists of any lengths fit)."""
    rows = [_row(a, b) for a, b in zip(original, optimized, strict=True)]
    dot, first, second, moved, largest, offset, elements = (np.array(c) for c in zip(*rows, strict=True))
    both = first * second
    cosine = np.divide(dot, both, out=np.where(first == second, 1.0, 0.0), where=both > 0)
    return Movement(
        name=name,
        cosine=np.clip(cosine, -1.0, 1.0),
        original_norm=first,
        optimized_norm=second,
        moved=moved,
        largest=largest,
        offset=offset,
        elements=elements.astype(np.intp),
    )


def _row(original: Array, optimized: Array) -> tuple[float, ...]:
    a, b = np.ravel(original).astype(np.float64), np.ravel(optimized).astype(np.float64)
    d = b - a
    norms = (float(np.linalg.norm(v)) for v in (a, b, d))
    return (float(a @ b), *norms, float(np.abs(d).max(initial=0.0)), float(d.sum()), a.size)


def form_fault(original: Mapping[str, Output], optimized: Mapping[str, Output]) -> str:
    """Why the outputs can't be compared: other names, types, counts or shapes; "" where they can."""
    if set(original) != set(optimized):
        return f"outputs are {sorted(optimized)}, the original's are {sorted(original)}"
    for name, before in original.items():
        after = optimized[name]
        if len(before) != len(after):
            return f"output {name} has {len(after)} rows, the original has {len(before)}"
        for i, (a, b) in enumerate(zip(before, after, strict=True)):
            if np.shape(a) != np.shape(b):
                return f"output {name} of sample {i + 1} has shape {np.shape(b)}, the original's is {np.shape(a)}"
            if _kind(a) != _kind(b):
                return f"output {name} is {np.asarray(b).dtype}, the original's is {np.asarray(a).dtype}"
    return ""


def _kind(array: Any) -> str:
    kind = np.asarray(array).dtype.kind
    return "f" if kind == "V" else kind  # bfloat16 of ml_dtypes calls itself void


def is_float(output: Output) -> bool:
    """Whether an output is of floating point numbers (rows of a list share their type)."""
    return len(output) > 0 and _kind(output[0]) == "f"


def first_not_finite(outputs: Mapping[str, Output]) -> tuple[str, int] | None:
    """Name and sample of the first NaN or infinity, or None."""
    for name, rows in outputs.items():
        if is_float(rows):
            for i, row in enumerate(rows):
                if not np.isfinite(np.asarray(row, dtype=np.float64)).all():
                    return name, i
    return None


def check_original(original: Mapping[str, Output], samples: Sequence[Sample]) -> None:
    """Refuse an original that can't be a yardstick.

    Raises:
        DataError: it gives NaN or infinity for a sample.
    """
    assert original, "the original has outputs"
    for name, rows in original.items():
        assert len(rows) == len(samples), (name, len(rows), len(samples))
    place = first_not_finite(original)
    if place is not None:
        raise DataError(
            f"the original model itself gives NaN or infinity in output {place[0]}",
            where=f"sample {place[1] + 1}: {excerpt(samples[place[1]])!r}",
            next_step="leave this sample out, or mend the model: nothing can be compared with it",
        )


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A comparison that ended before any metric."""

    check: str  # "finite", "shape", "scale", …
    reason: str
    sample: int | None = None
    value: float | None = None
    changes: tuple[Change, ...] = ()


def scale_fault(moves: Sequence[Movement], max_drop: float) -> Fault | None:
    """Outputs that point the right way and have the wrong size, or are all shifted."""
    allowed = max(0.05, 5 * max_drop)
    for m in moves:
        if abs(m.scale - 1) > allowed:
            what = f"output {m.name} is {m.scale:.3g} times as large as the original's"
            return Fault(check="scale", reason=what, value=m.scale)
        if m.shift > 2 * allowed:
            what = f"output {m.name} is shifted by {m.shift:.2g} of its usual size"
            return Fault(check="shift", reason=what, value=m.shift)
        if m.relative_error > GROSS_ERROR:
            what = f"output {m.name} differs from the original's by {m.relative_error:.0%} of its size"
            return Fault(check="error", reason=what, value=m.relative_error)
    return None


def wrong_sample_fault(move: Movement, original: Output, samples: Sequence[Sample], seed: int) -> Fault | None:
    """One sample whose vector is no nearer to its own original than another sample's is."""
    usual = math.sqrt(float(np.mean(move.original_norm**2)))
    limit = _stranger_cosine(original, seed)
    wrong = (move.cosine < limit) & (move.moved > WRONG_MOVE * usual)
    if not wrong.any():
        return None
    i = int(np.argmin(np.where(wrong, move.cosine, np.inf)))
    reason = (
        f"{int(wrong.sum())} of {len(samples)} samples get another answer altogether: output {move.name} of "
        f"{excerpt(samples[i])!r} has cosine {move.cosine[i]:.3f} to the original's, where different samples "
        f"reach {limit:.3f}"
    )
    return Fault(check="wrong sample", reason=reason, sample=i, value=float(move.cosine[i]))


def _stranger_cosine(original: Output, seed: int) -> float:
    """How near different samples' originals stand: a high quantile of their cosines, kept in bounds."""
    low, high = STRANGER_COSINES
    if isinstance(original, list) or len(original) < 2:
        return low  # rows of different lengths have no angle between them
    pairs = strangers(len(original), _STRANGER_PAIRS, seed)
    rows = original.reshape(len(original), -1).astype(np.float64)
    cosines = cosine_pairs(rows, pairs)
    return float(np.clip(np.quantile(cosines, STRANGERS), low, high))


def strangers(count: int, pairs: int, seed: int) -> NDArray[np.intp]:
    """[pairs, 2] random pairs of different samples."""
    random = np.random.default_rng(seed)
    first = random.integers(0, count, pairs)
    second = (first + random.integers(1, count, pairs)) % count
    return np.stack([first, second], axis=1)


def cosine_pairs(rows: Floats, pairs: NDArray[np.intp]) -> Floats:
    """Cosine of each of these pairs of rows; a block at a time, since an image's row may hold 50,000 numbers.

    Args:
        rows: [samples, values].
        pairs: [pairs, 2] indices of rows.
    """
    block = max(1, _BLOCK_VALUES // max(1, rows.shape[1]))
    parts = [pairs[i : i + block] for i in range(0, len(pairs), block)]
    return np.concatenate([cosine_rows(rows[p[:, 0]], rows[p[:, 1]]) for p in parts])


def cosine_rows(a: Floats, b: Floats) -> Floats:
    """Cosine of each row of `a` with the same row of `b`; 0 where one of them is zero."""
    size = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return np.asarray(np.divide(np.sum(a * b, axis=1), size, out=np.zeros(len(a)), where=size > 0))


def directional(task: Task) -> bool:
    """Whether each sample's output is a direction that one cosine can judge."""
    return task in ("embedding", "features", "tensor")
