"""A soak in a terminal: what ran, memory phase by phase, what was found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from vengine.report.wording import MISSING, clean, milliseconds, seconds, size

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["print_soak", "told"]

_COLOURS = {"pass": "green", "fail": "red", "undecided": "yellow"}
_BARS = "▁▂▃▄▅▆▇█"
_COLUMNS = 10  # of a phase's small curve
_LINES = 3  # of Python that are shown
_WORTH_BYTES = 1 << 16  # a line that grew by less isn't shown
Soak = Mapping[str, Any]


def told(result: Soak) -> list[tuple[str, str]]:
    """What ran and how, as pairs of a name and plain text."""
    last = result["looks"][-1]
    return [
        (result["kind"], f"{result['name']}  {result['digest'][:19]}"),
        ("runs as", f"{', '.join(result['variants'])}; {result['threads']} thread{'s' * (result['threads'] > 1)}"),
        ("asked", f"{last['requests']:,} requests in {seconds(last['seconds'])}, seed {result['seed']}"),
        ("shapes", f"{last['shapes']:,} of {result['possible_shapes']:,} that there can be"),
        ("held", f"{size(last['memory']['rss_bytes'])} at the end, {size(result['peak_rss_bytes'])} at its peak"),
    ]


def print_soak(result: Soak, console: Console) -> None:
    """Print a result of `api.soak.soak`."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    facts = Table.grid(padding=(0, 2))
    for name, value in told(result):
        facts.add_row(Text(name, style="dim"), Text(clean(value)))
    console.print(facts)
    head = ("phase", "requests", "shapes", "resident", "curve", "grew by", "same call")
    table = Table(*head, box=box.SIMPLE_HEAD, pad_edge=False)
    for phase, group in groupby(result["looks"], key=lambda look: look["phase"]):
        table.add_row(*(Text(cell) for cell in _row(clean(phase), list(group))))
    console.print(table)
    for finding in result["findings"]:
        style = _COLOURS[finding["outcome"]]
        console.print(Text.assemble((finding["outcome"], style), "  ", clean(finding["words"])), soft_wrap=True)
    for line in [g for g in result["grown"] if g["grown_bytes"] >= _WORTH_BYTES][:_LINES]:
        words = f"{clean(line['where'])} holds {size(line['grown_bytes'])} more in {line['grown_blocks']:,} blocks"
        console.print(f"note: {words}", markup=False, soft_wrap=True)


def _row(phase: str, looks: Sequence[Soak]) -> Sequence[str]:
    held = [float(look["memory"]["anonymous_bytes"]) for look in looks]
    grown = held[-1] - held[0]
    calls = sorted(look["ms"] for look in looks)
    return (
        phase,
        f"{looks[-1]['requests']:,}",
        f"{looks[-1]['shapes']:,}",
        size(looks[-1]["memory"]["rss_bytes"]),
        _curve(held),
        f"−{size(-grown)}" if grown < 0 else size(grown) if grown else MISSING,
        milliseconds(calls[len(calls) // 2]),
    )


def _curve(values: Sequence[float]) -> str:
    """The values as a row of small bars, from the least to the most of them."""
    shown = [values[i * (len(values) - 1) // (_COLUMNS - 1)] for i in range(_COLUMNS)]
    low, high = min(values), max(values)
    if high <= low:
        return _BARS[0] * len(shown)
    return "".join(_BARS[round((v - low) / (high - low) * (len(_BARS) - 1))] for v in shown)
