"""A profile in a terminal: the call, where its time goes, the operators, and the ten nodes that take the most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vengine.report.wording import MISSING, cells_wide, clean, digits, interval, milliseconds, number, percent

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

    from vengine.types import Interval

__all__ = ["SHARES", "print_profile", "told"]

SHARES = {"products": "matrix products", "moves": "memory moves", "rest": "everything else", "gap": "between nodes"}
_COLOURS = {"products": "green", "moves": "yellow", "rest": "cyan", "gap": "dim"}
_BAR = 36  # columns of a bar of 100 %
_TOP = 10
_STEADY = 1.3  # an interval wider than this says that the machine was busy
_KINDS = 8
_LEAST_NAME = 14  # columns of a node's name, however narrow the terminal
_NARROW = ("output", "bound by")  # left out of a terminal of less than 96 columns
Profile = Mapping[str, Any]


def print_profile(result: Profile, console: Console) -> None:
    """Print a result of `api.profile.profile`."""
    from rich.text import Text

    for block in (_facts(result), _shares(result), _kinds(result), _nodes(result, console.width)):
        console.print(block)
        console.print()
    if busy := _busy(result):
        console.print(f"note: {busy}", markup=False, soft_wrap=True)
    console.print(Text(_legend(result), style="dim"))
    if result.get("tensorboard"):
        words = f"event file in {clean(result['tensorboard'])}  (tensorboard --logdir shows it)"
        console.print(words, markup=False, soft_wrap=True)
    if result["trace"]:
        console.print(f"trace: {clean(result['trace'])}  (open it at ui.perfetto.dev)", markup=False, soft_wrap=True)


def _facts(result: Profile) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in told(result):
        if value:
            table.add_row(Text(name, style="dim"), Text(clean(value)))
    return table


def told(result: Profile) -> list[tuple[str, str]]:
    """What ran and how, as pairs of a name and plain text."""
    variant = f"{result['engine']} {result['precision']}"
    ran = result["precision_run"]
    count = sum(share["nodes"] for share in result["shares"])
    return [
        (result["kind"], f"{result['name']}  {result['digest'][:19]}"),
        ("runs as", variant + (f", which is {ran}" if ran not in (result["precision"], "") else "") + _how(result)),
        ("call", "  ".join(f"{i['name']} {i['dtype']}[{'x'.join(map(str, i['shape']))}]" for i in result["inputs"])),
        ("takes", f"{_times(result['plain_ms'])}; watched {milliseconds(result['wall_ms'])}, {result['calls']} calls"),
        ("in nodes", f"{milliseconds(result['nodes_ms'])} in {count:,} nodes, {_gap(result)} between them"),
        ("at best", _ceilings(result["ceilings"])),
        ("cpu", str(result["machine"]["cpu"])),
    ]


def _busy(result: Profile) -> str:
    """A sentence where the calls differ so much that a second run will tell other figures."""
    found = interval(result["plain_ms"])
    if found is None:
        return ""
    low = min(found.low, result["wall_ms"])  # watching makes no call faster
    if found.high <= _STEADY * low:
        return ""
    return f"calls took {milliseconds(low)} to {milliseconds(found.high)}: something else uses this machine"


def _times(told: Any) -> str:
    found = interval(told)
    return MISSING if found is None else _with_interval(found)


def _with_interval(found: Interval) -> str:
    return f"{milliseconds(found.value)} ({digits(found.low, 3)} to {digits(found.high, 3)})"


def _how(result: Profile) -> str:
    threads, streams, chunk = result["threads"], result["streams"], result["chunk_tokens"]
    parts = [f"{threads} thread{'s' if threads > 1 else ''}"]
    parts += [f"{streams} streams (watched one at a time)"] if streams > 1 else []
    parts += [f"chunks of {chunk} tokens"] if chunk else []
    return ", " + ", ".join(parts)


def _gap(result: Profile) -> str:
    return f"{milliseconds(result['gap_ms'])} ({percent(result['gap_part'])})"


def _ceilings(told: Profile) -> str:
    units = {"fp32": "GFLOP/s", "bf16": "GFLOP/s", "int8": "GOP/s", "memory": "GB/s"}
    found = [
        f"{name} {digits(told[name]['value'] / 1e9)} {unit}" if told[name] else f"{name} not measurable here"
        for name, unit in units.items()
    ]
    return "; ".join(found)


def _shares(result: Profile) -> RenderableType:
    from rich.text import Text

    table = _table("", "", "time", "share", "GOP/s", title="Where the time goes", right=("time", "share", "GOP/s"))
    gap = {"name": "gap", "ms": result["gap_ms"], "part": result["gap_part"]}
    for share in (*result["shares"], gap):
        name = share["name"]
        bar = "█" * round(_BAR * share["part"]) or "▏"
        rate = _rate(result["flops_per_s"]) if name == "products" else ""
        cells = (milliseconds(share["ms"]), percent(share["part"]), rate)
        table.add_row(Text(SHARES[name]), Text(bar, style=_COLOURS[name]), *map(Text, cells))
    return table


def _kinds(result: Profile) -> RenderableType:
    from rich.text import Text

    right = ("nodes", "time", "share", "GOP/s")
    table = _table("operator", "", "counts as", "nodes", "time", "share", "GOP/s", title="By operator", right=right)
    kinds: Sequence[Profile] = result["kinds"]
    for kind in kinds[:_KINDS]:
        cells = (
            *(_operator(kind["name"], 34), clean(kind["precision"]), SHARES[kind["share"]], f"{kind['nodes']:,}"),
            *(milliseconds(kind["ms"]), percent(kind["part"]), _rate(kind["flops_per_s"])),
        )
        table.add_row(*map(Text, cells))
    if others := kinds[_KINDS:]:
        nodes, ms, part = (sum(kind[key] for kind in others) for key in ("nodes", "ms", "part"))
        cells = (f"{len(others)} more", "", "", f"{nodes:,}", milliseconds(ms), percent(part), "")
        table.add_row(*(Text(cell, style="dim") for cell in cells))
    return table


def _nodes(result: Profile, width: int) -> RenderableType:
    from rich.text import Text

    right = ("time", "share", "GOP/s", "of best")
    columns = ("node", "operator", "output", "time", "share", "GOP/s", "of best", "bound by")
    narrow = width < 96
    shown = [name for name in columns if not (narrow and name in _NARROW)]
    nodes: Sequence[Profile] = result["nodes"][:_TOP]
    title = f"The {len(nodes)} nodes that take the most" if len(nodes) > 1 else "The node"
    table = _table(*shown, title=title, right=right)
    rows = [_cells(node) for node in nodes]
    taken = sum(max(cells_wide(row[name]) for row in ({name: name}, *rows)) + 2 for name in shown if name != "node")
    room = max(_LEAST_NAME, width - taken - 4)
    shared = _shared([row["node"] for row in rows])
    for row, node in zip(rows, nodes, strict=True):
        runs = f" ×{node['runs']:g}" if node["runs"] != 1 else ""
        cells = row | {"node": _tail(row["node"], room - len(runs), shared) + runs}
        table.add_row(*(Text(cells[name]) for name in shown))
    return table


def _cells(node: Profile) -> dict[str, str]:
    return {
        "node": clean(node["name"]).removesuffix(f": {_operator(node['kind'])}"),
        "operator": _operator(f"{node['kind']} {node['precision']}", 19),
        "output": "x".join(map(str, node["output"])) if node["output"] else MISSING,
        "time": milliseconds(node["ms"]),
        "share": percent(node["part"]),
        "GOP/s": _rate(node["flops_per_s"]),
        "of best": percent(node["of_roof"]),
        "bound by": node["bound"] or MISSING,
    }


def _operator(kind: str, limit: int | None = None) -> str:
    """An operator's name without torch's prefixes."""
    return clean(clean(kind).removeprefix("aten::").lstrip("_"), limit)


def _shared(names: Sequence[str]) -> int:
    """How many characters at their start all the names share, up to the end of a part: "model.encoder.layer."."""
    first, last = min(names, default=""), max(names, default="")  # what these two share, all do
    same = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), 0)
    start = first[:same]
    return max(start.rfind("."), start.rfind("/")) + 1


def _tail(text: str, limit: int, shared: int = 0) -> str:
    """A name that is too long: without what it shares with its neighbours, else a part of its start, and its end."""
    if len(text) <= limit:
        return text
    if len(text) - shared < limit:
        return "…" + text[max(shared, len(text) - limit + 1) :]
    head = text[shared:].split(".")[0][: limit // 4] if shared else ""
    return f"…{head}…{text[len(text) - limit + 2 + len(head) :]}" if head else "…" + text[len(text) - limit + 1 :]


def _rate(value: Any) -> str:
    found = number(value)
    return MISSING if found is None else digits(found / 1e9)


def _legend(result: Profile) -> str:
    laid = "" if result["timeline"] else " This engine tells durations only: in a trace they lie end to end."
    return (
        "GOP/s: 10⁹ multiplications and additions a second, of nodes whose sizes are known. of best: of what a large "
        f"product, or memory, reached here with {result['ceilings']['threads']} threads.{laid}"
    )


def _table(*columns: str, title: str, right: tuple[str, ...]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold", collapse_padding=True)
    for name in columns:
        table.add_column(name, justify="right" if name in right else "left", no_wrap=True, overflow="ellipsis")
    return table
