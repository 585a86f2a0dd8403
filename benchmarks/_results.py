"""Rows of a benchmark: printed as a table, then as one JSON line, and written to benchmarks/results/NAME.json.

python benchmarks/_results.py NAME        # the committed rows as the table of a page
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from vengine.hardware import machine, threads_for

RESULTS = Path(__file__).parent / "results"
TELLING = {"avx2", "avx512_vnni", "avx512_bf16", "avx_vnni", "amx_int8", "amx_bf16"}  # what sets low precision's speed


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table. `measured`, `low` and `high` share the target's unit; None was not measured."""

    what: str
    target: str
    measured: float | str | None
    low: float | None = None
    high: float | None = None
    met: bool
    part: str = ""  # of a table that several benchmarks fill


def publish_part(name: str, part: str, rows: list[Row]) -> None:
    """Print, and replace this part's rows in a table that several benchmarks fill; the others' rows stay."""
    path = RESULTS / f"{name}.json"
    known = json.loads(path.read_text()) if path.exists() else {"rows": [], "parts": {}}
    kept = [row for row in map(_row, known["rows"]) if row.part != part]
    parts = {**known["parts"], part: _circumstances()}
    _write(name, {"parts": parts}, [*kept, *(replace(row, part=part) for row in rows)])


def publish(name: str, rows: list[Row]) -> None:
    """Print and write; the machine is described beside the figures."""
    _write(name, _circumstances(), rows)


def _write(name: str, stamp: dict[str, Any], rows: list[Row]) -> None:
    for row in rows:
        print(f"{'met   ' if row.met else 'MISSED'}  {row.what}\n        target {row.target}; measured {_figure(row)}")
    document = {"name": name, **stamp, "rows": [asdict(row) for row in rows]}
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    print(json.dumps(document, ensure_ascii=False))


def _circumstances() -> dict[str, Any]:
    found = machine()
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "commit": _git("rev-parse", "--short", "HEAD") + ("+" if _git("status", "--porcelain", "src") else ""),
        "machine": {
            "cpu": found.cpu,
            "isa": list(found.isa),
            "cores": found.physical_cores,
            "threads": threads_for(found),
            "memory": found.memory_bytes,
            "versions": found.versions,
        },
    }


def markdown(name: str) -> str:
    """The committed rows as a page shows them, and where each part was measured; tests/house compares them."""
    document = json.loads((RESULTS / f"{name}.json").read_text())
    rows = map(_row, document["rows"])
    lines = [f"| {row.what} | {row.target} | {_figure(row)} | {'yes' if row.met else '**no**'} |" for row in rows]
    table = ["| what | to reach | measured (95 % interval) | met |", "|---|---|---|---|", *lines]
    if "parts" in document:
        table += ["", "| part | measured on | commit | machine |", "|---|---|---|---|"]
        table += [_told(part, stamp) for part, stamp in document["parts"].items()]
    return "\n".join(table)


def _told(part: str, stamp: dict[str, Any]) -> str:
    found = stamp["machine"]
    flags = ", ".join(flag for flag in found["isa"] if flag in TELLING)
    return f"| {part} | {stamp['date']} | {stamp['commit']} | {found['cpu']}, {found['threads']} threads; {flags} |"


def _row(fields: dict[str, Any]) -> Row:
    return Row(**fields)


def _figure(row: Row) -> str:
    if not isinstance(row.measured, float):
        return str(row.measured)
    around = "" if row.low is None or row.high is None else f" ({row.low:.4g} to {row.high:.4g})"
    return f"{row.measured:.4g}{around}"


def _git(*words: str) -> str:
    return subprocess.run(("git", *words), capture_output=True, text=True, check=False).stdout.strip()


if __name__ == "__main__":
    print(markdown(sys.argv[1]))
