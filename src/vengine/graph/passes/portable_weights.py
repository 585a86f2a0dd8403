"""portable-weights: weights that can't saturate a CPU without VNNI, each channel shrunk no further than it needs.

What it matches: DequantizeLinear(int8 initialiser, zero points all 0) that feeds a MatMul, Gemm, Conv or
ConvTranspose whose other operand is a quantised activation. Each output channel in which some pair of neighbouring
weights could push a 16-bit pair sum over its limit (`graph.saturation.reach` > 1) is rounded anew with a scale that is
larger by just so much, at most 2. Channels, and so nodes, that can't saturate keep all their bits.

When it must not match: weights that others read too, scales in blocks, zero points that aren't 0, weights that meet a
float: nothing is multiplied in integers there.

Exactness: lossy: a shrunk channel has up to one bit less. Against half-range weights, which take the bit from every
channel of every node, it is never less exact.

What it pays: the same answers on every CPU. Without it u8 × s8 products go wrong in silence where VNNI is missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vengine.graph.known import add_initializer
from vengine.graph.saturation import reach
from vengine.types import PassResult

if TYPE_CHECKING:
    import onnx_ir as ir

NAME = "portable-weights"
_PRODUCTS = frozenset({"MatMul", "Gemm", "Conv", "ConvTranspose"})


def run(model: ir.Model) -> PassResult:
    """Shrink every channel that could saturate; the model is changed in place. `matched` counts nodes."""
    matched, refusals = 0, []
    for node in list(model.graph):
        if (weights := integer_weights(node)) is None:
            continue
        if reason := _refusal(weights):
            refusals.append((node.name or "", reason))
            continue
        matched += _shrink(node, weights)
    return PassResult(name=NAME, exactness="lossy", matched=matched, refusals=tuple(refusals))


def could_saturate(model: ir.Model) -> tuple[str, ...]:
    """Names of the integer products in which some activations could overflow a 16-bit pair sum."""
    found = []
    for node in model.graph:
        if (weights := integer_weights(node)) is None:
            continue
        if _odd_form(weights) or bool((reach(_rows(node, _array(weights.inputs[0]))) > 1).any()):
            found.append(node.name or node.outputs[0].name or "")
    return tuple(found)


def integer_weights(node: ir.Node) -> ir.Node | None:
    """The DequantizeLinear of a product's int8 weights, where its activations are quantised too."""
    if node.op_type not in _PRODUCTS or len(node.inputs) < 2:
        return None
    data, weights = (value.producer() if value is not None else None for value in node.inputs[:2])
    if weights is None or weights.op_type != "DequantizeLinear" or not _is_quantized(data):
        return None
    table = weights.inputs[0]
    return weights if table is not None and table.const_value is not None else None


def _is_quantized(node: ir.Node | None) -> bool:
    moves = ("Reshape", "Transpose", "Identity", "Squeeze", "Unsqueeze", "Flatten")
    while node is not None and node.op_type in moves:
        node = node.inputs[0].producer() if node.inputs[0] is not None else None
    return node is not None and node.op_type == "DequantizeLinear"


def _refusal(weights: ir.Node) -> str:
    if weights.inputs[0] is not None and len(list(weights.inputs[0].uses())) > 1:
        return "others read the weights too"
    return _odd_form(weights)


def _odd_form(weights: ir.Node) -> str:
    """Why nothing can be said of these weights."""
    if str(_array(weights.inputs[0]).dtype) != "int8":
        return "the weights are not int8"
    if "block_size" in weights.attributes and weights.attributes["block_size"].as_int():
        return "its scales belong to blocks"
    if len(weights.inputs) > 2 and weights.inputs[2] is not None and _array(weights.inputs[2]).any():
        return "a zero point is not 0"
    return ""


def _shrink(node: ir.Node, weights: ir.Node) -> int:
    """1 where a channel was rounded anew, else 0."""
    import numpy as np

    old, scale = _array(weights.inputs[0]), _array(weights.inputs[1])
    factors = np.maximum(reach(_rows(node, old)), 1.0)
    if not (factors > 1).any():
        return 0
    if scale.ndim == 0:
        factors = np.full_like(factors, factors.max())
    # Rounding may push a pair over the limit again by half a step each: a hair more, until it fits.
    new = _rounded(node, old, factors)
    while (over := reach(_rows(node, new)) > 1).any():
        factors = np.where(over if scale.ndim else over.any(), factors * 1.01, factors)
        new = _rounded(node, old, factors)
    per_channel = factors if scale.ndim else factors[0]
    _set(weights, 0, new)
    _set(weights, 1, (scale * per_channel).astype(scale.dtype))
    return 1


def _rounded(node: ir.Node, old: Any, factors: Any) -> Any:
    import numpy as np

    axis = _channel_axis(node, old)
    shape = [1] * old.ndim
    shape[axis] = -1
    return np.rint(old / factors.reshape(shape)).astype(np.int8)


def _channel_axis(node: ir.Node, weights: Any) -> int:
    """The axis of the weights that one scale each belongs to: the output channels."""
    if node.op_type == "Conv":
        return 0
    if node.op_type == "ConvTranspose":
        return 1
    if node.op_type == "Gemm" and "transB" in node.attributes and node.attributes["transB"].as_int():
        return 0
    return int(weights.ndim) - 1


def _rows(node: ir.Node, weights: Any) -> Any:
    """[output channels, summed], neighbours as kernels pair them: along the input channels, one position at a time."""
    import numpy as np

    axis = _channel_axis(node, weights)
    rows = np.moveaxis(weights, axis, 0)
    if node.op_type in ("Conv", "ConvTranspose"):
        if rows.shape[1] == 1:  # one channel a group: its neighbours are those in space
            return rows.reshape(len(rows), -1)
        rows = np.moveaxis(rows, 1, -1)  # input channels innermost
        if rows.shape[-1] % 2:
            rows = np.pad(rows, [(0, 0)] * (rows.ndim - 1) + [(0, 1)])
    return rows.reshape(len(rows), -1)


def _array(value: ir.Value | None) -> Any:
    assert value is not None
    assert value.const_value is not None
    return value.const_value.numpy()


def _set(node: ir.Node, index: int, array: Any) -> None:
    """A constant of its own: others may share the old one."""
    import onnx_ir as ir

    old, graph = node.inputs[index], node.graph
    assert old is not None
    assert isinstance(graph, ir.Graph)
    node.replace_input_with(index, add_initializer(graph, f"{old.name}_portable", array))
