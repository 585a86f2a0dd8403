"""Recordings of one call become a table: what each node took, how fast it computed, and how fast it could have.

The mean is taken over the middle half of the calls by their wall time, so that nodes and gap add up to the call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vengine.engines.ceilings import Ceiling, Ceilings
from vengine.engines.recording import Node, Recording

SHARES = ("products", "moves", "rest")


@dataclass(kw_only=True)
class _Row:
    """One node over all the calls that count; a node of a chunked call runs several times in each."""

    first: Node
    ms: float = 0.0
    runs: int = 0
    flops: list[float | None] = field(default_factory=list)
    moved: list[float | None] = field(default_factory=list)

    def add(self, node: Node) -> None:
        self.ms += node.ms
        self.runs += 1
        self.flops.append(node.flops)
        self.moved.append(node.moved_bytes)


def middle(recordings: Sequence[Recording]) -> list[Recording]:
    """The middle half by wall time, at least one: neither hiccups nor lucky calls.

    All of them where the engine tells means only, so that they are all alike.
    """
    ordered = sorted(recordings, key=lambda r: r.wall_ms)
    cut = len(ordered) // 4 if ordered[0].wall_ms < ordered[-1].wall_ms else 0
    return ordered[cut : len(ordered) - cut]


def table(recordings: Sequence[Recording], ceilings: Ceilings | None) -> dict[str, Any]:
    """The table of these calls.

    Returns:
        `calls` that count, `wall_ms` of one, `nodes_ms` in nodes, `gap_ms` between them; `shares` and `kinds` with
        their `ms` and `part` of the call (the gap's is `gap_part`: with the shares' it makes 1); `nodes` by falling
        time, each with its `flops`, `flops_per_s`, `flops_per_byte`, `of_roof` and `bound` where they are known, and
        `flops_per_s` of all products.
    """
    kept = middle(recordings)
    rows = _rows(kept)
    nodes_ms = sum(row.ms for row in rows) / len(kept)
    wall = sum(r.wall_ms for r in kept) / len(kept)
    total = max(wall, nodes_ms)
    nodes = [_node(row, len(kept), total, ceilings) for row in rows]
    nodes.sort(key=lambda node: -node["ms"])
    return {
        "calls": len(kept),
        "wall_ms": wall,
        "nodes_ms": nodes_ms,
        "gap_ms": total - nodes_ms,
        "gap_part": (total - nodes_ms) / total if total else 0.0,
        "shares": [_sum(name, [n for n in nodes if n["share"] == name], total) for name in SHARES],
        "kinds": _kinds(nodes, total),
        "nodes": nodes,
        "flops_per_s": _overall(nodes),
    }


def _rows(recordings: Sequence[Recording]) -> list[_Row]:
    rows: dict[tuple[str, str], _Row] = {}
    for recording in recordings:
        for node in recording.nodes:
            key = (node.name, node.kind)
            rows.setdefault(key, _Row(first=node)).add(node)
    return list(rows.values())


def _node(row: _Row, calls: int, total: float, ceilings: Ceilings | None) -> dict[str, Any]:
    node, ms = row.first, row.ms / calls
    flops, moved = _per_call(row.flops, calls), _per_call(row.moved, calls)
    rate = flops / ms * 1000 if flops and ms > 0 else None
    return {
        "name": node.name,
        "kind": node.kind,
        "share": node.share,
        "kernel": node.kernel,
        "precision": node.precision,
        "output": None if node.output is None else list(node.output),
        "runs": round(row.runs / calls, 2),
        "ms": ms,
        "part": ms / total if total else 0.0,
        "flops": flops,
        "moved_bytes": moved,
        "flops_per_s": rate,
        **_roofline(rate, flops, moved, node.precision, ceilings),
    }


def _per_call(values: Sequence[float | None], calls: int) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / calls if known and len(known) == len(values) else None


def _roofline(
    rate: float | None, flops: float | None, moved: float | None, precision: str, ceilings: Ceilings | None
) -> dict[str, Any]:
    """Where a node stands: operations a byte, the share of what it could reach, and what bounds that."""
    intensity = flops / moved if flops and moved else None
    found: dict[str, Any] = {"flops_per_byte": intensity, "of_roof": None, "bound": None}
    peak = peak_of(ceilings, precision)
    memory = ceilings.memory if ceilings else None
    if rate is None or peak is None:
        return found
    fed = intensity * memory.value if intensity and memory else None
    bound = "memory" if fed is not None and fed < peak.value else "compute"
    roof = fed if fed is not None and bound == "memory" else peak.value
    return found | {"of_roof": rate / roof, "bound": bound}


def peak_of(ceilings: Ceilings | None, precision: str) -> Ceiling | None:
    """The measured peak of a precision; None for one that has none."""
    known = {"fp32": ceilings.fp32, "bf16": ceilings.bf16, "int8": ceilings.int8} if ceilings else {}
    return known.get(precision)


def _kinds(nodes: Sequence[Mapping[str, Any]], total: float) -> list[dict[str, Any]]:
    groups: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for node in nodes:
        groups.setdefault((node["kind"], node["share"], node["precision"]), []).append(node)
    kinds = [
        {**_sum(kind, group, total), "share": share, "precision": precision, "flops_per_s": _overall(group)}
        for (kind, share, precision), group in groups.items()
    ]
    return sorted(kinds, key=lambda kind: -float(kind["ms"]))


def _sum(name: str, nodes: Sequence[Mapping[str, Any]], total: float) -> dict[str, Any]:
    ms = sum(float(node["ms"]) for node in nodes)
    runs = sum(float(node["runs"]) for node in nodes)
    return {"name": name, "nodes": round(runs), "ms": ms, "part": ms / total if total else 0.0}


def _overall(nodes: Sequence[Mapping[str, Any]]) -> float | None:
    """Operations a second of the products whose count is known, over their own time."""
    known = [node for node in nodes if node["flops"]]
    ms = sum(float(node["ms"]) for node in known)
    return sum(float(node["flops"]) for node in known) / ms * 1000 if ms > 0 else None
