"""idle-quantizers: remove quantise → dequantise pairs that no integer kernel will ever use.

What it matches: QuantizeLinear → DequantizeLinear on an activation, whose value then reaches, through
Reshape and Transpose alone, an operator that no engine runs in integers on such an input (here: the fused
`Attention`). Calibrating tools place these pairs because they see a matrix product inside; the engines
then round for nothing, and ONNX Runtime 1.32 refuses the graph when it moves such a pair over a Reshape.

When it must not match: the value also reaches a product (MatMul, Gemm, Conv) that has a quantised weight, or leaves
the graph.

Exactness: lossy only in the good direction: a rounding step is removed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vengine.types import PassResult

if TYPE_CHECKING:
    import onnx_ir as ir

NAME = "idle-quantizers"
_MOVES = frozenset({"Reshape", "Transpose", "Identity", "Squeeze", "Unsqueeze"})
_FLOAT_ONLY = frozenset({"Attention", "Softmax", "LayerNormalization", "Gelu", "Erf"})


def run(model: ir.Model) -> PassResult:
    """Bypass every idle pair in the graph; the model is changed in place."""
    matched, refusals = 0, []
    for node in list(model.graph):
        if node.op_type != "DequantizeLinear" or not _is_activation_pair(node):
            continue
        users = _users_behind_moves(node.outputs[0])
        float_users = {u.op_type for u in users} & _FLOAT_ONLY
        if not float_users:
            continue
        others = sorted({u.op_type for u in users} - _FLOAT_ONLY)
        if others or node.outputs[0].is_graph_output():
            refusals.append((node.name or "", f"also feeds {', '.join(others) or 'an output of the graph'}"))
            continue
        quantize = node.inputs[0].producer()
        assert quantize is not None
        node.outputs[0].replace_all_uses_with(quantize.inputs[0])
        matched += 1
    return PassResult(name=NAME, exactness="lossy", matched=matched, refusals=tuple(refusals))


def _is_activation_pair(dequantize: ir.Node) -> bool:
    source = dequantize.inputs[0]
    producer = source.producer() if source is not None else None
    return producer is not None and producer.op_type == "QuantizeLinear"


def _users_behind_moves(value: ir.Value) -> list[ir.Node]:
    found: list[ir.Node] = []
    for node, _ in value.uses():
        if node.op_type in _MOVES:
            found += _users_behind_moves(node.outputs[0])
        else:
            found.append(node)
    return found
