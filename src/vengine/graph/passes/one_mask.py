"""one-mask: add positions and mask to each other once, and their sum to the scores of each layer.

What it matches: Softmax((scores + a) + b), where scores is a matrix product, perhaps scaled, and neither a nor b
depends on one. T5 adds its relative positions and then its mask, in each layer the same ones.

When it must not match: the sum in the middle is read elsewhere, or what is added comes from a matrix product itself
(DeBERTa's positions look at the text).

Exactness: reassociates.

What it pays: a pass over [batch, heads, length, length] for each layer but the first; and fused attention, which takes
one mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vengine.graph.known import constant, dims, made_by
from vengine.graph.passes import drop_unused
from vengine.types import Exactness, PassResult

if TYPE_CHECKING:
    import onnx_ir as ir

NAME = "one-mask"
EXACTNESS: Exactness = "reassociates"
_SCALES = ("Mul", "Div")


def run(model: ir.Model) -> PassResult:
    """Add them once in every such attention; the model is changed in place."""
    matched, refusals = 0, []
    sums: dict[frozenset[ir.Value], ir.Value] = {}
    for softmax in list(model.graph):
        outer = made_by(softmax.inputs[0], "Add") if softmax.op_type == "Softmax" else None
        found = _chain(outer) if outer is not None else None
        if outer is None or found is None:
            continue
        inner, scores, parts = found
        if reason := _refusal(inner, parts):
            refusals.append((outer.name or "", reason))
            continue
        key = frozenset(parts)
        if key not in sums:
            sums[key] = _sum(model, outer, parts)
        outer.replace_input_with(0, scores)
        outer.replace_input_with(1, sums[key])
        matched += 1
    drop_unused.clear(model)
    return PassResult(name=NAME, exactness=EXACTNESS, matched=matched, refusals=tuple(refusals))


def _chain(outer: ir.Node) -> tuple[ir.Node, ir.Value, tuple[ir.Value, ir.Value]] | None:
    """(inner Add, scores, (a, b)) of (scores + a) + b, in any order of operands."""
    for i in (0, 1):
        inner = made_by(outer.inputs[i], "Add")
        if inner is None:
            continue
        for j in (0, 1):
            scores, a, b = inner.inputs[j], inner.inputs[1 - j], outer.inputs[1 - i]
            if scores is not None and a is not None and b is not None and _is_scores(scores):
                return inner, scores, (a, b)
    return None


def _is_scores(value: ir.Value) -> bool:
    node = made_by(value, "MatMul", *_SCALES)
    if node is None or node.op_type == "MatMul":
        return node is not None
    return any(side is not None and constant(side) is None and _is_scores(side) for side in node.inputs)


def _refusal(inner: ir.Node, parts: tuple[ir.Value, ir.Value]) -> str:
    if len(list(inner.outputs[0].uses())) > 1 or inner.outputs[0].is_graph_output():
        return "the sum in the middle is read elsewhere too"
    return "what is added comes from a matrix product" if any(_from_product(part) for part in parts) else ""


def _from_product(value: ir.Value) -> bool:
    seen: set[ir.Value] = set()
    waiting: list[ir.Value | None] = [value]
    while waiting:
        current = waiting.pop()
        node = current.producer() if current is not None else None
        if current is None or node is None or current in seen:
            continue
        if node.op_type in ("MatMul", "Gemm", "Softmax"):
            return True
        seen.add(current)
        waiting += node.inputs
    return False


def _sum(model: ir.Model, outer: ir.Node, parts: tuple[ir.Value, ir.Value]) -> ir.Value:
    """a + b, in front of the first Add that needs it; both are known there."""
    import onnx_ir as ir

    name = f"{outer.name}_masks"
    new = ir.node("Add", list(parts), name=name)
    new.outputs[0].name, new.outputs[0].dtype = name, outer.outputs[0].dtype
    shapes = [dims(part) for part in parts]
    if shapes[0] is not None and shapes[1] is not None:
        new.outputs[0].shape = ir.Shape(_broadcast(shapes[0], shapes[1]))
    model.graph.insert_before(outer, new)
    return new.outputs[0]


def _broadcast(one: Sequence[int | str | None], two: Sequence[int | str | None]) -> list[int | str | None]:
    rank = max(len(one), len(two))
    padded = [(1,) * (rank - len(shape)) + tuple(shape) for shape in (one, two)]
    return [b if a == 1 else a for a, b in zip(*padded, strict=True)]
