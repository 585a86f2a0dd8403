"""From the measured table to a plan: which variant serves which size of call.

The plan starts with the variant that is best over all, and leaves it only where another one was *measured* faster with
an interval that excludes 1, on every cell of a contiguous range of tokens. So it is nowhere slower than the best
single variant, up to the noise that the interval states.

Calls of one text and of many are two ladders: a variant that runs calls side by side needs several to be fast.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vengine.tune.race import Load, Times
from vengine.types import Plan, PlanEntry


@dataclass(frozen=True, kw_only=True)
class Switch:
    """A range of a ladder on which another variant beats the base."""

    variant: str
    tokens_min: int
    tokens_max: int | None
    batch_min: int
    gain: float  # sum of (base ms ÷ its ms − 1) over the cells


def choose(times: Times, names: Sequence[str], loads: Sequence[Load], weights: Mapping[str, float], most: int) -> Plan:
    """The plan with at most `most` variants.

    Args:
        names: the variants' digests; all verified.
        weights: how much a load counts for the base, by the load's name.
    """
    cells = [load for load in loads if load.batch]
    base = min(names, key=lambda name: _cost(times, name, loads, weights))
    switches = [
        s
        for batch_min, ladder in _ladders(cells)
        for other in names
        if other != base
        for s in _ranges(times, base, other, ladder, batch_min)
    ]
    entries, used = [], {base}
    for switch in sorted(switches, key=lambda s: -s.gain):
        if len(used | {switch.variant}) > most or any(_overlap(switch, e) for e in entries):
            continue
        used.add(switch.variant)
        entries.append(switch)
    rows = [
        PlanEntry(variant=s.variant, tokens_min=s.tokens_min, tokens_max=s.tokens_max, batch_min=s.batch_min)
        for s in sorted(entries, key=lambda s: (-s.batch_min, s.tokens_min))
    ]
    return Plan(entries=(*rows, PlanEntry(variant=base, tokens_min=1)))


def _cost(times: Times, name: str, loads: Sequence[Load], weights: Mapping[str, float]) -> float:
    """Weighted sum of this variant's times, each relative to the fastest's on that load."""
    total = 0.0
    for load in loads:
        best = min(_median(row[load.name]) for row in times.ms.values())
        total += weights.get(load.name, 0.0) * _median(times.ms[name][load.name]) / best
    return total


def _ladders(cells: Sequence[Load]) -> list[tuple[int, list[Load]]]:
    """(batch_min, cells by rising tokens): many texts first, then single ones."""
    many = sorted((c for c in cells if c.batch > 1), key=lambda c: c.batch * c.length)
    single = sorted((c for c in cells if c.batch == 1), key=lambda c: c.length)
    return [(batch_min, ladder) for batch_min, ladder in ((2, many), (1, single)) if ladder]


def _ranges(times: Times, base: str, other: str, ladder: Sequence[Load], batch_min: int) -> list[Switch]:
    """Contiguous runs of cells on which `other` is faster than `base` beyond doubt."""
    found: list[Switch] = []
    run: list[Load] = []
    for load in [*ladder, None]:
        if load is not None and times.ratio(load.name, of=other, to=base).low > 1.0:
            run.append(load)
        elif run:
            found.append(_switch(times, base, other, run, ladder, batch_min))
            run = []
    return found


def _switch(
    times: Times, base: str, other: str, run: Sequence[Load], ladder: Sequence[Load], batch_min: int
) -> Switch:
    """Between two measured cells the base keeps serving, except beyond both ends of the ladder."""
    first, last = run[0], run[-1]
    return Switch(
        variant=other,
        tokens_min=1 if first is ladder[0] else first.batch * first.length,
        tokens_max=None if last is ladder[-1] else last.batch * last.length,
        batch_min=batch_min,
        gain=sum(_median(times.ms[base][x.name]) / _median(times.ms[other][x.name]) - 1 for x in run),
    )


def _overlap(one: Switch, other: Switch) -> bool:
    top_one, top_other = one.tokens_max or float("inf"), other.tokens_max or float("inf")
    return one.batch_min == other.batch_min and one.tokens_min <= top_other and other.tokens_min <= top_one


def _median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]
