"""How the best artefacts may be driven otherwise: threads, streams, chunk size, spinning, arena.

These are search points like any other recipe: built (the artefact is the same), verified and timed. Rules of thumb
from elsewhere, such as "threads = 1.5 × physical cores", are rows here that must win their race.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vengine.tune.candidates import IN_FLOAT
from vengine.types import PIPELINE_WORDS, Level, Machine, Recipe, RuntimeProfile

_CHUNKS: dict[Level, tuple[int, ...]] = {"safe": (512,), "balanced": (512, 1024), "aggressive": (256, 512, 1024, 2048)}


ROW_TOKENS = (128,)
"""Attention over a long row is wasted work, and a short one is harder to fill: short texts get rows of half the width
by themselves (see `packing.rows_of`), and rows of 256 won nowhere."""
_ROW_CHUNK = 768
"""Tokens a call of packed rows: calls of 512 cut 32 short texts in two (12 % slower), calls of all rows won nowhere."""
PACKED = "packed"
"""The pass of recipes whose graph reads packed rows."""


def profiles(
    best: Recipe, machine: Machine, level: Level, threads_fixed: bool, row_tokens: Sequence[int] = ()
) -> tuple[Recipe, ...]:
    """Other ways to drive the best recipe, the most promising first.

    Args:
        row_tokens: widths of packed rows to try; () where texts don't come together, or can't be packed.
    """
    if any(word.startswith(IN_FLOAT) for word in best.passes):
        row_tokens = ()  # the graph that reads packed rows is exported anew: its nodes have other names
    words = [word for word in best.passes if word not in PIPELINE_WORDS]  # those rewrite the ordinary export
    rows = [
        replace(best, passes=(*words, PACKED), profile=replace(p, row_tokens=width, chunk_tokens=_ROW_CHUNK))
        for p in _packing(best)
        for width in row_tokens
    ]
    return (*rows, *(replace(best, profile=p) for p in _profiles(best, machine, level, threads_fixed)))


def _packing(best: Recipe) -> Sequence[RuntimeProfile]:
    """One stream of all threads, and where the engine has them a stream a thread."""
    base = best.profile
    if best.engine != "openvino" or base.threads == 1:
        return (base,)
    return base, replace(base, streams=base.threads)


def _profiles(best: Recipe, machine: Machine, level: Level, threads_fixed: bool) -> Sequence[RuntimeProfile]:
    base = best.profile
    rows: list[RuntimeProfile] = []
    if best.engine == "openvino" and base.threads > 1:
        rows += [replace(base, streams=base.threads, chunk_tokens=chunk) for chunk in _CHUNKS[level]]
    if best.engine == "onnxruntime":
        rows += [replace(base, chunk_tokens=chunk) for chunk in _CHUNKS[level]]
        rows += [replace(base, spinning=False), replace(base, arena=False)]
    more = round(1.5 * machine.physical_cores)
    if not threads_fixed and more != base.threads and level != "safe":
        rows.append(replace(base, threads=more))
    return rows
