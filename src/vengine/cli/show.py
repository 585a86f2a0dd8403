"""What each verb but `optimize` shows to people. Everything that came from a file is cleaned before it is printed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vengine.report.facts import token_range
from vengine.report.wording import MISSING, clean, interval, milliseconds, score, size, times_range

if TYPE_CHECKING:
    from rich.console import Console

    from vengine.types import Source, TensorSpec

_VALUES = 6  # numbers of a vector that fit a line
_LABELS = 3  # best classes of a classifier
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
        _note(note, console)


def doctor(result: Mapping[str, Any], console: Console) -> None:
    """This machine, and every engine with its version or the reason why it isn't there."""
    machine = result["machine"]
    rows = [
        ("cpu", machine["cpu"]),
        ("instruction sets", " ".join(machine["isa"])),
        ("threads", f"{result['threads']} ({result['threads_why']})"),
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
    for note in result["notes"]:
        _note(note, console)


def verification(result: Mapping[str, Any], console: Console) -> None:
    """Each variant on this machine, what answers which calls, and the verdict."""
    _facts([("bundle", result["bundle"]), ("digest", result["digest"]), ("cpu", result["machine"]["cpu"])], console)
    console.print()
    rows = [
        (
            _MARK[v["status"] == "ok"],
            f"{v['label']}{' (fallback)' if v['fallback'] else ''}",
            _calls(v["digest"], result["plan"]),
            MISSING if v["cosine"] is None else score(v["cosine"]),
            milliseconds(v["ms"]),
        )
        for v in result["variants"]
    ]
    _table(("", "variant", "answers", "cosine to golden", "golden call"), rows, console)
    for v in result["variants"]:
        if v["reason"]:
            _note(f"{v['label']} is {v['status']}: {v['reason']}", console)
    console.print()
    sound = "✓ answers as it was built" if not result["fallen_back"] else "✓ right, but fallen back to another variant"
    verdict = sound if result["ok"] else "✗ no proved variant answers every call on this machine"
    console.print(verdict, style="bold green" if result["ok"] else "bold red", markup=False)


def answers(result: Mapping[str, Any], console: Console) -> None:
    """One block a text: the text, then its label, score or the first values of each output; at last, who answered."""
    texts = result["texts"] or [""] * max((len(rows) for rows in result["outputs"].values()), default=0)
    for index, text in enumerate(texts):
        words = text if isinstance(text, str) else " | ".join(text)
        console.print(f"“{clean(words, 200)}”" if words else f"row {index}", style="bold", markup=False)
        if result["answers"]:
            console.print(f"  {_answer(result['answers'][index])}", markup=False)
            continue
        for name, rows in result["outputs"].items():
            console.print(f"  {clean(name)} {_values(rows[index])}", markup=False)
    by = f"{result['label']} {result['variant'][:19]}"
    console.print(f"{milliseconds(result['ms'])} for all, by {clean(by)}", style="dim", markup=False)
    for out in result["excluded"]:
        _note(f"{clean(out['variant'][:19])} can't run here: {clean(out['reason'])}", console)


def bench(result: Mapping[str, Any], console: Console) -> None:
    """One row a load, one column a target: milliseconds, and the ratio to the first with its interval."""
    targets = result["targets"]
    _facts([(t["name"], f"{size(t['peak_rss_bytes'])} at its peak") for t in targets], console)
    console.print()
    rows = [(row["shape"], *(_timed(c, first=not i) for i, c in enumerate(row["cells"]))) for row in result["rows"]]
    _table(("batch x length", *(clean(t["name"], 40) for t in targets)), rows, console)
    legend = f"{result['threads']} threads each; × = times as fast as the first, 95 % interval"
    console.print(legend, style="dim", markup=False)


def _timed(cell: Mapping[str, Any], *, first: bool) -> str:
    ratio = None if first else interval(cell["ratio"])
    return milliseconds(cell["ms"]["value"]) + (f"  {times_range(ratio)}" if ratio else "")


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


def _answer(answer: Mapping[str, Any]) -> str:
    """`label 0.9310, other 0.0420 …`, the score of a scorer, or one label a token."""
    if "tokens" in answer:
        return " ".join(clean(token["label"]) for token in answer["tokens"])
    if "scores" in answer:
        best = list(answer["scores"].items())[:_LABELS]
        return ", ".join(f"{clean(label)} {score(share)}" for label, share in best)
    return score(answer["score"])


def _values(row: Any) -> str:
    import numpy as np

    values = np.asarray(row)
    shape = "×".join(map(str, values.shape))
    head = " ".join(score(float(v)) for v in values.reshape(-1)[:_VALUES])
    return f"[{shape}] {head}{' …' if values.size > _VALUES else ''}"


def _calls(digest: str, plan: Sequence[Mapping[str, Any]]) -> str:
    """Which calls a variant answers here, of those that no variant before it in the plan does."""
    return "; ".join(token_range(dict(entry)) for entry in plan if entry["variant"] == digest) or MISSING


def _note(text: str, console: Console) -> None:
    """A sentence on one line of its own, never cut: it may hold a command to copy."""
    console.print(f"note: {clean(text)}", markup=False, soft_wrap=True)


def _facts(rows: Iterable[tuple[str, str]], console: Console) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column()
    table.add_column(overflow="fold")  # a digest is copied from here: never cut it
    for name, value in rows:
        if value:
            table.add_row(Text(clean(name), style="dim"), Text(clean(value)))
    console.print(table)


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]], console: Console) -> None:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    table = Table(*map(escape, columns), box=box.SIMPLE_HEAD, pad_edge=False)
    for row in rows:
        table.add_row(*(cell if cell in _MARK.values() else escape(clean(cell)) for cell in row))
    console.print(table)
