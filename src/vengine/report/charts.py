"""Charts made of bars: the waterfall, memory and the length histogram.

Each takes the width in pixels and draws for it: a whole or half a column on a desk, or a phone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from vengine.report.contenders import Contender, kind
from vengine.report.svg import Scale, drawing, element, fit, hint, label, line, nice_top, text_width, ticks
from vengine.report.wording import number, size, times_range
from vengine.types import Interval

WIDE, HALF, NARROW = 860, 480, 360
_CLIP = 2.0  # a bar longer than twice the original's is cut, its number says the rest


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One bar: its value on the axis with whiskers, its label before and its number behind."""

    label: str
    value: Interval
    note: str
    kind: str  # CSS class: original, tried, shipped, bundle, refused
    words: str  # the tooltip


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A vertical line across all bars: what 100 % is, or a limit."""

    at: float
    text: str
    kind: str  # CSS class: base or red


def waterfall(rows: Sequence[Contender], width: float) -> str:
    """Time on the workload as a share of the original's: original on top, then ever faster, the bundle last."""
    timed = [(r, r.ratio) for r in rows if r.ratio is not None and r.ratio.value > 0]
    rank = {"original": 0, "tried": 1, "shipped": 1, "bundle": 2}
    timed.sort(key=lambda pair: (rank[pair[0].role], pair[1].value))
    found = [
        Bar(
            label=row.label,
            value=_as_share(ratio),
            note="100 %" if row.role == "original" else times_range(ratio),
            kind=kind(row),
            words=f"{row.label}: {times_range(ratio)} {row.reason}".strip(),
        )
        for row, ratio in timed
    ]
    top = min(_CLIP, max([1.0, *(b.value.high for b in found)]))
    return bars(
        found,
        width,
        top=top,
        name="Time on the workload, in per cent of the original's, shorter is better",
        marks=(Mark(at=1.0, text="", kind="base"),),
    )


def _as_share(ratio: Interval) -> Interval:
    """A speed-up as time: 4× → 25 %."""
    low, high = max(ratio.low, 1e-9), max(ratio.high, 1e-9)
    return Interval(value=1 / ratio.value, low=1 / high, high=1 / low)


def memory(rows: Sequence[Contender], width: float, limit: float | None = None) -> str:
    """Peak memory of each contender's process, with the limit as a red line where the user set one."""
    known = [(r, r.rss_bytes) for r in rows if r.rss_bytes]
    found = [
        Bar(
            label=row.label,
            value=Interval(value=rss, low=rss, high=rss),
            note=size(rss),
            kind=kind(row),
            words=f"{row.label}: {size(rss)}",
        )
        for row, rss in known
    ]
    marks = (Mark(at=limit, text=f"limit {size(limit)}", kind="red"),) if limit else ()
    top = max([1.0, *(b.value.high for b in found), *(m.at for m in marks)])
    return bars(found, width, top=top, name="Peak memory of the process, shorter is better", marks=marks, unit="bytes")


def bars(
    rows: Sequence[Bar], width: float, *, top: float, name: str, marks: Sequence[Mark] = (), unit: str = "share"
) -> str:
    """Horizontal bars from zero to `top`; on a narrow drawing the label stands above its bar."""
    narrow = width < 500
    names = 0.0 if narrow else min(260.0, 12 + max([0.0, *(_label_width(r.label) for r in rows)]))
    notes = 14 + max([40.0, *(text_width(r.note) for r in rows)])
    pitch, first = (44.0, 30.0) if narrow else (34.0, 10.0 + (16 if any(m.text for m in marks) else 0))
    scale = Scale(low=0, high=top, start=names, end=width - notes)
    bottom = first + pitch * len(rows)
    content = [_axis(scale, first - (14 if narrow else 0), bottom, unit)]
    content.extend(_bar(row, scale, first + i * pitch, top) for i, row in enumerate(rows))
    content.extend(_mark(m, scale, first, bottom) for m in marks if scale.inside(m.at))
    for i, row in enumerate(rows):  # last, with a halo: a mark must not strike a name out
        y = first + i * pitch
        content.append(_above(row, y, width) if narrow else _before(row, y, names - 10))
    return drawing(width, bottom + 24, "".join(content), name)


def _label_width(text: str) -> float:
    return max(map(text_width, _two_lines(text)))


def _two_lines(text: str) -> tuple[str, str]:
    """The recipe, and what its profile says."""
    head, _, tail = text.partition(" · ")
    return head, tail


def _above(row: Bar, y: float, width: float) -> str:
    return hint(label(0, y - 5, fit(row.label, width), class_=_weight(row) + " halo"), row.label)


def _before(row: Bar, y: float, right: float) -> str:
    head, tail = _two_lines(row.label)
    first = label(right, y + (7 if tail else 15), fit(head, right), anchor="end", class_=_weight(row))
    second = label(right, y + 21, fit(tail, right), anchor="end", class_="tick") if tail else ""
    return hint(first + second, row.label)


def _weight(row: Bar) -> str:
    return "label strong" if row.kind in ("bundle", "shipped") else "label"


