"""The rows behind a verdict: changed answers, a text's likeness in each circumstance, and what stays in fp32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vengine.report.contenders import Report, metric, part, rows
from vengine.report.wording import clean, digits, number, percent, score
from vengine.types import WEIGHTS_ONLY

MOST = 20
_TEXT = 80
_KEEPING = ("keep-list", "to-fp16", "to-bf16", *WEIGHTS_ONLY)  # passes whose refusals are such nodes and weights


@dataclass(frozen=True, kw_only=True)
class Rows:
    """A small table of plain texts (not yet escaped)."""

    title: str
    note: str
    head: Sequence[str]
    body: Sequence[Sequence[str]]
    figures: Sequence[str]  # columns of numbers
    long: str  # the column of users' texts


def changes(report: Report, most: int = MOST, width: int = _TEXT) -> Rows | None:
    """Samples whose class changed, surest first, or those that moved furthest; None where there are none."""
    accuracy = part(report, "accuracy")
    found = rows(accuracy, "changes")
    if not found:
        return None
    shown = found[:most]
    total = number(accuracy.get("changed")) or 0
    flipped = total > 0
    columns = [
        ("text", [clean(r.get("text") or "–", width) for r in shown]),
        ("label", [clean(r.get("label") or "", 40) for r in shown]),
        ("original", [clean(r.get("original") or "", 40) for r in shown]),
        ("bundle", [clean(r.get("optimized") or "", 40) for r in shown]),
        ("margin", [percent(number(r.get("margin"))) for r in shown] if _any(shown, "margin") else []),
        ("moved", [_distance(r) for r in shown] if _any(shown, "distance") else []),
    ]
    used = [(name, values) for name, values in columns if any(values)]
    return Rows(
        title="Changed answers" if flipped else "What moved most",
        note=_changed_note(accuracy, len(shown), total) if flipped else _moved_note(report),
        head=[name for name, _ in used],
        body=list(zip(*(values for _, values in used), strict=True)),
        figures=("margin", "moved"),
        long="text",
    )


def _any(found: Sequence[dict[str, Any]], key: str) -> bool:
    return any(number(r.get(key)) is not None for r in found)


def _distance(row: dict[str, Any]) -> str:
    value = number(row.get("distance"))
    return "" if value is None else digits(value, 2)


def _changed_note(accuracy: dict[str, Any], shown: int, total: float) -> str:
    """What the rows are, and how many there are."""
    samples = number(accuracy.get("samples"))
    of = f" of {samples:,.0f}" if samples else ""
    which = f"the {shown} of which the original was surest" if shown < total else "those first of which it was surest"
    surest = f": {which}. Margin: its probability for its own answer, less that for the new one" if total > 1 else ""
    return f"{total:,.0f}{of} samples{surest}." if total != 1 else f"1{of} samples."


def _moved_note(report: Report) -> str:
    what = "1 − cosine to the original's vector" if _vectors(report) else "difference of the two scores"
    return f"No answer is a class here: the samples that moved furthest ({what}), judged by {metric(report)}."


def _vectors(report: Report) -> bool:
    found = rows(part(report, "accuracy"), "changes")
    return not any(r.get("original") for r in found)


def company(report: Report) -> Rows | None:
    """Each circumstance in which texts were tried; None where a report names none."""
    data = part(report, "invariance")
    found = rows(data, "checks")
    if not found:
        return None
    body = [
        (
            clean(r.get("what") or "?", 60),
            score(number(r.get("similarity"))),
            clean(r.get("worst_sample") or "", _TEXT),
        )
        for r in found
    ]
    return Rows(
        title="The same text in other company",
        note=f"Least likeness to the text alone (1 = the same); at least {score(number(data.get('bound')))} is asked.",
        head=("circumstance", "likeness", "most moved text"),
        body=body,
        figures=("likeness",),
        long="most moved text",
    )


def kept(report: Report) -> Rows | None:
    """Nodes and weights that stay in fp32 beside fp16 or bf16, those of one reason together; None where none do."""
    found: dict[tuple[str, str], list[str]] = {}
    for trial in rows(report, "trials"):
        label = f"{part(trial, 'recipe').get('engine', '?')} {part(trial, 'recipe').get('precision', '?')}"
        for done in rows(part(trial, "variant"), "passes"):
            if done.get("name") in _KEEPING:
                for pair in done.get("refusals") or []:
                    names = found.setdefault((label, str(pair[1])), [])
                    names += [str(pair[0])] if str(pair[0]) not in names else []
    if not found:
        return None
    body = [(clean(label, 40), _several(names), clean(reason)) for (label, reason), names in found.items()]
    return Rows(
        title="What stays in fp32, and why",
        note="Found on the calibration samples: by the values that a node meets and what it adds up, then by what it "
        "does to the outputs. “weights” tells what rounding them lost.",
        head=("recipe", "node", "because"),
        body=body[:MOST],
        figures=(),
        long="because",
    )


def _several(names: Sequence[str]) -> str:
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{clean(names[0], 60)}{more}"


def largest_error(accuracy: dict[str, Any]) -> str:
    """The largest error of an output, and how many times the original's own noise it is; "" where not measured."""
    error, noise = number(accuracy.get("error")), number(accuracy.get("noise"))
    if error is None or noise is None:
        return ""
    if error == 0:
        return "none: equal bit for bit"
    size = f"{_share(error)} of an output's usual size"
    if noise == 0:
        return f"{size}; the original repeats itself exactly"
    if error <= noise:
        return f"{size}, within the original's own noise ({_share(noise)})"
    return f"{size}, {digits(error / noise, 2)} × the original's own noise ({_share(noise)})"


def notes(accuracy: dict[str, Any]) -> str:
    """What the verdict says beyond the drop, its budget and the largest error: McNemar's test, samples left out, …"""
    sentences = clean(accuracy.get("reason") or "").split(". ")[1:]
    return ". ".join(sentences[:-1] if largest_error(accuracy) else sentences)


def _share(value: float) -> str:
    return percent(value) if value >= 1e-4 else f"{digits(value * 1e6, 2)} millionths"
