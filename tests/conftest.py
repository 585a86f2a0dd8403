"""What all tests share: the quick ones run first, and property tests behave the same everywhere."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).parent
# Folder → when it runs. Within one tier the order stays random. What isn't named runs between.
TIERS = {"house": 0, "verify": 1, "report": 1, "cli": 2, "bundle": 3, "sources": 5, "graph": 6, "tune": 7, "api": 8}
PLANTED, OTHERS = 7, 4  # the planted faults run real models

settings.register_profile("vengine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", parent=settings.get_profile("vengine"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "vengine")


def pytest_configure() -> None:
    """A shell that starts the tests in the background has them ignore Ctrl-C, and so would every program they start."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Stable sort: quick folders first, tests with a real model last, so that a mistake shows in seconds."""
    items.sort(key=_tier)


def _tier(item: pytest.Item) -> int:
    parts = item.path.relative_to(ROOT).parts
    slow = 10 if item.get_closest_marker("model") else 0
    if "planted" in parts:
        return PLANTED
    return slow + (TIERS.get(parts[0], OTHERS) if len(parts) > 1 else 0)
