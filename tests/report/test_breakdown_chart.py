"""Where a call's time goes, in the report: both on one scale, nothing made up where nothing was told."""

from __future__ import annotations

import re
from typing import Any

import pytest

from vengine.report.breakdown_chart import breakdown_section
from vengine.report.html import html


def widths(content: str, kind: str) -> list[float]:
    return [float(w) for w in re.findall(rf'<rect[^>]*width="([\d.]+)"[^>]*class="bar {kind}"', content)]


def test_both_calls_are_drawn_on_one_scale(sample: dict[str, Any]) -> None:
    rows = sample["breakdown"]
    panels = breakdown_section(sample).content.split("</h3>")
    # The wide drawing of each panel comes first; matrix products are its longest bar.
    before, after = (max(widths(panel, "bundle")) for panel in panels[1:3])
    told = [row["shares"][0]["ms"] for row in rows]
    assert after / before == pytest.approx(told[1] / told[0], rel=0.15)  # their numbers take unequal room
    assert "openvino int8-static: 1.3\xa0ms" in panels[1]


def test_the_slowest_nodes_of_what_ships_are_named_and_every_node_is_listed(sample: dict[str, Any]) -> None:
    content = breakdown_section(sample).content
    assert "What ships: the 3 nodes that take the most" in content
    for row in sample["breakdown"]:
        assert all(f"<td>{node['name']}</td>" in content for node in row["nodes"])


def test_where_the_original_ships_it_stands_alone(sample: dict[str, Any]) -> None:
    sample["breakdown"] = sample["breakdown"][:1]
    content = breakdown_section(sample).content
    assert "What ships" not in content
    assert "The original: the 2 nodes" in content


@pytest.mark.parametrize(
    "rows",
    [None, [], 7, [None], [{"who": "bundle"}], [{"who": ["bundle"], "shares": []}], [{"who": "bundle", "shares": [7]}]],
)
def test_nothing_told_draws_nothing(sample: dict[str, Any], rows: object) -> None:
    assert 'id="breakdown"' in html(sample)
    sample["breakdown"] = rows
    assert breakdown_section(sample).content == ""
    assert 'id="breakdown"' not in html(sample)


def test_damaged_rows_are_drawn_as_far_as_they_go(sample: dict[str, Any]) -> None:
    row = sample["breakdown"][1]
    row |= {"nodes": [{"name": ["x"], "ms": 1.0}, {"ms": "fast"}], "gap_ms": None, "batch": "one"}
    row["shares"] = [*row["shares"], {"name": {}, "ms": 1}, {"name": "rest", "ms": -1}]
    assert "What ships" in breakdown_section(sample).content
