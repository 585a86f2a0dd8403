"""The parts of the HTML report that are read: verdict, side by side, commands, provenance."""

from __future__ import annotations

from html import escape
from typing import Any

from vengine.report.contenders import (
    Report,
    budget,
    drop_of,
    metric,
    optimized,
    part,
    recipe_label,
    rows,
    shipped_labels,
    texts,
)
from vengine.report.evidence import Rows, changes, company, largest_error, notes
from vengine.report.facts import token_range
from vengine.report.wording import (
    clean,
    digits,
    milliseconds,
    number,
    percent,
    saved,
    score,
    seconds,
    size,
)

_OUTCOME = {"pass": ("ok", "✓ pass"), "fail": ("bad", "✗ fail"), "undecided": ("unsure", "? undecided")}


def _pairs(found: list[tuple[str, str]]) -> str:
    """A definition list; names are ours, values are markup."""
    return "<dl>" + "".join(f"<dt>{escape(k)}</dt><dd>{v}</dd>" for k, v in found if v) + "</dl>"


def _quote(text: Any, limit: int = 240) -> str:
    return f'<span class="quote"><bdi>{escape(clean(text, limit))}</bdi></span>' if text else ""


def _outcome(value: Any) -> str:
    class_, word = _OUTCOME.get(str(value), ("unsure", clean(value)))
    return f'<span class="{class_}">{escape(word)}</span>'


def verdict(report: Report) -> str:
    """What was compared with what, the worst case, and what a text's company does to it."""
    accuracy = part(report, "accuracy")
    circumstances = company(report)
    found = [*_accuracy(report, accuracy), *_company(part(report, "invariance"), named=circumstances is not None)]
    if not found:
        return ""
    intro = "Compared with the untouched original, on the workload’s own samples."
    shipped = _shipped(report)
    below = "" if circumstances is None else f"<h3>{escape(circumstances.title)}</h3>{_rows(circumstances)}"
    return f'<h2>Verdict</h2><p class="unit">{intro}</p>{_pairs(found)}{below}{shipped}'


def changed(report: Report) -> tuple[str, str]:
    """(title, markup) of the samples whose answers changed or moved most; ("", "") where there are none."""
    found = changes(report)
    return ("", "") if found is None else (found.title, f"<h2>{escape(found.title)}</h2>{_rows(found)}")


