"""The report as one HTML file that needs nothing else: no network, no fonts, no libraries.

Every text of a user, model or engine is escaped where it enters; a content security policy lets only this
file's own style and script run, by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from string import Template

from vengine.report.breakdown_chart import breakdown_section
from vengine.report.contenders import Report, part
from vengine.report.sections import Section, footer, sections
from vengine.report.sensitivity_chart import sensitivities, sensitivity_section
from vengine.report.wording import clean

_AT_THE_END = 2  # side by side, and how to reproduce
_OUTCOME = {"pass": "target met", "fail": "target missed", "undecided": "undecided"}


def html(report: Report) -> str:
    """The whole page. Works for any report: what was not measured is left out or said to be missing."""
    outcome = clean(report.get("outcome", ""))
    parts = sections(report)
    more = [breakdown_section(report), sensitivity_section(sensitivities(report))]
    return page(
        title=f"{clean(report.get('bundle', 'vengine'))}: {_OUTCOME.get(outcome, outcome)}",
        version=clean(report.get("vengine", "")),
        created=_date(clean(report.get("created", ""))),
        parts=[*parts[:-_AT_THE_END], *(found for found in more if found.content), *parts[-_AT_THE_END:]],
        footer=footer(report, part(report, "source"), part(report, "machine")),
    )


def page(*, title: str, version: str, created: str, parts: Sequence[Section], footer: str) -> str:
    """A page of these parts.

    Args:
        title, version, created: plain text.
        parts: the first one's anchor is "glance".
        footer: markup.
    """
    style, script = _asset("style.css"), _asset("script.js")
    return Template(_asset("page.html")).substitute(
        title=escape(title),
        version=escape(version),
        created=escape(created),
        style=style,
        style_hash=_hash(style),
        script=script,
        script_hash=_hash(script),
        nav="".join(f'<li><a href="#{s.anchor}">{escape(s.short)}</a></li>' for s in parts if s.short),
        sections="\n".join(map(_card, parts)),
        footer=footer,
    )


def _card(section: Section) -> str:
    return (
        f'<section class="card {section.class_}" id="{section.anchor}" aria-label="{escape(section.title)}">'
        f"{section.content}</section>"
    )


def _asset(name: str) -> str:
    return files("vengine.report").joinpath("assets", name).read_text("utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _date(created: str) -> str:
    """2026-11-30T21:00:00Z → 2026-11-30 21:00 UTC; anything else as it is."""
    if len(created) == 20 and created[10] == "T" and created.endswith("Z"):
        return f"{created[:10]} {created[11:16]} UTC"
    return created
