"""The main loop: try every recipe, drive the best ones otherwise, race the finalists, plan, and race the plan.

Everything that was tried is in the journal before the next thing starts, so a killed search resumes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from vengine.engines.process import WorkerSession
from vengine.errors import EngineError, VengineError
from vengine.tune.aging import ask
from vengine.tune.build import Workshop
from vengine.tune.candidates import second_thoughts
from vengine.tune.choose import choose, without_slower
from vengine.tune.journal import Journal
from vengine.tune.objectives import achieved, hope, refusal
from vengine.tune.planner import mend, refused_for_accuracy
from vengine.tune.prepare import WORKLOAD, Prepared
from vengine.tune.profiles import profiles
from vengine.tune.race import Load, Times, race
from vengine.tune.selection import fallback, finalists, leaders, name_of, sound
from vengine.tune.trial import Original, contender, open_plan, open_worker, try_recipe
from vengine.types import (
    Budget,
    Company,
    Interval,
    Machine,
    Objective,
    Outcome,
    Plan,
    PlanEntry,
    Recipe,
    Settings,
    Trial,
)

Tell = Callable[[dict[str, Any]], None]

# Shares of the time box: first tries end here, then profiles, then the race; the plan's own race gets the rest.
_TRIES_END, _PROFILES_END, _RACE_END = 0.5, 0.68, 0.85
_MENDS_END, _LADDER_SHARE = 0.6, 0.15  # refused int8 is mended between tries and profiles


@dataclass(frozen=True, kw_only=True)
class Bench:
    """What one search works with."""

    prepared: Prepared
    workshop: Workshop
    original: Original
    machine: Machine
    settings: Settings
    budget: Budget
    journal: Journal
    tell: Tell
    started: float = field(default_factory=time.monotonic)

    @property
    def objective(self) -> Objective:
        """What the user wants to win."""
        return self.prepared.workload.objective

    def left(self, share: float = 1.0) -> float:
        """Seconds until this share of the time box is used up."""
        return self.started + share * self.settings.time_seconds - time.monotonic()


@dataclass(frozen=True, kw_only=True)
class Found:
    """What the search ends with. Without a plan, the original is kept."""

    outcome: Outcome
    why: str
    trials: tuple[Trial, ...]
    times: Times | None = None  # the finalists' race, the original included
    plan: Plan | None = None
    winners: tuple[Trial, ...] = ()  # the plan's variants
    planned: Times | None = None  # original, plan ("bundle") and, where it holds several variants, its base ("single")
    planned_rss_bytes: int | None = None
    later: tuple[Company, ...] = ()  # the plan's answers after its race and with other threads, beside those before it
    fallback: Trial | None = None

    @property
    def undecided(self) -> bool:
        """Whether more samples would tell."""
        return self.outcome == "undecided"


def search(bench: Bench, recipes: Sequence[Recipe], refused: Sequence[Trial]) -> Found:
    """Run the whole search; see the module's first lines."""
    trials = [*refused, *_attempts(bench, recipes, _TRIES_END)]
    trials += _attempts(bench, second_thoughts(trials), _PROFILES_END, optional=True)
    trials += _mended(bench, trials)
    if not (good := sound(trials, bench.objective)):
        return _nothing(trials)
    bench.tell({"event": "phase", "name": "drive the best ones otherwise"})
    others = [r for best in leaders(good) for r in _other_profiles(bench, best)]
    trials += _attempts(bench, others, _PROFILES_END, optional=True)
    while True:
        try:
            return _settle(bench, trials)
        except _Lost as lost:
            trials = _without(bench, trials, lost)


def _settle(bench: Bench, trials: Sequence[Trial]) -> Found:
    """Race the finalists, plan, and race the plan."""
    if not sound(trials, bench.objective):
        return _nothing(trials)
    chosen = finalists(sound(trials, bench.objective), bench.objective)
    with ExitStack() as stack:
        workers = {name_of(t): _open(bench, t, stack) for t in chosen}
        with _blamed({name_of(t): (name_of(t),) for t in chosen}):
            times = _final_race(bench, chosen, workers)
    reasons = {name_of(t): _refusal(bench, _ratio(times, t), t.peak_rss_bytes or 0) for t in chosen}
    ahead = [t for t in chosen if not reasons[name_of(t)]]
    if not ahead:
        nothing = _nothing(trials)
        return replace(nothing, times=times, why=nothing.why if nothing.undecided else reasons[name_of(chosen[0])])
    return _prove(bench, trials, ahead, times, _plan(bench, ahead, times))


class _Lost(Exception):
    """Variants that ended in the middle of a race, though their trials were sound."""

    def __init__(self, digests: tuple[str, ...], reason: str) -> None:
        super().__init__(reason)
        self.digests, self.reason = digests, reason


@contextmanager
def _blamed(digests: Mapping[str, tuple[str, ...]]) -> Iterator[None]:
    """Turn the end of a contender into the loss of the variants behind it; the original's end stays an error."""
    try:
        yield
    except EngineError as error:
        if error.where not in digests:
            raise
        raise _Lost(digests[error.where], error.what) from error


