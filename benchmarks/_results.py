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

from vengine.hardware import machine, threads_for

RESULTS = Path(__file__).parent / "results"


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
    known = [Row(**row) for row in json.loads(path.read_text())["rows"]] if path.exists() else []
    publish(name, [*(row for row in known if row.part != part), *(replace(row, part=part) for row in rows)])


def publish(name: str, rows: list[Row]) -> None:
    """Print and write; the machine is described beside the figures."""
    for row in rows:
        print(f"{'met   ' if row.met else 'MISSED'}  {row.what}\n        target {row.target}; measured {_figure(row)}")
    found = machine()
    document = {
        "name": name,
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
        "rows": [asdict(row) for row in rows],
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    print(json.dumps(document, ensure_ascii=False))


def markdown(name: str) -> str:
    """The committed rows as the table that the README shows; tests/house compares them."""
    rows = [Row(**row) for row in json.loads((RESULTS / f"{name}.json").read_text())["rows"]]
    lines = [f"| {row.what} | {row.target} | {_figure(row)} | {'yes' if row.met else '**no**'} |" for row in rows]
    return "\n".join(("| what | to reach | measured (95 % interval) | met |", "|---|---|---|---|", *lines))


def _figure(row: Row) -> str:
    if not isinstance(row.measured, float):
        return str(row.measured)
    around = "" if row.low is None or row.high is None else f" ({row.low:.4g} to {row.high:.4g})"
    return f"{row.measured:.4g}{around}"


def _git(*words: str) -> str:
    return subprocess.run(("git", *words), capture_output=True, text=True, check=False).stdout.strip()


if __name__ == "__main__":
    print(markdown(sys.argv[1]))
