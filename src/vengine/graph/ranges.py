"""How large the values of a graph get on real inputs, and which nodes a narrow type can't serve for that.

The rules need no trial, because what they guard against happens inside a node, where comparing outputs may not see it
on the samples at hand:

    range       a value that the node reads or gives, or a weight, is beyond the type's largest
    smallness   most of what it reads or gives lies below the type's smallest normal value
    depth       it adds up so much that the sum overflows, or so often that roundings may add up to more than allowed
    scores      attention scores so large that rounding changes a weight by more than half: the softmax, the product
                that gives the scores, and the products that queries and keys come from
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vengine.graph.half_precision import HalfType, convertible
from vengine.graph.known import add_initializer
from vengine.graph.rounding import Feeds, session_of, typed_model

if TYPE_CHECKING:
    import onnx_ir as ir

# What was seen on samples is not all that will come.
MARGIN = 4.0
_MOSTLY = 0.5
_SCORE_SLACK = 0.5
# Operators whose result is a sum over an axis: (whether squares are added).
_SUMS = {
    **dict.fromkeys(("ReduceSum", "ReduceMean", "ReduceL1", "ReduceLogSum", "CumSum", "GlobalAveragePool"), False),
    **dict.fromkeys(("ReduceL2", "ReduceSumSquare", "LayerNormalization", "RMSNormalization", "LpNormalization"), True),
    **dict.fromkeys(("InstanceNormalization", "GroupNormalization", "MeanVarianceNormalization"), True),
    **dict.fromkeys(("ReduceLogSumExp", "Softmax", "LogSoftmax"), False),
}
_PRODUCTS = frozenset({"MatMul", "Gemm", "Conv"})
_EXPONENTIALS = frozenset({"ReduceLogSumExp", "Softmax", "LogSoftmax"})


@dataclass(frozen=True, kw_only=True)
class Kept:
    """A node that stays in fp32, and why."""

    node: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Range:
    """What was seen of one value over all samples; infinities (masks) are not counted."""

    largest: float  # of the finite sizes
    small: float  # the share of the non-zero ones that is below the type's smallest normal value


def ruled(path: Path, half: HalfType, samples: Sequence[Feeds], tolerance: float) -> tuple[Kept, ...]:
    """Nodes that the rules keep in fp32, in the graph's order.

    Args:
        samples: calls on which values are measured.
        tolerance: relative error that a sum's roundings may add up to.
    """
    model = typed_model(path)
    nodes = convertible(model, half)
    seen = _measure(path, model, half, samples)
    kept = {node.name or "": found for node in nodes if (found := _rule(node, half, seen, tolerance)) is not None}
    for node in nodes:
        for name, found in _score_rule(node, half, seen).items():
            kept.setdefault(name, found)
    return tuple(kept[name] for node in nodes if (name := node.name or "") in kept)


@dataclass(frozen=True, kw_only=True)
class _Seen:
    ranges: Mapping[str, Range]
    sums: Mapping[str, tuple[float, int]]  # node → largest sum, most terms
    scores: Mapping[str, float]  # Attention node → largest score


def _rule(node: ir.Node, half: HalfType, seen: _Seen, tolerance: float) -> Kept | None:
    name = node.name or ""
    for value in (*node.inputs, *node.outputs):
        found = seen.ranges.get(value.name or "") if value is not None else None
        if found is None or value is None:
            continue
        if found.largest * _margin(value) > half.largest:
            return Kept(node=name, reason=f"values up to {found.largest:.3g}; {half.name} ends at {half.largest:.3g}")
        if found.small > _MOSTLY:
            told = f"{found.small:.0%} of the values of {value.name} are below {half.smallest_normal:.2g}"
            return Kept(node=name, reason=f"{told}, where {half.name} loses digits")
    if name in seen.sums:
        return _sum_rule(name, half, *seen.sums[name], tolerance)
    return None


def _score_rule(node: ir.Node, half: HalfType, seen: _Seen) -> dict[str, Kept]:
    """The softmax, and all that its scores are computed with, where rounding them would move weights."""
    score = seen.scores.get(node.name or "", 0.0)
    if score * half.epsilon <= _SCORE_SLACK:
        return {}
    factor = np.exp(min(score * half.epsilon, 700.0))
    reason = f"attention scores up to {score:.3g}: rounding one changes its weight up to {factor:.3g} ×"
    depth = 1 if node.op_type == "Attention" else 2  # products between here and the inputs of the projections
    scoring = node.inputs[: 2 if node.op_type == "Attention" else 1]
    behind = {name for value in scoring if value is not None for name in _behind(value, depth)}
    return {name: Kept(node=name, reason=reason) for name in (node.name or "", *sorted(behind))}


def _behind(value: ir.Value, products: int) -> set[str]:
    """Names of the nodes that a value comes from, back to that many products deep."""
    node = value.producer()
    if node is None:
        return set()
    left = products - (node.op_type in _PRODUCTS)
    names = {node.name or ""}
    if left and node.op_type not in _SUMS:
        for before in node.inputs:
            names |= _behind(before, left) if before is not None else set()
    return names


def _margin(value: ir.Value) -> float:
    return 1.0 if value.is_initializer() else MARGIN


def _sum_rule(name: str, half: HalfType, total: float, terms: int, tolerance: float) -> Kept | None:
    if total * MARGIN > half.largest:
        return Kept(node=name, reason=f"its sums reach {total:.3g}; {half.name} ends at {half.largest:.3g}")
    if terms * half.epsilon > tolerance:
        worst = f"{terms} roundings of {half.epsilon:.2g}"
        return Kept(node=name, reason=f"it adds up {terms} terms: {worst} may add up to more than {tolerance:.2g}")
    return None


def _measure(path: Path, model: ir.Model, half: HalfType, samples: Sequence[Feeds]) -> _Seen:
    """Run the samples through the graph with gauges on every float value."""
    nodes = convertible(model, half)
    gauges = _Gauges(model, half)
    for value in dict.fromkeys(v for n in nodes for v in (*n.inputs, *n.outputs) if _is_float(v)):
        gauges.range(value)
    for node in nodes:
        if node.op_type in _SUMS:
            gauges.sum(node)
        elif node.op_type == "Attention":
            gauges.scores(node)
    session, names = session_of(model, path.parent), list(gauges.names)
    most: dict[str, float] = dict.fromkeys(names, 0.0)
    for sample in samples:
        for name, value in zip(names, session.run(names, dict(sample)), strict=True):
            most[name] = max(most[name], float(value))
    constants = {
        v.name or "": _range_of(v.const_value.numpy(), half) for v in gauges.constants if v.const_value is not None
    }
    seen = {name: Range(largest=most[f"{g}_largest"], small=most[f"{g}_small"]) for name, g in gauges.ranges.items()}
    return _Seen(
        ranges=seen | constants,
        sums={name: (most[f"{g}_sum"], int(most[f"{g}_terms"])) for name, g in gauges.sums.items()},
        scores={name: most[g] for name, g in gauges.attention.items()}
        | {n.name or "": seen[n.inputs[0].name or ""].largest for n in nodes if _is_softmax_of_values(n, seen)},
    )


def _is_softmax_of_values(node: ir.Node, seen: Mapping[str, Range]) -> bool:
    return node.op_type == "Softmax" and node.inputs[0] is not None and (node.inputs[0].name or "") in seen


def _is_float(value: ir.Value | None) -> bool:
    return value is not None and value.dtype is not None and value.dtype.name == "FLOAT"


def _range_of(array: Any, half: HalfType) -> Range:
    size = np.abs(array[np.isfinite(array)])
    there = size[size > 0]
    small = float((there < half.smallest_normal).mean()) if there.size else 0.0
    return Range(largest=float(size.max(initial=0.0)), small=small)


class _Gauges:
    """Nodes that measure: each gives one number of a call, as an output of the graph."""

    def __init__(self, model: ir.Model, half: HalfType) -> None:
        import onnx_ir as ir

        self._ir, self._graph, self._half = ir, model.graph, half
        self._number = 0
        self.names: list[str] = []
        self.constants: list[ir.Value] = []
        self.ranges: dict[str, str] = {}
        self.sums: dict[str, str] = {}
        self.attention: dict[str, str] = {}

    def range(self, value: ir.Value) -> None:
        """Its largest finite size, and the share of small ones."""
        if value.is_initializer():
            self.constants.append(value)
            return
        gauge = self.ranges[value.name or ""] = self._name()
        size = self._sizes(value)
        self._give("ReduceMax", size, f"{gauge}_largest")
        zero, tiny = self._constant(0.0), self._constant(self._half.smallest_normal)
        there = self._made("Cast", self._made("Greater", size, zero), to=1)
        small = self._made("Cast", self._made("Less", size, tiny), to=1)
        few = self._made("ReduceSum", self._made("Mul", there, small), keepdims=0)
        all_ = self._made("Max", self._made("ReduceSum", there, keepdims=0), self._constant(1.0))
        self._give("Div", few, f"{gauge}_small", all_, reduces=False)

    def sum(self, node: ir.Node) -> None:
        """The largest sum of sizes (or of their squares) along its axes, and of how many terms."""
        data = node.inputs[0]
        assert data is not None
        gauge = self.sums[node.name or ""] = self._name()
        if node.op_type in _EXPONENTIALS:  # e^(x − largest): at most 1 each
            terms = self._made("Sub", data, data)
            size = self._made("Exp", self._made("Where", self._made("IsNaN", terms), self._constant(0.0), terms))
        else:
            size = self._sizes(data)
            size = self._made("Mul", size, size) if _SUMS[node.op_type] else size
        ones = self._made("Exp", self._made("Mul", self._sizes(data), self._constant(0.0)))
        axes = self._axes(node, data)
        self._give("ReduceMax", self._made("ReduceSum", size, *axes), f"{gauge}_sum")
        self._give("ReduceMax", self._made("ReduceSum", ones, *axes), f"{gauge}_terms")

    def scores(self, node: ir.Node) -> None:
        """The largest |query · key| × scale; for heads that lie side by side, a bound from their lengths."""
        query, key = node.inputs[0], node.inputs[1]
        if query is None or key is None or query.shape is None or len(query.shape) != 4:
            return
        gauge = self.attention[node.name or ""] = f"{self._name()}_score"
        self.names.append(gauge)
        width = query.shape[3]
        usual = 1.0 / np.sqrt(width) if isinstance(width, int) else 1.0
        scale = node.attributes["scale"].as_float() if "scale" in node.attributes else float(usual)
        lengths = [
            self._made("ReduceMax", self._made("ReduceL2", v, self._last_axis()), keepdims=0) for v in (query, key)
        ]
        product = self._made("Mul", *lengths)
        self._output(self._made("Mul", product, self._constant(scale)), gauge)

    def _axes(self, node: ir.Node, data: ir.Value) -> list[ir.Value]:
        """The axes that are added up, as an input; [] for all."""
        if len(node.inputs) > 1 and node.op_type.startswith("Reduce"):
            return [node.inputs[1]] if node.inputs[1] is not None else []
        if "axes" in node.attributes:
            return [self._axis_list([int(a) for a in node.attributes["axes"].as_ints()])]
        if node.op_type.startswith("Reduce"):
            return []
        axis = node.attributes["axis"].as_int() if "axis" in node.attributes else -1
        rank = len(data.shape) if data.shape is not None else 1
        if node.op_type in ("LayerNormalization", "RMSNormalization"):
            return [self._axis_list(list(range(axis % rank, rank)))]
        if node.op_type in ("InstanceNormalization", "GroupNormalization", "GlobalAveragePool"):
            return [self._axis_list(list(range(2, rank)))]
        return [self._axis_list([axis])]

    def _last_axis(self) -> ir.Value:
        return self._axis_list([-1])

    def _axis_list(self, axes: list[int]) -> ir.Value:
        return self._initializer(np.array(axes, np.int64))

    def _constant(self, value: float) -> ir.Value:
        return self._initializer(np.array(value, np.float32))

    def _initializer(self, array: Any) -> ir.Value:
        return add_initializer(self._graph, self._name(), array)

    def _sizes(self, value: ir.Value) -> ir.Value:
        endless = self._made("IsInf", value)
        return self._made("Abs", self._made("Where", endless, self._constant(0.0), value))

    def _made(self, op: str, *inputs: ir.Value, **attributes: int) -> ir.Value:
        node = self._ir.node(op, list(inputs), attributes=attributes, name=self._name())
        node.outputs[0].name = node.name
        self._graph.append(node)
        made: ir.Value = node.outputs[0]
        return made

    def _give(self, op: str, value: ir.Value, name: str, *more: ir.Value, reduces: bool = True) -> None:
        self.names.append(name)
        self._output(self._made(op, value, *more, **({"keepdims": 0} if reduces else {})), name)

    def _output(self, value: ir.Value, name: str) -> None:
        value.name, value.dtype, value.shape = name, self._ir.DataType.FLOAT, self._ir.Shape([])
        self._graph.outputs.append(value)

    def _name(self) -> str:
        self._number += 1
        return f"vengine_gauge_{self._number}"
