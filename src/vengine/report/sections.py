"""The parts of the HTML report, from the first glance to the commands that reproduce it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from typing import Any

from vengine.report.charts import HALF, NARROW, WIDE, counts_of, histogram, memory, waterfall
from vengine.report.contenders import Contender, Report, budget, contenders, kind, metric, optimized, part, rows
from vengine.report.curves import Series, batches, key, panel, points, ranges, scale_words, scatter, series
from vengine.report.evidence import kept
from vengine.report.glance import glance
from vengine.report.proof import changed, footer, reproduce, side_by_side, verdict
from vengine.report.wording import (
    clean,
    digits,
    milliseconds,
    number,
    percent,
    score,
    seconds,
    size,
    times,
    times_range,
)

__all__ = ["Section", "footer", "sections"]


@dataclass(frozen=True, kw_only=True)
class Section:
    """One card: `short` is its name in the navigation; "" keeps it out of there."""

    anchor: str
    title: str
    short: str
    content: str
    class_: str = ""


def sections(report: Report) -> list[Section]:
    """Every part that has something to show."""
    found = contenders(report)
    outcome = report.get("outcome") if report.get("outcome") in ("pass", "undecided") else "fail"
    parts = [
        Section(anchor="glance", title="At a glance", short="", content=glance(report), class_=f"hero {outcome}"),
        _waterfall(report, found),
        _accuracy(report, found),
        _lengths(report),
        _memory(report, found),
        _traffic(report),
        _refused(report),
        Section(anchor="verdict", title="Verdict", short="Verdict", content=verdict(report)),
        _changes(report),
        _kept(report),
        Section(anchor="side", title="Side by side", short="Side by side", content=side_by_side(report)),
        Section(anchor="reproduce", title="Reproduce", short="Reproduce", content=reproduce(report)),
    ]
    return [p for p in parts if p.content]


def heading(title: str, unit: str = "") -> str:
    """The title of a card, and below it what the axes show and in which units."""
    below = f'<p class="unit">{escape(unit)}</p>' if unit else ""
    return f"<h2>{escape(title)}</h2>{below}"


def twice(draw: Callable[[float], str], wide: float = WIDE) -> str:
    """The drawing for a desk and the one for a phone; the style shows one of them."""
    return f'<div class="wide">{draw(wide)}</div><div class="narrow">{draw(NARROW)}</div>'


def table(head: Sequence[str], body: Sequence[Sequence[str]], *, numbers: int, classes: Sequence[str] = ()) -> str:
    """A table of escaped texts; the last `numbers` columns are figures."""
    first = len(head) - numbers
    tops = "".join(f'<th scope="col"{_num(i >= first)}>{escape(h)}</th>' for i, h in enumerate(head))
    lines = []
    for n, row in enumerate(body):
        cells = "".join(f"<td{_num(i >= first)}>{escape(c)}</td>" for i, c in enumerate(row))
        lines.append(f'<tr class="{classes[n]}">{cells}</tr>' if classes else f"<tr>{cells}</tr>")
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="table"><table><thead><tr>{tops}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def _num(yes: bool) -> str:
    return ' class="num"' if yes else ""


def numbers_table(summary: str, inside: str) -> str:
    """The numbers behind a picture, folded away."""
    return f"<details><summary>{escape(summary)}</summary>{inside}</details>"


def _waterfall(report: Report, found: Sequence[Contender]) -> Section:
    objective = part(report, "workload").get("objective")
    title = "From the original to what ships" if optimized(report) else "What was tried against the original"
    unit = (
        "Time on the workload, % of the original’s: shorter is better. Whiskers are 95 % intervals from interleaved "
        "runs with equal threads; the number behind a bar says how many times as fast. Dashed bars were refused."
    )
    if objective == "throughput":
        unit = unit.replace("Time on the workload", "Time for the whole workload")
    untimed = [r.label for r in found if r.ratio is None]
    body = heading(title, unit) + twice(lambda width: waterfall(found, width))
    if untimed:
        body += f'<p class="unit">Without a time: {escape(", ".join(untimed))}. The reasons stand below.</p>'
    head = ("recipe", "status", "times as fast (95 %)", f"drop in {metric(report)}", "in company", "memory", "took")
    lines = [
        (
            r.label,
            "ships" if r.role in ("shipped", "bundle") else r.status if r.role == "tried" else "",
            times_range(r.ratio) if r.role != "original" else times(1.0),
            percent(r.drop.value if r.drop else None),
            score(r.invariance) if r.role != "original" else "",
            size(r.rss_bytes),
            seconds(r.seconds) if r.seconds is not None else "",
        )
        for r in found
    ]
    classes = [kind(r) for r in found]
    body += numbers_table("All numbers as a table", table(head, lines, numbers=5, classes=classes))
    return Section(anchor="race", title=title, short="Race", content=body)


def _accuracy(report: Report, found: Sequence[Contender]) -> Section:
    allowed, known = budget(report), points(found)
    title = "Time against accuracy"
    unit = (
        f"Across: time on the workload, % of the original’s. Up: relative drop in {metric(report)}, %, with its 95 % "
        f"interval. Down and left is better. Nothing above the red line ships. Hollow circles were refused."
    )
    if len(known) < 2:
        missing = '<p class="empty">No contender got as far as an accuracy and a time.</p>'
        return Section(anchor="accuracy", title=title, short="Accuracy", content=heading(title) + missing)
    body = heading(title, unit) + twice(lambda width: scatter(known, allowed, width))
    return Section(anchor="accuracy", title=title, short="Accuracy", content=body)


def _lengths(report: Report) -> Section:
    lines = series(report)
    plan = ranges(report, lines)
    title = "Latency by length"
    found = batches(lines)
    if not found:
        return Section(anchor="length", title=title, short="", content="")
    unit = "Milliseconds a call (up) against tokens a text (across), both axes logarithmic, lower is better. "
    body = [heading(title, unit + scale_words(plan))]
    if len(found) == 1:
        body.append(f"<h3>Batch of {found[0]}</h3>" + twice(partial(panel, lines, plan, found[0])))
    else:
        drawn = [twice(partial(panel, lines, plan, b), HALF) for b in found]
        panels = "".join(f"<div><h3>Batch of {b}</h3>{both}</div>" for b, both in zip(found, drawn, strict=True))
        body.append(f'<div class="panels">{panels}</div>')
    legend = "".join(f"<li>{key(s)}{escape(s.name)}</li>" for s in lines)
    body.append(f'<ul class="legend">{legend}</ul>')
    if len(plan) > 1:
        body.append('<p class="unit">The strip on top of each panel shows which variant the plan sends a call to.</p>')
    body.append(numbers_table("All cells as a table, milliseconds", _cells(lines)))
    return Section(anchor="length", title=title, short="Length", content="".join(body))


def _cells(lines: Sequence[Series]) -> str:
    shapes = sorted({(c.batch, c.length) for s in lines for c in s.cells})
    known = [{(c.batch, c.length): c for c in s.cells} for s in lines]
    body = [
        (
            f"{batch} × {length}",
            *(milliseconds(k[batch, length].ms.value) if (batch, length) in k else "" for k in known),
        )
        for batch, length in shapes
    ]
    return table(("batch × length", *(s.name for s in lines)), body, numbers=len(lines))


def _memory(report: Report, found: Sequence[Contender]) -> Section:
    title, limit = "Peak memory", number(part(report, "budget").get("memory_limit_bytes"))
    if not any(r.rss_bytes for r in found):
        return Section(anchor="memory", title=title, short="", content="")
    unit = "Resident memory of each contender’s own process at its peak, bytes. Shorter is better."
    body = heading(title, unit) + twice(lambda width: memory(found, width, limit))
    return Section(anchor="memory", title=title, short="Memory", content=body)


def _traffic(report: Report) -> Section:
    workload = part(report, "workload")
    lengths = part(workload, "lengths")
    counts = counts_of(lengths.get("histogram"))
    title, origin = "The workload", clean(workload.get("origin") or "unknown", 200)
    known = [(n, number(lengths.get(n))) for n in ("p50", "p95")]
    marks = [(n, v) for n, v in known if v is not None]
    unit = "Number of texts (up) by length in tokens (across; ranges of unequal width)."
    missing = '<p class="empty">No text lengths were recorded.</p>'
    chart = f"<div>{twice(lambda width: histogram(counts, width, marks), HALF)}</div>" if counts else missing
    facts = [
        ("from", "made up by Vengine (no data was given)" if workload.get("synthetic") else origin),
        ("samples", f"{workload.get('samples', '?')}, {'labelled' if workload.get('labelled') else 'without labels'}"),
        ("tokens", _tokens(lengths)),
        ("objective", f"{workload.get('objective', '?')}, {workload.get('concurrency', 1)} at a time"),
    ]
    pairs = "".join(f"<dt>{k}</dt><dd>{escape(clean(v))}</dd>" for k, v in facts if v)
    body = heading(title, unit if counts else "") + f'<div class="beside">{chart}<dl>{pairs}</dl></div>'
    return Section(anchor="traffic", title=title, short="Workload", content=body)


def _tokens(lengths: dict[str, Any]) -> str:
    mean, longest = number(lengths.get("mean")), number(lengths.get("max"))
    return "" if mean is None or longest is None else f"mean {digits(mean)}, longest {longest:g}"


def _changes(report: Report) -> Section:
    title, content = changed(report)
    return Section(anchor="changes", title=title, short="Changes", content=content)


def _kept(report: Report) -> Section:
    found = kept(report)
    body = heading(found.title, found.note) + table(found.head, found.body, numbers=0) if found else ""
    return Section(anchor="kept", title=found.title if found else "", short="fp32", content=body)


def _refused(report: Report) -> Section:
    title, found = "What was refused or skipped, and why", rows(report, "refused")
    if not found:
        body = heading(title) + '<p class="empty">Nothing: every contender was sound.</p>'
        return Section(anchor="refused", title=title, short="Refused", content=body)
    lines = "".join(
        f'<tr><td class="name">{escape(clean(r.get("recipe", "?"), 80))}</td>'
        f'<td class="long"><bdi>{escape(clean(r.get("reason") or "no reason was recorded"))}</bdi></td></tr>'
        for r in found
    )
    head = '<thead><tr><th scope="col">recipe</th><th scope="col">reason</th></tr></thead>'
    body = heading(title, "What is refused never ships, however fast it is.")
    body += f'<table class="stack">{head}<tbody>{lines}</tbody></table>'
    return Section(anchor="refused", title=title, short="Refused", content=body)
