"""A soak's page and terminal text hold every finding, with hostile texts shown as texts."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from rich.console import Console
from tests.report.conftest import POISON
from tests.report.test_browser import BROWSER, opened

from vengine.report.memory_curve import memory_curve, moments
from vengine.report.soak_page import soak_page
from vengine.report.soak_view import print_soak

PHASES = ("warm-up", "one shape", "known shapes", "new shapes", "all shapes")


def result(outcome: str = "fail", name: str = "toy.vengine", **more: Any) -> dict[str, Any]:
    """Invented numbers: a leak of 1 kB a request."""
    looks = [
        {
            "phase": PHASES[i // 20],
            "seconds": i * 0.3,
            "requests": 100 * i,
            "shapes": min(i, 60),
            "memory": {
                "rss_bytes": 150_000_000 + 100_000 * i,
                "anonymous_bytes": 90_000_000 + 100_000 * i,
                "used_bytes": 80_000_000,
                "free_bytes": 3_000_000,
                "python_bytes": None if i < 20 else 100_000 * (i - 20),
            },
            "ms": 2.0 + (i % 3) * 0.1,
        }
        for i in range(100)
    ]
    told = {
        "name": name,
        "kind": "bundle",
        "digest": "sha256:" + "1" * 64,
        "variants": ["openvino int8-static"],
        "threads": 2,
        "possible_shapes": 80,
        "seed": 0,
        "outcome": outcome,
        "findings": [
            {"what": "requests", "outcome": outcome, "whose": "Python", "words": f"memory grows, says {name}"}
        ],
        "looks": looks,
        "limits": {"per_thousand_bytes": 65536, "total_bytes": 180_000_000, "stated": True},
        "grown": [{"where": f"{name}:12", "grown_bytes": 9_000_000, "grown_blocks": 9000}],
        "peak_rss_bytes": 170_000_000,
    }
    return told | more


@pytest.mark.parametrize("outcome", ["pass", "fail", "undecided"])
def test_page_and_terminal_tell_the_same(outcome: str) -> None:
    console = Console(width=120, record=True, file=StringIO())
    print_soak(result(outcome), console)
    text, page = console.export_text(), soak_page(result(outcome), "2026-12-01")
    for words in ("memory grows, says toy.vengine", outcome, "9,900"):
        assert words in text
        assert words in page
    assert all(phase in text and phase in page for phase in PHASES)


def test_hostile_names_stay_text() -> None:
    page = soak_page(result(name=POISON), "2026-12-01")
    assert "<img" not in page
    assert "\x1b" not in page


def test_a_limit_far_above_is_not_drawn() -> None:
    found = moments(result()["looks"])
    assert "mark red" in memory_curve(found, 860, 180e6)
    assert "mark red" not in memory_curve(found, 860, 9e9)
    assert "mark red" not in memory_curve(found, 860, None)


@pytest.mark.skipif(BROWSER is None, reason="no chromium on this machine")
def test_it_renders_without_a_word_on_the_console(tmp_path: Any) -> None:
    document, console = opened(soak_page(result(), "2026-12-01"), tmp_path)
    assert console == []
    assert document.count('role="img"') == 4  # two curves, each for a desk and for a phone
