"""What each verb but `optimize` shows to people. Everything that came from a file is cleaned before it is printed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vengine.report.wording import clean, interval, milliseconds, score, size, times_range

if TYPE_CHECKING:
    from rich.console import Console

    from vengine.types import Source, TensorSpec

_VALUES = 6  # numbers of a vector that fit a line
_MARK = {True: "[green]✓[/]", False: "[red]✗[/]"}


def source(found: Source, console: Console) -> None:
    """The facts of a source: what `vengine inspect` understood."""
    rows = [
        ("name", found.name),
        ("kind", f"{found.kind} ({found.architecture})" if found.architecture else found.kind),
        ("task", found.task),
        ("licence", found.licence),
        ("parameters", f"{found.parameters:,} ({size(found.weight_bytes)})"),
        ("inputs", ", ".join(map(_tensor, found.inputs))),
        ("outputs", ", ".join(map(_tensor, found.outputs))),
        ("tokenizer", "yes" if found.tokenizer else "none"),
        ("longest text", f"{found.max_tokens:,} tokens" if found.max_tokens else ""),
        ("pooling", (found.pooling or "") + (", then L2 normalisation" if found.normalize else "")),
        ("labels", _labels(found.labels)),
        ("digest", found.digest),
        ("from", found.location),
    ]
    _facts(rows, console)
    for note in found.notes:
        console.print(f"note: {clean(note)}", markup=False)


def doctor(result: Mapping[str, Any], console: Console) -> None:
    """This machine, and every engine with its version or the reason why it isn't there."""
    machine = result["machine"]
    quota = f"{machine['cores_allowed']:g} allowed of {machine['physical_cores']} physical"
    rows = [
        ("cpu", machine["cpu"]),
        ("instruction sets", " ".join(machine["isa"])),
        ("cores", quota),
        ("threads", str(result.get("threads", ""))),
        ("memory", f"{size(machine['memory_available_bytes'])} free of {size(machine['memory_bytes'])}"),
        ("gpus", ", ".join(machine["gpus"]) or "none"),
        ("system", f"{machine['os']}, Python {machine['python']}"),
    ]
    _facts(rows, console)
    console.print()
    engines = [
        (_MARK[bool(e["ok"])], clean(e["name"]), clean(e.get("version") or ""), _why(e)) for e in result["engines"]
    ]
    _table(("", "engine", "version", ""), engines, console)
    for note in result.get("notes", ()):
        console.print(f"note: {clean(note)}", markup=False)


def verification(result: Mapping[str, Any], console: Console) -> None:
    """Each check of a bundle, each variant on this machine, and what will serve."""
    checks = [(_MARK[bool(c["ok"])], clean(c["what"]), clean(c.get("detail", ""))) for c in result["checks"]]
    _table(("", "checked", ""), checks, console)
    console.print()
    console.print("[bold green]✓ sound on this machine[/]" if result["ok"] else "[bold red]✗ not sound on this machine[/]")


def answers(result: Mapping[str, Any], console: Console) -> None:
    """One block a text: the text, then each output (or the label with its probability)."""
    for answer in result["answers"]:
        text = " | ".join(t for t in (answer.get("text"), answer.get("pair")) if t)
        if text:
            console.print(f"“{clean(text, 200)}”", style="bold", markup=False)
        for name, value in answer["outputs"].items():
            console.print(f"  {clean(name)} {_values(value)}", markup=False)
        if answer.get("label") is not None:
            console.print(f"  → {clean(answer['label'])}", markup=False)
    console.print(f"{milliseconds(result.get('ms'))} in all, by {clean(result.get('digest', ''))}", style="dim", markup=False)


def bench(result: Mapping[str, Any], console: Console) -> None:
    """One row a shape, one column a target: milliseconds, and the ratio to the first with its interval."""
    names = [clean(t["name"]) for t in result["targets"]]
    rows = []
    for row in result["rows"]:
        cells = [milliseconds(c["ms"]["value"]) for c in row["cells"]]
        ratios = [times_range(interval(c.get("ratio"), value="value")) for c in row["cells"]]
        rows.append((clean(row["shape"]), *(f"{ms}  {r}" if i else ms for i, (ms, r) in enumerate(zip(cells, ratios, strict=True)))))
    _table(("batch x length", *names), rows, console)


def _why(engine: Mapping[str, Any]) -> str:
    if engine["ok"]:
        return ""
    reason, install = clean(engine.get("reason") or ""), clean(engine.get("install") or "")
    return f"{reason}; {install}" if install else reason


def _tensor(spec: TensorSpec) -> str:
    return f"{spec.name} {spec.dtype}[{', '.join(map(str, spec.shape))}]"


def _labels(labels: Sequence[str], shown: int = 8) -> str:
    more = f", … {len(labels)} in all" if len(labels) > shown else ""
    return ", ".join(labels[:shown]) + more


def _values(value: Any) -> str:
    if not isinstance(value, list):
        return f"{value:.6g}" if isinstance(value, float) else clean(value)
    flat = value
    while flat and isinstance(flat[0], list):
        flat = flat[0]
    head = " ".join(score(float(v)) for v in flat[:_VALUES])
    return f"[{head}{' …' if len(flat) > _VALUES else ''}]"


def _facts(rows: Iterable[tuple[str, str]], console: Console) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    for name, value in rows:
        if value:
            table.add_row(Text(name, style="dim"), Text(clean(value)))
    console.print(table)


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]], console: Console) -> None:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    table = Table(*columns, box=box.SIMPLE_HEAD, pad_edge=False)
    for row in rows:
        table.add_row(*(cell if cell in _MARK.values() else escape(cell) for cell in row))
    console.print(table)