@contextmanager
def _losing(digests: tuple[str, ...]) -> Iterator[None]:
    """Turn whatever the plan's own process refuses into the loss of its variants."""
    try:
        yield
    except EngineError as error:
        raise _Lost(digests, error.what) from error


def _without(bench: Bench, trials: Sequence[Trial], lost: _Lost) -> list[Trial]:
    """The trials, those of the lost variants failed: in the journal too, so that no resumed run races them again."""
    failed = {
        name_of(t): replace(t, status="failed", reason=f"in the race: {lost.reason}")
        for t in trials
        if t.variant and name_of(t) in lost.digests
    }
    for trial in failed.values():
        bench.journal.write(trial)
    return [failed.get(t.variant.digest, t) if t.variant else t for t in trials]


def _plan(bench: Bench, ahead: Sequence[Trial], times: Times) -> Plan:
    """For memory the smallest one alone: every further variant would be held beside it."""
    if bench.objective == "memory":
        return Plan(entries=(PlanEntry(variant=name_of(min(ahead, key=hope("memory"))), tokens_min=1),))
    return choose(times, {name_of(t): t.recipe for t in ahead}, _loads(bench), bench.settings.max_variants)


def _refusal(bench: Bench, ratio: Interval, peak: int) -> str:
    return refusal(bench.objective, ratio, peak, bench.original.worker.peak_rss_bytes)


def _mended(bench: Bench, trials: Sequence[Trial]) -> list[Trial]:
    """Static int8 that was refused for its answers, with some nodes in float."""
    if not refused_for_accuracy(trials) or bench.left(_MENDS_END) <= 0:
        return []
    bench.tell({"event": "phase", "name": "find the nodes that int8 hurts"})
    seconds = min(bench.left(_MENDS_END), _LADDER_SHARE * bench.settings.time_seconds)
    task = bench.prepared.source.task
    return mend(
        bench.workshop,
        trials,
        task,
        seconds,
        attempt=lambda recipe: _attempts(bench, [recipe], _MENDS_END)[0],
        note=lambda text: bench.tell({"event": "note", "text": text}),
    )


def _attempts(bench: Bench, recipes: Sequence[Recipe], share: float, *, optional: bool = False) -> list[Trial]:
    trials = []
    for i, recipe in enumerate(recipes):
        if optional and bench.left(share) <= 0:
            break
        bench.tell({"event": "trial-start", "recipe": recipe.label, "index": i + 1, "total": len(recipes)})
        trial = _attempt(bench, recipe, share)
        ratio = trial.ratio.value if trial.ratio else None
        bench.tell(
            {
                "event": "trial-end",
                "recipe": recipe.label,
                "status": trial.status,
                "reason": trial.reason,
                "ratio": ratio,
                "seconds": trial.seconds,
            }
        )
        trials.append(trial)
    return trials


def _attempt(bench: Bench, recipe: Recipe, share: float) -> Trial:
    if (known := bench.journal.get(recipe)) is not None:
        return known
    if bench.left(share) <= 0:
        return Trial(
            recipe=recipe, status="skipped", reason="the time was up before it could be tried (give more with --time)"
        )
    try:
        variant = bench.workshop.build(recipe)
    except VengineError as error:
        trial = Trial(recipe=recipe, status="failed", reason=error.what)
    else:
        trial = try_recipe(variant, bench.prepared, bench.original, bench.budget, bench.settings.seed)
    bench.journal.write(trial)
    return trial


def _other_profiles(bench: Bench, best: Trial) -> Sequence[Recipe]:
    fixed = bench.settings.threads is not None
    return profiles(best.recipe, bench.machine, bench.settings.level, fixed, bench.prepared.row_tokens)


def _open(bench: Bench, trial: Trial, stack: ExitStack) -> WorkerSession:
    assert trial.variant is not None
    worker = open_worker(trial.variant, bench.budget.memory_limit_bytes)
    stack.callback(worker.close)
    worker.pause()
    return worker


def _fairest(bench: Bench, winners: Sequence[Trial], stack: ExitStack) -> WorkerSession:
    """The original; where the plan uses other threads, the faster of it and one with as many threads."""
    original = bench.original.variant
    threads = max(t.recipe.profile.threads for t in winners)
    if threads == original.recipe.profile.threads:
        return bench.original.worker
    profile = replace(original.recipe.profile, threads=threads)
    more = replace(original, recipe=replace(original.recipe, profile=profile))
    worker = open_worker(more, None, bench.prepared.source.task)
    stack.callback(worker.close)
    worker.pause()
    both = [
        contender("as it was", bench.original.worker, bench.prepared, None),
        contender("equal threads", worker, bench.prepared, None),
    ]
    times = race(both, (WORKLOAD,), rounds=(5, 5), seconds=0.0, seed=bench.settings.seed)
    ratio = times.ratio(WORKLOAD.name, of="equal threads", to="as it was")
    return worker if ratio.value > 1.0 else bench.original.worker


