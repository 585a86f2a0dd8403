"""From the measured table to a plan: which variant serves which size of call.

The plan starts with one base: the simplest among those that no other variant beats beyond doubt on the workload. It
leaves the base only at an end of a ladder of sizes, where another variant was measured faster with an interval that
excludes 1 over the whole end, and slower on none of its cells. So it is nowhere slower than the best single variant,
up to the noise that the intervals state.

Calls of one text and of many are two ladders: a variant that runs calls side by side needs several to be fast.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from vengine.tune.race import Load, Times
from vengine.types import Interval, Plan, PlanEntry, Recipe
from vengine.verify.statistics import ratio_interval

_WORTH = 1.03  # a second variant costs memory: over its range it must be at least so much faster
_AHEAD = 1.02  # less than this is no reason to prefer a recipe that is less simple
_SLOWER = 0.98  # and on no cell slower than this
_FULL = 0.95  # a variant that computes padding beside one that doesn't: where so much of a batch is tokens


@dataclass(frozen=True, kw_only=True)
class Switch:
    """An end of a ladder on which another variant beats the base."""

    variant: str
    tokens_min: int
    tokens_max: int | None
    batch_min: int
    fill_min: float
    gain: float  # (mean speed-up over the cells − 1) × cells


def choose(times: Times, recipes: Mapping[str, Recipe], loads: Sequence[Load], most: int) -> Plan:
    """The plan with at most `most` variants.

    Args:
        recipes: the verified variants, by digest.
        loads: the workload (its batch is 0) and the cells, all of them raced.
    """
    base = _base(times, recipes, next(load.name for load in loads if not load.batch))
    switches = [
        switch
        for batch_min, ladder in _ladders([load for load in loads if load.batch])
        for other in recipes
        # Threads are equal within a plan: with others, the ratio to the original would mean something else.
        if other != base and recipes[other].profile.threads == recipes[base].profile.threads
        for switch in _ends(times, base, other, ladder, batch_min, _fill_min(recipes[base], recipes[other], batch_min))
    ]
    entries: list[Switch] = []
    for switch in sorted(switches, key=lambda s: -s.gain):
        used = {base, switch.variant, *(e.variant for e in entries)}
        if len(used) <= most and not any(_overlap(switch, e) for e in entries):
            entries.append(switch)
    many = [_entry(s) for s in sorted(entries, key=lambda s: s.tokens_min) if s.batch_min > 1]
    single = [_entry(s) for s in sorted(entries, key=lambda s: s.tokens_min) if s.batch_min == 1]
    if single:  # the first entry that fits serves: batches must not reach the entries for single texts
        many.append(PlanEntry(variant=base, tokens_min=1, batch_min=2))
    return Plan(entries=(*many, *single, PlanEntry(variant=base, tokens_min=1)))


def without_slower(plan: Plan, raced: Times, loads: Sequence[Load]) -> Plan:
    """The plan less the entries that a race of the plan itself shows slower than its base, on a cell or on the mix.

    Variants that share a process may disturb each other, and what was measured once may have been luck.

    Args:
        raced: "bundle" is the plan as it ships, "single" its base alone.
    """
    slower = [load for load in loads if _clearly_slower(raced.ratio(load.name, of="bundle", to="single"))]
    base = plan.entries[-1]
    if any(not load.batch for load in slower):
        return Plan(entries=(replace(base, tokens_min=1, tokens_max=None, batch_min=1),))
    bad = {serving(plan, load) for load in slower}
    kept = tuple(e for e in plan.entries if e not in bad or e.variant == base.variant)
    # Entries of the base that keep calls away from others have no purpose without these.
    return Plan(entries=kept if {e.variant for e in kept} != {base.variant} else (base,))


def serving(plan: Plan, cell: Load) -> PlanEntry:
    """The entry that answers calls of this size: the first that fits, else the last."""
    fits = (
        e
        for e in plan.entries
        if e.tokens_min <= _tokens(cell) <= (e.tokens_max or float("inf")) and cell.batch >= e.batch_min
    )
    return next(fits, plan.entries[-1])


def _clearly_slower(ratio: Interval) -> bool:
    return ratio.high < 1.0 and ratio.value < _SLOWER


def _entry(switch: Switch) -> PlanEntry:
    return PlanEntry(
        variant=switch.variant,
        tokens_min=switch.tokens_min,
        tokens_max=switch.tokens_max,
        batch_min=switch.batch_min,
        fill_min=switch.fill_min,
    )


def _fill_min(base: Recipe, other: Recipe, batch_min: int) -> float:
    """Cells are batches without padding: where texts differ in length, what packs them was the faster one."""
    pads = base.profile.row_tokens is not None and other.profile.row_tokens is None
    return _FULL if pads and batch_min > 1 else 0.0


def _base(times: Times, recipes: Mapping[str, Recipe], workload: str) -> str:
    """The simplest variant that the fastest one doesn't beat beyond doubt."""
    fastest = min(recipes, key=lambda name: _median(times.ms[name][workload]))
    ahead = {name: times.ratio(workload, of=fastest, to=name) for name in recipes}
    equal = [name for name, ratio in ahead.items() if ratio.low <= 1.0 or ratio.value < _AHEAD]
    return min(equal, key=lambda name: (_complexity(recipes[name]), _median(times.ms[name][workload])))


