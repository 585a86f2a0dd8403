"""The plan: what may leave the base, and what must not."""

from __future__ import annotations

import pytest

from vengine.tune.choose import choose, without_slower
from vengine.tune.race import Load, Times
from vengine.types import Plan, PlanEntry, Recipe, RuntimeProfile

WORK = Load(name="workload")
SINGLE = [Load(name=f"1x{n}", batch=1, length=n) for n in (16, 64, 256)]
MANY = [Load(name=f"8x{n}", batch=8, length=n) for n in (16, 64, 256)]
LOADS = (WORK, *SINGLE, *MANY)
WOBBLE = (1.0, 1.004, 0.997, 1.002, 0.999, 1.001, 0.998)  # a quiet machine's rounds


def recipe(**profile: int) -> Recipe:
    return Recipe(engine="fake", precision="fp32", profile=RuntimeProfile(**{"threads": 2, **profile}))


def times(**rows: list[float]) -> Times:
    """Per contender: milliseconds of the workload, then of each cell in the order of LOADS."""
    return Times(
        ms={
            name: {load.name: [ms * w for w in WOBBLE] for load, ms in zip(LOADS, row, strict=True)}
            for name, row in rows.items()
        }
    )


def rows(plan: Plan) -> list[tuple[str, int, int | None, int]]:
    return [(e.variant, e.tokens_min, e.tokens_max, e.batch_min) for e in plan.entries]


BASE = [10, 1, 4, 16, 8, 32, 128]
BASE_ONLY = [("base", 1, None, 1)]


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        pytest.param([10, 1, 4, 16, 8, 32, 128], BASE_ONLY, id="equal: the base stays alone"),
        pytest.param([20, 2, 8, 32, 16, 64, 256], BASE_ONLY, id="slower everywhere"),
        pytest.param([20, 2, 8, 32, 16, 64, 100], [("other", 2048, None, 2), *BASE_ONLY], id="upper end of batches"),
        pytest.param([20, 2, 8, 32, 6, 64, 256], [("other", 1, 128, 2), *BASE_ONLY], id="lower end of batches"),
        pytest.param([20, 2, 8, 32, 6, 25, 100], [("other", 1, None, 2), *BASE_ONLY], id="all batches"),
        pytest.param(
            [20, 2, 8, 10, 16, 64, 256],
            [("base", 1, None, 2), ("other", 256, None, 1), *BASE_ONLY],
            id="long single texts, batches kept away",
        ),
        pytest.param([20, 2, 8, 32, 16, 20, 256], BASE_ONLY, id="must not: faster in the middle only"),
        pytest.param([20, 2, 8, 32, 16, 64, 126], BASE_ONLY, id="must not: one part in a hundred isn't worth it"),
        pytest.param([20, 2, 8, 32, 16, 10, 135], BASE_ONLY, id="must not: slower on one cell of the end"),
    ],
)
def test_where_another_variant_serves(other: list[float], expected: list[tuple[str, int, int | None, int]]) -> None:
    plan = choose(times(base=BASE, other=other), {"base": recipe(), "other": recipe(streams=2)}, LOADS, most=3)
    assert rows(plan) == expected


def test_noise_is_no_reason_to_leave_the_simple_recipe() -> None:
    noisy = times(base=BASE, other=[9.99, *BASE[1:]])
    plan = choose(noisy, {"other": recipe(threads=3), "base": recipe()}, LOADS, most=3)
    assert rows(plan) == BASE_ONLY


def test_the_faster_one_is_the_base_even_if_it_is_less_simple() -> None:
    plan = choose(
        times(base=[12, *BASE[1:]], other=BASE), {"base": recipe(), "other": recipe(streams=2)}, LOADS, most=1
    )
    assert plan.entries[-1].variant == "other"


def test_no_more_variants_than_allowed() -> None:
    raced = times(base=BASE, other=[20, 2, 8, 32, 16, 64, 100], third=[20, 0.5, 8, 32, 16, 64, 256])
    recipes = {"base": recipe(), "other": recipe(), "third": recipe()}
    assert {e.variant for e in choose(raced, recipes, LOADS, most=3).entries} == {"base", "other", "third"}
    assert len({e.variant for e in choose(raced, recipes, LOADS, most=2).entries}) == 2
    assert rows(choose(raced, recipes, LOADS, most=1)) == BASE_ONLY


def test_a_plan_does_not_mix_thread_counts() -> None:
    raced = times(base=BASE, other=[20, 2, 8, 32, 16, 64, 100])
    recipes = {"base": recipe(), "other": recipe(threads=3)}
    assert rows(choose(raced, recipes, LOADS, most=3)) == BASE_ONLY


LARGE = PlanEntry(variant="other", tokens_min=2048, batch_min=2)
MIDDLE = PlanEntry(variant="third", tokens_min=1, tokens_max=128, batch_min=2)
LONG = PlanEntry(variant="other", tokens_min=256)
HOME = PlanEntry(variant="base", tokens_min=1)
ALL = (LARGE, MIDDLE, HOME)


@pytest.mark.parametrize(
    ("entries", "bundle", "kept"),
    [
        pytest.param(ALL, BASE, ALL, id="no slower: all stay"),
        pytest.param(ALL, [10, 1, 4, 16, 8, 32, 90], ALL, id="faster: all stay"),
        pytest.param(ALL, [10, 1, 4, 16, 8, 32, 129], ALL, id="slower by noise: all stay"),
        pytest.param(ALL, [10, 1, 4, 16, 8, 32, 160], (MIDDLE, HOME), id="slower on the large: that one goes"),
        pytest.param(ALL, [10, 1, 4, 16, 12, 32, 160], (HOME,), id="slower at both ends: both go"),
        pytest.param(ALL, [10, 2, 8, 32, 8, 32, 128], ALL, id="the base's own cells don't drop the others"),
        pytest.param(ALL, [12, *BASE[1:]], (HOME,), id="slower on the mix: the base alone"),
        pytest.param(
            (PlanEntry(variant="base", tokens_min=1, batch_min=2), LONG, HOME),
            [10, 1, 4, 25, 8, 32, 128],
            (HOME,),
            id="what only kept batches away goes too",
        ),
    ],
)
def test_what_is_slower_in_the_plan_than_the_base_alone_leaves_it(
    entries: tuple[PlanEntry, ...], bundle: list[float], kept: tuple[PlanEntry, ...]
) -> None:
    raced = times(bundle=bundle, single=BASE)
    assert without_slower(Plan(entries=entries), raced, LOADS).entries == kept


def test_beside_a_packing_base_what_pads_serves_full_batches_only() -> None:
    """Cells have no padding: they say nothing about texts of many lengths."""
    other = [20, 0.5, 2, 8, 4, 16, 64]
    recipes = {"base": recipe(row_tokens=128), "other": recipe()}
    plan = choose(times(base=BASE, other=other), recipes, LOADS, most=3)
    assert [(e.variant, e.batch_min, e.fill_min) for e in plan.entries] == [
        ("other", 2, 0.95),
        ("base", 2, 0.0),
        ("other", 1, 0.0),
        ("base", 1, 0.0),
    ]


def test_a_packed_variant_beside_a_base_that_pads_needs_no_share() -> None:
    other = [20, 0.5, 2, 8, 4, 16, 64]
    recipes = {"base": recipe(), "other": recipe(row_tokens=128)}
    plan = choose(times(base=BASE, other=other), recipes, LOADS, most=3)
    assert all(e.fill_min == 0 for e in plan.entries)
