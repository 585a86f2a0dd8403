"""skip-norm: one operator for a residual sum and the norm behind it.

What it matches: LayerNormalization or SimplifiedLayerNormalization of x + skip, perhaps with a bias added first →
SkipLayerNormalization, SkipSimplifiedLayerNormalization. The sum may be read by others as well: it is an output of the
new operator. A LayerNormalization without a bias gets one of zeros first.

When it must not match: operands that broadcast, a norm over another axis than the last.

Exactness: reassociates.

What it pays: a pass over [batch, length, width] for each norm. ONNX Runtime fuses these itself where nobody else reads
the sum (post-norm models, BERT); in pre-norm models (ViT, GPT-2, Llama) it fuses only the last one.

Source of the method: onnxscript's fusions for ONNX Runtime.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vengine.graph.known import add_initializer, made_by
from vengine.graph.near_misses import near_misses
from vengine.types import Exactness, PassResult

if TYPE_CHECKING:
    import onnx_ir as ir

NAME = "skip-norm"
EXACTNESS: Exactness = "reassociates"
_NORMS = frozenset({"LayerNormalization", "SimplifiedLayerNormalization"})


def run(model: ir.Model) -> PassResult:
    """Fuse every pair; the model is changed in place."""
    from onnxscript.rewriter.ort_fusions import skip_normalization as skip

    _zero_biases(model)
    matched = skip.fuse_skip_layer_normalization(model) + skip.fuse_skip_rms_normalization(model)
    refusals = near_misses(model, skip.skip_layer_normalization_ruleset, _NORMS)
    refusals += near_misses(model, skip.skip_rms_normalization_ruleset, _NORMS)
    return PassResult(name=NAME, exactness=EXACTNESS, matched=matched, refusals=refusals)


def _zero_biases(model: ir.Model) -> None:
    """onnxscript's pattern asks for a bias, which ModernBERT's norms don't have."""
    import numpy as np

    zeros: dict[tuple[int, str], ir.Value] = {}
    for node in model.graph:
        if node.op_type != "LayerNormalization" or (len(node.inputs) > 2 and node.inputs[2] is not None):
            continue
        weight = node.inputs[1]
        if weight is None or weight.const_value is None or made_by(node.inputs[0], "Add") is None:
            continue
        array = weight.const_value.numpy()
        key = (array.size, str(array.dtype))
        if key not in zeros:
            name = f"norm_bias_of_zeros_{array.size}"
            zeros[key] = add_initializer(model.graph, name, np.zeros(array.shape, array.dtype))
        node.resize_inputs(3)
        node.replace_input_with(2, zeros[key])
