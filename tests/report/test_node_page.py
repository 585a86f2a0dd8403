"""A profile's page: sound, safe, complete, and the roofline puts each node where its numbers say."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from tests.report.test_html import Reader, unsafe
from tests.report.test_node_view import EVIL, OTHERS, PRODUCT, result

from vengine.report.node_page import profile_page
from vengine.report.roofline import Roof, Spot, roofline, roofs, spots

RESULT = result(PRODUCT, *OTHERS)
POISON = '<img src=x onerror=alert(1)>"></svg><script>x</script>'


def page(value: dict[str, Any]) -> str:
    return profile_page(value, "2026-12-01 03:00 UTC")


@pytest.mark.parametrize(
    "value",
    [
        RESULT,
        result(replace(PRODUCT, flops=None)),
        result(PRODUCT, ceilings=RESULT["ceilings"] | {"int8": None}),
        result(PRODUCT, ceilings=RESULT["ceilings"] | {"memory": None}),
        result(replace(PRODUCT, name=POISON, kind=POISON, kernel=POISON), name=POISON, machine={"cpu": POISON}),
        result(replace(PRODUCT, name=EVIL, kind=EVIL), name=EVIL),
    ],
)
def test_every_profile_is_one_sound_and_safe_page(value: dict[str, Any]) -> None:
    text = page(value)
    found = Reader(text)
    assert (found.faults, found.open, unsafe(found)) == ([], [], [])
    assert "\x1b" not in text
    assert "\u202e" not in text
    ids = [a["id"] for _, a in found.found if "id" in a]
    assert len(ids) == len(set(ids))
    assert {a["href"] for t, a in found.found if t == "a"} <= {f"#{i}" for i in ids}


def test_all_parts_and_all_nodes_are_there() -> None:
    text = page(RESULT)
    anchors = [a["id"] for t, a in Reader(text).found if t == "section"]
    assert anchors == ["glance", "shares", "operators", "roofline", "nodes"]
    assert all(f"<td>{node['name']}</td>" in text for node in RESULT["nodes"])
    assert "2026-12-01 03:00 UTC" in text


@pytest.mark.parametrize("missing", ["int8", "memory"])
def test_without_a_ceiling_there_is_no_roof_to_draw(missing: str) -> None:
    assert 'id="roofline"' not in page(result(PRODUCT, ceilings=RESULT["ceilings"] | {missing: None}))


def test_only_nodes_whose_numbers_are_known_are_spots() -> None:
    nodes = result(PRODUCT, replace(PRODUCT, name="x", moved_bytes=None), *OTHERS)["nodes"]
    (spot,) = spots(nodes)
    assert (spot.precision, spot.intensity, spot.rate) == ("int8", 3000, pytest.approx(2e12))
    assert [roof.precision for roof in roofs(RESULT["ceilings"], [spot])] == ["int8"]


def test_a_node_at_its_peak_lies_on_the_roof() -> None:
    def spot(intensity: float, rate: float) -> Spot:
        return Spot(name="n", precision="fp32", intensity=intensity, rate=rate, words="n")

    roof = Roof(precision="fp32", peak=1e12)
    text = roofline([spot(1000, 1e12), spot(1, 1e10), spot(1000, 5e11)], [roof], 1e10, 800)
    path = re.search(r'd="M([\d.]+) ([\d.]+)L([\d.]+) ([\d.]+)L([\d.]+) ([\d.]+)"', text)
    assert path is not None
    x0, y0, x1, y1, _, y2 = map(float, path.groups())
    at = [(float(x), float(y)) for x, y in re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)"', text)]
    assert y1 == y2
    assert at[0][1] == pytest.approx(y1, abs=0.2)  # at the peak
    on_slope = y0 + (y1 - y0) * (at[1][0] - x0) / (x1 - x0)
    assert at[1][1] == pytest.approx(on_slope, abs=0.5)  # as fast as memory feeds it
    assert at[2][1] > y1 + 5  # half the peak lies below it
