"""The sentences that terminal, Markdown and HTML share."""

from __future__ import annotations

from typing import Any

from vengine.report.contenders import Report, budget, drop_of, metric, optimized, part, winner
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
        ("invariance", MISSING if company is None else f"the same text in other company: {score(company)} at worst"),
        ("peak memory", f"{size(before)} → {size(after)}"),
        ("took", f"{seconds(number(report.get('seconds')))} on {clean(part(report, 'machine').get('cpu', '?'))}"),
    ]
    return found if optimized(report) else [f for f in found if f[0] in ("peak memory", "took") and before]


def token_range(variant: dict[str, Any]) -> str:
    """Which calls (batch × length) a variant serves: "1–1,024 tokens", "from 1,025 tokens", "every call"."""
    low, high = number(variant.get("tokens_min")), number(variant.get("tokens_max"))
    if high is not None:
        return f"{low or 1:,.0f}–{high:,.0f} tokens"
    return "every call" if not low or low <= 1 else f"from {low:,.0f} tokens"


def speedups(report: Report) -> list[tuple[str, str]]:
    """(shape, ratio with interval) for each measured shape, the workload first."""
    found = part(report, "speedup")
    return [(clean(k), times_range(interval(v, value="ratio"))) for k, v in found.items()]
