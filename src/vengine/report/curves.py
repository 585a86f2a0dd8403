"""Charts made of points and lines: time against accuracy, and latency by length."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from vengine.report.contenders import Contender, Report, contenders, kind, optimized, part, recipe_label, rows
from vengine.report.facts import calls
from vengine.report.svg import (
    FONT,
    Box,
    Scale,
    drawing,
    element,
    hint,
    label,
    line,
    log_ticks,
    place,
    text_width,
    ticks,
)
from vengine.report.wording import clean, digits, interval, milliseconds, number, percent, times_range
from vengine.types import Cell, Interval

_FIRST = ("bundle", "shipped", "original", "tried", "refused")  # who is named where room is scarce
_SHAPES = ("circle", "square", "diamond", "up", "down")


@dataclass(frozen=True, kw_only=True)
class Point:
    """A contender on the plane of time (share of the original's) and loss (share of the metric)."""

    row: Contender
    time: Interval
    loss: Interval


def points(found: Sequence[Contender]) -> list[Point]:
    """The contenders of which both time and accuracy are known."""
    return [
        Point(row=r, time=_share(r.ratio), loss=r.drop)
        for r in found
        if r.ratio is not None and r.ratio.value > 0 and r.drop is not None
    ]


def _share(ratio: Interval) -> Interval:
    low, high = max(ratio.low, 1e-9), max(ratio.high, 1e-9)
    return Interval(value=1 / ratio.value, low=1 / high, high=1 / low)


def scatter(found: Sequence[Point], allowed: float, width: float) -> str:
    """Down and to the left is better; what lies above the red line breaks the budget; hollow is refused."""
    height = 400.0
    unit = allowed or 0.001
    top, bottom = _span([p.loss for p in found], unit)
    right = min(2.0, max([1.0, *(p.time.value for p in found)]) * 1.06)
    across = Scale(low=0, high=right, start=58, end=width - 14)
    up = Scale(low=bottom, high=top, start=height - 34, end=14)
    content = [_zone(across, up, allowed), _cross(across, up), _redline(across, up, allowed, width)]
    drawn = [(across(p.time.value), up(p.loss.value)) for p in found]
    content.extend(_point(p, across, up) for p in found)
    content.append(_labels(found, drawn, across, up, allowed))
    return drawing(width, height, "".join(content), "Time on the workload against loss of accuracy")


def _span(losses: Sequence[Interval], unit: float) -> tuple[float, float]:
    """From the best loss to the worst, but never so wide that the budget becomes a hairline."""
    top = min(max([1.6 * unit, *(v.high * 1.1 for v in losses)]), 6 * unit)
    bottom = max(min([-0.6 * unit, *(v.low * 1.15 for v in losses)]), -4 * unit)
    return top, bottom


def _zone(across: Scale, up: Scale, allowed: float) -> str:
    edge = up(allowed)
    return element(
        "rect", x=across.start, y=up.end, width=across.end - across.start, height=max(0.0, edge - up.end), class_="zone"
    )


def _cross(across: Scale, up: Scale) -> str:
    content = []
    for value in ticks(up.low, up.high, 6):
        content.append(line(across.start, up(value), across.end, up(value), "grid zero" if value == 0 else "grid"))
        content.append(label(across.start - 8, up(value) + 4, percent(value), anchor="end", class_="tick"))
    for value in ticks(across.low, across.high, max(3, int((across.end - across.start) / 90))):
        content.append(line(across(value), up.end, across(value), up.start, "grid"))
        anchor = "end" if across(value) > across.end - 12 else "middle"
        content.append(label(across(value), up.start + 18, f"{value * 100:.0f} %", anchor=anchor, class_="tick"))
    return "".join(content)


def _redline(across: Scale, up: Scale, allowed: float, width: float) -> str:
    y, text = up(allowed), f"budget: at most {percent(allowed)}"
    text = text if width > 500 else f"budget {percent(allowed)}"
    return line(across.start, y, across.end, y, "mark red thick") + label(
        across.end - 4, y - 6, text, anchor="end", class_="tick red strong"
    )


def _point(point: Point, across: Scale, up: Scale) -> str:
    x, y = across(point.time.value), up(point.loss.value)
    row = point.row
    parts = []
    if point.loss.high > point.loss.low:
        parts.append(line(x, up(point.loss.low), x, up(point.loss.high), "whisker soft"))
    if point.time.high > point.time.low:
        parts.append(line(across(point.time.low), y, across(point.time.high), y, "whisker soft"))
    hollow = " hollow" if row.status != "ok" else ""
    if up.inside(point.loss.value):
        parts.append(marker(x, y, "circle", f"dot {row.role}{hollow}", 8 if row.role == "bundle" else 6))
    else:  # off the scale: an arrow at the edge
        parts.append(marker(x, y + 7, "up", f"dot {row.role}{hollow}", 7))
    words = f"{row.label}: {times_range(row.ratio)}, drop {percent(point.loss.value)}. {row.reason}"
    return hint("".join(parts), words.strip())


def _labels(
    found: Sequence[Point], drawn: Sequence[tuple[float, float]], across: Scale, up: Scale, allowed: float
) -> str:
    """Names beside the points, the bundle's first; a thin line leads to a name that had to move away."""
    area = Box(x=across.start + 2, y=up.end, width=across.end - across.start, height=up.start - up.end)
    redline = Box(x=across.start, y=up(allowed) - 4, width=across.end - across.start, height=8)
    its_name = Box(x=across.end - 150, y=up(allowed) - 20, width=150, height=20)
    order = sorted(range(len(found)), key=lambda i: _FIRST.index(kind(found[i].row)))
    named = [(*drawn[i], _name(found[i], up)) for i in order]
    content = []
    for i, (x, y, text), box in zip(order, named, place(named, area, taken=(redline, its_name)), strict=True):
        if box is None:  # no room: the tooltip and the table below still name it
            continue
        near_x = min(max(x, box.x), box.x + box.width)
        near_y = min(max(y, box.y), box.y + box.height)
        if math.hypot(near_x - x, near_y - y) > 14:
            content.append(line(x, y, near_x, near_y, "leader"))
        strong = "label halo strong" if found[i].row.role in ("bundle", "shipped") else "label halo"
        left = box.x + box.width <= x
        at = box.x + box.width if left else box.x
        content.append(label(at, box.y + FONT, text, anchor="end" if left else "start", class_=strong))
    return "".join(content)


def _name(point: Point, up: Scale) -> str:
    name = "original" if point.row.role == "original" else point.row.label
    return name if up.inside(point.loss.value) else f"{name} ({percent(point.loss.value)})"


def marker(x: float, y: float, shape: str, class_: str, r: float = 5) -> str:
    """A filled or hollow mark: shape tells series apart where colour can't."""
    if shape == "circle":
        return element("circle", cx=x, cy=y, r=r, class_=class_)
    corners = {
        "square": ((-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)),
        "diamond": ((0, -1.25), (1.25, 0), (0, 1.25), (-1.25, 0)),
        "up": ((0, -1.1), (1.1, 0.9), (-1.1, 0.9)),
        "down": ((0, 1.1), (1.1, -0.9), (-1.1, -0.9)),
    }[shape]
    spots = " ".join(f"{x + dx * r:.1f},{y + dy * r:.1f}" for dx, dy in corners)
    return element("polygon", points=spots, class_=class_)


@dataclass(frozen=True, kw_only=True)
class Series:
    """One line of the latency chart. `style` numbers its colour, dash and mark."""

    name: str
    style: int
    digest: str = ""
    cells: tuple[Cell, ...] = field(default=())

    @property
    def shape(self) -> str:
        return _SHAPES[self.style % len(_SHAPES)]


def series(report: Report) -> list[Series]:
    """Lines for the original, each variant and the bundle, from `cells`; trials' own where that is empty."""
    found = []
    names = _names(report)
    for i, (key, data) in enumerate(_cell_lists(report).items()):
        read = tuple(c for c in (_cell(d) for d in data if isinstance(d, dict)) if c is not None)
        if read:
            found.append(Series(name=names.get(key, clean(key, 19)), style=i, digest=key, cells=read))
    return found


def _cell_lists(report: Report) -> dict[str, list[Any]]:
    lists = {k: v for k, v in part(report, "cells").items() if isinstance(v, list)}
    original = part(report, "original").get("cells")
    if not lists.get("original") and isinstance(original, list):
        lists["original"] = original
    last = {"original": 0, "bundle": 1}  # these two keep their colours in every report
    return dict(sorted(lists.items(), key=lambda pair: last.get(pair[0], 2)))


def _names(report: Report) -> dict[str, str]:
    known = {c.digest: c.label for c in contenders(report) if c.digest}
    for variant in rows(report, "variants"):
        known.setdefault(str(variant.get("digest")), recipe_label(variant))
    return known | {"original": "original", "bundle": "the bundle"}


def _cell(data: dict[str, Any]) -> Cell | None:
    ms = interval(data.get("ms"))
    batch, length, calls = (number(data.get(k)) for k in ("batch", "length", "calls"))
    if ms is None or ms.value <= 0 or not batch or not length or batch < 1 or length < 1:
        return None
    return Cell(batch=int(batch), length=int(length), ms=ms, calls=int(calls or 0))


@dataclass(frozen=True, kw_only=True)
class Range:
    """Calls of so many tokens (batch × length, inclusive) go to the variant drawn in `style`."""

    low: float
    high: float
    name: str
    style: int
    batch_min: int = 1
    fill_min: float = 0.0


def ranges(report: Report, lines: Sequence[Series]) -> list[Range]:
    """The plan as ranges of tokens a call, in the order of precedence."""
    if not optimized(report):
        return []
    styles = {s.digest: s for s in lines}
    found = []
    for variant in rows(report, "variants"):
        line_ = styles.get(str(variant.get("digest")))
        low, high = number(variant.get("tokens_min")), number(variant.get("tokens_max"))
        name = line_.name if line_ else recipe_label(variant)
        style = line_.style if line_ else 1
        least = int(number(variant.get("batch_min")) or 1)
        top = math.inf if high is None else high
        fill = number(variant.get("fill_min")) or 0.0
        found.append(Range(low=low or 1, high=top, name=name, style=style, batch_min=least, fill_min=fill))
    return found


def served(plan: Sequence[Range], batch: int) -> list[Range]:
    """What serves calls of this batch, without overlap: the first range that fits serves."""
    free = [(1.0, math.inf)]
    found = []
    for one in (r for r in plan if batch >= r.batch_min):
        rest = []
        for low, high in free:
            first, last = max(low, one.low), min(high, one.high)
            if first > last:
                rest.append((low, high))
                continue
            found.append(replace(one, low=first, high=last))
            rest += [(a, b) for a, b in ((low, first - 1), (last + 1, high)) if a <= b < math.inf or a < b]
        free = rest
    return sorted(found, key=lambda r: r.low)


def batches(lines: Sequence[Series], most: int = 4) -> list[int]:
    """The batch sizes that get a panel: those with at least two lengths, the most measured first."""
    lengths: dict[int, set[int]] = {}
    for cell in itertools.chain.from_iterable(s.cells for s in lines):
        lengths.setdefault(cell.batch, set()).add(cell.length)
    fit_for = [b for b, found in lengths.items() if len(found) > 1]
    return sorted(sorted(fit_for, key=lambda b: -len(lengths[b]))[:most])


def panel(lines: Sequence[Series], plan: Sequence[Range], batch: int, width: float) -> str:
    """Milliseconds a call against tokens a text, both logarithmic, for one batch size."""
    height = 270.0
    shown = [(s, sorted((c for c in s.cells if c.batch == batch), key=lambda c: c.length)) for s in lines]
    cells = [c for _, found in shown for c in found]
    lengths = sorted({c.length for c in cells})
    low, high = min(c.ms.low for c in cells), max(c.ms.high for c in cells)
    across = Scale(low=lengths[0], high=lengths[-1], start=54, end=width - 16, logarithmic=True)
    up = Scale(low=max(low, 1e-6) / 1.3, high=high * 1.3, start=height - 30, end=22, logarithmic=True)
    content = [_plan(plan, batch, across, up), _log_axes(across, up, lengths)]
    # The bundle last, on top: where it coincides with a variant its line shows the other's through its gaps.
    for one, found in sorted(shown, key=lambda pair: pair[0].digest == "bundle"):
        content.append(_line(one, found, across, up))
    name = f"Milliseconds a call by tokens a text, batch of {batch}, both axes logarithmic"
    return drawing(width, height, "".join(content), name)


def _plan(plan: Sequence[Range], batch: int, across: Scale, up: Scale) -> str:
    content = []
    for one in served(plan, batch):
        first, last = one.low / batch, one.high / batch
        if last < across.low or first > across.high:
            continue
        left, right = across(first), across(last)
        if right - left < 1:
            continue
        box = {"x": left, "width": right - left}
        tint = element("rect", **box, y=up.end, height=up.start - up.end, class_=f"tint f{one.style}")
        strip = element("rect", **box, y=up.end - 10, height=8, rx=2, class_=f"strip f{one.style}")
        words = f"calls of {one.low:,.0f} to {one.high:,.0f} tokens go to {one.name}".replace("to inf", "and more")
        content.append(hint(tint + strip, words))
    return "".join(content)


def _log_axes(across: Scale, up: Scale, lengths: Sequence[int]) -> str:
    content = []
    for value in log_ticks(up.low, up.high):
        content.append(line(across.start, up(value), across.end, up(value), "grid"))
        content.append(label(across.start - 8, up(value) + 4, f"{value:g}", anchor="end", class_="tick"))
    free = -1e9
    for value in lengths:
        x, half = across(value), text_width(str(value)) / 2
        content.append(line(x, up.end, x, up.start, "grid"))
        if x - half > free:
            content.append(label(x, up.start + 18, str(value), anchor="middle", class_="tick"))
            free = x + half + 6
    return "".join(content)


def _line(one: Series, found: Sequence[Cell], across: Scale, up: Scale) -> str:
    spots = [(across(c.length), up(c.ms.value)) for c in found]
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in spots)
    content = [element("path", d=path, class_=f"line s{one.style}")] if len(spots) > 1 else []
    for (x, y), cell in zip(spots, found, strict=True):
        mark = line(x, up(cell.ms.low), x, up(cell.ms.high), f"spread s{one.style}")
        mark += marker(x, y, one.shape, f"spot f{one.style}", 4)
        words = f"{one.name}, {cell.batch} × {cell.length}: {milliseconds(cell.ms.value)}"
        content.append(hint(mark, f"{words} ({digits(cell.ms.low)}–{digits(cell.ms.high)})"))
    return "".join(content)


def key(one: Series) -> str:
    """The swatch of a line for the legend."""
    mark = element("path", d="M1 8L31 8", class_=f"line s{one.style}") + marker(
        16, 8, one.shape, f"spot f{one.style}", 4
    )
    return element("svg", mark, viewBox="0 0 32 16", width=32, height=16, aria_hidden="true")


def scale_words(plan: Sequence[Range]) -> str:
    """The plan in one sentence."""
    if not plan:
        return ""
    if len(plan) == 1:
        return f"{plan[0].name} serves calls of every size."
    spans = [f"{r.name} ({calls(r.low, r.high, r.batch_min, r.fill_min)})" for r in plan]
    return "A call (batch × length) goes to the first that fits: " + ", ".join(spans) + "."
