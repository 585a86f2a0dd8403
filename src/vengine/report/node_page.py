"""A profile as one HTML file that needs nothing else, with the style of the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from vengine.report.breakdown_chart import SHARE_CLASSES
from vengine.report.charts import Bar, bars
from vengine.report.html import page
from vengine.report.node_view import SHARES, told
from vengine.report.roofline import roofline, roofs, spots
from vengine.report.sections import Section, heading, table, twice
from vengine.report.wording import MISSING, clean, digits, milliseconds, number, percent
from vengine.types import Interval

_KINDS = 14
Profile = Mapping[str, Any]


def profile_page(result: Profile, created: str) -> str:
    """The whole page.

    Args:
        result: of `api.profile.profile`.
        created: "2026-11-30 21:00 UTC".
    """
    parts = [_glance(result), _shares(result), _kinds(result), _roofline(result), _nodes(result)]
    return page(
        title=f"{clean(result['name'])}: where the time goes",
        version="",
        created=created,
        parts=[part for part in parts if part.content],
        footer=f"<p>{escape(clean(result['digest']))}</p>",
    )


def _glance(result: Profile) -> Section:
    rows = "".join(f"<dt>{escape(n)}</dt><dd><bdi>{escape(clean(v))}</bdi></dd>" for n, v in told(result) if v)
    body = f"<h1>{escape(clean(result['name'], 120))}: where the time goes</h1><dl>{rows}</dl>"
    return Section(anchor="glance", title="The call", short="", content=body)


def _shares(result: Profile) -> Section:
    gap = {"name": "gap", "ms": result["gap_ms"], "part": result["gap_part"]}
    rows = [_bar(SHARES[s["name"]], s, SHARE_CLASSES[s["name"]]) for s in (*result["shares"], gap)]
    unit = "Share of the call; together they are the whole of it. Attention that runs as one operator is a product."
    return _bars("shares", "Where the time goes", "Shares", unit, rows)


def _kinds(result: Profile) -> Section:
    kinds: Sequence[Profile] = result["kinds"][:_KINDS]
    rows = [
        _bar(f"{clean(k['name'], 40)} {clean(k['precision'])}".strip(), k, SHARE_CLASSES[k["share"]]) for k in kinds
    ]
    return _bars("operators", "By operator", "Operators", "Share of the call, the largest first.", rows)


def _bars(anchor: str, title: str, short: str, unit: str, rows: Sequence[Bar]) -> Section:
    top = max([0.01, *(row.value.value for row in rows)])
    drawn = twice(lambda width: bars(rows, width, top=top, name=title))
    return Section(anchor=anchor, title=title, short=short, content=heading(title, unit) + drawn)


def _bar(name: str, row: Profile, kind: str) -> Bar:
    part = float(row["part"])
    note = f"{percent(part)} · {milliseconds(row['ms'])}"
    value = Interval(value=part, low=part, high=part)
    return Bar(label=name, value=value, note=note, kind=kind, words=f"{name}: {note}")


def _roofline(result: Profile) -> Section:
    found = spots(result["nodes"])
    above = roofs(result["ceilings"], found)
    memory = result["ceilings"]["memory"]
    title = "What the products reach"
    if not found or not above or not memory:
        return Section(anchor="roofline", title=title, short="", content="")
    unit = (
        "10⁹ operations a second against operations a byte, both axes logarithmic. A node on a roof does what this "
        "machine can do; under the slope memory is its bound. Circles are fp32, squares bf16, triangles int8."
    )
    drawn = twice(lambda width: roofline(found, above, float(memory["value"]), width))
    return Section(anchor="roofline", title=title, short="Roofline", content=heading(title, unit) + drawn)


def _nodes(result: Profile) -> Section:
    nodes: Sequence[Profile] = result["nodes"]
    head = ("node", "operator", "kernel", "output", "runs", "time", "share", "GOP/s", "of best")
    title = "Every node"
    body = heading(title, "The slowest first.") + table(head, [_cells(node) for node in nodes], numbers=5)
    return Section(anchor="nodes", title=title, short="Nodes", content=body)


def _cells(node: Profile) -> Sequence[str]:
    rate = number(node["flops_per_s"])
    return (
        clean(node["name"], 120),
        clean(f"{node['kind']} {node['precision']}", 60),
        clean(node["kernel"], 40),
        "×".join(map(str, node["output"])) if node["output"] else MISSING,
        f"{node['runs']:g}",
        milliseconds(node["ms"]),
        percent(node["part"]),
        MISSING if rate is None else digits(rate / 1e9),
        percent(node["of_roof"]),
    )
