"""late-dequantize: look up an integer table first, and dequantise only the rows that were found.

What it matches: DequantizeLinear(initialiser) → Gather on axis 0, with one scale for the table or one for each row,
and zero points that are all 0. The Gather then reads the integers (and a second one their scales), and
Cast → Mul makes floats of what was found.

When it must not match: a zero point that isn't 0, scales for columns or blocks, a table that others read as well, an
axis other than 0.

Exactness: bitwise: the same integers meet the same scales.

What it pays: engines fold DequantizeLinear(constant) when they load, so an int8 vocabulary of 12 MB became 47 MB of
floats again (all-MiniLM-L6-v2). Looked up first, it stays 12 MB.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vengine.graph.known import add_initializer
from vengine.types import PassResult

if TYPE_CHECKING:
    import onnx_ir as ir

NAME = "late-dequantize"


def run(model: ir.Model) -> PassResult:
    """Swap every pair in the graph; the model is changed in place."""
    matched, refusals = 0, []
    for gather in list(model.graph):
        if gather.op_type != "Gather" or gather.inputs[0] is None:
            continue
        dequantize = gather.inputs[0].producer()
        if dequantize is None or dequantize.op_type != "DequantizeLinear":
            continue
        if reason := _refusal(gather, dequantize):
            refusals.append((gather.name or "", reason))
            continue
        _swap(model, gather, dequantize)
        matched += 1
    return PassResult(name=NAME, exactness="bitwise", matched=matched, refusals=tuple(refusals))


def _refusal(gather: ir.Node, dequantize: ir.Node) -> str:
    table, scale = dequantize.inputs[0], dequantize.inputs[1]
    if table is None or scale is None or not table.is_initializer():
        return "the table is not a constant"
    if _int(gather, "axis", 0) != 0:
        return "it doesn't look up rows"
    if len(list(dequantize.outputs[0].uses())) > 1:
        return "others read the dequantised table too"
    if scale.const_value is None or scale.shape is None or len(scale.shape) > 1 or _int(dequantize, "block_size", 0):
        return "its scales are neither one for the table nor one for each row"
    if len(scale.shape) == 1 and _int(dequantize, "axis", 1) != 0:
        return "its scales belong to columns"
    return "" if _all_zero(dequantize) else "a zero point is not 0"


def _all_zero(dequantize: ir.Node) -> bool:
    zero = dequantize.inputs[2] if len(dequantize.inputs) > 2 else None
    if zero is None:
        return True
    return zero.const_value is not None and not zero.const_value.numpy().any()


def _swap(model: ir.Model, gather: ir.Node, dequantize: ir.Node) -> None:
    """Cast(Gather(table)) × scale, where a scale for each row is looked up as well."""
    import numpy as np
    import onnx_ir as ir

    table, scale = dequantize.inputs[0], dequantize.inputs[1]
    rows, found = gather.inputs[1], gather.outputs[0]
    assert table is not None
    assert scale is not None
    assert scale.shape is not None
    name = gather.name or found.name or "gather"
    integers = ir.node("Gather", [table, rows], attributes={"axis": 0}, name=f"{name}_integers")
    floats = ir.node("Cast", integers.outputs, attributes={"to": ir.DataType.FLOAT.value}, name=f"{name}_floats")
    new, factor = [integers, floats], scale
    if len(scale.shape) == 1:
        last = add_initializer(model.graph, f"{name}_last_axis", np.array([-1], np.int64))
        scales = ir.node("Gather", [scale, rows], attributes={"axis": 0}, name=f"{name}_scales")
        column = ir.node("Unsqueeze", [scales.outputs[0], last], name=f"{name}_column")
        new += [scales, column]
        factor = column.outputs[0]
    scaled = ir.node("Mul", [floats.outputs[0], factor], name=f"{name}_scaled")
    for node in (*new, scaled):
        node.outputs[0].name = node.name
    scaled.outputs[0].dtype, scaled.outputs[0].shape = found.dtype, found.shape
    model.graph.insert_before(gather, [*new, scaled])
    output = found.name if found.is_graph_output() else None
    found.replace_all_uses_with(scaled.outputs[0], replace_graph_outputs=output is not None)
    model.graph.remove(gather, safe=True)
    if output is not None:  # callers ask for it by its name
        scaled.outputs[0].name = output
    if not list(dequantize.outputs[0].uses()):
        model.graph.remove(dequantize, safe=True)


def _int(node: ir.Node, name: str, default: int) -> int:
    attribute = node.attributes.get(name)
    return default if attribute is None else attribute.as_int()
