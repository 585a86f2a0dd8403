"""What an engine tells of a call: its nodes in the order in which they ran, each with its own time.

Every engine fills the same form, so that one table and one trace serve all of them. What an engine doesn't tell stays
empty or None: a shape or a count that nobody measured is unknown, never guessed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from vengine.engines.products import Share

WARM_CALLS = 4  # engines choose kernels and take memory in the first calls of a shape


@dataclass(frozen=True, kw_only=True)
class Node:
    """One operator of one call."""

    name: str  # the engine's own name of it
    kind: str  # the operator as the engine calls it: "FullyConnected", "aten::addmm"
    share: Share
    start_ms: float  # from the start of the call
    span_ms: float  # from its start to its end
    ms: float  # its own time: what lies inside other nodes belongs to them
    kernel: str = ""  # what really ran, where the engine tells: "brgemm_avx512_I8"
    precision: str = ""  # "fp32", "bf16", "int8" where the engine tells
    output: tuple[int, ...] | None = None  # shape; None: unknown
    flops: float | None = None  # multiplications and additions of its matrix products; None: none, or unknown
    moved_bytes: float | None = None  # inputs and outputs of its matrix products, each once; None: as above
    origins: tuple[str, ...] = ()  # operators of the file that it was made of, where the engine tells


@dataclass(frozen=True, kw_only=True)
class Recording:
    """One call, watched."""

    wall_ms: float  # as the caller sees it
    nodes: tuple[Node, ...]
    timeline: bool  # whether the engine told when each node began; else they are laid end to end


def own_times(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Subtract from each node what ran inside it: a loop's time is not counted again as its body's.

    Args:
        nodes: of one thread; `ms` is not read.
    """
    ordered = sorted(nodes, key=lambda node: (node.start_ms, -node.span_ms))
    inside = [0.0] * len(ordered)
    around: list[int] = []  # indices of the nodes that are still open
    for index, node in enumerate(ordered):
        while around and node.start_ms >= ordered[around[-1]].start_ms + ordered[around[-1]].span_ms:
            around.pop()
        if around:
            inside[around[-1]] += node.span_ms
        around.append(index)
    return tuple(replace(n, ms=max(0.0, n.span_ms - inner)) for n, inner in zip(ordered, inside, strict=True))


def end_to_end(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Lay nodes out one after the other, for an engine that tells durations only."""
    laid, at = [], 0.0
    for node in nodes:
        laid.append(replace(node, start_ms=at, span_ms=node.ms))
        at += node.ms
    return tuple(laid)


def joined(parts: Sequence[Recording]) -> Recording:
    """The chunks of one call, run one after the other, as one recording."""
    nodes: list[Node] = []
    at = 0.0
    for part in parts:
        nodes += [replace(node, start_ms=node.start_ms + at) for node in part.nodes]
        at += part.wall_ms
    return Recording(wall_ms=at, nodes=tuple(nodes), timeline=all(part.timeline for part in parts))


def shape_of(value: Any) -> tuple[int, ...] | None:
    """A shape out of an engine's answer; None unless it is whole numbers."""
    if isinstance(value, (list, tuple)) and all(isinstance(size, int) for size in value):
        return tuple(value)
    return None
