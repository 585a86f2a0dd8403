"""What quantising each node alone costs and saves: the picture behind the choice of what stays in float."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vengine.report.contenders import Report
from vengine.report.contenders import rows as report_rows
from vengine.report.curves import marker
from vengine.report.sections import Section, heading, numbers_table, table, twice
from vengine.report.svg import Box, Scale, drawing, hint, label, line, log_ticks, place, ticks
from vengine.report.wording import clean, digits, milliseconds, number

_HEIGHT = 380.0
_NAMED = 8  # nodes whose names are written beside their points
_LISTED = 60
_KEPT, _QUANTISED = "kept in float", "quantised"


@dataclass(frozen=True, kw_only=True)
class Sensitivity:
    """One node, quantised alone."""

    name: str
    damage: float  # what the outputs lose, ≥ 0, in the unit that the caller names
    saved_ms: float  # of one call; below zero where int8 is slower
    kept: bool  # stays in float


def sensitivities(report: Report) -> list[Sensitivity]:
    """The nodes of a report whose damage was measured."""
    found = []
    for row in report_rows(report, "sensitivity"):
        damage, saved = number(row.get("damage")), number(row.get("saved_ms"))
        if damage is not None and damage >= 0:
            name = clean(row.get("name", "?"), 200)
            found.append(Sensitivity(name=name, damage=damage, saved_ms=saved or 0.0, kept=row.get("kept") is True))
    return found


def sensitivity_section(rows: Sequence[Sensitivity], unit: str = "1 − cosine of the outputs") -> Section:
    """A card for the report; its content is empty without rows.

    Args:
        rows: in any order.
        unit: what `damage` is measured in.
    """
    title = "What quantising each node costs and saves"
    if not rows:
        return Section(anchor="sensitivity", title=title, short="", content="")
    kept = sum(row.kept for row in rows)
    words = (
        f"Up: damage of quantising this node alone ({unit}, logarithmic). Across: milliseconds that it saves a call. "
        f"Right and low is what int8 is for. Filled points are quantised, hollow ones kept in float: {kept} of "
        f"{len(rows)}."
    )
    body = heading(title, words) + twice(lambda width: sensitivity_chart(rows, width))
    body += numbers_table("The nodes as a table", _list(rows))
    return Section(anchor="sensitivity", title=title, short="Sensitivity", content=body)


def sensitivity_chart(rows: Sequence[Sensitivity], width: float) -> str:
    """The scatter alone.

    Args:
        rows: at least one.
        width: pixels.
    """
    some = [row.damage for row in rows if row.damage > 0]
    floor, top = (min(some), max(some)) if some else (1e-6, 1e-5)
    up = Scale(low=floor / 3, high=top * 3, start=_HEIGHT - 36, end=14, logarithmic=True)
    most, least = max(0.0, *(row.saved_ms for row in rows)), min(0.0, *(row.saved_ms for row in rows))
    reach = (most - least) or 1.0
    low = least - 0.06 * reach if least < 0 else 0.0
    across = Scale(low=low, high=most + 0.06 * reach, start=72, end=width - 14)
    content = [_axes(across, up)]
    content += [_point(row, across, up) for row in sorted(rows, key=lambda row: row.kept)]
    content.append(_names(rows, across, up))
    return drawing(width, _HEIGHT, "".join(content), "Damage of quantising each node against the time that it saves")


def _axes(across: Scale, up: Scale) -> str:
    content = []
    for value in log_ticks(up.low, up.high):
        content.append(line(across.start, up(value), across.end, up(value), "grid"))
        content.append(label(across.start - 8, up(value) + 4, f"{value:.0e}", anchor="end", class_="tick"))
    for value in ticks(across.low, across.high, max(3, int((across.end - across.start) / 100))):
        content.append(line(across(value), up.end, across(value), up.start, "grid zero" if value == 0 else "grid"))
        anchor = "end" if across(value) > across.end - 20 else "middle"
        content.append(label(across(value), up.start + 18, f"{value:g} ms", anchor=anchor, class_="tick"))
    return "".join(content)


def _point(row: Sensitivity, across: Scale, up: Scale) -> str:
    """A node without damage stands on the floor of the picture."""
    class_ = "dot tried hollow" if row.kept else "dot shipped"
    mark = marker(across(row.saved_ms), up(max(row.damage, up.low)), "circle", class_, 5)
    return hint(mark, f"{clean(row.name, 120)}: {_damage(row)}, {_saved(row)}, {_KEPT if row.kept else _QUANTISED}")


def _names(rows: Sequence[Sensitivity], across: Scale, up: Scale) -> str:
    """Names of those that are kept at the greatest price in time, and of the most harmful that are not."""
    costly = sorted((row for row in rows if row.kept), key=lambda row: -row.saved_ms)[: _NAMED // 2]
    harmful = sorted((row for row in rows if not row.kept), key=lambda row: -row.damage)[: _NAMED - len(costly)]
    chosen = [*costly, *harmful]
    spots = [(across(row.saved_ms), up(max(row.damage, up.low)), _short(row.name)) for row in chosen]
    area = Box(x=across.start + 2, y=up.end, width=across.end - across.start, height=up.start - up.end)
    others = [Box(x=across(r.saved_ms) - 6, y=up(max(r.damage, up.low)) - 6, width=12, height=12) for r in rows]
    found = zip(spots, place(spots, area, taken=others), strict=True)
    return "".join(label(box.x, box.y + 12, text, class_="tick halo") for (_, _, text), box in found if box is not None)


def _short(name: str) -> str:
    """The last parts of a node's name, which tell it from its neighbours."""
    parts = [part for part in clean(name).replace("/", ".").split(".") if part]
    short = ".".join(parts[-3:])
    return short if len(short) <= 28 else "…" + short[-27:]


def _list(rows: Sequence[Sensitivity]) -> str:
    ordered = sorted(rows, key=lambda row: (-row.damage, row.name))
    head = ("node", "", "damage", "saves")
    body = [(clean(row.name, 120), _KEPT if row.kept else _QUANTISED, _damage(row), _saved(row)) for row in ordered]
    more = f'<p class="unit">and {len(rows) - _LISTED} with less damage</p>' if len(rows) > _LISTED else ""
    return table(head, body[:_LISTED], numbers=2) + more


def _damage(row: Sensitivity) -> str:
    return f"{row.damage:.1e}" if row.damage else "0"


def _saved(row: Sensitivity) -> str:
    if row.saved_ms < 0:
        return f"{digits(-row.saved_ms, 2)} ms slower"
    return milliseconds(row.saved_ms)