def _complexity(recipe: Recipe) -> tuple[int, bool, bool, bool, bool, bool]:
    """Smaller is simpler: what a recipe does beyond the engine's plain way."""
    profile = recipe.profile
    cut = profile.chunk_tokens is not None
    packs = profile.row_tokens is not None
    return profile.threads, packs, profile.streams > 1, cut, not profile.spinning, not profile.arena


def _ladders(cells: Sequence[Load]) -> list[tuple[int, list[Load]]]:
    """(batch_min, cells by rising tokens): many texts first, then single ones."""
    many = sorted((c for c in cells if c.batch > 1), key=_tokens)
    single = sorted((c for c in cells if c.batch == 1), key=_tokens)
    return [(batch_min, ladder) for batch_min, ladder in ((2, many), (1, single)) if ladder]


def _ends(times: Times, base: str, other: str, ladder: Sequence[Load], batch_min: int, fill_min: float) -> list[Switch]:
    """The best lower end, the best upper end, or the whole ladder, where `other` pays."""
    n = len(ladder)
    found = []
    for first, last in [*((0, i) for i in range(n)), *((i, n - 1) for i in range(1, n))]:
        cells = ladder[first : last + 1]
        gain = _over(times, base, other, cells)
        if gain.low > 1.0 and gain.value >= _WORTH and all(_not_slower(times, base, other, c) for c in cells):
            # Between the last measured cell of the end and the next one, the base keeps serving.
            found.append(
                Switch(
                    variant=other,
                    tokens_min=1 if first == 0 else _tokens(ladder[first]),
                    tokens_max=None if last == n - 1 else _tokens(ladder[last]),
                    batch_min=batch_min,
                    fill_min=fill_min,
                    gain=(gain.value - 1) * len(cells),
                )
            )
    return found


def _over(times: Times, base: str, other: str, cells: Sequence[Load]) -> Interval:
    """How many times faster `other` is over these cells, each weighing the same."""
    unit = {c.name: _median(times.ms[base][c.name]) for c in cells}

    def rounds(name: str) -> list[float]:
        relative = ([ms / unit[c.name] for ms in times.ms[name][c.name]] for c in cells)
        return [sum(row) for row in zip(*relative, strict=True)]

    return ratio_interval(rounds(base), rounds(other))


def _not_slower(times: Times, base: str, other: str, cell: Load) -> bool:
    return times.ratio(cell.name, of=other, to=base).value >= _SLOWER


def _overlap(one: Switch, other: Switch) -> bool:
    top_one, top_other = one.tokens_max or float("inf"), other.tokens_max or float("inf")
    return one.batch_min == other.batch_min and one.tokens_min <= top_other and other.tokens_min <= top_one


def _tokens(cell: Load) -> int:
    return cell.batch * cell.length


def _median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]
