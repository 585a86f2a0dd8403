"""From looks at a process to a finding: does memory grow, with what, and whose is it?

Three things are told apart by when they grow. A leak grows with every request, whatever its shape. A cache of shapes
grows when a new one is met, and never again for it. An arena is large and then stays as it is. Python's own memory is
counted beside, so that a leak in Python's code is told from one below it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from vengine.engines.memory import Memory
from vengine.types import Outcome

if TYPE_CHECKING:
    from vengine.verify.trend import Trend

Phase = Literal["warm-up", "one shape", "known shapes", "new shapes", "all shapes"]
PHASES: tuple[Phase, ...] = ("warm-up", "one shape", "known shapes", "new shapes", "all shapes")
STEADY: tuple[Phase, ...] = ("one shape", "known shapes", "all shapes")
"""The phases in which no shape is met for the first time: what grows here grows for ever."""
HORIZON = 1_000_000
"""Requests that must still fit under a stated limit, if memory goes on growing as it does."""
_OURS = 0.5  # a leak is Python's when Python holds at least this share of it
_SLOWER = 0.05  # a request takes so much longer over the whole run: worth a word
_LITTLE_BYTES = 4096  # a shape that costs less than a page costs nothing


@dataclass(frozen=True, kw_only=True)
class Look:
    """The process after so many requests."""

    phase: Phase
    seconds: float
    requests: int
    shapes: int  # different ones met so far
    memory: Memory
    ms: float  # of one and the same call, asked anew each time


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much may grow."""

    per_thousand_bytes: int  # a thousand requests, for ever
    total_bytes: int  # of the process, after `HORIZON` requests and with every shape met
    stated: bool  # whether the user named the total


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that may grow."""

    what: Literal["requests", "shapes", "limit", "kept", "latency"]
    outcome: Outcome
    whose: str  # "Python", "the engine or the C allocator", …; "" where nothing grows
    words: str


@dataclass(frozen=True, kw_only=True)
class Growth:
    """What the looks say."""

    outcome: Outcome
    findings: tuple[Finding, ...]
    memory: Trend | None  # bytes a request, in the steady phases
    python: Trend | None
    shape: Trend | None  # bytes a new shape
    latency: Trend | None  # milliseconds a request


def judge(looks: Sequence[Look], limits: Limits, *, possible: int, given_back: int | None) -> Growth:
    """The verdict, worst finding first.

    Args:
        looks: in the order of time.
        possible: how many shapes there can be.
        given_back: what the C allocator gave back when it was asked at the end.
    """
    memory = _steady(looks, "anonymous_bytes")
    python = _steady(looks, "python_bytes")
    shape = _by_shape(looks)
    latency = _latency(looks)
    findings = [
        _requests(memory, python, limits, looks),
        _shapes(shape, looks, limits, possible),
        _limit(memory, looks, limits),
        _kept(looks, given_back),
        _slower(latency, looks),
    ]
    order = ("fail", "undecided", "pass")
    told = sorted((f for f in findings if f is not None), key=lambda f: order.index(f.outcome))
    return Growth(
        outcome=told[0].outcome if told else "undecided",
        findings=tuple(told),
        memory=memory,
        python=python,
        shape=shape,
        latency=latency,
    )


def _stretches(looks: Sequence[Look], phases: Sequence[Phase]) -> list[list[Look]]:
    return [[look for look in looks if look.phase == phase] for phase in phases]


def _steady(looks: Sequence[Look], field: str) -> Trend | None:
    from vengine.verify.trend import trend

    rows = [
        [(look.requests, value) for look in stretch if (value := getattr(look.memory, field)) is not None]
        for stretch in _stretches(looks, STEADY)
    ]
    return trend([([x for x, _ in row], [y for _, y in row]) for row in rows])


def _by_shape(looks: Sequence[Look]) -> Trend | None:
    from vengine.verify.trend import trend

    (found,) = _stretches(looks, ("new shapes",))
    return trend([([look.shapes for look in found], [look.memory.anonymous_bytes for look in found])])


def _latency(looks: Sequence[Look]) -> Trend | None:
    from vengine.verify.trend import trend

    found = [look for look in looks if look.phase != "warm-up"]
    return trend([([look.requests for look in found], [look.ms for look in found])])


def _requests(memory: Trend | None, python: Trend | None, limits: Limits, looks: Sequence[Look]) -> Finding:
    if memory is None:
        return Finding(what="requests", outcome="undecided", whose="", words="too few looks: let it run longer")
    allowed = limits.per_thousand_bytes
    low, middle, high = (1000 * v for v in (memory.slope.low, memory.slope.value, memory.slope.high))
    spread = f"{size(middle)} ({size(low)} to {size(high)})"
    if memory.rises and low > allowed and 1000 * memory.later > allowed:
        whose = _whose(memory, python, looks)
        words = f"memory grows by {spread} every 1,000 requests, {size(allowed)} are allowed; it is held by {whose}"
        return Finding(what="requests", outcome="fail", whose=whose, words=words)
    if high > allowed and memory.p < 0.05:
        words = f"memory may grow by {spread} every 1,000 requests, {size(allowed)} are allowed: let it run longer"
        return Finding(what="requests", outcome="undecided", whose="", words=words)
    words = f"requests of known shapes leave nothing behind: {spread} every 1,000, {size(allowed)} are allowed"
    return Finding(what="requests", outcome="pass", whose="", words=words)


def _whose(memory: Trend, python: Trend | None, looks: Sequence[Look]) -> str:
    if python is not None and python.slope.value >= _OURS * memory.slope.value:
        return "Python"
    first, last = _first_and_last(looks)
    used, free = (_rise(first, last, field) for field in ("used_bytes", "free_bytes"))
    if free > used > 0:
        return "the C allocator's free lists"
    return "the engine, below Python"


def _rise(first: Look, last: Look, field: str) -> int:
    before, after = getattr(first.memory, field), getattr(last.memory, field)
    return 0 if before is None or after is None else int(after - before)


def _first_and_last(looks: Sequence[Look]) -> tuple[Look, Look]:
    warm = [look for look in looks if look.phase != "warm-up"] or list(looks)
    return warm[0], warm[-1]


def _shapes(shape: Trend | None, looks: Sequence[Look], limits: Limits, possible: int) -> Finding | None:
    last = looks[-1]
    left = max(0, possible - last.shapes)
    if shape is None:
        return None
    each, least = shape.slope.value, shape.slope.low
    if not shape.rises or each < _LITTLE_BYTES:
        return Finding(what="shapes", outcome="pass", whose="", words="a new shape leaves nothing behind")
    whose = "a cache of shapes"
    told = f"a new shape keeps {size(each)}; of {possible:,} that there can be {left:,} are still to come"
    end = last.memory.rss_bytes + least * left
    if end > limits.total_bytes:
        words = f"{told}: {size(end)} in the end, {_total(limits)}"
        return Finding(what="shapes", outcome="fail", whose=whose, words=words)
    return Finding(what="shapes", outcome="pass", whose=whose, words=f"{told}, {size(each * left)} more at most")


def _limit(memory: Trend | None, looks: Sequence[Look], limits: Limits) -> Finding | None:
    if not limits.stated:
        return None
    peak = max(look.memory.rss_bytes for look in looks)
    if peak > limits.total_bytes:
        words = f"the process held {size(peak)}, {_total(limits)}"
        return Finding(what="limit", outcome="fail", whose="", words=words)
    if memory is not None and memory.rises:
        end = looks[-1].memory.rss_bytes + memory.slope.low * HORIZON
        if memory.later > 0 and end > limits.total_bytes:
            words = f"after {HORIZON:,} more requests the process would hold {size(end)}, {_total(limits)}"
            return Finding(what="limit", outcome="fail", whose="", words=words)
    words = f"the process held {size(peak)} at most, {_total(limits)}"
    return Finding(what="limit", outcome="pass", whose="", words=words)


def _kept(looks: Sequence[Look], given_back: int | None) -> Finding | None:
    last = looks[-1].memory
    if last.free_bytes is None:
        return None
    back = "" if given_back is None else f"; asked at the end, it gave {size(given_back)} back"
    words = f"the C allocator keeps {size(last.free_bytes)} for later requests, which is held and not lost{back}"
    return Finding(what="kept", outcome="pass", whose="", words=words)


def _slower(latency: Trend | None, looks: Sequence[Look]) -> Finding | None:
    if latency is None:
        return None
    first, last = _first_and_last(looks)
    calls = sorted(look.ms for look in looks if look.phase != "warm-up")
    more = latency.slope.low * (last.requests - first.requests) / max(calls[len(calls) // 2], 1e-9)
    if not latency.rises or more < _SLOWER:
        return Finding(what="latency", outcome="pass", whose="", words="the same call takes as long as at the start")
    words = f"the same call takes at least {more:.0%} longer at the end than at the start: let it run longer"
    return Finding(what="latency", outcome="undecided", whose="", words=words)


def _total(limits: Limits) -> str:
    said = "the limit is" if limits.stated else "which is more than twice what it held when it was warm:"
    return f"{said} {size(limits.total_bytes)}"


def size(value: float) -> str:
    """Bytes with a sign."""
    from vengine.report.wording import size as words

    return f"−{words(-value)}" if value < 0 else words(value)
