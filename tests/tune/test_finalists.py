"""Who races at the end: the best, that of the largest cell, what comes close, and only then near copies."""

from __future__ import annotations

from pathlib import Path

import pytest

from vengine.tune.selection import finalists
from vengine.types import Cell, Interval, Objective, Recipe, RuntimeProfile, Trial, Variant


def exactly(value: float) -> Interval:
    return Interval(value=value, low=value, high=value)


def trial(name: str, speed: float, *cells: float, rss: int = 100) -> Trial:
    recipe = Recipe(engine="fake", precision=name, profile=RuntimeProfile(threads=2))
    return Trial(
        recipe=recipe,
        status="ok",
        ratio=exactly(speed),
        variant=Variant(recipe=recipe, directory=Path(), entry="m", digest=name, size_bytes=1),
        cells=tuple(Cell(batch=8, length=16 << i, ms=exactly(ms), calls=3) for i, ms in enumerate(cells)),
        peak_rss_bytes=rss,
    )


BEST = trial("best", 3.6, 1.0, 9.0)
LARGE = trial("large", 2.4, 2.0, 7.0)
NEAR = trial("near", 3.3, 1.01, 9.1)
COPIES = [trial(f"copy {i}", 2.3, 0.9 - i / 100, 7.1) for i in range(3)]
SLOW = trial("slow", 2.0, 3.0, 12.0)


@pytest.mark.parametrize(
    ("good", "objective", "names"),
    [
        pytest.param([BEST], "latency", ["best"], id="only one"),
        pytest.param([BEST, NEAR, SLOW], "latency", ["best", "near"], id="what is far behind stays out"),
        pytest.param([BEST, LARGE, SLOW], "latency", ["best", "large"], id="the best of the largest cell"),
        pytest.param(
            [BEST, NEAR, LARGE, *COPIES], "latency", ["best", "large", "near", "copy 2"], id="close before near copies"
        ),
        pytest.param(
            [BEST, trial("thin", 2.0, 5.0), LARGE],
            "latency",
            ["best"],
            id="a trial of a slower hour has fewer cells",
        ),
        pytest.param([SLOW, BEST], "memory", ["slow", "best"], id="for memory, speed doesn't shut anyone out"),
        pytest.param([trial(str(i), 3.6) for i in range(6)], "latency", ["0", "1", "2", "3"], id="four at most"),
    ],
)
def test_who_races(good: list[Trial], objective: Objective, names: list[str]) -> None:
    assert [t.recipe.precision for t in finalists(good, objective)] == names