def _final_race(bench: Bench, finalists: Sequence[Trial], workers: dict[str, WorkerSession]) -> Times:
    bench.tell({"event": "phase", "name": "race", "contenders": [t.recipe.label for t in finalists]})
    runners = [contender("original", bench.original.worker, bench.prepared, None)]
    runners += [contender(name_of(t), workers[name_of(t)], bench.prepared, t.recipe) for t in finalists]
    return race(
        runners,
        _loads(bench),
        rounds=(5, 15),
        seconds=max(bench.left(_RACE_END), 0.0),
        seed=bench.settings.seed,
        tell=bench.tell,
    )


def _prove(bench: Bench, trials: Sequence[Trial], ahead: Sequence[Trial], times: Times, plan: Plan) -> Found:
    """Race the plan as it ships against the original and, if it holds several variants, its base alone."""
    bench.tell({"event": "phase", "name": "prove the plan"})
    winners = [t for t in ahead if name_of(t) in {e.variant for e in plan.entries}]
    single = next(t for t in ahead if name_of(t) == plan.entries[-1].variant)
    several = len(winners) > 1
    with ExitStack() as stack:
        worker = open_plan(plan, [t.variant for t in winners if t.variant])
        stack.callback(worker.close)
        digests = tuple(name_of(t) for t in winners)
        with _losing(digests):
            young = ask(worker, bench.prepared)
        worker.pause()
        runners = [
            contender("original", _fairest(bench, winners, stack), bench.prepared, None),
            contender("bundle", worker, bench.prepared, single.recipe),
        ]
        if several:
            runners.append(contender("single", _open(bench, single, stack), bench.prepared, single.recipe))
        with _blamed({"bundle": digests, "single": (name_of(single),)}):
            proof = race(
                runners,
                _loads(bench),
                rounds=(5, 15),
                seconds=max(bench.left(), 0.0),
                seed=bench.settings.seed + 1,
                tell=bench.tell,
            )
        peak = worker.peak_rss_bytes
        with _losing(digests):
            aged = young.aged(worker, bench.prepared, bench.budget.min_invariance)
    with _losing(digests):
        variants = [t.variant for t in winners if t.variant]
        threaded = young.threaded(plan, variants, bench.prepared, bench.budget.min_invariance)
    if several and (better := without_slower(plan, proof, _loads(bench))) != plan:
        return _prove(bench, trials, ahead, times, better)
    found = _conclude(bench, trials, winners, single, times, plan, proof, peak)
    return found if found.later else replace(found, later=(aged, threaded))


def _conclude(
    bench: Bench,
    trials: Sequence[Trial],
    winners: Sequence[Trial],
    single: Trial,
    times: Times,
    plan: Plan,
    proof: Times,
    peak: int,
) -> Found:
    limit = bench.budget.memory_limit_bytes
    if len(winners) > 1 and limit is not None and peak > limit:
        # Several variants together are too large: the best single one was within the limit in its trial.
        alone = Plan(entries=(replace(plan.entries[-1], tokens_min=1, tokens_max=None, batch_min=1),))
        return _prove(bench, trials, [single], times, alone)
    ratio = proof.ratio(WORKLOAD.name, of="bundle", to="original")
    original_peak = bench.original.worker.peak_rss_bytes
    found = Found(
        outcome="pass",
        why=achieved(bench.objective, ratio, peak, original_peak),
        trials=tuple(trials),
        times=times,
        plan=plan,
        winners=tuple(winners),
        planned=proof,
        planned_rss_bytes=peak,
        fallback=fallback(trials),
    )
    reason = refusal(bench.objective, ratio, peak, original_peak)
    if limit is not None and peak > limit:
        reason = f"it took {peak >> 20:,} MiB in the last race, and {limit >> 20:,} MiB are allowed"
    return replace(found, outcome="fail", why=reason, plan=None, winners=()) if reason else found


def _nothing(trials: Sequence[Trial]) -> Found:
    """No variant may ship: undecided if only samples are missing, failed otherwise."""
    open_ones = [t for t in trials if any(v and v.outcome == "undecided" for v in (t.verdict, t.invariance))]
    if open_ones:
        outcome: Outcome = "undecided"
        why = open_ones[0].reason.removeprefix("undecided: ")  # the outcome says so already
    else:
        outcome, why = "fail", "no variant was both within the budget and faster than the original"
        if trials and not any(t.variant or t.status != "refused" for t in trials):
            why = f"nothing could be tried: {'; '.join(f'{t.recipe.label}: {t.reason}' for t in trials)}"
    return Found(outcome=outcome, why=why, trials=tuple(trials), fallback=fallback(trials))


def _loads(bench: Bench) -> tuple[Load, ...]:
    return (WORKLOAD, *bench.prepared.cells)


def _ratio(times: Times, trial: Trial) -> Interval:
    return times.ratio(WORKLOAD.name, of=name_of(trial), to="original")
