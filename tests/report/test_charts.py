"""The drawings say what the numbers say: positions are checked, not pictures."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vengine.report import charts, curves, dials, svg
from vengine.report.contenders import contenders
from vengine.types import Interval


def read(drawing: str) -> ET.Element:
    return ET.fromstring(drawing)


def widths(drawing: str, class_: str) -> list[float]:
    return [float(e.get("width", "0")) for e in read(drawing).iter("rect") if e.get("class") == class_]


def test_a_waterfall_bar_is_as_long_as_its_time(sample: dict[str, Any]) -> None:
    drawing = charts.waterfall(contenders(sample), charts.WIDE)
    original, bundle = widths(drawing, "bar original")[0], widths(drawing, "bar bundle")[0]
    assert bundle / original == pytest.approx(1 / 4.73, rel=0.01)
    assert len(widths(drawing, "bar refused")) == 4  # the one that died has no time
    assert len(widths(drawing, "bar shipped")) == 2


def test_the_waterfall_falls_from_the_original_to_the_bundle(sample: dict[str, Any]) -> None:
    order = [e.get("class") for e in read(charts.waterfall(contenders(sample), charts.WIDE)).iter("rect")]
    kinds = [c for c in order if c and c.startswith("bar ")]
    assert (kinds[0], kinds[-1]) == ("bar original", "bar bundle")


def test_an_endless_bar_is_cut_and_says_so(sample: dict[str, Any]) -> None:
    sample["trials"][0]["ratio"] = {"value": 0.01, "low": 0.009, "high": 0.011}
    drawing = charts.waterfall(contenders(sample), charts.NARROW)
    assert "»" in drawing
    assert "0.01×" in drawing
    assert "»" not in charts.waterfall(contenders(sample)[2:], charts.NARROW)


def test_the_memory_limit_is_a_red_line(sample: dict[str, Any]) -> None:
    assert "mark red" in charts.memory(contenders(sample), charts.WIDE, 300e6)
    assert "mark red" not in charts.memory(contenders(sample), charts.WIDE, None)


def test_refused_points_are_hollow_and_the_budget_is_a_red_line(sample: dict[str, Any]) -> None:
    found = curves.points(contenders(sample))
    root = read(curves.scatter(found, 0.01, charts.WIDE))
    dots = [e.get("class", "") for e in root.iter() if "dot" in e.get("class", "").split()]
    assert len(dots) == len(found)
    assert sum("hollow" in d for d in dots) == 4
    red = next(e for e in root.iter("line") if "red" in e.get("class", ""))
    over = next(e for e in root.iter("g") if "fell by 3.1" in (e.findtext("title") or ""))
    under = next(e for e in root.iter("g") if (e.findtext("title") or "").startswith("the bundle"))
    centre = {name: float(next(g.iter("circle")).get("cy", "0")) for name, g in (("over", over), ("under", under))}
    assert centre["over"] < float(red.get("y1", "0")) < centre["under"]


def test_a_loss_off_the_scale_is_an_arrow_with_its_number(sample: dict[str, Any]) -> None:
    sample["trials"][0]["verdict"]["drop"] = {"value": 0.4, "low": 0.35, "high": 0.45}
    drawing = curves.scatter(curves.points(contenders(sample)), 0.01, charts.WIDE)
    assert "onnxruntime fp32 (40\u00a0%)" in drawing
    assert "<polygon" in drawing


def test_latency_has_a_panel_a_batch_and_the_ranges_of_the_plan(sample: dict[str, Any]) -> None:
    lines = curves.series(sample)
    plan = curves.ranges(sample, lines)
    assert [s.name for s in lines][:2] == ["original", "the bundle"]
    assert curves.batches(lines) == [1, 8]
    one, eight = (read(curves.panel(lines, plan, b, charts.HALF)) for b in (1, 8))
    strips = [[e for e in p.iter("rect") if "strip" in e.get("class", "")] for p in (one, eight)]
    assert [len(s) for s in strips] == [1, 2]  # 1,024 tokens lie beyond 1 × 256 and at 8 × 128
    x128 = next(float(e.get("x", "0")) for e in eight.iter("text") if e.text == "128")
    assert float(strips[1][1].get("x", "0")) == pytest.approx(x128, abs=1)


def test_a_lower_latency_is_drawn_lower(sample: dict[str, Any]) -> None:
    lines = curves.series(sample)
    root = read(curves.panel(lines, (), 8, charts.HALF))
    starts = {
        e.get("class"): float(e.get("d", "").split("L")[0].split()[1]) for e in root.iter("path") if e.get("class")
    }
    assert starts["line s0"] < starts["line s1"]  # SVG counts downwards


@pytest.mark.parametrize(
    ("data", "found"),
    [
        ([[8, 2], [16, 0]], [(8.0, 2.0), (16.0, 0.0)]),
        ([[16, 1], [8, 2]], [(8.0, 2.0), (16.0, 1.0)]),
        ([[8, 0]], []),
        ([[8, None], [9, -1], "x", [1]], []),
        (None, []),
        ({}, []),
    ],
)
def test_histograms_are_read(data: Any, found: list[tuple[float, float]]) -> None:
    assert charts.counts_of(data) == found


def test_percentiles_stand_inside_their_column() -> None:
    drawing = read(charts.histogram([(8, 5), (16, 9), (64, 1)], 360, [("p50", 12), ("p95", 40)]))
    columns = [(float(e.get("x", "0")), float(e.get("width", "0"))) for e in drawing.iter("rect")]
    marks = [float(e.get("x1", "0")) for e in drawing.iter("line") if "mark" in e.get("class", "")]
    for mark, (x, width) in zip(marks, columns[1:], strict=True):
        assert x <= mark <= x + width


@pytest.mark.parametrize("ratio", [0.4, 1.0, 1.7, 4.73, 31.0, 900.0])
def test_the_needle_stays_on_its_dial(ratio: float) -> None:
    root = read(dials.speed_dial(Interval(value=ratio, low=ratio * 0.9, high=ratio * 1.1)))
    needle = next(e for e in root.iter("line") if e.get("class") == "needle")
    assert float(needle.get("y2", "0")) <= float(needle.get("y1", "0")) + 0.01


def test_the_accuracy_dial_has_a_red_zone_and_clamps() -> None:
    for drop in (-5.0, 0.0, 0.02, 5.0):
        assert "redzone" in dials.accuracy_dial(Interval(value=drop, low=drop, high=drop), 0.01)
    assert dials.accuracy_dial(Interval(value=0, low=0, high=0), 0.0)


@given(st.floats(0, 1e6), st.floats(1e-3, 1e6), st.integers(1, 12))
def test_ticks_are_inside_and_few(low: float, span: float, about: int) -> None:
    found = svg.ticks(low, low + span, about)
    slack = span * 1e-6 + 1e-6
    assert all(low - slack <= t <= low + span + slack for t in found)
    assert len(found) <= about + 1


@given(st.floats(1e-3, 1e5), st.floats(1.01, 1e6))
def test_log_ticks_are_inside(low: float, times: float) -> None:
    assert all(low <= t <= low * times for t in svg.log_ticks(low, low * times))
    assert len(svg.log_ticks(low, low * times)) <= 13


labels = st.tuples(st.floats(0, 700), st.floats(0, 300), st.text("abcd 会议", min_size=1, max_size=30))


@given(st.lists(labels, max_size=14))
def test_labels_never_overlap_and_stay_inside(points: list[tuple[float, float, str]]) -> None:
    area = svg.Box(x=0, y=0, width=700, height=300)
    boxes = [b for b in svg.place(points, area) if b is not None]
    for i, box in enumerate(boxes):
        assert box.x >= 0
        assert box.x + box.width <= 700
        assert not any(box.meets(other) for other in boxes[:i])


def test_a_lonely_point_has_its_label_beside_it() -> None:
    box = svg.place([(100, 100, "name")], svg.Box(x=0, y=0, width=700, height=300))[0]
    assert box is not None
    assert 0 < box.x - 100 < 12


@given(st.text(max_size=60), st.floats(0, 300))
def test_a_fitted_text_fits(text: str, width: float) -> None:
    assert svg.text_width(svg.fit(text, width)) <= max(width, svg.text_width("…"))


def test_content_is_escaped_where_it_enters() -> None:
    assert svg.label(0, 0, "<b>&") == '<text x="0" y="0" text-anchor="start" class="label">&lt;b&gt;&amp;</text>'
    assert "&quot;" in svg.element("g", class_='a" onload="x')


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        (1, [("one", 1, 64), ("base", 65, float("inf"))]),
        (8, [("base", 1, 511), ("many", 512, float("inf"))]),
    ],
)
def test_the_first_range_that_fits_serves(batch: int, expected: list[tuple[str, float, float]]) -> None:
    plan = [
        curves.Range(low=512, high=float("inf"), name="many", style=2, batch_min=2),
        curves.Range(low=1, high=float("inf"), name="base", style=3, batch_min=2),
        curves.Range(low=1, high=64, name="one", style=4),
        curves.Range(low=1, high=float("inf"), name="base", style=3),
    ]
    assert [(r.name, r.low, r.high) for r in curves.served(plan, batch)] == expected
