"""One trial: open the variant in its own process, compare it with the original, time it, weigh it.

A trial ends as `ok`, `refused` (it runs, but breaks a promise) or `failed` (it doesn't run); each with its reason.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from vengine.engines.base import Opening, require_rows
from vengine.engines.planned import TextRunner, has_free_batch
from vengine.engines.process import WorkerSession
from vengine.errors import VengineError, WorkerError
from vengine.tune.objectives import slower
from vengine.tune.prepare import WORKLOAD, Prepared
from vengine.tune.race import Contender, first_look, race
from vengine.types import Budget, Invariance, Plan, Recipe, Task, Trial, Variant, Verdict
from vengine.verify.arrange import Output, arrange, excerpt
from vengine.verify.compare import Judge
from vengine.verify.invariance import COST, LEAST_TEXTS, MOST_TEXTS, invariance, invariance_of_tensors
from vengine.verify.noise import NoiseFloor

if TYPE_CHECKING:
    from vengine.engines.base import Session

HANG_S = 120.0
BATCH_TOKENS = 1024  # of a verified batch
_COMPANY_PASSES = 4.0  # keeping texts company may take so many of the original's timed passes: 5 % of the time box


@dataclass(frozen=True, kw_only=True)
class Original:
    """The untouched model, open in its process, with its answers on the samples."""

    variant: Variant
    worker: WorkerSession
    judge: Judge  # holds the original's answers on the samples
    noise: NoiseFloor | None = None  # between its own runs
    bears: tuple[str, ...] = ()  # the circumstances of `invariance.PERHAPS` that leave its answers as they are


def open_worker(variant: Variant, memory_limit_bytes: int | None, task: Task | None = None) -> WorkerSession:
    """The variant in a process of its own; a folder of weights is opened for `task`."""
    recipe = variant.recipe
    return WorkerSession(
        recipe.engine,
        variant.directory / variant.entry,
        recipe.precision,
        recipe.profile,
        task=task,
        memory_limit_bytes=memory_limit_bytes,
        timeout_s=HANG_S,
    )


def opening_of(variant: Variant, task: Task | None = None) -> Opening:
    """What its engine is asked to open."""
    recipe = variant.recipe
    path = variant.directory / variant.entry
    return Opening(engine=recipe.engine, path=path, precision=recipe.precision, profile=recipe.profile, task=task)


def open_plan(plan: Plan, variants: Sequence[Variant], task: Task | None = None) -> WorkerSession:
    """Several variants under a plan in one process, as a bundle runs them."""
    return WorkerSession.planned(plan, {v.digest: opening_of(v, task) for v in variants})


def answers(session: Session, prepared: Prepared, batch_tokens: int = BATCH_TOKENS) -> dict[str, Output]:
    """The session's outputs on every sample, in the samples' order."""
    if prepared.tokenizer is None:
        rows = [session.run(feeds) for feeds in prepared.tensors()]
        for row in rows:
            require_rows(row, 1)
        return {name: [row[name][0] for row in rows] for name in rows[0]}
    runner = TextRunner(session, prepared.tokenizer, batch_tokens=batch_tokens)
    assert prepared.index is not None
    return arrange(runner.run_texts(prepared.texts), prepared.index)


def compare(
    session: Session, prepared: Prepared, original: Original, budget: Budget
) -> tuple[Verdict, Invariance | None]:
    """Compare with the original, then with itself in other company."""
    found = original.judge.verdict(answers(session, prepared))
    if prepared.tokenizer is None:
        return found, _company_of_tensors(session, prepared, budget)
    moved = invariance(
        session.run,
        prepared.encodings,
        prepared.names,
        prepared.tokenizer.pad_id,
        prepared.source.task,
        budget.min_invariance,
        texts=[str(text) for text in prepared.texts],
        max_tokens=prepared.source.max_tokens,
        count=company_texts(prepared),
        perhaps=original.bears,
    )
    return found, moved


def company_texts(prepared: Prepared) -> int:
    """How many texts (or tensors) are kept company: fewer where the model is slow."""
    mean = max(1.0, prepared.tokens / (len(prepared.encodings) or len(prepared.samples)))
    affordable = min(float(MOST_TEXTS), _COMPANY_PASSES * prepared.pass_tokens / (COST * mean))
    return max(LEAST_TEXTS, int(affordable))


def _company_of_tensors(session: Session, prepared: Prepared, budget: Budget) -> Invariance | None:
    """None where a batch of this model can't hold several samples: nobody will put any into one."""
    if not has_free_batch(prepared.source.inputs, prepared.source.outputs):
        return None
    return invariance_of_tensors(
        session.run,
        prepared.tensors(),
        prepared.source.task,
        budget.min_invariance,
        texts=[excerpt(sample) for sample in prepared.samples],
        count=company_texts(prepared),
    )


