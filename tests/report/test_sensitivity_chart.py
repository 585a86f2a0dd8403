"""Every node is a point, kept ones are hollow, and odd numbers draw too."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.report.conftest import POISON
from tests.report.test_browser import BROWSER, opened

from vengine.report.html import page
from vengine.report.sections import Section
from vengine.report.sensitivity_chart import Sensitivity, sensitivity_chart, sensitivity_section

DRAW = np.random.default_rng(4)
NODES = [
    Sensitivity(
        name=f"encoder.layer.{i // 6}.{('query', 'key', 'value', 'dense', 'intermediate', 'output')[i % 6]}.MatMul",
        damage=float(10 ** DRAW.uniform(-6, -2)),
        saved_ms=float(DRAW.gamma(2, 0.3)),
        kept=i % 9 == 0,
    )
    for i in range(72)
]


def row(**facts: float | bool | str) -> Sensitivity:
    return Sensitivity(**({"name": "n", "damage": 1e-3, "saved_ms": 1.0, "kept": False} | facts))  # type: ignore[arg-type]


def test_every_node_is_a_point_and_kept_ones_are_hollow() -> None:
    drawn = sensitivity_chart(NODES, 860)
    assert len(re.findall('class="dot', drawn)) == len(NODES)
    assert len(re.findall("hollow", drawn)) == sum(node.kept for node in NODES)
    content = sensitivity_section(NODES).content
    assert "kept in float: 8 of 72" in content
    assert "and 12 with less damage" in content


@pytest.mark.parametrize(
    "rows",
    [
        [row()],
        [row(damage=0.0), row(damage=0.0)],
        [row(saved_ms=-0.5), row(saved_ms=-0.1)],
        [row(saved_ms=0.0)],
        [row(saved_ms=-2.0), row(saved_ms=3.0, damage=0.0), row(kept=True)],
    ],
)
@pytest.mark.parametrize("width", [860, 360])
def test_odd_numbers_draw_inside_the_picture(rows: list[Sensitivity], width: float) -> None:
    spots = re.findall(r'cx="([\d.-]+)" cy="([\d.-]+)"', sensitivity_chart(rows, width))
    assert len(spots) == len(rows)
    assert all(0 <= float(x) <= width and 0 <= float(y) <= 380 for x, y in spots)


def test_without_rows_there_is_no_card() -> None:
    assert sensitivity_section([]).content == ""


@pytest.mark.skipif(BROWSER is None, reason="no chromium on this machine")
@pytest.mark.parametrize("name", ["encoder.layer.0", POISON])
def test_it_renders_without_a_word_on_the_console(name: str, tmp_path: Path) -> None:
    first = Section(anchor="glance", title="t", short="", content="<h1>t</h1>")
    rows = [*NODES, row(name=name)]
    document, console = opened(
        page(title="t", version="", created="", parts=[first, sensitivity_section(rows)], footer=""), tmp_path
    )
    assert console == []
    assert document.count('role="img"') == 2
    assert "<img" not in document


def test_the_report_draws_what_a_search_has_measured(sample: dict[str, Any]) -> None:
    from vengine.report.html import html

    assert 'id="sensitivity"' not in html(sample)
    sample["sensitivity"] = [
        {"name": "head <b>", "damage": 0.2, "saved_ms": None, "kept": True},
        {"name": "layer", "damage": 1e-4, "saved_ms": 0.7, "kept": False},
        {"name": "broken", "damage": None, "saved_ms": 1.0, "kept": False},
    ]
    page = html(sample)
    assert page.index('id="sensitivity"') < page.index('id="side"')
    assert "head &lt;b&gt;" in page
    assert "broken" not in page
