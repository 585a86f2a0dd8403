"""The first glance: verdict, speed, accuracy and memory, before anything has to be read."""

from __future__ import annotations

from html import escape

from vengine.report.contenders import Report, budget, drop_of, metric, optimized, part, texts, winner
from vengine.report.dials import accuracy_dial, memory_dial, speed_dial
from vengine.report.wording import clean, number, percent, saved, score, size, spread, times

_BADGE = {"pass": "Target met", "fail": "Target missed", "undecided": "Undecided"}
_ICON = {
    "pass": '<path d="M5 10.5l3.5 3.5L15 6.5" />',
    "fail": '<path d="M6 6l8 8M14 6l-8 8" />',
    "undecided": '<path d="M7.2 7.6a2.8 2.8 0 1 1 4 2.6c-.8.4-1.2 1-1.2 1.8M10 14.8v.2" />',
}


def glance(report: Report) -> str:
    """Badge, name, one sentence, and three instruments."""
    outcome = str(report.get("outcome")) if report.get("outcome") in _BADGE else "fail"
    icon = (
        '<svg viewBox="0 0 20 20" fill="none" stroke="currentColor" stroke-width="2" stroke-linecap="round" '
        f'stroke-linejoin="round" aria-hidden="true"><circle cx="10" cy="10" r="9" />{_ICON[outcome]}</svg>'
    )
    body = [
        f'<span class="badge">{icon}{_BADGE[outcome]}</span>',
        f"<h1>{escape(clean(report.get('bundle', 'vengine'), 120))}</h1>",
        f'<p class="why"><bdi>{escape(clean(report.get("why", "")))}</bdi></p>',
    ]
    if not optimized(report):
        body.append('<p class="why"><b>The original ships unchanged.</b></p>')
    if part(report, "workload").get("synthetic"):
        body.append(
            '<p class="warn">The workload was made up: the times are real, but nothing here says how accurate the '
            "bundle is on your data.</p>"
        )
    body += [f'<p class="warn">{escape(text)}</p>' for text in texts(report, "warnings")]
    body.append(f'<div class="glance">{_speed(report)}{_accuracy(report)}{_memory(report)}</div>')
    return "".join(body)


def _tile(picture: str, big: str, what: str, fine: str) -> str:
    return (
        f'<div class="tile">{picture}<p class="big">{escape(big)}</p><p class="what">{escape(what)}</p>'
        f'<p class="fine">{escape(fine)}</p></div>'
    )


def _speed(report: Report) -> str:
    ratio = winner(report).ratio
    if ratio is None:
        return _tile("", "–", "speed was not measured", "")
    if not optimized(report):
        return _tile(speed_dial(ratio), "1×", "as fast as the original", "it is the original")
    fine = f"{times(ratio.value)} as fast; 95 % interval {spread(ratio)}"
    return _tile(speed_dial(ratio), times(ratio.value), f"{saved(ratio.value)} on the workload", fine.split("; ")[1])


def _accuracy(report: Report) -> str:
    accuracy, allowed = part(report, "accuracy"), budget(report)
    drop = drop_of(accuracy) if optimized(report) else winner(report).drop
    if drop is None:
        return _tile("", "–", "accuracy was not measured", "")
    name = metric(report)
    if not optimized(report):
        return _tile(accuracy_dial(drop, allowed), "0 %", f"drop in {name}", "it is the original")
    word = "gain" if drop.value < 0 else "drop"
    before, after = number(accuracy.get("original")), number(accuracy.get("optimized"))
    change = score(after) if before is None else f"{score(before)} → {score(after)}"
    fine = f"{change}; red line at {percent(allowed)}"
    return _tile(accuracy_dial(drop, allowed), percent(abs(drop.value)), f"{word} in {name}", fine)


def _memory(report: Report) -> str:
    memory = part(report, "memory")
    before, after = number(memory.get("original_rss")), number(memory.get("optimized_rss"))
    if not optimized(report):
        after = before
    if not before or after is None:
        return _tile("", "–", "memory was not measured", "")
    share = after / before
    what = "of the original’s peak memory"
    return _tile(memory_dial(share), percent(share), what, f"{size(before)} → {size(after)}")
