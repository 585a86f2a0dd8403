"""SVG as text: elements with escaped content, scales, ticks, and how wide a label will be.

Colours are CSS classes, so that one drawing serves light and dark.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from vengine.report.wording import cells_wide

FONT = 12.0  # pixels of a label; the same in wide and narrow drawings, which are drawn anew, not shrunk


def element(name: str, content: str = "", /, **attributes: object) -> str:
    """One element. `content` is markup, attribute values are escaped; `class_` → class, `text_anchor` → text-anchor."""
    pairs = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_plain(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{pairs}>{content}</{name}>" if content else f"<{name}{pairs}/>"


def _plain(value: object) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def label(x: float, y: float, text: str, *, anchor: str = "start", class_: str = "label") -> str:
    """A text at its baseline. `anchor`: start, middle or end."""
    return element("text", escape(text), x=x, y=y, text_anchor=anchor, class_=class_)


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> str:
    """A straight line."""
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def hint(markup: str, words: str) -> str:
    """`markup` with a tooltip."""
    return element("g", element("title", escape(words)) + markup)


def drawing(width: float, height: float, content: str, name: str, *, class_: str = "") -> str:
    """A whole drawing that scales to its column and says its name to a screen reader."""
    return element(
        "svg",
        content,
        viewBox=f"0 0 {_plain(float(width))} {_plain(float(height))}",
        role="img",
        aria_label=name,
        class_=class_ or None,
    )


def text_width(text: str, size: float = FONT) -> float:
    """About how many pixels a label takes, bold or not, in the widest of the usual system fonts."""
    return cells_wide(text) * size * 0.62


def fit(text: str, width: float, size: float = FONT) -> str:
    """`text`, cut with an ellipsis where it is wider than `width` pixels."""
    if text_width(text, size) <= width:
        return text
    while text and text_width(text + "…", size) > width:
        text = text[:-1]
    return text.rstrip(" ·") + "…"


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Values low … high onto pixels start … end, linear or logarithmic; outside is clamped."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    def __call__(self, value: float) -> float:
        value = min(max(value, self.low), self.high)
        if self.high == self.low:
            return self.start
        if self.logarithmic:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def inside(self, value: float) -> bool:
        return self.low <= value <= self.high


def ticks(low: float, high: float, about: int = 5) -> tuple[float, ...]:
    """Round values (1, 2, 5 × 10ⁿ apart) inside low … high."""
    if not high > low:
        return (low,)
    step = _round_up((high - low) / max(1, about))
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return tuple(round(i * step, 10) for i in range(first, last + 1))


def log_ticks(low: float, high: float) -> tuple[float, ...]:
    """1, 2, 5 × 10ⁿ inside low … high; only powers of ten where that would be more than eight."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    found = [m * 10.0**p for p in powers for m in (1, 2, 5) if low <= m * 10.0**p <= high]
    if len(found) > 8:
        found = [10.0**p for p in powers if low <= 10.0**p <= high]
    return tuple(found)


def nice_top(value: float) -> float:
    """The next round number at or above `value`."""
    return _round_up(value, (1, 1.5, 2, 3, 4, 5, 6, 8, 10)) if value > 0 else 1.0


def _round_up(value: float, steps: Sequence[float] = (1, 2, 5, 10)) -> float:
    power = 10.0 ** math.floor(math.log10(value))
    return next(s * power for s in (*steps, 10) if s * power >= value * (1 - 1e-9))


@dataclass(frozen=True, kw_only=True)
class Box:
    """A rectangle that is taken."""

    x: float
    y: float
    width: float
    height: float

    def meets(self, other: Box) -> bool:
        return (
            self.x < other.x + other.width
            and other.x < self.x + self.width
            and self.y < other.y + other.height
            and other.y < self.y + self.height
        )


def place(
    points: Sequence[tuple[float, float, str]], area: Box, size: float = FONT, taken: Sequence[Box] = ()
) -> tuple[Box | None, ...]:
    """Find room for the label of each point: no overlap, inside `area`, as near as can be; None where there is none."""
    occupied = [*taken, *(Box(x=x - 7, y=y - 7, width=14, height=14) for x, y, _ in points)]
    found: list[Box | None] = []
    for x, y, text in points:
        box = _room(x, y, text_width(text, size), size * 1.25, area, occupied)
        if box is not None:
            occupied.append(box)
        found.append(box)
    return tuple(found)


def _room(x: float, y: float, width: float, height: float, area: Box, occupied: Sequence[Box]) -> Box | None:
    for distance in (10, 18, 28, 40, 54, 70, 90):
        for angle in (0, 180, 315, 45, 225, 135, 270, 90, 337, 22, 203, 157):
            cx, cy = x + distance * math.cos(math.radians(angle)), y + distance * math.sin(math.radians(angle))
            left = cx if angle < 80 or angle > 280 else cx - width if 100 < angle < 260 else cx - width / 2
            box = Box(x=left, y=cy - height / 2, width=width, height=height)
            if _within(box, area) and not any(box.meets(o) for o in occupied):
                return box
    return None


def _within(box: Box, area: Box) -> bool:
    return (
        box.x >= area.x
        and box.y >= area.y
        and box.x + box.width <= area.x + area.width
        and box.y + box.height <= area.y + area.height
    )
