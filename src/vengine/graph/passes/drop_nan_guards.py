"""drop-nan-guards: remove the test for NaN behind a Softmax that can't give one.

What it matches: Where(IsNaN(s), 0, s), s = Softmax(scores) or Softmax(scores + mask), where the mask is made of finite
constants whose sum is finite. Exporters write it behind every attention in operator sets below 23, for masks of −∞.

When it must not match: the mask may be infinite (`finite-masks` comes first for that), it is fed or computed from other
things than conditions and constants, or the replacement isn't 0.

Exactness: bitwise as long as the scores are finite, as those of finite inputs are. NaN among the scores was hidden as 0
before and shows now.

What it pays: two passes over [batch, heads, length, length] a layer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vengine.graph.known import constant, made_by, number
from vengine.graph.passes import drop_unused
from vengine.types import Exactness, PassResult

if TYPE_CHECKING:
    import onnx_ir as ir

NAME = "drop-nan-guards"
EXACTNESS: Exactness = "bitwise"
_MOVES = ("Expand", "Unsqueeze", "Squeeze", "Reshape", "Transpose", "Slice", "Identity")


def run(model: ir.Model) -> PassResult:
    """Remove every needless guard; the model is changed in place."""
    matched, refusals = 0, []
    for guard in list(model.graph):
        softmax = _guarded(guard)
        if softmax is None:
            continue
        if reason := _refusal(guard, softmax):
            refusals.append((guard.name or "", reason))
            continue
        guard.outputs[0].replace_all_uses_with(softmax.outputs[0])
        matched += 1
    drop_unused.clear(model)
    return PassResult(name=NAME, exactness=EXACTNESS, matched=matched, refusals=tuple(refusals))


def _guarded(guard: ir.Node) -> ir.Node | None:
    if guard.op_type != "Where" or (test := made_by(guard.inputs[0], "IsNaN")) is None:
        return None
    softmax = made_by(guard.inputs[2], "Softmax")
    return softmax if softmax is not None and test.inputs[0] is guard.inputs[2] else None


def _refusal(guard: ir.Node, softmax: ir.Node) -> str:
    import numpy as np

    if number(guard.inputs[1]) != 0:
        return "it doesn't put 0 in the place of NaN"
    if guard.outputs[0].is_graph_output():
        return "it is an output of the graph"
    added = made_by(softmax.inputs[0], "Add")
    if added is None:
        return ""
    bounds = [bound(side) for side in added.inputs]
    if all(b is None for b in bounds):
        return "what is added to the scores may be infinite"
    kind = added.outputs[0].dtype.numpy() if added.outputs[0].dtype is not None else np.float32
    finite = max(b for b in bounds if b is not None) <= float(np.finfo(kind).max)
    return "" if finite else "its mask is infinite"


def bound(value: ir.Value | None) -> float | None:
    """The largest magnitude that a mask can have; None when it isn't made of conditions and constants alone."""
    import numpy as np

    if (array := constant(value)) is not None:
        whole = array.astype(np.float64)
        return float(np.abs(whole).max(initial=0.0)) if not np.isnan(whole).any() else None
    node = made_by(value, "Where", "Add", "Cast", *_MOVES)
    if node is None:
        return None
    if node.op_type in _MOVES:
        return bound(node.inputs[0])
    if node.op_type == "Cast":
        source = node.inputs[0]
        return 1.0 if source is not None and source.dtype is not None and source.dtype.name == "BOOL" else None
    parts = [bound(part) for part in (node.inputs[1:] if node.op_type == "Where" else node.inputs)]
    if any(part is None for part in parts):
        return None
    found = [part for part in parts if part is not None]
    return max(found) if node.op_type == "Where" else sum(found)