def _rows(found: Rows) -> str:
    """A table of other people's texts, escaped."""
    kinds = [' class="num"' if h in found.figures else ' class="long"' if h == found.long else "" for h in found.head]
    tops = zip(found.head, (k if "num" in k else "" for k in kinds), strict=True)
    top = "".join(f'<th scope="col"{k}>{escape(h)}</th>' for h, k in tops)
    body = "".join(
        "<tr>" + "".join(f"<td{k}><bdi>{escape(c)}</bdi></td>" for c, k in zip(row, kinds, strict=True)) + "</tr>"
        for row in found.body
    )
    return (
        f'<p class="unit">{escape(found.note)}</p><div class="scroll" tabindex="0" role="region" '
        f'aria-label="{escape(found.title)}"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _accuracy(report: Report, accuracy: dict[str, Any]) -> list[tuple[str, str]]:
    drop = drop_of(accuracy)
    if drop is None:
        return []
    before, after = number(accuracy.get("original")), number(accuracy.get("optimized"))
    span = f" (95 % interval {percent(drop.low)} to {percent(drop.high)})" if drop.high > drop.low else ""
    worst = number(accuracy.get("worst"))
    return [
        ("outcome", f"{_outcome(accuracy.get('verdict'))} on {escape(clean(accuracy.get('samples', '?')))} samples"),
        (metric(report), escape(f"{score(before)} → {score(after)}" if before is not None else score(after))),
        ("drop", escape(f"{percent(drop.value)}{span}; the budget is {percent(budget(report))}")),
        ("noted", escape(notes(accuracy))),
        ("which implies", escape(clean(accuracy.get("implies") or ""))),
        ("largest error", escape(largest_error(accuracy))),
        ("worst sample", f"{escape(score(worst))} {_quote(accuracy.get('worst_sample'))}" if worst is not None else ""),
        ("changed answers", "" if rows(accuracy, "changes") else _flips(accuracy.get("flipped"))),
    ]


def _flips(flipped: Any) -> str:
    if not isinstance(flipped, list) or not flipped:
        return ""
    items = "".join(f"<li>{_quote(text)}</li>" for text in flipped[:10])
    more = f"<li>and {len(flipped) - 10} more</li>" if len(flipped) > 10 else ""
    return f'<ul class="flips">{items}{more}</ul>'


def _company(data: dict[str, Any], *, named: bool) -> list[tuple[str, str]]:
    """The outcome; and the numbers too, where no table names the circumstances."""
    if not data:
        return []
    bound = number(data.get("bound"))
    asked = f"{_outcome(data.get('outcome'))}, at least {escape(score(bound))} is asked"
    found = [("same input, other company", asked)]
    if named:
        return found
    names = {"batch": "in a batch of 8", "padded": "padded to twice its length", "neighbours": "among other neighbours"}
    for name, words in names.items():
        value = number(data.get(f"alone_vs_{name}"))
        if value is not None:
            class_ = "ok" if bound is None or value >= bound else "bad"
            found.append((words, f'<span class="{class_}">{escape(score(value))}</span>'))
    found.append(("most moved", _quote(data.get("worst_sample"))))
    return found


def _shipped(report: Report) -> str:
    if not optimized(report):
        return ""
    lines = [
        f"{token_range(v)}: {named}, {size(number(v.get('size_bytes')))}, needs "
        + (", ".join(texts(v, "required_isa")) or "no special CPU")
        for v, named in zip(rows(report, "variants"), shipped_labels(report), strict=True)
    ]
    spare = part(report, "fallback")
    if spare:
        lines.append(f"on any other CPU: {recipe_label(spare)}")
    items = "".join(f"<li>{escape(clean(line))}</li>" for line in lines)
    return f'<details open><summary>What is in the bundle</summary><ul class="flips">{items}</ul></details>'


def side_by_side(report: Report) -> str:
    """A few texts through the original and the bundle."""
    samples = rows(report, "side_by_side")
    if not samples:
        return ""
    labelled = any(sample.get("original_answer") for sample in samples)
    intro = f"{'The answers' if labelled else 'The first values of each answer'}, and the time of one call."
    return f'<h2>Side by side</h2><p class="unit">{intro}</p>' + "".join(map(_sample, samples[:8]))


def _sample(sample: dict[str, Any]) -> str:
    before, after = number(sample.get("original_ms")), number(sample.get("optimized_ms"))
    ratio = before / after if before and after else None
    lines = [
        ("original", f"{escape(milliseconds(before))} {_answer(sample, 'original')}"),
        ("bundle", f"{escape(milliseconds(after))} {_answer(sample, 'optimized')}"),
    ]
    cosine = number(sample.get("cosine"))
    if cosine is not None:
        lines.append(("agreement", f"cosine {escape(score(cosine))}, {escape(saved(ratio))}"))
    return f'<div class="sample"><p><bdi>{escape(clean(sample.get("text", ""), 300))}</bdi></p>{_pairs(lines)}</div>'


def _answer(sample: dict[str, Any], which: str) -> str:
    """In words where there are any, else the first values."""
    words = clean(sample.get(f"{which}_answer") or "", 200)
    if words:
        return f"<b><bdi>{escape(words)}</bdi></b>"
    return f'<span class="values">{_values(sample.get(which))}</span>'


def _values(values: Any) -> str:
    known = [number(v) for v in values] if isinstance(values, list) else []
    return escape(" ".join(f"{v:+.3f}".replace("-", "−") for v in known[:6] if v is not None) + " …") if known else ""


def reproduce(report: Report) -> str:
    """The commands, one block each."""
    commands = texts(report, "reproduce")
    if not commands:
        return ""
    blocks = "".join(f'<div class="command"><pre>{escape(c)}</pre></div>' for c in commands)
    return f'<h2>Reproduce</h2><p class="unit">Run again, check the bundle on another machine, time it.</p>{blocks}'


def footer(report: Report, source: dict[str, Any], machine: dict[str, Any]) -> str:
    """Where everything came from and what it ran on."""
    versions = ", ".join(f"{clean(k)} {clean(v)}" for k, v in part(machine, "versions").items())
    parameters = number(source.get("parameters"))
    found = [
        ("model", f"{escape(clean(source.get('location', '?')))}, {escape(clean(source.get('architecture', '')))}"),
        ("parameters", f"{digits(parameters / 1e6)} million" if parameters else ""),
        ("task", escape(clean(report.get("task", "")))),
        ("licence", escape(clean(source.get("licence", "unknown")))),
        ("source digest", f"<code>{escape(clean(source.get('digest', '')))}</code>"),
        ("bundle digest", f"<code>{escape(clean(report.get('digest', '')))}</code>"),
        ("notes", escape("; ".join(texts(source, "notes")))),
    ]
    here = [
        ("CPU", escape(clean(machine.get("cpu", "?")))),
        ("cores", _cores(report, machine)),
        ("instructions", escape(", ".join(texts(machine, "isa")))),
        ("memory", escape(size(number(machine.get("memory_bytes"))))),
        ("system", escape(clean(f"{machine.get('os', '?')}, Python {machine.get('python', '?')}"))),
        ("engines", escape(versions)),
        ("took", escape(seconds(number(report.get("seconds"))))),
    ]
    return f"<h2>Model</h2>{_pairs(found)}<h2>Machine</h2>{_pairs(here)}"


def _cores(report: Report, machine: dict[str, Any]) -> str:
    allowed, threads = number(machine.get("cores_allowed")), report.get("threads", "?")
    cores = machine.get("physical_cores", "?")
    return escape(clean(f"{cores} physical, {digits(allowed) if allowed else '?'} allowed, {threads} threads each"))
