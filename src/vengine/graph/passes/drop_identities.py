"""drop-identities: remove nodes that hand on what they get.

What it matches: Identity; Dropout outside training; x + 0, x − 0, x × 1 and x ÷ 1; a Cast to the type that is there;
a Transpose that moves nothing; an Expand to the shape that is there.

When it must not match: the value is input and output of the graph at once: both names must stay.

Exactness: bitwise (but for −0 + 0, which is +0).

What it pays: a few microseconds a node and call; and patterns of later passes don't stumble over them.

Source of the method: onnx_ir's identity elimination and onnxscript's rules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vengine.graph.passes import drop_unused
from vengine.types import Exactness, PassResult

if TYPE_CHECKING:
    import onnx_ir as ir

NAME = "drop-identities"
EXACTNESS: Exactness = "bitwise"


def run(model: ir.Model) -> PassResult:
    """Remove them all; the model is changed in place."""
    from onnx_ir.passes import common
    from onnxscript.rewriter import RewriteRuleSet
    from onnxscript.rewriter.rules.common import _no_op, no_op_cast_rule, no_op_expand_rule, no_op_transpose_rule

    rules = RewriteRuleSet([*_no_op.rules.rules, no_op_cast_rule, no_op_transpose_rule, no_op_expand_rule])
    rules.apply_to_model(model)  # these become Identity first
    before = _identities(model)
    common.IdentityEliminationPass()(model)
    left = [n for n in model.graph if n.op_type == "Identity"]
    drop_unused.clear(model)
    return PassResult(
        name=NAME,
        exactness=EXACTNESS,
        matched=before - len(left),
        refusals=tuple((n.name or "", "it joins an input of the graph to an output") for n in left),
    )


def _identities(model: ir.Model) -> int:
    return sum(node.op_type == "Identity" for node in model.graph)
