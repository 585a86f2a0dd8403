"""finite-masks: a large negative number where a mask says −∞.

What it matches: initialisers that hold −∞ and reach nothing but a Softmax (or the mask of an Attention), through
Where, Add and moves. They become a quarter of the type's lowest number: four masks may add up without overflow.

When it must not match: the value also reaches another operator, or leaves the graph.

Exactness: bitwise in every row of the Softmax that sees something: exp of either is 0. A row that sees nothing gives
the mean of what it must not see, where it gave NaN; nobody may read such a row, and NaN would spread to those that do
count.

What it pays: correctness, no time: a fully masked row in a batch must not give NaN (a later pass can drop the guards
against it), and a quantiser that meets −∞ in a constant finds no scale.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vengine.graph.known import constant
from vengine.types import Exactness, PassResult

if TYPE_CHECKING:
    import onnx_ir as ir

NAME = "finite-masks"
EXACTNESS: Exactness = "bitwise"
_MOVES = frozenset({"Expand", "Unsqueeze", "Squeeze", "Reshape", "Transpose", "Slice", "Identity", "Cast", "Concat"})
_MASK_INPUT = 3  # of ai.onnx Attention


def lowest(dtype: str) -> float:
    """What stands for −∞ in a mask of this type."""
    import numpy as np

    return float(np.finfo(dtype).min) / 4


def run(model: ir.Model) -> PassResult:
    """Replace −∞ in every such constant; the model is changed in place."""
    import numpy as np
    import onnx_ir as ir

    matched, refusals = 0, []
    for value in list(model.graph.initializers.values()):
        if value.is_graph_input() or value.dtype not in (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE):
            continue
        if not value.uses() and not value.is_graph_output():
            continue
        array = constant(value)
        if array is None or not np.isneginf(array).any():
            continue
        if other := _reaches_other(value):
            refusals.append((value.name or "", f"it also reaches {other}"))
            continue
        finite = np.where(np.isneginf(array), np.array(lowest(array.dtype.name), array.dtype), array)
        value.const_value = ir.tensor(finite, name=value.name)
        matched += 1
    return PassResult(name=NAME, exactness=EXACTNESS, matched=matched, refusals=tuple(refusals))


def _reaches_other(value: ir.Value) -> str:
    """The first reader that is no part of a mask; "" when there is none."""
    if value.is_graph_output():
        return "an output of the graph"
    for node, place in value.uses():
        if node.op_type == "Softmax" or (node.op_type == "Attention" and place == _MASK_INPUT):
            continue
        if node.op_type in _MOVES or node.op_type == "Add" or (node.op_type == "Where" and place > 0):
            if other := _reaches_other(node.outputs[0]):
                return other
            continue
        return f"{node.op_type} {node.name or ''}".strip()
    return ""
