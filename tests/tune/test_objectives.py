"""What a variant must show to ship, as a table: speed with its interval, and memory."""

from __future__ import annotations

import pytest

from vengine.tune.objectives import achieved, refusal
from vengine.types import Interval, Objective

MB = 1 << 20


@pytest.mark.parametrize(
    ("objective", "ratio", "peak", "reason"),
    [
        ("latency", (2.0, 1.9, 2.1), 90, ""),
        ("latency", (1.02, 1.001, 1.04), 90, ""),
        ("latency", (2.0, 1.9, 2.1), 900, ""),
        ("latency", (1.02, 1.0, 1.04), 90, "not faster beyond doubt: 1.02"),
        ("latency", (1.5, 0.9, 2.0), 90, "not faster beyond doubt: 1.50"),
        ("latency", (0.8, 0.7, 0.9), 10, "slower than the original: 0.80"),
        ("throughput", (1.5, 0.9, 2.0), 90, "not faster beyond doubt"),
        ("memory", (2.0, 1.9, 2.1), 90, ""),
        ("memory", (1.0, 0.985, 1.01), 90, ""),
        ("memory", (1.0, 0.97, 1.03), 90, "not faster beyond doubt"),
        ("memory", (0.8, 0.7, 0.9), 10, "slower than the original"),
        ("memory", (2.0, 1.9, 2.1), 100, "no less memory than the original: 100 MiB and 100 MiB"),
        ("memory", (2.0, 1.9, 2.1), 101, "no less memory"),
    ],
)
def test_what_may_ship(objective: Objective, ratio: tuple[float, float, float], peak: int, reason: str) -> None:
    value, low, high = ratio
    found = refusal(objective, Interval(value=value, low=low, high=high), peak * MB, 100 * MB)
    assert found.startswith(reason) if reason.startswith(("slower", "not")) else reason in found
    assert bool(found) is bool(reason)


def test_what_was_won_is_said_with_its_interval() -> None:
    ratio = Interval(value=2.0, low=1.9, high=2.1)
    assert "2.00×" in achieved("latency", ratio, 1, 2)
    assert "(1.90 to 2.10)" in achieved("latency", ratio, 1, 2)
    assert achieved("memory", ratio, 50 * MB, 100 * MB).startswith("50 MiB of memory where the original takes 100 MiB")
