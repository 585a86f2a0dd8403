"""Where one call spends its time: what ships beside the original on one scale, and the nodes that take the most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from html import escape
from typing import Any

from vengine.report.charts import HALF, WIDE, Bar, bars
from vengine.report.contenders import Report
from vengine.report.contenders import rows as report_rows
from vengine.report.node_view import SHARES
from vengine.report.sections import Section, heading, numbers_table, table, twice
from vengine.report.wording import clean, milliseconds, number, percent
from vengine.types import Interval

SHARE_CLASSES = {"products": "bundle", "moves": "original", "rest": "tried", "gap": "refused"}
"""How bars are filled: what the time went to → class of the style."""
_TOP = 10
_LABEL = 28  # characters of a name that fit beside a bar
_WHO = {"original": "The original", "bundle": "What ships"}
Row = Mapping[str, Any]


def breakdown_section(report: Report) -> Section:
    """A card for the report; its content is empty where no call was watched."""
    title = "Where the time of one call goes"
    found = [row for row in report_rows(report, "breakdown") if _text(row, "who") in _WHO and _shares(row)]
    if not found:
        return Section(anchor="breakdown", title=title, short="", content="")
    last = found[-1]
    batch, length = number(last.get("batch")) or 1, number(last.get("length")) or 1
    unit = (
        f"One call of {batch:g} × {length:g}, watched node by node (watching costs some time), as a share of the "
        "original’s. Shorter is better. Attention that runs as one operator counts as a matrix product."
    )
    whole = max(_whole(found[0]), 1e-9)
    top = max(bar.value.value for row in found for bar in _bars(_shares(row), whole))
    panels = "".join(_panel(row, whole, top) for row in found)
    body = heading(title, unit) + f'<div class="panels">{panels}</div>'
    if nodes := _nodes(last):
        body += f"<h3>{_WHO[last['who']]}: the {len(nodes[:_TOP])} nodes that take the most</h3>"
        body += _drawn(_bars(nodes[:_TOP], _whole(last)), None, "The nodes that take the most")
    body += "".join(numbers_table(f"{_WHO[row['who']]}: nodes as a table", _list(_nodes(row))) for row in found)
    return Section(anchor="breakdown", title=title, short="Nodes", content=body)


def _panel(row: Row, whole: float, top: float) -> str:
    who = _WHO[row["who"]]
    ran = clean(f"{row.get('engine', '?')} {row.get('precision', '')}", 60)
    name = f"{who}, {ran}: {milliseconds(_whole(row))}"
    return f"<div><h3>{escape(name)}</h3>{_drawn(_bars(_shares(row), whole), top, name, HALF)}</div>"


def _drawn(found: Sequence[Bar], top: float | None, name: str, wide: float = WIDE) -> str:
    end = max(top or 0.0, 0.01, *(bar.value.value for bar in found))
    return twice(partial(bars, found, top=end, name=name), wide)


def _shares(row: Row) -> list[Row]:
    """Products, moves, the rest, and the gap between nodes; [] where they weren't told."""
    told = [s for s in _maps(row.get("shares")) if _text(s, "name") in SHARES and number(s.get("ms")) is not None]
    gap = number(row.get("gap_ms"))
    return [*told, {"name": "gap", "share": "gap", "ms": gap}] if told and gap is not None else told


def _nodes(row: Row) -> list[Row]:
    return [node for node in _maps(row.get("nodes")) if (number(node.get("ms")) or 0.0) > 0]


def _maps(value: object) -> list[Row]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _text(row: Row, key: str) -> str:
    found = row.get(key)
    return found if isinstance(found, str) else ""


def _whole(row: Row) -> float:
    return sum(_ms(share) for share in _shares(row))


def _ms(row: Row) -> float:
    return max(0.0, number(row.get("ms")) or 0.0)


def _bars(rows: Sequence[Row], whole: float) -> list[Bar]:
    """Bars of `ms` as shares of `whole` milliseconds."""
    return [_bar(row, _ms(row) / max(whole, 1e-9)) for row in rows]


def _bar(row: Row, part: float) -> Bar:
    own = _text(row, "name")
    name = SHARES.get(own) or clean(f"{own} · {_operator(row)}", 200)
    # The end of a node's name tells what it is, the start only where it lies.
    label = name if len(own) <= _LABEL else clean(f"…{own[1 - _LABEL :]} · {_operator(row)}", 200)
    note = f"{percent(part)} · {milliseconds(_ms(row))}"
    kind = SHARE_CLASSES.get(_text(row, "share") or own, "tried")
    found = Interval(value=part, low=part, high=part)
    return Bar(label=label, value=found, note=note, kind=kind, words=f"{name}: {note}")


def _operator(row: Row) -> str:
    return clean(f"{row.get('kind', '')} {row.get('precision', '')}".strip(), 60)


def _list(nodes: Sequence[Row]) -> str:
    cells = [
        (clean(n.get("name", "?"), 120), _operator(n), milliseconds(_ms(n)), percent(number(n.get("part"))))
        for n in nodes
    ]
    return table(("node", "operator", "time", "share"), cells, numbers=2)
