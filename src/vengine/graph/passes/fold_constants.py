"""fold-constants: compute once what depends on constants alone.

What it matches: nodes whose inputs are all known, and sizes that the graph states; small ones only: what is read has
at most 8,192 elements and what is written at most 65,536.

When it must not match: anything larger. A folded Expand or Transpose of a weight would be a second copy of it, and
the file grows instead of shrinking.

Exactness: reassociates: floats are computed by numpy, where the engine's own kernel may round the last bit otherwise.

What it pays: little on a current export, which is folded already; graphs of older exporters lose up to half of their
nodes, and the patterns of later passes see constants where they expect them.

Source of the method: onnxscript's optimiser.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from vengine.graph.passes import drop_unused
from vengine.types import Exactness, PassResult

if TYPE_CHECKING:
    import onnx_ir as ir

NAME = "fold-constants"
EXACTNESS: Exactness = "reassociates"
_READ, _WRITTEN = 8192, 65536  # elements


def run(model: ir.Model) -> PassResult:
    """Fold, and keep every constant as an initialiser; the model is changed in place."""
    from onnx_ir.passes import common
    from onnxscript.optimizer import _constant_folding as folding

    logging.getLogger("onnxscript.optimizer._constant_folding").setLevel(logging.ERROR)
    before = _computed(model)
    folding.FoldConstantsPass(shape_inference=True, input_size_limit=_READ, output_size_limit=_WRITTEN)(model)
    drop_unused.clear(model)
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    return PassResult(name=NAME, exactness=EXACTNESS, matched=max(0, before - _computed(model)))


def _computed(model: ir.Model) -> int:
    return sum(node.op_type != "Constant" for node in model.graph)
