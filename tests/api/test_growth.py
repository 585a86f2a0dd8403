"""What a series of looks means: a table of kinds of growth, each with its like that is sound."""

from __future__ import annotations

from typing import Any

import pytest

from vengine.api.growth import PHASES, Growth, Limits, Look, judge
from vengine.engines.memory import Memory

KB, MB = 1000, 1_000_000
LIMITS = Limits(per_thousand_bytes=64 * KB, total_bytes=400 * MB, stated=False)


def looks(
    *,
    request: int = 0,
    python: int = 0,
    shape: int = 0,
    arena: int = 0,
    fills_until: int = 0,
    ms: float = 0.0,
    noise: int = 0,
) -> list[Look]:
    """20 looks a phase, 10 requests each; bytes a request, of them Python's, a new shape; an arena that fills early."""
    made = []
    for i in range(20 * len(PHASES)):
        phase = PHASES[i // 20]
        requests, shapes = 10 * (i + 1), 40 + (max(0, min(20, i - 60)))
        held = 100 * MB + request * requests + shape * shapes + arena * min(i, fills_until) + noise * (i % 3)
        memory = Memory(
            rss_bytes=held + 50 * MB,
            anonymous_bytes=held,
            used_bytes=held // 2,
            free_bytes=arena * min(i, fills_until),
            python_bytes=None if phase == "warm-up" else python * requests,
        )
        made.append(Look(phase=phase, seconds=i / 10, requests=requests, shapes=shapes, memory=memory, ms=1 + ms * i))
    return made


def judged(limits: Limits = LIMITS, possible: int = 100, **growth: Any) -> Growth:
    return judge(looks(**growth), limits, possible=possible, given_back=None)


@pytest.mark.parametrize(
    ("growth", "outcome", "what", "whose"),
    [
        ({}, "pass", "", ""),
        ({"request": 1024, "python": 1000}, "fail", "requests", "Python"),
        ({"request": 1024}, "fail", "requests", "the engine, below Python"),
        ({"request": 32, "python": 32}, "pass", "", ""),  # 32 kB every 1,000 are allowed
        ({"arena": 5 * MB, "fills_until": 19}, "pass", "", ""),  # large, filled while warming up, flat
        ({"noise": 300 * KB}, "pass", "", ""),
        ({"shape": 10 * MB}, "fail", "shapes", "a cache of shapes"),
        ({"shape": 100 * KB}, "pass", "shapes", "a cache of shapes"),
        ({"ms": 0.01}, "undecided", "latency", ""),
    ],
)
def test_each_kind_of_growth_is_told_apart(growth: dict[str, Any], outcome: str, what: str, whose: str) -> None:
    found = judged(**growth)
    assert found.outcome == outcome, found.findings
    if what:
        (finding,) = [f for f in found.findings if f.what == what]
        assert (finding.outcome, finding.whose) == (outcome, whose)


def test_a_cache_of_shapes_that_are_all_met_is_no_leak() -> None:
    assert judged(shape=10 * MB, possible=60).outcome == "fail"  # 700 MB held already
    assert (
        judged(Limits(per_thousand_bytes=64 * KB, total_bytes=800 * MB, stated=True), 60, shape=10 * MB).outcome
        == "pass"
    )


@pytest.mark.parametrize(
    ("total", "request_", "outcome"),
    [(400 * MB, 0, "pass"), (100 * MB, 0, "fail"), (400 * MB, 32, "pass"), (160 * MB, 32, "fail")],
)
def test_a_stated_limit_holds_now_and_after_a_million_requests(total: int, request_: int, outcome: str) -> None:
    found = judged(Limits(per_thousand_bytes=64 * KB, total_bytes=total, stated=True), request=request_)
    (limit,) = [f for f in found.findings if f.what == "limit"]
    assert limit.outcome == outcome


def test_too_few_looks_decide_nothing() -> None:
    assert judge(looks()[:3], LIMITS, possible=1, given_back=None).outcome == "undecided"
