"""What was measured → pass, fail or undecided, in one place and in words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from vengine.types import Budget, Change, Interval, Outcome, Sample, Verdict
from vengine.verify.arrange import excerpt
from vengine.verify.noise import against_noise
from vengine.verify.soundness import ROUNDING, Fault
from vengine.verify.statistics import MOST_SAMPLES, samples_needed, samples_needed_for_rate

# Fewer samples can't carry an interval: a fault that shows in one text of ten is missed by 20
# texts one time in eight, by 5 texts six times in ten.
LEAST_SAMPLES = 20
_SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A metric on both models, before it meets the budget."""

    metric: str
    original: float | None
    optimized: float
    drop: Interval
    samples: int  # that the metric counts: tokens for a token classifier
    absolute: bool = False  # the drop is in the metric's own units
    interval_at: Callable[[int], Interval] | None = None  # exact intervals: the same rates at another size
    worst: float | None = None
    worst_sample: int | None = None
    flipped: tuple[str, ...] = ()
    changed: int = 0
    changes: tuple[Change, ...] = ()
    implies: str = ""
    note: str = ""


def decide(
    measured: Measured, budget: Budget, samples: tuple[Sample, ...], rounding: float, noise: float | None = None
) -> Verdict:
    """Hold the interval against the budget.

    Args:
        samples: all samples that were compared, for the words.
        rounding: the largest relative difference of any output element. Outputs that are equal to
            rounding pass on any number of samples, if the measured drop itself is within budget.
        noise: the same between two runs of the original; None where it wasn't measured. It is told, and decides
            nothing: an original that is far from itself is no licence to be far from it.
    """
    told = replace(measured, note=". ".join(part for part in (measured.note, against_noise(rounding, noise)) if part))
    return replace(_decided(told, budget, samples, rounding), error=rounding, noise=noise)


def _decided(measured: Measured, budget: Budget, samples: tuple[Sample, ...], rounding: float) -> Verdict:
    if rounding <= ROUNDING and measured.drop.value <= budget.max_drop + 1e-6:
        value = measured.drop.value
        exact = replace(measured, drop=Interval(value=value, low=value, high=value))
        what = f"every output equals the original's to rounding (largest relative difference {rounding:.1g})"
        return _verdict(exact, budget, samples, "pass", 0, what)
    outcome = _outcome(measured, budget.max_drop)
    more = _more(measured, budget.max_drop) if outcome == "undecided" else 0
    return _verdict(measured, budget, samples, outcome, more, _words(measured, budget, outcome, more))


def _outcome(measured: Measured, max_drop: float) -> Outcome:
    if measured.drop.low > max_drop:
        return "fail"
    if measured.drop.high <= max_drop and measured.samples >= LEAST_SAMPLES:
        return "pass"
    return "undecided"


def _more(measured: Measured, max_drop: float) -> int:
    if measured.interval_at is not None:
        needed = samples_needed_for_rate(measured.interval_at, max_drop, measured.samples)
    else:
        needed = samples_needed(measured.drop, max_drop, measured.samples)
    return max(needed, LEAST_SAMPLES) - measured.samples


def _words(measured: Measured, budget: Budget, outcome: Outcome, more: int) -> str:
    drop = measured.drop
    values = f"{measured.optimized:.4f}"
    if measured.original is not None:
        values = f"{measured.original:.4f} → {values}"
    where = (
        f"{measured.metric} {values}, {'an absolute' if measured.absolute else 'a'} drop of {percent(drop.value)} "
        f"({percent(drop.low)} to {percent(drop.high)} at {budget.confidence:.0%} confidence)"
    )
    if outcome == "pass":
        return f"{where}, within the budget of {percent(budget.max_drop)}"
    if outcome == "fail":
        return f"{where}, more than the budget of {percent(budget.max_drop)}"
    amount = "more samples than anyone will label" if more >= MOST_SAMPLES // 2 else f"about {more} more samples"
    return f"{where}; the budget is {percent(budget.max_drop)}: {amount} would decide"


def percent(share: float) -> str:
    """0.0123 → "1.23 %"; small values keep two digits that count."""
    value = 100 * share
    return f"{value:.2f} %" if abs(value) >= 0.01 or value == 0 else f"{value:.1g} %"


def _verdict(
    measured: Measured, budget: Budget, samples: tuple[Sample, ...], outcome: Outcome, more: int, reason: str
) -> Verdict:
    worst = measured.worst_sample
    return Verdict(
        outcome=outcome,
        metric=measured.metric,
        original=measured.original,
        optimized=measured.optimized,
        drop=measured.drop,
        max_drop=budget.max_drop,
        samples=measured.samples,
        more_samples=more,
        worst=measured.worst,
        worst_sample="" if worst is None else excerpt(samples[worst]),
        flipped=measured.flipped[:_SHOWN],
        changed=measured.changed,
        changes=measured.changes,
        implies=measured.implies,
        reason=". ".join(part for part in (reason, measured.note) if part),
    )


def failed(fault: Fault, budget: Budget, samples: tuple[Sample, ...]) -> Verdict:
    """The verdict of a comparison that ended before any metric: everything is lost."""
    return Verdict(
        outcome="fail",
        metric=fault.check,
        original=None,
        optimized=0.0,
        drop=Interval(value=1.0, low=1.0, high=1.0),
        max_drop=budget.max_drop,
        samples=len(samples),
        worst=fault.value,
        worst_sample="" if fault.sample is None else excerpt(samples[fault.sample]),
        changes=fault.changes,
        reason=fault.reason,
    )
