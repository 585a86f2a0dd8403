"""The three instruments of the first glance: speed, accuracy with its red line, memory."""

from __future__ import annotations

import math
from dataclasses import dataclass

from vengine.report.svg import Scale, drawing, element, label, line, nice_top
from vengine.report.wording import percent, times_range
from vengine.types import Interval


@dataclass(frozen=True, kw_only=True)
class Dial:
    """A half-round instrument. `red_from`: where the forbidden zone begins."""

    low: float
    high: float
    value: Interval
    labels: tuple[tuple[float, str], ...]
    red_from: float | None = None
    base: float | None = None  # what the original has
    name: str


_R, _CX, _CY = 84.0, 130.0, 112.0


def dial(face: Dial) -> str:
    """The needle at the value, the interval as a band, the red zone behind it."""
    turn = Scale(low=face.low, high=face.high, start=math.pi, end=0)
    content = [_arc(math.pi, 0, _R, "face")]
    start = face.low if face.base is None else face.base
    content.append(_arc(turn(min(start, face.value.value)), turn(max(start, face.value.value)), _R, "reach"))
    if face.red_from is not None:
        content.append(_arc(turn(face.red_from), 0, _R, "redzone"))
        content.append(_spoke(turn(face.red_from), _R - 12, _R + 12, "mark red"))
    for at, text in face.labels:
        content.append(_spoke(turn(at), _R + 8, _R + 12, "mark base"))
        content.append(_dial_label(turn(at), text, red=at == face.red_from))
    if face.value.high > face.value.low:
        content.append(_arc(turn(face.value.low), turn(face.value.high), _R - 16, "band"))
    content.append(_spoke(turn(face.value.value), 0, _R - 4, "needle"))
    content.append(element("circle", cx=_CX, cy=_CY, r=6, class_="hub"))
    return drawing(260, 124, "".join(content), face.name, class_="dial")


def _at(angle: float, radius: float) -> tuple[float, float]:
    return _CX + radius * math.cos(angle), _CY - radius * math.sin(angle)


def _arc(start: float, end: float, radius: float, class_: str) -> str:
    (x1, y1), (x2, y2) = _at(start, radius), _at(end, radius)
    path = f"M{x1:.2f} {y1:.2f}A{radius:g} {radius:g} 0 0 1 {x2:.2f} {y2:.2f}"
    return element("path", d=path, class_=f"arc {class_}")


def _spoke(angle: float, inner: float, outer: float, class_: str) -> str:
    return line(*_at(angle, inner), *_at(angle, outer), class_)


def _dial_label(angle: float, text: str, *, red: bool) -> str:
    x, y = _at(angle, _R + 17)
    anchor = "middle" if abs(math.cos(angle)) < 0.2 else "start" if math.cos(angle) > 0 else "end"
    y += 4 if abs(math.cos(angle)) > 0.9 else 0
    return label(x, y, text, anchor=anchor, class_="tick red" if red else "tick")


def speed_dial(ratio: Interval) -> str:
    """Speed-up; the original stands at 1×."""
    top = nice_top(max(2.0, ratio.high))
    marks = (0.0, 1.0, top / 2, top) if top > 3 else (0.0, 1.0, top)
    labels = tuple((m, f"{m:g}×") for m in marks)
    name = f"Speed-up {times_range(ratio)}"
    return dial(Dial(low=0, high=top, value=ratio, base=1.0, labels=labels, name=name))


def accuracy_dial(drop: Interval, allowed: float) -> str:
    """Loss of the metric on a scale that ends at twice the budget; the red line is the budget."""
    unit = allowed or 0.001
    face = Dial(
        low=-unit,
        high=2 * unit,
        value=drop,
        base=0.0,
        red_from=allowed,
        labels=((-unit, percent(-unit)), (0.0, "0"), (allowed, percent(allowed)), (2 * unit, percent(2 * unit))),
        name=f"Drop {percent(drop.value)}, the budget is {percent(allowed)}",
    )
    return dial(face)


def memory_dial(share: float) -> str:
    """Peak memory as a share of the original's."""
    top = nice_top(max(1.0, share))
    value = Interval(value=share, low=share, high=share)
    labels = tuple((m, f"{m * 100:.0f} %") for m in (0.0, top / 2, top))
    return dial(Dial(low=0, high=top, value=value, labels=labels, name=f"Memory {percent(share)} of the original's"))
