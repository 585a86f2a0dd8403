"""Mending refused int8: which trials are mended, which rung is chosen, and a model that was built to break."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from tests.graph.breaking import labelled, write_breaking

from vengine.api.optimize import optimize
from vengine.engines.recording import Node, Recording
from vengine.graph.sensitivity import Ladder, Rung
from vengine.tune.planner import lowest_passing, node_times, refused_for_accuracy, with_floats
from vengine.types import (
    Interval,
    Invariance,
    Recipe,
    RuntimeProfile,
    Sample,
    Settings,
    Trial,
    TrialStatus,
    Variant,
    Verdict,
    Workload,
)

PROFILE = RuntimeProfile(threads=1)
STATIC = Recipe(engine="openvino", precision="int8-static", profile=PROFILE)
RUNGS = ((), ("a",), ("a", "b"), ("a", "b", "c"), ("a", "b", "c", "d"))
LADDER = Ladder(
    units=9,
    hurts=(),
    rungs=tuple(Rung(in_float=names, damage=1 / 2**i, worst=1.0, cost_ms=0.0) for i, names in enumerate(RUNGS)),
    samples=1,
    measurements=1,
    complete=True,
)


def verdict(outcome: str, drop: float) -> Verdict:
    return Verdict(
        outcome=outcome,  # type: ignore[arg-type]
        metric="accuracy",
        original=1.0,
        optimized=1.0 - drop,
        drop=Interval(value=drop, low=drop, high=drop),
        max_drop=0.01,
        samples=100,
    )


def trial(recipe: Recipe, found: Verdict | None, status: TrialStatus = "refused", moved: str = "pass") -> Trial:
    variant = Variant(recipe=recipe, directory=Path(), entry="m", digest="d", size_bytes=1)
    company = Invariance(
        outcome=moved,  # type: ignore[arg-type]
        alone_vs_batch=1.0,
        alone_vs_padded=None,
        alone_vs_neighbours=1.0,
        bound=0.999,
    )
    return Trial(recipe=recipe, status=status, variant=variant, verdict=found, invariance=company if found else None)


@pytest.mark.parametrize(
    ("tried", "mended"),
    [
        (trial(STATIC, verdict("fail", 0.05)), True),
        (trial(STATIC, verdict("undecided", 0.03)), True),
        (trial(STATIC, verdict("undecided", 0.0)), False),
        (trial(STATIC, verdict("pass", 0.0), moved="fail"), True),
        (trial(STATIC, verdict("pass", 0.0)), False),
        (trial(STATIC, verdict("pass", 0.0), status="ok"), False),
        (trial(STATIC, None, status="failed"), False),
        (trial(replace(STATIC, precision="int8-dynamic"), verdict("fail", 0.05)), False),
        (trial(with_floats(STATIC, ["a"]), verdict("fail", 0.05)), False),
    ],
    ids=["wrong", "off", "too few samples", "in company", "slow", "good", "crashed", "dynamic", "mended already"],
)
def test_what_is_mended(tried: Trial, mended: bool) -> None:
    assert bool(refused_for_accuracy([tried])) is mended


@pytest.mark.parametrize(
    ("drops", "chosen", "most"),
    [
        ({1: 0.0, 2: 0.0, 3: 0.0, 4: 0.0}, ("a",), 3),
        ({1: 0.5, 2: 0.4, 3: 0.0, 4: 0.0}, ("a", "b", "c"), 3),
        ({1: 0.5, 2: 0.4, 3: 0.3, 4: 0.0}, ("a", "b", "c", "d"), 3),
        ({1: 0.5, 2: 0.4, 3: 0.3, 4: 0.2}, (), 3),
    ],
)
def test_the_lowest_rung_within_the_budget_is_chosen(
    drops: Mapping[int, float], chosen: tuple[str, ...], most: int
) -> None:
    def attempt(recipe: Recipe) -> Trial:
        drop = drops[len(recipe.passes)]
        return trial(recipe, verdict("fail" if drop else "pass", drop), "refused" if drop else "ok")

    tried, passing = lowest_passing(STATIC, LADDER, attempt)
    assert passing == chosen
    assert len(tried) <= most


def test_no_time_ends_the_bisection() -> None:
    tried, passing = lowest_passing(STATIC, LADDER, lambda recipe: trial(recipe, None, status="skipped"))
    assert (len(tried), passing) == (1, ())


def test_a_fused_node_is_told_under_each_operator_that_it_was_made_of() -> None:
    def node(name: str, ms: float, *origins: str) -> Node:
        return Node(name=name, kind="k", share="products", start_ms=0.0, span_ms=ms, ms=ms, origins=origins)

    calls = [node("fused", 2.0, "product", "bias"), node("alone", 4.0)], [node("fused", 4.0, "product", "bias")]
    times = node_times([Recording(wall_ms=1.0, nodes=tuple(nodes), timeline=False) for nodes in calls])
    assert times == {"product": 3.0, "bias": 3.0, "alone": 2.0}


def test_a_model_that_int8_breaks_is_mended_within_the_budget(tmp_path: Path) -> None:
    """Engine defaults lose more than 5 % of it; a few nodes in float bring it back within 1 %."""
    model = write_breaking(tmp_path / "breaks.onnx")
    x, classes = labelled(model, 700)
    samples = [Sample(tensors={"x": row}, label=str(c)) for row, c in zip(x, classes, strict=True)]
    random.Random(0).shuffle(samples)
    report = optimize(
        model,
        data=Workload(samples=tuple(samples), origin="test"),
        settings=Settings(time_seconds=60, threads=1, precision="int8", engines=("openvino",)),
        out=tmp_path / "bundle",
        cache=tmp_path / "cache",
    )
    static = [t for t in report["trials"] if t["recipe"]["precision"].startswith("int8-static") and t["verdict"]]
    plain = [t for t in static if not t["recipe"]["passes"]]
    assert plain
    assert all(t["verdict"]["drop"]["value"] > 0.05 for t in plain), plain
    mended = [t for t in static if t["recipe"]["passes"] and t["verdict"]["outcome"] == "pass"]
    assert mended, static
    assert min(len(t["recipe"]["passes"]) for t in mended) <= 6  # of eleven
    assert all("float:matmul_head" in t["recipe"]["passes"] for t in mended)