def _bar(row: Bar, scale: Scale, y: float, top: float) -> str:
    end = scale(row.value.value)
    box = {"x": scale.start, "y": y + 2, "height": 18}
    parts = [element("rect", **box, width=scale.end - scale.start, rx=3, class_="track")]
    parts.append(element("rect", **box, width=max(1.5, end - scale.start), rx=3, class_=f"bar {row.kind}"))
    if row.value.high > row.value.low and row.value.low < top:
        parts.append(_whisker(scale(row.value.low), scale(row.value.high), y + 11))
    if row.value.value > top:
        parts.append(label(scale.end - 6, y + 15.5, "»", anchor="end", class_="label onbar"))
    parts.append(label(scale.end + 10, y + 15, row.note, class_=_weight(row)))
    return hint("".join(parts), row.words)


def _whisker(x1: float, x2: float, y: float) -> str:
    return line(x1, y, x2, y, "whisker") + line(x1, y - 4, x1, y + 4, "whisker") + line(x2, y - 4, x2, y + 4, "whisker")


def _axis(scale: Scale, top: float, bottom: float, unit: str) -> str:
    about = max(2, int((scale.end - scale.start) / 90))
    found = []
    for value in ticks(scale.low, scale.high, about):
        text = f"{value * 100:.0f} %" if unit == "share" else size(value) if value else "0"
        found.append(line(scale(value), top, scale(value), bottom, "grid"))
        anchor = "start" if value == scale.low else "middle"
        found.append(label(scale(value), bottom + 16, text, anchor=anchor, class_="tick"))
    return "".join(found)


def _mark(mark: Mark, scale: Scale, top: float, bottom: float) -> str:
    x = scale(mark.at)
    drawn = line(x, top - 4, x, bottom, f"mark {mark.kind}")
    if not mark.text:
        return drawn
    anchor = "end" if x + text_width(mark.text) / 2 > scale.end + 40 else "middle"
    return drawn + label(x, top - 8, mark.text, anchor=anchor, class_=f"tick {mark.kind}")


def histogram(counts: Sequence[tuple[float, float]], width: float, marks: Sequence[tuple[str, float]] = ()) -> str:
    """Texts by length: (upper edge in tokens, how many). `marks` are percentiles, (name, tokens)."""
    height, left, top = 190.0, 44.0, 34.0
    most = nice_top(max(c for _, c in counts))
    up = Scale(low=0, high=most, start=height, end=top)
    step = (width - left - 8) / len(counts)
    content = [_levels(up, left, width)]
    for i, (edge, count) in enumerate(counts):
        x, before = left + i * step, counts[i - 1][0] if i else 0
        words = f"{before + 1:g}–{edge:g} tokens: {count:g} texts"
        box = {"x": x + 1, "y": up(count), "width": step - 2, "height": max(0.0, height - up(count))}
        column = element("rect", **box, rx=2, class_="bar shipped")
        content.append(hint(column, words))
        if _shown(i, len(counts), step):
            content.append(label(x + step, height + 16, f"{edge:g}", anchor="middle", class_="tick"))
    content.append(label(left, height + 16, "0", anchor="middle", class_="tick"))
    content.append(_percentiles(counts, marks, left, step, top, height))
    return drawing(width, height + 24, "".join(content), "How many texts have how many tokens")


def _shown(index: int, columns: int, step: float) -> bool:
    """Every column has its edge written, or every second, third … where there is little room."""
    every = max(1, math.ceil(30 / step))
    return (columns - 1 - index) % every == 0


def _levels(up: Scale, left: float, width: float) -> str:
    found = []
    for value in ticks(up.low, up.high, 4):
        found.append(line(left, up(value), width - 8, up(value), "grid"))
        found.append(label(left - 6, up(value) + 4, f"{value:,.0f}", anchor="end", class_="tick"))
    return "".join(found)


def _percentiles(
    counts: Sequence[tuple[float, float]],
    marks: Sequence[tuple[str, float]],
    left: float,
    step: float,
    top: float,
    height: float,
) -> str:
    found, free = [], -1e9
    for row, (name, tokens) in enumerate(sorted(marks, key=lambda m: m[1])):
        x, text = left + step * _column(counts, tokens), f"{name} {tokens:g}"
        # A label that would run into the one before stands a line higher.
        y = top - 8 if x - text_width(text) / 2 > free or row == 0 else top - 22
        free = x + text_width(text) / 2 + 6
        anchor = "end" if x > left + step * len(counts) - 24 else "middle"
        found.append(line(x, y + 4, x, height, "mark base") + label(x, y, text, anchor=anchor, class_="tick strong"))
    return "".join(found)


def _column(counts: Sequence[tuple[float, float]], tokens: float) -> float:
    """Where a length stands on columns of equal width and unequal range."""
    before = 0.0
    for i, (edge, _) in enumerate(counts):
        if tokens <= edge:
            return i + (tokens - before) / (edge - before) if edge > before else float(i)
        before = edge
    return float(len(counts))


def counts_of(data: object) -> list[tuple[float, float]]:
    """The histogram of a report: pairs of (upper edge, count), damaged ones left out."""
    pairs = [p for p in data if isinstance(p, (list, tuple)) and len(p) == 2] if isinstance(data, list) else []
    read = [(number(edge), number(count)) for edge, count in pairs]
    found = [(edge, count) for edge, count in read if edge is not None and count is not None and count >= 0]
    return sorted(found) if any(count > 0 for _, count in found) else []
