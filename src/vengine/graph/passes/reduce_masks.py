"""reduce-masks: the mask itself where an exporter looks it up, compares positions and combines what is always true.

What it matches:
  GatherND(mask, [(i, j) for every i and j]), which is the mask with axes of size 1 put between its own;
  And with an operand that is true everywhere: a constant, or positions ≥ 0. If the result is larger than the other
  operand, an Expand to that size stays.
Exporters write both for every mask since transformers builds masks from functions of positions.

When it must not match: indices that don't count all of an axis in order, a Range that doesn't start at 0 in steps of 1,
sizes that no input of the graph states, operator sets below 15 (their Shape can't pick an axis).

Exactness: bitwise.

What it pays: some 15 nodes a call, which count where texts are short.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vengine.graph.known import add_initializer, constant, dims, integer, made_by, number
from vengine.graph.passes import drop_unused
from vengine.types import Exactness, PassResult

if TYPE_CHECKING:
    import onnx_ir as ir

NAME = "reduce-masks"
EXACTNESS: Exactness = "bitwise"
_LEAST_OPSET = 15
_AXES = ("Unsqueeze", "Expand", "Identity")


def run(model: ir.Model) -> PassResult:
    """Reduce every such mask; the model is changed in place."""
    matched, refusals = 0, []
    if model.graph.opset_imports.get("", 0) < _LEAST_OPSET:
        return PassResult(name=NAME, exactness=EXACTNESS, matched=0)
    for node in list(model.graph):
        if node.op_type == "GatherND":
            reason = _look_up(model, node)
        elif node.op_type == "And" and not node.outputs[0].is_graph_output():
            trues = [side for side in node.inputs if always_true(side)]
            if not trues:
                continue
            reason = _combine(model, node, trues[0])
        else:
            continue
        matched += not reason
        if reason:
            refusals.append((node.name or "", reason))
    drop_unused.clear(model)
    return PassResult(name=NAME, exactness=EXACTNESS, matched=matched, refusals=tuple(refusals))


def _look_up(model: ir.Model, node: ir.Node) -> str:
    """Unsqueeze(mask) in the place of the look-up; or why not."""
    mask, indices = node.inputs[0], made_by(node.inputs[1], "Concat")
    have, want = dims(mask), dims(node.outputs[0])
    if indices is None or have is None or want is None or mask is None:
        return "its indices are not put together from the positions of each axis"
    if len(indices.inputs) != len(have) or integer(node, "batch_dims", 0):
        return "it doesn't index every axis"
    places = [_counted(part, size) for part, size in zip(indices.inputs, have, strict=True)]
    kept = [place for place in places if place is not None]
    if len(kept) < len(have) or sorted(set(kept)) != kept:
        return "its indices don't count all of an axis in order"
    shape = [have[kept.index(axis)] if axis in kept else 1 for axis in range(len(want))]
    if list(want) != shape:
        return "its result is larger than the mask"
    axes = [axis for axis in range(len(want)) if axis not in kept]
    _replace(model, node, "Unsqueeze", [mask, _ints(model, f"{node.name}_axes", axes)])
    return ""


def _counted(part: ir.Value | None, size: int | str | None) -> int | None:
    """The axis along which an index [.., 1] counts 0, 1, … `size` − 1; None when it does anything else."""
    last = made_by(part, "Unsqueeze")
    if last is None or number(last.inputs[1]) != -1:
        return None
    value = last.inputs[0]
    while (node := made_by(value, "Expand")) is not None:
        value = node.inputs[0]
    shape = dims(value)
    if shape is None or _first_position(value) != 0:
        return None
    long = [axis for axis, dim in enumerate(shape) if dim != 1]
    return long[0] if len(long) == 1 and size is not None and shape[long[0]] == size else None


def _first_position(value: ir.Value | None) -> float | None:
    """Where a Range in steps of 1 starts, perhaps with more axes; None for anything else."""
    node = made_by(value, "Range", *_AXES)
    if node is None:
        return None
    if node.op_type != "Range":
        return _first_position(node.inputs[0])
    return number(node.inputs[0]) if number(node.inputs[2]) == 1 else None


def always_true(value: ir.Value | None) -> bool:
    """Whether a condition holds everywhere, whatever is fed."""
    array = constant(value)
    if array is not None:
        return array.dtype == bool and bool(array.all())
    node = made_by(value, "GreaterOrEqual", "And", *_AXES)
    if node is None:
        return False
    if node.op_type == "GreaterOrEqual":
        first, least = _first_position(node.inputs[0]), number(node.inputs[1])
        return first is not None and least is not None and first >= least
    if node.op_type == "And":
        return all(always_true(side) for side in node.inputs)
    return always_true(node.inputs[0])


def _combine(model: ir.Model, node: ir.Node, true: ir.Value | None) -> str:
    """The other operand, as large as the result; or why not."""
    other = node.inputs[1] if node.inputs[0] is true else node.inputs[0]
    have, want = dims(other), dims(node.outputs[0])
    if have is None or want is None or other is None:
        return "its shape is unknown"
    if have == want and None not in have:
        node.outputs[0].replace_all_uses_with(other)
        return ""
    padded = (1,) * (len(want) - len(have)) + have
    if always_true(other):
        return "both operands are true everywhere"
    sizes = [_size(model, w) if w != h else 1 for w, h in zip(want, padded, strict=True)]
    if any(size is None for size in sizes):
        return "no input of the graph states its size"
    _replace(model, node, "Expand", [other, _vector(model, node, [s for s in sizes if s is not None])])
    return ""


def _size(model: ir.Model, dim: int | str | None) -> int | tuple[ir.Value, int] | None:
    """A number, or the input and axis that have this name."""
    if isinstance(dim, int) or dim is None:
        return dim
    named = ((value, axis) for value in model.graph.inputs for axis, d in enumerate(dims(value) or ()) if d == dim)
    return next(named, None)


def _vector(model: ir.Model, node: ir.Node, sizes: Sequence[int | tuple[ir.Value, int]]) -> ir.Value:
    """A shape vector from numbers and axes of inputs, computed in front of the node."""
    import onnx_ir as ir

    parts = []
    for place, size in enumerate(sizes):
        if isinstance(size, int):
            parts.append(_ints(model, f"{node.name}_size_{place}", [size]))
            continue
        value, axis = size
        shape = ir.node("Shape", [value], attributes={"start": axis, "end": axis + 1}, name=f"{node.name}_dim_{place}")
        _typed(shape.outputs[0], f"{node.name}_dim_{place}", "INT64", [1])
        model.graph.insert_before(node, shape)
        parts.append(shape.outputs[0])
    whole = ir.node("Concat", parts, attributes={"axis": 0}, name=f"{node.name}_shape")
    _typed(whole.outputs[0], f"{node.name}_shape", "INT64", [len(sizes)])
    model.graph.insert_before(node, whole)
    return whole.outputs[0]


def _replace(model: ir.Model, node: ir.Node, op: str, inputs: Sequence[ir.Value]) -> None:
    import onnx_ir as ir

    found = node.outputs[0]
    new = ir.node(op, inputs, name=f"{node.name}_reduced")
    new.outputs[0].name, new.outputs[0].dtype, new.outputs[0].shape = f"{found.name}_reduced", found.dtype, found.shape
    model.graph.insert_before(node, new)
    leaves = found.is_graph_output()
    found.replace_all_uses_with(new.outputs[0], replace_graph_outputs=leaves)
    if leaves:  # callers ask for it by its name
        name, found.name = found.name, f"{found.name}_replaced"
        new.outputs[0].name = name


def _ints(model: ir.Model, name: str, numbers: Sequence[int]) -> ir.Value:
    import numpy as np

    return add_initializer(model.graph, name, np.array(numbers, np.int64))


def _typed(value: ir.Value, name: str, dtype: str, shape: Sequence[int]) -> None:
    import onnx_ir as ir

    value.name, value.dtype, value.shape = name, ir.DataType[dtype], ir.Shape(list(shape))
