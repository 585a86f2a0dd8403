"""Static int8 that the budget refuses, mended: which nodes to compute in float, found by sensitivity and time.

The engine's own profile of the float and the int8 graph says what each node saves; `graph.sensitivity` measures what
each one damages, and returns a ladder of choices from few nodes in float to many. The rungs are then judged like any
other recipe, on the user's data and within the user's budget: the lowest rung that passes is the smallest set of nodes
that the budget asks for. Its recipe names them (`float:NODE`), so cache, journal and manifest know them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from vengine.errors import VengineError
from vengine.graph.builder import spread
from vengine.graph.sensitivity import Ladder
from vengine.tune.build import Workshop
from vengine.tune.candidates import IN_FLOAT
from vengine.tune.trial import open_worker
from vengine.types import Recipe, Task, Trial, Variant

if TYPE_CHECKING:
    from vengine.engines.recording import Recording
    from vengine.graph.switchboard import Relative

Try = Callable[[Recipe], Trial]
VECTORS: tuple[Task, ...] = ("embedding", "features", "tensor")
_CALLS = 6  # are profiled, of different sizes where the samples have them


def refused_for_accuracy(trials: Sequence[Trial]) -> list[Trial]:
    """Static int8 that ran and was not within the budget: what the planner can mend."""
    return [
        t
        for t in trials
        if t.recipe.precision.startswith("int8-static")
        and t.status == "refused"
        and t.variant is not None
        and t.verdict is not None
        and too_far(t)
        and not any(word.startswith(IN_FLOAT) for word in t.recipe.passes)
    ]


def mend(
    workshop: Workshop,
    trials: Sequence[Trial],
    task: Task,
    seconds: float,
    attempt: Try,
    note: Callable[[str], None] = lambda _: None,
) -> list[Trial]:
    """Try rungs of the first refused recipe's ladder, then the rung that passes with the other engines.

    Args:
        trials: all so far.
        seconds: for measuring the ladder.
        attempt: builds and judges a recipe; what it returns is journalled.
        note: told why a trial could not be mended.

    Returns:
        The new trials, in the order tried.
    """
    if workshop.model.suffix == ".xml" or not (broken := refused_for_accuracy(trials)):
        return []
    tried: list[Trial] = []
    passing: Sequence[str] = ()
    for trial in broken:  # they share one artefact and differ in the engine, and in what runs the rest
        if passing:
            tried.append(attempt(with_floats(trial.recipe, passing)))
            continue
        try:
            saved = saved_ms(workshop, trial, float_variant(workshop, trial, trials))
            ladder = workshop.ladder(trial.recipe, saved, relative_of(task), seconds)
        except VengineError as error:  # without a ladder the refused trial stands as it is
            note(f"{trial.recipe.label} can't be mended: {error.what}")
            continue
        more, passing = lowest_passing(trial.recipe, ladder, attempt)
        tried += more
    return tried


def lowest_passing(recipe: Recipe, ladder: Ladder, attempt: Try) -> tuple[list[Trial], tuple[str, ...]]:
    """Bisect the rungs: damage falls from one to the next, so what passes at one passes above it.

    Returns:
        The trials, and the units in float of the lowest rung that passed; () where none did.
    """
    rungs, tried = ladder.rungs[1:], []
    passing: tuple[str, ...] = ()
    low, high = 0, len(rungs)
    while low < high:
        middle = (low + high) // 2
        trial = attempt(with_floats(recipe, rungs[middle].in_float))
        tried.append(trial)
        if trial.verdict is None:  # no time was left, or it doesn't run
            break
        if too_far(trial):
            low = middle + 1
            continue
        high = middle
        if within_budget(trial):
            passing = rungs[middle].in_float
    return tried, passing


def too_far(trial: Trial) -> bool:
    """Whether its answers are off beyond what more samples could mend: more nodes in float are what helps."""
    found, moved = trial.verdict, trial.invariance
    if found is None:
        return False
    off = found.outcome == "fail" or (found.outcome == "undecided" and found.drop.value > found.max_drop)
    return off or (moved is not None and moved.outcome == "fail")


def within_budget(trial: Trial) -> bool:
    """Whether its answers may ship, however fast it is."""
    judged = trial.verdict is not None and trial.verdict.outcome == "pass"
    return judged and (trial.invariance is None or trial.invariance.outcome == "pass")


def with_floats(recipe: Recipe, names: Sequence[str]) -> Recipe:
    """The recipe with these units in float."""
    return replace(recipe, passes=(*recipe.passes, *(f"{IN_FLOAT}{name}" for name in names)))


def lint_notes(winners: Sequence[Trial]) -> tuple[str, ...]:
    """What the lints found in the graphs that ship, each thing once, and which nodes were taken back into float."""
    notes: list[str] = []
    for trial in winners:
        for result in trial.variant.passes if trial.variant else ():
            if result.name.startswith("lint:"):
                notes += [f"{trial.recipe.label}, {result.name}: {node}: {why}" for node, why in result.refusals[:3]]
        if names := [w.removeprefix(IN_FLOAT) for w in trial.recipe.passes if w.startswith(IN_FLOAT)]:
            notes.append(f"{trial.recipe.label}: in float, because int8 hurt the answers there: {', '.join(names)}")
    return tuple(dict.fromkeys(notes))


def relative_of(task: Task) -> Relative:
    """Vectors and maps are compared by direction, logits and scores by how far the samples lie apart."""
    return "own" if task in VECTORS else "spread"


def float_variant(workshop: Workshop, quantized: Trial, trials: Sequence[Trial]) -> Variant:
    """What runs in the refused recipe's place where nothing is quantised: the same engine's bf16 or fp32."""
    engine = quantized.recipe.engine
    precision = "bf16" if quantized.recipe.precision.endswith("bf16") else "fp32"
    known = (t.variant for t in trials if (t.recipe.engine, t.recipe.precision) == (engine, precision))
    found = next((v for v in known if v is not None), None)
    return found or workshop.build(replace(quantized.recipe, precision=precision, passes=()))


def saved_ms(workshop: Workshop, quantized: Trial, plain: Variant) -> dict[str, float]:
    """Milliseconds of a call that int8 saves at each operator of the graph, by its name; less than 0: it costs them."""
    assert quantized.variant is not None
    calls = spread(workshop.calibration, _CALLS)
    fast, slow = (_times(variant, calls) for variant in (quantized.variant, plain))
    return {name: slow[name] - fast[name] for name in slow if name in fast}


def _times(variant: Variant, calls: Sequence[Mapping[str, object]]) -> dict[str, float]:
    with open_worker(variant, None) as worker:
        return node_times(worker.record(calls))  # type: ignore[arg-type]


def node_times(recordings: Sequence[Recording]) -> dict[str, float]:
    """Mean milliseconds by operator of the file; a compiled node shares its time among the products it was made of."""
    found: dict[str, float] = {}
    for recording in recordings:
        for node in recording.nodes:
            names = node.origins or (node.name,)
            for name in names:
                found[name] = found.get(name, 0.0) + node.ms / len(recordings)
    return found
