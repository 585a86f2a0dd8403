"""Memory over time: what the process held, what no file backs of it, what Python held; phases as bands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from vengine.report.svg import Scale, drawing, element, hint, label, line, nice_top, text_width, ticks
from vengine.report.wording import clean, milliseconds, number, seconds, size

_HEIGHT = 320.0
LINES = (
    ("rss_bytes", "resident", 1),
    ("anonymous_bytes", "not backed by a file", 2),
    ("free_bytes", "kept free by the C allocator", 3),
    ("python_bytes", "Python’s, since it was warm", 4),
)
"""Field of a look's memory, its name, and the style of its line."""


@dataclass(frozen=True, kw_only=True)
class Moment:
    """One look, ready to draw."""

    phase: str
    seconds: float
    values: Mapping[str, float | None]
    words: str


def moments(looks: Sequence[Mapping[str, Any]]) -> list[Moment]:
    """The looks of a soak's result."""
    found = []
    for look in looks:
        at, memory = number(look["seconds"]), look["memory"]
        values = {name: number(memory[name]) for name, _, _ in LINES} | {"ms": number(look["ms"])}
        if at is not None:
            words = (
                f"after {look['requests']:,} requests, {seconds(at)}: {size(values['rss_bytes'])} resident, "
                f"{look['shapes']} shapes met"
            )
            found.append(Moment(phase=clean(look["phase"], 20), seconds=at, values=values, words=words))
    return found


def memory_curve(found: Sequence[Moment], width: float, limit: float | None = None) -> str:
    """Bytes against seconds; `limit` is drawn in red where it lies inside."""
    most = max([1.0, *(v for m in found for name, _, _ in LINES if (v := m.values[name]) is not None)])
    if limit is not None and limit < 2 * most:
        most = max(most, limit)
    up = Scale(low=0, high=nice_top(most), start=_HEIGHT - 34, end=34)
    across = Scale(low=0, high=max(m.seconds for m in found), start=64, end=width - 14)
    content = [_bands(found, across, up), _axes(across, up, size)]
    content += [_line(found, name, style, across, up) for name, _, style in LINES]
    if limit is not None and up.inside(limit):
        content.append(line(across.start, up(limit), across.end, up(limit), "mark red thick"))
        content.append(
            label(across.end - 4, up(limit) - 6, f"limit {size(limit)}", anchor="end", class_="tick red halo")
        )
    return drawing(width, _HEIGHT, "".join(content), "Memory of the process over time")


def latency_curve(found: Sequence[Moment], width: float) -> str:
    """Milliseconds of one and the same call against seconds."""
    known = [m for m in found if m.values["ms"] is not None]
    ordered = sorted(float(m.values["ms"] or 0) for m in known)
    top = nice_top(min(ordered[-1], 3 * ordered[len(ordered) // 2]))  # one slow call must not flatten all others
    up = Scale(low=0, high=top, start=_HEIGHT - 34, end=34)
    across = Scale(low=0, high=max(m.seconds for m in found), start=64, end=width - 14)
    content = [_bands(found, across, up), _axes(across, up, milliseconds), _line(known, "ms", 1, across, up)]
    return drawing(width, _HEIGHT, "".join(content), "Milliseconds of the same call over time")


def _bands(found: Sequence[Moment], across: Scale, up: Scale) -> str:
    """Each phase from the end of the one before to its own last look, with its name where there is room."""
    content, left = [], across.start
    for i, (phase, group) in enumerate(groupby(found, key=lambda m: m.phase)):
        looks = list(group)
        right = across(looks[-1].seconds)
        box = {"x": left, "y": up.end, "width": max(0.0, right - left), "height": up.start - up.end}
        band = element("rect", **box, class_="track" if i % 2 else "tint f0")
        name = label((left + right) / 2, up.end - 10, phase, anchor="middle", class_="tick")
        fits = text_width(phase) < right - left
        content.append(hint(band + (name if fits else ""), f"{phase}: {looks[-1].words}"))
        left = right
    return "".join(content)


def _axes(across: Scale, up: Scale, words: Any) -> str:
    content = []
    for value in ticks(up.low, up.high, 5):
        content.append(line(across.start, up(value), across.end, up(value), "grid"))
        content.append(
            label(across.start - 8, up(value) + 4, words(value) if value else "0", anchor="end", class_="tick")
        )
    for value in ticks(across.low, across.high, max(2, int((across.end - across.start) / 110))):
        anchor = "start" if value == 0 else "end" if across(value) > across.end - 20 else "middle"
        text = seconds(value) if value else "0"
        content.append(label(across(value), up.start + 18, text, anchor=anchor, class_="tick"))
    return "".join(content)


def _line(found: Sequence[Moment], name: str, style: int, across: Scale, up: Scale) -> str:
    spots = [(across(m.seconds), up(v)) for m in found if (v := m.values[name]) is not None]
    if len(spots) < 2:
        return ""
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in spots)
    return element("path", d=path, class_=f"line s{style}")
