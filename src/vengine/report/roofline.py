"""The roofline: how fast each node computes against how much it computes a byte, below what this machine can do.

The picture is that of Williams, Waterman and Patterson, "Roofline: an insightful visual performance model" (2009):
under the slope memory is the bound, under a flat roof the arithmetic is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vengine.report.curves import marker
from vengine.report.svg import Scale, drawing, element, hint, label, line, log_ticks
from vengine.report.wording import clean, digits, milliseconds, number, percent

_STYLES = {"fp32": 1, "bf16": 2, "int8": 3}
_SHAPES = {"fp32": "circle", "bf16": "square", "int8": "up"}


@dataclass(frozen=True, kw_only=True)
class Spot:
    """One node whose place is known."""

    name: str
    precision: str
    intensity: float  # operations a byte
    rate: float  # operations a second
    words: str


@dataclass(frozen=True, kw_only=True)
class Roof:
    """The peak of one precision, in operations a second."""

    precision: str
    peak: float


def spots(nodes: Sequence[Mapping[str, Any]]) -> list[Spot]:
    """The nodes that have a rate and a number of operations a byte."""
    found = []
    for node in nodes:
        intensity, rate = number(node["flops_per_byte"]), number(node["flops_per_s"])
        if intensity and rate:
            name = clean(node["name"], 80)
            words = (
                f"{name}: {digits(rate / 1e9)} GOP/s, {percent(node['of_roof'])} of best, {milliseconds(node['ms'])}"
            )
            precision = str(node["precision"])
            found.append(Spot(name=name, precision=precision, intensity=intensity, rate=rate, words=words))
    return found


def roofs(ceilings: Mapping[str, Any], found: Sequence[Spot]) -> list[Roof]:
    """The measured peaks of the precisions that these nodes run in."""
    used = [name for name in _STYLES if any(spot.precision == name for spot in found) and ceilings[name]]
    return [Roof(precision=name, peak=float(ceilings[name]["value"])) for name in used]


def roofline(found: Sequence[Spot], above: Sequence[Roof], memory: float, width: float) -> str:
    """The drawing.

    Args:
        found: at least one.
        above: at least one.
        memory: bytes a second.
        width: pixels.
    """
    height = 360.0
    ridges = [roof.peak / memory for roof in above]
    low = min([*(s.intensity for s in found), *ridges]) / 2
    high = max([*(s.intensity for s in found), *ridges]) * 2
    top = max([*(s.rate for s in found), *(roof.peak for roof in above)]) * 2
    bottom = min([*(s.rate for s in found), low * memory]) / 2
    across = Scale(low=low, high=high, start=64, end=width - 14, logarithmic=True)
    up = Scale(low=bottom / 1e9, high=top / 1e9, start=height - 40, end=14, logarithmic=True)
    content = [_axes(across, up)]
    content += [_roof(roof, memory, across, up) for roof in above]
    content += [_spot(spot, across, up) for spot in found]
    content += [_name(roof, across, up) for roof in above]  # last, with a halo: a spot must not strike it out
    return drawing(width, height, "".join(content), "Operations a second against operations a byte, under the roofs")


def _axes(across: Scale, up: Scale) -> str:
    content = []
    for value in log_ticks(up.low, up.high):
        content.append(line(across.start, up(value), across.end, up(value), "grid"))
        content.append(label(across.start - 8, up(value) + 4, f"{value:g}", anchor="end", class_="tick"))
    for value in log_ticks(across.low, across.high):
        content.append(line(across(value), up.end, across(value), up.start, "grid"))
        content.append(label(across(value), up.start + 18, f"{value:g}", anchor="middle", class_="tick"))
    return "".join(content)


def _roof(roof: Roof, memory: float, across: Scale, up: Scale) -> str:
    ridge = roof.peak / memory
    start = max(across.low, up.low * 1e9 / memory)
    points = [(start, start * memory), (ridge, roof.peak), (across.high, roof.peak)]
    path = "M" + "L".join(f"{across(x):.1f} {up(y / 1e9):.1f}" for x, y in points)
    return element("path", d=path, class_=f"line s{_STYLES[roof.precision]}")


def _name(roof: Roof, across: Scale, up: Scale) -> str:
    words = f"{roof.precision}: {digits(roof.peak / 1e9)} GOP/s at best"
    return label(across.end - 4, up(roof.peak / 1e9) - 6, words, anchor="end", class_="tick halo")


def _spot(spot: Spot, across: Scale, up: Scale) -> str:
    style = f"spot f{_STYLES.get(spot.precision, 0)}"
    drawn = marker(across(spot.intensity), up(spot.rate / 1e9), _SHAPES.get(spot.precision, "circle"), style, 5)
    return hint(drawn, spot.words)
