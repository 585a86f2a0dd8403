"""The report in a terminal: verdict, what was tried, what was refused and why, side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
from vengine.report.evidence import changes, kept
from vengine.report.facts import facts, token_range
from vengine.report.progress import COLOURS, MARKS, LiveProgress, PlainProgress, progress_for
from vengine.report.wording import (
    MISSING,
    clean,
    milliseconds,
    number,
    percent,
    saved,
    score,
    size,
    spread,
    times,
)

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

__all__ = ["LiveProgress", "PlainProgress", "print_report", "progress_for", "side_by_side"]

_SHOWN_CHANGES, _SHOWN_KEPT = 3, 6
_STYLE = {"pass": "bold green", "fail": "bold red", "undecided": "bold yellow"}
_WORD = {"pass": "✓ target met", "fail": "✗ target missed", "undecided": "? undecided"}


def print_report(report: Report, console: Console | None = None) -> None:
    """Print the whole report: verdict first, then the tables."""
    from rich.console import Console

    console = console or Console()
    trials = _trials(report, brief=console.width < 96)
    evidence = (_changes(report), _kept(report), _reasons(report))
    for block in (_headline(report), _facts(report), trials, _plan(report), *evidence):
        if block is not None:
            console.print(block)
            console.print()
    for command in texts(report, "reproduce"):
        console.print(f"  $ {command}", style="dim", markup=False, highlight=False, soft_wrap=True)


def side_by_side(report: Report, console: Console | None = None) -> None:
    """Print a few texts as the original answers them and as the bundle does, with both times."""
    from rich.console import Console
    from rich.text import Text

    console = console or Console()
    samples = rows(report, "side_by_side")
    if not samples:
        console.print(Text("No sample was run side by side.", style="dim"))
    for sample in samples:
        console.print(Text(f"“{clean(sample.get('text', ''), 200)}”", style="bold"))
        console.print(_pair(sample, compared=optimized(report)))
        console.print()


def _pair(sample: dict[str, Any], *, compared: bool) -> RenderableType:
    from rich.text import Text

    worded = any(sample.get(f"{who}_answer") for who in ("original", "optimized"))
    table = _table("", "answer" if worded else "first values", "time", right=("time",))
    for who in ("original", "optimized"):
        table.add_row(
            Text("the original" if who == "original" else "the bundle"),
            Text(clean(sample.get(f"{who}_answer") or "", 60) or _values(sample.get(who))),
            Text(milliseconds(number(sample.get(f"{who}_ms")))),
        )
    before, after = number(sample.get("original_ms")), number(sample.get("optimized_ms"))
    cosine = number(sample.get("cosine"))
    if cosine is not None:
        ratio = before / after if before and after and compared else None
        table.add_row(Text("agreement"), Text(f"cosine {score(cosine)}", style="bold green"), Text(saved(ratio)))
    return table


def _values(values: Any) -> str:
    known = [number(v) for v in values] if isinstance(values, list) else []
    return " ".join(f"{v:+.3f}" for v in known[:6] if v is not None) + (" …" if known else MISSING)


def _headline(report: Report) -> RenderableType:
    from rich.panel import Panel
    from rich.text import Text

    outcome = str(report.get("outcome", "fail"))
    style = _STYLE.get(outcome, "bold red")
    body = Text.assemble((_WORD.get(outcome, outcome), style), "  ", clean(report.get("why", "")))
    if not optimized(report):
        body.append("\nThe original ships unchanged.", style="bold")
    return Panel(body, title=Text(clean(report.get("bundle", "vengine"))), title_align="left", border_style=style)


def _facts(report: Report) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    for name, value in facts(report):
        table.add_row(Text(name, style="dim"), Text(value))
    return table


def _trials(report: Report, *, brief: bool) -> RenderableType:
    """Every contender; `brief` leaves out what a narrow terminal has no room for."""
    from rich.text import Text

    title = f"What was tried (faster on the workload; drop in {metric(report)}, at most {percent(budget(report))})"
    found = [(row, _cells(row)) for row in contenders(report)]
    columns = [name for name in found[0][1] if not (brief and name in ("95 %", "company"))]
    table = _table(*columns, title=title, right=("faster", "95 %", "drop", "company", "memory"))
    for row, cells in found:
        style = "bold" if row.role in ("bundle", "shipped") else "" if row.status == "ok" else "dim"
        table.add_row(*(Text(cells[name]) for name in columns), style=style)
    return table


def _cells(row: Contender) -> dict[str, str]:
    mark = "★" if row.role in ("bundle", "shipped") else " " if row.role == "original" else MARKS[row.status]
    first = row.role == "original"
    return {
        "": mark,
        "recipe": row.label,
        "faster": times(row.ratio.value if row.ratio else None),
        "95 %": "" if first else spread(row.ratio),
        "drop": "" if first else percent(row.drop.value if row.drop else None),
        "company": "" if first else score(row.invariance),
        "memory": size(row.rss_bytes),
    }


def _plan(report: Report) -> RenderableType | None:
    from rich.text import Text

    variants = rows(report, "variants") if optimized(report) else []
    if not variants:
        return None
    table = _table("serves", "variant", "size", "needs", title="What is in the bundle", right=("size",))
    for variant, named in zip(variants, shipped_labels(report), strict=True):
        isa = ", ".join(texts(variant, "required_isa")) or "any CPU"
        cells = (token_range(variant), named, size(number(variant.get("size_bytes"))), isa)
        table.add_row(*(Text(c) for c in cells))
    spare = part(report, "fallback")
    if spare:
        table.add_row(Text("fallback"), Text(recipe_label(spare)), Text(""), Text("any CPU"), style="dim")
    return table


def _changes(report: Report) -> RenderableType | None:
    """The first few of them; Markdown and HTML show more."""
    from rich.text import Text

    found = changes(report, _SHOWN_CHANGES, 64)
    if found is None:
        return None
    lines = [Text(found.title, style="bold"), Text(found.note, style="dim")]
    for row in found.body:
        named = dict(zip(found.head, row, strict=True))
        text, before, after = (named.pop(name, "") for name in ("text", "original", "bundle"))
        rest = ", ".join(f"{name} {value}" for name, value in named.items() if value)
        arrow = f"{before} → {after}" if before else after
        lines.append(Text(f"  {text}\n    " + ", ".join(words for words in (arrow, rest) if words)))
    return Text("\n").join(lines)


def _kept(report: Report) -> RenderableType | None:
    """The first few of them; Markdown and HTML show more."""
    from rich.text import Text

    found = kept(report)
    if found is None:
        return None
    table = _table("recipe", "node", "because", title=found.title)
    for row in found.body[:_SHOWN_KEPT]:
        table.add_row(*(Text(cell) for cell in row))
    return table


def _reasons(report: Report) -> RenderableType | None:
    from rich.text import Text

    refused = rows(report, "refused")
    if not refused:
        return None
    table = _table("refused", "because", title="What was refused or skipped, and why")
    for row in refused:
        table.add_row(Text(clean(row.get("recipe", "?"), 60), style=COLOURS["refused"]), Text(clean(row.get("reason"))))
    return table


def _table(*columns: str, title: str | None = None, right: tuple[str, ...] = ()) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold", pad_edge=False)
    for name in columns:
        table.add_column(
            name,
            justify="right" if name in right else "left",
            no_wrap=name not in ("because", "first values", "needs", "recipe"),
            overflow="fold" if name == "because" else "ellipsis",
        )
    return table
