"""rms-norm: one operator for x ÷ √(mean x² + ε) × weight.

What it matches: Pow(2) → ReduceMean over the last axis → Add(ε) → Sqrt → Reciprocal → Mul → Mul, perhaps between two
Casts, as exporters write it in operator sets below 23 → SimplifiedLayerNormalization of ONNX Runtime.

When it must not match: another exponent or axis, an ε that isn't one constant, a step that others read too.

Exactness: reassociates.

What it pays: six passes over [batch, length, width] for each norm. ONNX Runtime's own fusion looks for a Div and
matches none of these.

Source of the method: onnxscript's fusions for ONNX Runtime.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vengine.graph.near_misses import near_misses
from vengine.types import Exactness, PassResult

if TYPE_CHECKING:
    import onnx_ir as ir

NAME = "rms-norm"
EXACTNESS: Exactness = "reassociates"


def run(model: ir.Model) -> PassResult:
    """Fuse every norm; the model is changed in place."""
    from onnxscript.rewriter.ort_fusions import rms_normalization

    matched = rms_normalization.fuse_rms_normalization(model)
    refusals = near_misses(model, rms_normalization.rms_normalization_ruleset, {"Sqrt"})
    return PassResult(name=NAME, exactness=EXACTNESS, matched=matched, refusals=refusals)
