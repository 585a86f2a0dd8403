"""drop-unused: remove what no output of the graph needs.

What it matches: nodes, initialisers and optional outputs of nodes that nothing reads.

When it must not match: inputs and outputs of the graph, which callers name; they stay, used or not.

Exactness: bitwise.

What it pays: nothing in time, since engines do the same when they load; it keeps files small after other passes
left weights behind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vengine.types import Exactness, PassResult

if TYPE_CHECKING:
    import onnx_ir as ir

NAME = "drop-unused"
EXACTNESS: Exactness = "bitwise"


def run(model: ir.Model) -> PassResult:
    """Remove them all; the model is changed in place."""
    before = _size(model)
    clear(model)
    return PassResult(name=NAME, exactness=EXACTNESS, matched=before - _size(model))


def clear(model: ir.Model) -> None:
    """The same without counting, for what another pass leaves behind."""
    from onnx_ir.passes import common

    common.RemoveUnusedNodesPass()(model)
    common.RemoveUnusedFunctionsPass()(model)
    common.RemoveUnusedOpsetsPass()(model)


def _size(model: ir.Model) -> int:
    return len(list(model.graph)) + len(model.graph.initializers)
