"""The sentences that terminal, Markdown and HTML share."""

from __future__ import annotations

import math
from typing import Any

from vengine.report.contenders import Report, budget, drop_of, metric, optimized, part, winner
from vengine.report.evidence import largest_error
from vengine.report.wording import MISSING, clean, interval, number, percent, saved, score, seconds, size, times_range


def facts(report: Report) -> list[tuple[str, str]]:
    """The few lines that matter, as (name, sentence)."""
    best, accuracy = winner(report), part(report, "accuracy")
    drop = drop_of(accuracy)
    company = best.invariance
    before, after = (number(part(report, "memory").get(f"{k}_rss")) for k in ("original", "optimized"))
    found = [
        ("speed", f"{times_range(best.ratio)}, {saved(best.ratio.value)}" if best.ratio else MISSING),
        (
            "accuracy",
            f"{metric(report)} {score(number(accuracy.get('original')))} → "
            f"{score(number(accuracy.get('optimized')))}, drop {percent(drop.value if drop else None)}"
            f" of at most {percent(budget(report))}, {accuracy.get('samples', '?')} samples",
        ),
        ("largest error", largest_error(accuracy)),
        ("invariance", MISSING if company is None else f"the same input in other company: {score(company)} at worst"),
        ("peak memory", f"{size(before)} → {size(after)}"),
        ("took", f"{seconds(number(report.get('seconds')))} on {clean(part(report, 'machine').get('cpu', '?'))}"),
    ]
    found = [(name, text) for name, text in found if text]
    return found if optimized(report) else [f for f in found if f[0] in ("peak memory", "took") and before]


def token_range(variant: dict[str, Any]) -> str:
    """Which calls a variant serves, of those that no variant before it does; see `calls`."""
    low, high = number(variant.get("tokens_min")), number(variant.get("tokens_max"))
    top, least = math.inf if high is None else high, int(number(variant.get("batch_min")) or 1)
    return calls(low or 1, top, least, number(variant.get("fill_min")) or 0.0)


def calls(low: float, high: float, batch_min: int, fill_min: float = 0.0) -> str:
    """Calls (batch × length) in words: "1–1,024 tokens", "from 1,025 tokens", "batches of 2 or more", "every call"."""
    words = []
    if batch_min > 1:
        words.append(f"batches of {batch_min} or more")
    if fill_min:
        words.append(f"at most {1 - fill_min:.0%} padding")
    if high != math.inf:
        words.append(f"{low:,.0f}–{high:,.0f} tokens")
    elif low > 1:
        words.append(f"from {low:,.0f} tokens")
    return ", ".join(words) or "every call"


def speedups(report: Report) -> list[tuple[str, str]]:
    """(shape, ratio with interval) for each measured shape, the workload first."""
    found = part(report, "speedup")
    return [(clean(k), times_range(interval(v, value="ratio"))) for k, v in found.items()]
