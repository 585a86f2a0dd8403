"""A soak as one HTML file that needs nothing else, with the style of the report."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from html import escape
from typing import Any

from vengine.report.html import page
from vengine.report.memory_curve import LINES, latency_curve, memory_curve, moments
from vengine.report.sections import Section, heading, numbers_table, table, twice
from vengine.report.soak_view import told
from vengine.report.svg import element
from vengine.report.wording import clean, milliseconds, seconds, size

_CLASS = {"pass": "ok", "fail": "bad", "undecided": "unsure"}
_WORDS = {"pass": "nothing grows", "fail": "memory grows", "undecided": "undecided"}
Soak = Mapping[str, Any]


def soak_page(result: Soak, created: str) -> str:
    """The whole page.

    Args:
        result: of `api.soak.soak`.
        created: "2026-11-30 21:00 UTC".
    """
    parts = [_glance(result), _memory(result), _latency(result), _lines(result)]
    return page(
        title=f"{clean(result['name'])}: {_WORDS[result['outcome']]}",
        version="",
        created=created,
        parts=[part for part in parts if part.content],
        footer=f"<p>{escape(clean(result['digest']))}</p>",
    )


def _glance(result: Soak) -> Section:
    rows = "".join(f"<dt>{escape(n)}</dt><dd><bdi>{escape(clean(v))}</bdi></dd>" for n, v in told(result) if v)
    found = "".join(
        f'<li><span class="{_CLASS[f["outcome"]]}">{escape(f["outcome"])}</span> {escape(clean(f["words"]))}</li>'
        for f in result["findings"]
    )
    title = f"{clean(result['name'], 120)}: {_WORDS[result['outcome']]}"
    body = f'<h1>{escape(title)}</h1><ul class="flips">{found}</ul><dl>{rows}</dl>'
    return Section(anchor="glance", title="The verdict", short="", content=body, class_=f"hero {result['outcome']}")


def _memory(result: Soak) -> Section:
    title, found = "Memory over time", moments(result["looks"])
    if len(found) < 2:
        return Section(anchor="memory", title=title, short="", content="")
    limits = result["limits"]
    unit = (
        "Bytes (up) over time (across). A leak rises in every band, a cache of shapes only where shapes are new, an "
        "arena rises while it warms up and then stays. A band’s name says what is new in it."
    )
    limit = float(limits["total_bytes"]) if limits["stated"] else None
    legend = "".join(f"<li>{_key(style)}{escape(name)}</li>" for _, name, style in LINES)
    body = heading(title, unit) + twice(partial(memory_curve, found, limit=limit))
    body += f'<ul class="legend">{legend}</ul>' + numbers_table("All looks as a table", _looks(result))
    return Section(anchor="memory", title=title, short="Memory", content=body)


def _key(style: int) -> str:
    mark = element("path", d="M1 8L31 8", class_=f"line s{style}")
    return element("svg", mark, viewBox="0 0 32 16", width=32, height=16, aria_hidden="true")


def _looks(result: Soak) -> str:
    head = ("phase", "after", "requests", "shapes", *(name for _, name, _ in LINES), "same call")
    body = [
        (
            clean(look["phase"]),
            seconds(look["seconds"]),
            f"{look['requests']:,}",
            f"{look['shapes']:,}",
            *(size(look["memory"][name]) for name, _, _ in LINES),
            milliseconds(look["ms"]),
        )
        for look in result["looks"]
    ]
    return table(head, body, numbers=len(head) - 1)


def _latency(result: Soak) -> Section:
    title, found = "One and the same call over time", moments(result["looks"])
    if len(found) < 2:
        return Section(anchor="latency", title=title, short="", content="")
    body = heading(title, "Milliseconds (up) over time (across): the median since the look before.")
    body += twice(partial(latency_curve, found))
    return Section(anchor="latency", title=title, short="Latency", content=body)


def _lines(result: Soak) -> Section:
    title = "Lines of Python that hold more than when it was warm"
    rows = [(clean(g["where"], 120), f"{g['grown_blocks']:,}", size(g["grown_bytes"])) for g in result["grown"]]
    if not rows:
        return Section(anchor="lines", title=title, short="", content="")
    unit = "A few kilobytes are the bookkeeping of the watching itself."
    body = heading(title, unit) + table(("line", "blocks", "bytes"), rows, numbers=2)
    return Section(anchor="lines", title=title, short="Python", content=body)
