"""Which quantised units hurt the answers, and the ladder of choices that follows: what to take back into float.

Damage is measured, not assumed: a unit (or a group of neighbours) alone is quantised, everything else in float, and
the outputs are compared with the float outputs. Groups are halved where most damage is, so a single culprit among
ninety units is found in some fifteen measurements, and the time box may end at any moment: what was measured until
then orders the units. The order is damage ÷ milliseconds that the unit saves, worst bargain first.

The ladder's rungs are prefixes of this order, each the shortest that divides the damage by two once more, and each
looked back upon: a unit that was taken in early goes out again where the rung stays within its damage without it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vengine.graph.switchboard import Switchboard

_RUNGS = 8  # the last one leaves 1/256 of the damage
_LEAST_SHARE = 1e-3  # of the total damage: a group below it is not looked into
_LEAST_MS = 1e-3  # of all milliseconds saved: what a unit saves at least, so that bargains stay finite


@dataclass(frozen=True, kw_only=True)
class Hurt:
    """What one unit costs and saves."""

    unit: str
    damage: float  # of its group alone, shared evenly among the group's units
    saved_ms: float | None  # by quantising it; None: not measured
    group: int = 1  # units that were measured together


@dataclass(frozen=True, kw_only=True)
class Rung:
    """One choice: these units in float."""

    in_float: tuple[str, ...]
    damage: float  # measured, with all of them together
    worst: float  # the same of the worst sample
    cost_ms: float  # what they would have saved


@dataclass(frozen=True, kw_only=True)
class Ladder:
    """What was measured; `rungs` from few units in float to many, the first is empty."""

    units: int
    hurts: tuple[Hurt, ...]  # the worst bargain first
    rungs: tuple[Rung, ...]
    samples: int
    measurements: int
    complete: bool  # whether the time sufficed


def climb(
    board: Switchboard,
    saved_ms: Mapping[str, float],
    seconds: float,
    keep: Callable[[Ladder], None],
) -> Ladder:
    """Measure and build the ladder.

    Args:
        saved_ms: milliseconds that each unit saves a call when it is quantised, as far as they are known.
        seconds: the time box; what is known when it ends is the result.
        keep: called with each better ladder, so that a killed process leaves the best so far.
    """
    end = time.monotonic() + seconds
    order = tuple(unit.name for unit in board.units)
    usual = sum(abs(ms) for ms in saved_ms.values()) or 1.0
    measured, split = _hurts(board, order, saved_ms, time.monotonic() + 0.6 * seconds)
    hurts = tuple(sorted(measured, key=lambda h: -h.damage / _saved(h, usual)))
    first = _rung(board, (), hurts)
    ladder = Ladder(
        units=len(order),
        hurts=hurts,
        rungs=(first,),
        samples=board.samples,
        measurements=board.measured,
        complete=split,
    )
    keep(ladder)
    for halvings in range(1, _RUNGS + 1):
        if time.monotonic() > end:
            return replace(ladder, complete=False)
        target = first.damage / 2**halvings
        chosen = _look_back(board, _shortest(board, hurts, target), target, end)
        rung = _rung(board, chosen, hurts)
        if len(rung.in_float) == len(order):
            break
        if rung.in_float != ladder.rungs[-1].in_float:
            ladder = replace(ladder, rungs=(*ladder.rungs, rung), measurements=board.measured)
            keep(ladder)
    return ladder


def _hurts(
    board: Switchboard, order: Sequence[str], saved_ms: Mapping[str, float], end: float
) -> tuple[list[Hurt], bool]:
    """Halve the group with the most damage until single units are left, or the time is up."""

    def alone(group: Sequence[str]) -> float:
        inside = set(group)
        return board.damage([name for name in order if name not in inside])

    total = board.damage(())
    groups = [(total, tuple(order))]
    complete = True
    while open_groups := [g for g in groups if len(g[1]) > 1 and g[0] > _LEAST_SHARE * total]:
        if time.monotonic() > end:
            complete = False
            break
        worst = max(open_groups)
        groups.remove(worst)
        half = len(worst[1]) // 2
        groups += [(alone(part), part) for part in (worst[1][:half], worst[1][half:])]
    return [
        Hurt(unit=name, damage=damage / len(group), saved_ms=saved_ms.get(name), group=len(group))
        for damage, group in groups
        for name in group
    ], complete


def _saved(hurt: Hurt, usual: float) -> float:
    return max(hurt.saved_ms or 0.0, _LEAST_MS * usual)


def _shortest(board: Switchboard, hurts: Sequence[Hurt], target: float) -> tuple[Hurt, ...]:
    """The shortest prefix within the target; damages of prefixes fall, up to a little noise."""
    low, high = 0, len(hurts)
    while low < high:
        middle = (low + high) // 2
        if board.damage([h.unit for h in hurts[:middle]]) <= target:
            high = middle
        else:
            low = middle + 1
    return tuple(hurts[:low])


def _look_back(board: Switchboard, chosen: Sequence[Hurt], target: float, end: float) -> tuple[str, ...]:
    """Without the units that the target doesn't need, the dearest tried first."""
    kept = [h.unit for h in chosen]
    for hurt in sorted(chosen, key=lambda h: -(h.saved_ms or 0.0)):
        if time.monotonic() > end:
            break
        fewer = [name for name in kept if name != hurt.unit]
        if board.damage(fewer) <= target:
            kept = fewer
    return tuple(kept)


def _rung(board: Switchboard, names: Sequence[str], hurts: Sequence[Hurt]) -> Rung:
    inside = set(names)
    return Rung(
        in_float=tuple(names),
        damage=board.damage(names),
        worst=float(board.damages(names).max()),
        cost_ms=sum(h.saved_ms or 0.0 for h in hurts if h.unit in inside),
    )