def try_recipe(variant: Variant, prepared: Prepared, original: Original, budget: Budget, seed: int) -> Trial:
    """Run one trial to its end. The caller keeps the original's process paused."""
    started = time.monotonic()
    try:
        trial = _run(variant, prepared, original, budget, seed)
    except VengineError as error:
        trial = Trial(recipe=variant.recipe, status="failed", reason=error.what, variant=variant)
    return replace(trial, seconds=round(time.monotonic() - started, 2))


def _run(variant: Variant, prepared: Prepared, original: Original, budget: Budget, seed: int) -> Trial:
    with open_worker(variant, budget.memory_limit_bytes) as worker:
        found, moved = compare(worker, prepared, original, budget)
        trial = Trial(
            recipe=variant.recipe,
            status="ok",
            variant=variant,
            verdict=found,
            invariance=moved,
            precision_run=worker.precision_run,
        )
        if reason := broken_promise(found, moved):
            return replace(trial, status="refused", reason=reason, peak_rss_bytes=worker.peak_rss_bytes)
    # A fresh process: verification met shapes that no user sends, and what engines keep of them would count as memory.
    with open_worker(variant, budget.memory_limit_bytes) as worker:
        return _timed(trial, worker, prepared, original, seed)


def _timed(trial: Trial, worker: WorkerSession, prepared: Prepared, original: Original, seed: int) -> Trial:
    """A short race against the original on the workload, and a first look at the variant's own table."""
    assert trial.variant is not None
    one = contender("original", original.worker, prepared, None)
    other = contender(trial.variant.digest, worker, prepared, trial.recipe)
    worker.pause()
    try:
        times = race([one, other], (WORKLOAD,), rounds=(3, 3), seconds=0.0, seed=seed)
        cells = first_look(other, prepared.cells)
    except WorkerError as error:
        if not original.worker.alive:
            raise WorkerError(f"the original's process ended: {error.what}") from error
        raise
    ratio = times.ratio(WORKLOAD.name, of=other.name, to=one.name)
    trial = replace(trial, ratio=ratio, cells=cells, peak_rss_bytes=worker.peak_rss_bytes)
    if ratio.high < 1.0:
        return replace(trial, status="refused", reason=slower(ratio))
    return trial


def contender(name: str, worker: WorkerSession, prepared: Prepared, recipe: Recipe | None) -> Contender:
    """A loaded variant that takes the prepared loads."""
    return Contender(
        name=name,
        worker=worker,
        feeds=lambda load: [call for burst in prepared.work(load, recipe) for call in burst],
        bursts=lambda load: _bursts([len(burst) for burst in prepared.work(load, recipe)]),
    )


def _bursts(sizes: list[int]) -> list[int]:
    return sizes if max(sizes) > 1 else []


def broken_promise(found: Verdict, moved: Invariance | None) -> str:
    """Why this variant may not ship, in one sentence; "" when it may."""
    if found.outcome != "pass":
        return ("undecided: " if found.outcome == "undecided" else "") + found.reason
    if moved is not None and moved.outcome == "undecided":
        return "undecided: the data holds a single sample, and one alone has no company to be tried in"
    if moved is not None and moved.outcome != "pass":
        where = min(moved.checks, key=lambda c: c.similarity).what
        return (
            f"the same input answers differently in other company, {where}: {moved.worst:.4f} "
            f"(at least {moved.bound:g} is promised)"
        )
    return ""
