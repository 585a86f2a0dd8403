"""What the user wants to win, and what a variant must show to ship for it.

For latency and throughput: faster than the original beyond doubt. For memory: the smallest process among those that
are not slower than the original, and smaller than the original's.
"""

from __future__ import annotations

from collections.abc import Callable

from vengine.types import Interval, Objective, Trial

_NOT_SLOWER = 0.98  # two runs of the same thing differ by so much


def hope(objective: Objective) -> Callable[[Trial], float]:
    """Sort key of verified trials: the best first."""
    if objective == "memory":
        return lambda t: float(t.peak_rss_bytes or float("inf"))
    return lambda t: -t.ratio.value if t.ratio else 0.0


def refusal(objective: Objective, ratio: Interval, peak_bytes: int, original_bytes: int) -> str:
    """Why a variant with this speed and memory may not ship; "" when it may."""
    if objective != "memory":
        return slower(ratio) if ratio.low <= 1.0 else ""
    if ratio.low < _NOT_SLOWER:
        return slower(ratio)
    if peak_bytes >= original_bytes:
        return f"it needs no less memory than the original: {_mib(peak_bytes)} and {_mib(original_bytes)}"
    return ""


def achieved(objective: Objective, ratio: Interval, peak_bytes: int, original_bytes: int) -> str:
    """What was won, in one sentence."""
    speed = f"{ratio.value:.2f}× the original's speed on the workload ({ratio.low:.2f} to {ratio.high:.2f})"
    if objective != "memory":
        return speed
    return f"{_mib(peak_bytes)} of memory where the original takes {_mib(original_bytes)}, at {speed}"


def slower(ratio: Interval) -> str:
    """The sentence for a variant that doesn't pay."""
    if ratio.high >= 1.0:
        return f"not faster beyond doubt: {ratio.value:.2f}× the original's speed ({ratio.low:.2f} to {ratio.high:.2f})"
    return f"slower than the original: {ratio.value:.2f}× its speed ({ratio.low:.2f} to {ratio.high:.2f})"


def _mib(size: int) -> str:
    return f"{size / (1 << 20):,.0f} MiB"
