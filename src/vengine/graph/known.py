"""What a graph says about a value without being run: its constant, its producer, the terms of a shape vector."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import onnx_ir as ir

Term = int | tuple[str, int]  # a number, or (name of a value, axis): the size of that axis
_ALL = 1 << 31  # ends of slices at or above this mean "to the end"


def constant(value: ir.Value | None) -> Any:
    """The array behind an initialiser or a Constant node; None when the value is computed or fed."""
    import onnx_ir as ir

    if value is None or value.is_graph_input():
        return None
    tensor = ir.convenience.get_const_tensor(value)
    return None if tensor is None else tensor.numpy()


def number(value: ir.Value | None) -> float | None:
    """The single number of a constant; None when it isn't one."""
    array = constant(value)
    return float(array.item()) if array is not None and array.size == 1 and array.dtype.kind in "fiub" else None


def made_by(value: ir.Value | None, *ops: str) -> ir.Node | None:
    """The node that computes the value, where it is one of these operators."""
    node = value.producer() if value is not None else None
    return node if node is not None and node.op_type in ops and node.domain in ("", "ai.onnx") else None


def is_initializer(value: ir.Value) -> bool:
    """Whether the value is a weight of the graph that no caller can replace."""
    return value.is_initializer() and not value.is_graph_input()


def add_initializer(graph: ir.Graph, name: str, array: Any) -> ir.Value:
    """A new constant of the graph."""
    import onnx_ir as ir

    dtype = ir.DataType.from_numpy(array.dtype)
    value = ir.Value(name=name, shape=ir.Shape(array.shape), type=ir.TensorType(dtype))
    value.const_value = ir.tensor(array, name=name)
    graph.register_initializer(value)
    return value


def integer(node: ir.Node, name: str, default: int) -> int:
    """An integer attribute."""
    attribute = node.attributes.get(name)
    return default if attribute is None else attribute.as_int()


def dims(value: ir.Value | None) -> tuple[int | str | None, ...] | None:
    """The shape as numbers and names; None in it is an unknown size, None for it an unknown rank."""
    if value is None or value.shape is None:
        return None
    return tuple(dim if isinstance(dim, int) else dim.value for dim in value.shape)


def terms(value: ir.Value | None) -> tuple[Term, ...] | None:
    """A shape vector, [n] of int64, term by term; None when it isn't made of sizes and constants alone."""
    array = constant(value)
    if array is not None:
        return tuple(int(n) for n in array) if array.ndim == 1 and array.dtype.kind == "i" else None
    node = made_by(value, "Shape", "Slice", "Concat", "Identity")
    if node is None:
        return None
    if node.op_type == "Shape":
        return _sizes(node)
    if node.op_type == "Slice":
        return _cut(node)
    parts = [terms(part) for part in node.inputs]
    if any(part is None for part in parts):
        return None
    return tuple(term for part in parts if part is not None for term in part)


def _sizes(node: ir.Node) -> tuple[Term, ...] | None:
    source = node.inputs[0]
    known = dims(source)
    if known is None or source is None or source.name is None:
        return None
    axes = range(len(known))[integer(node, "start", 0) : integer(node, "end", len(known))]
    return tuple((source.name, axis) for axis in axes)


def _cut(node: ir.Node) -> tuple[Term, ...] | None:
    whole, start, end = terms(node.inputs[0]), number(node.inputs[1]), number(node.inputs[2])
    if whole is None or start is None or end is None:
        return None
    if len(node.inputs) > 4 and number(node.inputs[4]) != 1:
        return None
    low, high = int(start), int(end)
    return whole[max(low, -len(whole)) if low > -_ALL else None : high if high < _ALL else None]
