"""The report as Markdown that stays readable as plain text: for pull requests, tickets and wikis."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from vengine.report.contenders import (
    Contender,
    Report,
    budget,
    contenders,
    metric,
    optimized,
    part,
    recipe_label,
    rows,
    shipped_labels,
    texts,
)
from vengine.report.evidence import Rows, changes, company, kept
from vengine.report.facts import facts, speedups, token_range
from vengine.report.wording import (
    cells_wide,
    clean,
    milliseconds,
    number,
    percent,
    score,
    size,
    spread,
    times,
)

_TITLE = {"pass": "target met", "fail": "target missed", "undecided": "undecided"}
_SPECIAL = re.compile(r"([\\`*_\[\]<>|#~&!])")


def markdown(report: Report) -> str:
    """The whole report as GitHub-flavoured Markdown. Texts of users and engines are escaped."""
    blocks = [
        *_head(report),
        *_section("What was tried", _tried(report)),
        *_section("What is in the bundle", _contents(report)),
        *_section("Faster at each shape (batch × length)", _shapes(report)),
        *_section("What was refused or skipped, and why", _refused(report)),
        *_evidence(changes(report)),
        *_evidence(company(report)),
        *_evidence(kept(report)),
        *_section("Side by side", _side_by_side(report)),
        *_section("Reproduce", _commands(report)),
    ]
    return "\n\n".join(blocks) + "\n"


def literal(value: Any, limit: int | None = None) -> str:
    """Somebody else's text, with everything that Markdown or HTML would act upon escaped."""
    return _SPECIAL.sub(r"\\\1", clean(value, limit))


def _section(title: str, body: str) -> list[str]:
    return [f"## {title}", body] if body else []


def _head(report: Report) -> list[str]:
    outcome = str(report.get("outcome", "fail"))
    name = literal(report.get("bundle", "vengine"))
    blocks = [f"# {name}: {_TITLE.get(outcome, literal(outcome))}", literal(report.get("why", ""))]
    if not optimized(report):
        blocks.append("**The original ships unchanged.**")
    if part(report, "workload").get("synthetic"):
        blocks.append("The workload was synthetic: nothing here says how accurate the bundle is on real data.")
    blocks += [literal(text) for text in texts(report, "warnings")]
    blocks.append("\n".join(f"- **{key}**: {literal(value)}" for key, value in facts(report)))
    return [b for b in blocks if b]


def _tried(report: Report) -> str:
    head = ("", "recipe", "faster", "95 %", f"drop in {literal(metric(report))}, at most {percent(budget(report))}")
    return _grid((*head, "alone vs. company", "peak memory"), [_row(c) for c in contenders(report)], right=range(2, 7))


def _row(row: Contender) -> Sequence[str]:
    mark = (
        "★"
        if row.role in ("bundle", "shipped")
        else {"ok": "", "refused": "✗", "failed": "!", "skipped": "–"}[row.status]
    )
    first = row.role == "original"
    return (
        mark,
        literal(row.label),
        times(row.ratio.value if row.ratio else None),
        "" if first else spread(row.ratio),
        "" if first else percent(row.drop.value if row.drop else None),
        "" if first else score(row.invariance),
        size(row.rss_bytes),
    )


def _contents(report: Report) -> str:
    if not optimized(report):
        return ""
    found = [
        (
            token_range(v),
            literal(named),
            size(number(v.get("size_bytes"))),
            literal(", ".join(texts(v, "required_isa")) or "any CPU"),
            _short(v.get("digest")),
        )
        for v, named in zip(rows(report, "variants"), shipped_labels(report), strict=True)
    ]
    spare = part(report, "fallback")
    if spare:
        found.append(("fallback", literal(recipe_label(spare)), "", "any CPU", _short(spare.get("digest"))))
    return _grid(("serves calls of", "variant", "size", "needs", "digest"), found, right=(2,))


def _short(digest: Any) -> str:
    """The start of a digest, as code; nothing in it can end the code."""
    return f"`{re.sub('[^0-9a-z:]', '', str(digest))[:19]}`"


def _shapes(report: Report) -> str:
    found = [(literal(shape), ratio) for shape, ratio in speedups(report)] if optimized(report) else []
    return _grid(("shape", "faster (95 %)"), found, right=(1,))


def _refused(report: Report) -> str:
    found = [(literal(r.get("recipe", "?")), literal(r.get("reason", ""))) for r in rows(report, "refused")]
    return _grid(("recipe", "because"), found)


def _evidence(found: Rows | None) -> list[str]:
    if found is None:
        return []
    right = [i for i, name in enumerate(found.head) if name in found.figures]
    body = [[literal(cell) for cell in row] for row in found.body]
    grid = _grid([literal(h) for h in found.head], body, right=right)
    return [f"## {found.title}", literal(found.note), grid]


def _side_by_side(report: Report) -> str:
    found = [
        (
            literal(s.get("text", ""), 120),
            literal(_pair(s), 120),
            milliseconds(number(s.get("original_ms"))),
            milliseconds(number(s.get("optimized_ms"))),
            score(number(s.get("cosine"))),
        )
        for s in rows(report, "side_by_side")
    ]
    if not any(row[1] for row in found):
        return _grid(("text", "original", "bundle", "cosine"), [(row[0], *row[2:]) for row in found], right=(1, 2, 3))
    return _grid(("text", "answer", "original", "bundle", "cosine"), found, right=(2, 3, 4))


def _pair(sample: dict[str, Any]) -> str:
    """Both answers in words, or the one that both gave; "" for vectors."""
    before, after = (str(sample.get(f"{who}_answer") or "") for who in ("original", "optimized"))
    return before if before == after else f"{before} → {after}"


def _commands(report: Report) -> str:
    # Four spaces instead of a fence: no command can close the block.
    return "\n".join(f"    {c}" for c in texts(report, "reproduce"))


def _grid(head: Sequence[str], body: Sequence[Sequence[str]], right: Iterable[int] = ()) -> str:
    if not body:
        return ""
    right = set(right)
    wide = [max(3, *(cells_wide(r[i]) for r in (head, *body))) for i in range(len(head))]
    rule = [("-" * (w - 1) + ":") if i in right else "-" * w for i, w in enumerate(wide)]
    return "\n".join(_line(r, wide, right) for r in (head, rule, *body))


def _line(row: Sequence[str], wide: Sequence[int], right: set[int]) -> str:
    padded = [_pad(text or "", w, i in right) for i, (text, w) in enumerate(zip(row, wide, strict=True))]
    return "| " + " | ".join(padded) + " |"


def _pad(text: str, wide: int, right: bool) -> str:
    gap = " " * (wide - cells_wide(text))
    return gap + text if right else text + gap
