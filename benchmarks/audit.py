"""Which fusions does ONNX Runtime run for fourteen architectures, alone and after the passes? `make bench-audit`.

Random weights from small configurations; expected counts come from the configuration, achieved ones from the graph that
the runtime makes of the file. A miss is printed with its nearest node and the reason. A few minutes.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # the table of architectures lies with the tests

from tests.graph.architectures import ARCHITECTURES, exported, settings

from _results import Row, publish
from vengine.graph.audit import Finding, audit, expected
from vengine.graph.pipeline import FUSED, apply


def main() -> None:
    """Audit every architecture before and after the passes."""
    rows, whole = [], [0, 0, 0]
    for name, made in ARCHITECTURES.items():
        with tempfile.TemporaryDirectory() as folder:
            alone, fused = _audited(name, Path(folder))
        for before, after in zip(alone, fused, strict=True):
            counts = f"{after.expected:>3} expected {before.achieved:>3} alone {after.achieved:>3} with passes"
            miss = "" if after.met else f"  <- {after.node}: {after.reason}"
            print(f"{name:11} {after.fusion:24} {counts}{miss}", flush=True)
        rows.append(_row(name, made.opset, alone, fused))
        totals = (sum(f.expected for f in fused), _achieved(alone), _achieved(fused))
        whole = [a + b for a, b in zip(whole, totals, strict=True)]
    everything = f"{whole[2]} of {whole[0]}; the runtime alone {whole[1]}"
    rows.append(
        Row(
            what="all fourteen architectures together",
            target="more than alone",
            measured=everything,
            met=whole[2] > whole[1],
        )
    )
    publish("audit", rows)


def _audited(name: str, folder: Path) -> tuple[tuple[Finding, ...], tuple[Finding, ...]]:
    source, path = exported(name, folder)
    wanted = expected(settings(name))
    results = apply(path, folder / "fused", FUSED, source)
    return audit(path, wanted), audit(folder / "fused" / "model.onnx", wanted, results)


def _row(name: str, opset: int, alone: tuple[Finding, ...], fused: tuple[Finding, ...]) -> Row:
    missed = [f"{f.fusion} {f.achieved} of {f.expected}" for f in fused if not f.met]
    wanted = sum(f.expected for f in fused)
    return Row(
        what=f"{name}, operator set {opset}: operators that its configuration promises as fused ones",
        target=f"{wanted}",
        measured=f"{_achieved(fused)}; the runtime alone {_achieved(alone)}"
        + (f"; missed: {', '.join(missed)}" if missed else ""),
        met=not missed,
    )


def _achieved(found: tuple[Finding, ...]) -> int:
    return sum(min(f.achieved, f.expected) for f in found)


if __name__ == "__main__":
    main()
