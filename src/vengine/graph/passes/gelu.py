"""gelu: one operator for the forms of GELU, with the bias in front of it.

What it matches: x · ½ (1 + erf(x / √2)) in both orders → com.microsoft Gelu; the tanh form → FastGelu; Gelu or
FastGelu of x + bias → BiasGelu, FastGelu with its bias. The sigmoid form ONNX Runtime fuses itself when it loads
(QuickGelu).

When it must not match: other constants, a step that others read too, a bias that isn't one vector.

Exactness: reassociates.

What it pays: five passes over [batch, length, 4 × width] a layer, in operator sets below 20; from 20 on the exporter
writes Gelu itself and the runtime adds the bias when it loads, so there it pays nothing.

Source of the method: onnxscript's fusions for ONNX Runtime.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vengine.graph.near_misses import near_misses
from vengine.types import Exactness, PassResult

if TYPE_CHECKING:
    import onnx_ir as ir

NAME = "gelu"
EXACTNESS: Exactness = "reassociates"


def run(model: ir.Model) -> PassResult:
    """Fuse every form; the model is changed in place."""
    from onnxscript.rewriter.ort_fusions import bias_gelu, erfgelu
    from onnxscript.rewriter.ort_fusions import gelu as tanh_gelu

    matched = erfgelu.fuse_erfgelu(model) + tanh_gelu.fuse_gelu(model) + bias_gelu.fuse_bias_gelu(model)
    refusals = near_misses(model, erfgelu.rules, {"Erf"}) + near_misses(model, tanh_gelu.gelu_rules, {"Tanh"})
    return PassResult(name=NAME, exactness=EXACTNESS, matched=matched, refusals=refusals)
