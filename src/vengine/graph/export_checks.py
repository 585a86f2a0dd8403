"""What an exported graph must prove: sizes other than the traced one, padding on both sides, an empty row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from vengine.sources.feeds import Padding
from vengine.types import Source

# An export computes the same float32 operations in another order, which moves a value by about 1e-6 of the
# largest one; 1e-4 leaves room for depth and none for a wrong mask (0.01 and more).
TOLERANCE = 1e-4
_FLOOR = 1e-2  # answers smaller than this are compared as if they were this large
_LONGEST = 300


@dataclass(frozen=True, kw_only=True)
class Case:
    """One call that original and graph both get."""

    what: str
    batch: int
    length: int
    padding: Padding = "none"
    masked_row: int | None = None


@dataclass(frozen=True, kw_only=True)
class Check:
    """How one call came out. The error is that of unpadded positions, in the outputs' own units."""

    what: str
    max_abs_error: float
    ok: bool


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """All checks of a graph, and calls that could not be made."""

    checks: tuple[Check, ...]
    notes: tuple[str, ...]


def cases_for(source: Source) -> tuple[Case, ...]:
    """The calls that make sense for the source's free dimensions and inputs."""
    free = {dim for spec in source.inputs for dim in spec.shape if isinstance(dim, str)}
    if "length" not in free:
        fixed = next((s.shape[0] for s in source.inputs if s.shape and isinstance(s.shape[0], int)), 1)
        batches = (1, 3, 2) if "batch" in free else (int(fixed),)
        return tuple(Case(what=f"batch {batch}", batch=batch, length=1) for batch in batches)
    limit = source.max_tokens or _LONGEST
    sizes = [(1, 1), (1, 16), (3, 40), (2, _LONGEST)] if "batch" in free else []
    fitting = dict.fromkeys((batch, min(length, limit)) for batch, length in sizes)
    cases = [Case(what=f"batch {b} × length {n}", batch=b, length=n) for b, n in fitting]
    if any(spec.name == "attention_mask" for spec in source.inputs):
        short = min(12, limit)
        cases += [
            Case(what="left padding", batch=3, length=short, padding="left"),
            Case(what="right padding", batch=3, length=short, padding="right"),
            Case(what="a fully masked row", batch=3, length=short, masked_row=1),
        ]
    return tuple(cases)


def compare(
    case: Case, want: Mapping[str, Any], got: Mapping[str, Any], feeds: Mapping[str, Any], source: Source
) -> Check:
    """Compare two answers to one call: same names, shapes and values, and nothing infinite that wasn't.

    Values are compared where tokens are; what stands in padded positions and in rows without a token is
    not defined, but must be finite.
    """
    if list(want) != list(got):
        return Check(what=f"{case.what}: other outputs, {list(got)}", max_abs_error=float("inf"), ok=False)
    worst, ok, what = 0.0, True, case.what
    mask = feeds.get("attention_mask")
    for spec in source.outputs:
        one, two = np.asarray(want[spec.name]), np.asarray(got[spec.name])
        if one.shape != two.shape or one.dtype != two.dtype:
            shapes = f"{spec.name} is {two.dtype}{list(two.shape)} instead of {one.dtype}{list(one.shape)}"
            return Check(what=f"{case.what}: {shapes}", max_abs_error=float("inf"), ok=False)
        if np.isfinite(one).all() and not np.isfinite(two).all():
            return Check(what=f"{case.what}: {spec.name} is not finite", max_abs_error=float("inf"), ok=False)
        one, two = _visible(one, mask, spec.shape), _visible(two, mask, spec.shape)
        error, allowed = _error(one, two)
        worst, ok = max(worst, error), ok and error <= allowed
    return Check(what=what, max_abs_error=worst, ok=ok)


def _visible(values: Any, mask: Any, shape: tuple[int | str, ...]) -> Any:
    """[batch, length, …] → unmasked tokens only; [batch, …] → rows that have a token."""
    if mask is None or not shape or shape[0] != "batch":
        return values
    if len(shape) > 1 and shape[1] == "length":
        return values[mask.astype(bool)]
    return values[mask.any(axis=1)]


def _error(one: Any, two: Any) -> tuple[float, float]:
    """The largest difference, and the largest that is allowed. Equal NaN and infinities agree."""
    if one.size == 0:
        return 0.0, 0.0
    if one.dtype.kind != "f":
        return float(np.max(one != two)), 0.0
    wide_one, wide_two = one.astype(np.float64), two.astype(np.float64)
    same = (wide_one == wide_two) | (np.isnan(wide_one) & np.isnan(wide_two))
    with np.errstate(invalid="ignore"):
        difference = np.where(same, 0.0, np.abs(wide_one - wide_two))
    finite = np.abs(wide_one[np.isfinite(wide_one)])
    scale = max(float(finite.max(initial=0.0)), _FLOOR)
    error = float(difference.max())
    return (float("inf") if np.isnan(error) else error), TOLERANCE * scale
