"""The race: the same work, by turns, until the intervals are narrow or the time is up.

Every contender lives in a process of its own and is stopped (SIGSTOP) while another one runs, so that no spinning
thread pool steals cycles. One round = each contender does each load once, in an order drawn anew each round; a round's
times belong together, so ratios are taken pair by pair and survive a machine whose speed drifts.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vengine.errors import EngineError
from vengine.types import Cell, Interval
from vengine.verify.statistics import ratio_interval

if TYPE_CHECKING:
    import numpy as np

    from vengine.engines.process import WorkerSession

    Feeds = list[dict[str, np.ndarray]]


@dataclass(frozen=True, kw_only=True)
class Load:
    """One piece of work. `batch` and `length` are 0 for a mix."""

    name: str  # "8x256" or "workload"
    batch: int = 0
    length: int = 0


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A loaded variant in its process, and how it wants a load cut into calls."""

    name: str  # a digest, or "original"
    worker: WorkerSession
    feeds: Callable[[Load], Feeds]
    # How many of those calls arrive together, burst after burst; () is one call after the other.
    bursts: Callable[[Load], Sequence[int]] = lambda _: ()


@dataclass(frozen=True, kw_only=True)
class Times:
    """Milliseconds: contender → load → one figure a round, rounds aligned over the contenders."""

    ms: dict[str, dict[str, list[float]]] = field(default_factory=dict)

    def ratio(self, load: str, *, of: str, to: str) -> Interval:
        """How many times faster `of` is than `to` on this load (> 1 is faster)."""
        return ratio_interval(self.ms[to][load], self.ms[of][load])

    def cells(self, name: str, loads: Sequence[Load]) -> tuple[Cell, ...]:
        """The contender's row of the (batch, length) table."""
        row = self.ms.get(name, {})
        return tuple(
            Cell(batch=x.batch, length=x.length, ms=median(row[x.name]), calls=len(row[x.name]))
            for x in loads
            if x.batch and row.get(x.name)
        )


def race(
    contenders: Sequence[Contender],
    loads: Sequence[Load],
    *,
    rounds: tuple[int, int],
    seconds: float,
    seed: int,
    tell: Callable[[dict[str, object]], None] = lambda _: None,
) -> Times:
    """Interleaved timing.

    Args:
        rounds: at least and at most so many. The least is done even when the time is up, cells have three rounds then.
        seconds: the time box.

    Raises:
        EngineError: a contender failed, died or hung (WorkerError); its name is in the message's `where`.
    """
    order, deadline = random.Random(seed), time.monotonic() + seconds
    times = Times(ms={c.name: {load.name: [] for load in loads} for c in contenders})
    feeds = {(c.name, load.name): c.feeds(load) for c in contenders for load in loads}
    usual = _warm_up(contenders, loads, feeds)
    for done in range(rounds[1]):
        left = deadline - time.monotonic()
        if not (due := [load for load in loads if left > 0 or done < _least(load, rounds[0])]):
            break
        tell({"event": "race", "round": done + 1, "seconds_left": max(left, 0.0)})
        for load in due:
            for contender in order.sample(list(contenders), len(contenders)):
                key = contender.name, load.name
                times.ms[contender.name][load.name].append(_turn(contender, load, feeds[key], usual[key]))
    return times


def first_look(contender: Contender, loads: Sequence[Load]) -> tuple[Cell, ...]:
    """The contender alone on each cell: enough to pick who races. Paused at the end.

    Returns:
        Cells whose interval is the range of what was seen: one pass where passes are long, else three.
    """
    cells = []
    for load in loads:
        feeds = contender.feeds(load)
        times = _time(contender, load, feeds, repeats=2)[1:]
        if times[0] < _LONG_MS:
            times += _time(contender, load, feeds, repeats=2)
        seen = Interval(value=sorted(times)[len(times) // 2], low=min(times), high=max(times))
        cells.append(Cell(batch=load.batch, length=load.length, ms=seen, calls=len(times)))
    contender.worker.pause()
    return tuple(cells)


def _least(load: Load, rounds: int) -> int:
    """A verdict hangs on the mix, so it is never cut short; a cell only says who serves which size."""
    return min(rounds, _CELL_ROUNDS) if load.batch else rounds


def _warm_up(
    contenders: Sequence[Contender], loads: Sequence[Load], feeds: Mapping[tuple[str, str], Feeds]
) -> dict[tuple[str, str], float]:
    """Each load twice, uncounted: engines compile and allocate on the first call of a shape.

    Once where a pass takes so long that this is a small part of it.

    Returns:
        The last pass's milliseconds, by contender and load.
    """
    usual = {}
    for contender in contenders:
        for load in loads:
            key = contender.name, load.name
            usual[key] = _time(contender, load, feeds[key], repeats=1)[0]
            if usual[key] < _VERY_LONG_MS:
                usual[key] = _time(contender, load, feeds[key], repeats=1)[0]
        contender.worker.pause()
    return usual


def _turn(contender: Contender, load: Load, feeds: Feeds, usual_ms: float) -> float:
    """Milliseconds of one pass: counted behind an uncounted one that brings code and weights back into the caches.

    A long pass does that for itself; a short one is repeated, and the median counts.
    """
    warm = 0 if usual_ms > _LONG_MS else 1
    counted = max(1, min(_MOST_REPEATS, round(_SHORT_MS / max(usual_ms, 0.01))))
    times = _time(contender, load, feeds, repeats=warm + counted)[warm:]
    contender.worker.pause()
    return sorted(times)[len(times) // 2]


def _time(contender: Contender, load: Load, feeds: Feeds, repeats: int) -> list[float]:
    try:
        return contender.worker.time(feeds, repeats=repeats, bursts=contender.bursts(load))
    except EngineError as error:
        raise type(error)(error.what, where=contender.name, next_step=error.next_step) from error


_SHORT_MS, _LONG_MS, _VERY_LONG_MS, _MOST_REPEATS = 20.0, 100.0, 1000.0, 25
_CELL_ROUNDS = 3


def median(ms: Sequence[float]) -> Interval:
    """The median with its bootstrap interval, in the unit of the values."""
    return ratio_interval(ms, [1.0] * len(ms))
