"""Which trials go on: those that are sound, those to drive otherwise, those that race, and the fallback."""

from __future__ import annotations

from collections.abc import Sequence

from vengine.tune.objectives import hope
from vengine.types import Objective, Trial

_MOST_FINALISTS = 4
_CLOSE = 0.9  # of the best one's speed: an interval of three rounds is wide, and the order of these may be luck


def sound(trials: Sequence[Trial], objective: Objective) -> list[Trial]:
    """Verified trials, the best for the objective first."""
    good = [t for t in trials if t.status == "ok" and t.ratio is not None and t.variant is not None]
    return sorted(good, key=hope(objective))


def leaders(good: Sequence[Trial]) -> list[Trial]:
    """The recipes that are worth driving otherwise: the best for the objective and the one of the largest cell."""
    largest = min(good, key=lambda t: t.cells[-1].ms.value if t.cells else float("inf"))
    return list({name_of(t): t for t in (good[0], largest)}.values())


def finalists(good: Sequence[Trial], objective: Objective) -> list[Trial]:
    """Four at most: the best for the objective, the best of the largest cell, what comes close, the best of each cell.

    What comes close stands before the best of each cell: several profiles of one artefact differ there by noise only,
    and would fill the list.
    """
    close = [t for t in good if objective == "memory" or hope(objective)(t) <= _CLOSE * hope(objective)(good[0])]
    # A resumed search may hold trials of a slower hour, whose table was thinned.
    cells = reversed(range(min(len(t.cells) for t in good)))
    best = [min(good, key=lambda t, i=i: t.cells[i].ms.value) for i in cells]  # type: ignore[misc]
    chosen = {name_of(t): t for t in (good[0], *best[:1], *close, *best[1:])}
    return list(chosen.values())[:_MOST_FINALISTS]


def fallback(trials: Sequence[Trial]) -> Trial | None:
    """The variant for a CPU that can run none of the others: verified, portable, exact to rounding."""
    fit = [
        t
        for t in trials
        if t.status != "failed"
        and t.variant is not None
        and not t.variant.required_isa
        and t.recipe.exactness != "lossy"
        and t.verdict is not None
        and t.verdict.outcome == "pass"
        and (t.invariance is None or t.invariance.outcome == "pass")
    ]
    # ONNX Runtime first: it comes with the base install, so every machine that has Vengine has it.
    return max(fit, key=lambda t: (t.recipe.engine == "onnxruntime", t.ratio.value if t.ratio else 0.0), default=None)


def name_of(trial: Trial) -> str:
    """The digest of the trial's variant."""
    assert trial.variant is not None
    return trial.variant.digest
