"""share-initializers: keep a weight once, however many names it has.

What it matches: initialisers of the same type, shape and bytes: tied embeddings that an exporter wrote twice, norms
that were never trained apart.

When it must not match: initialisers that are inputs or outputs of the graph.

Exactness: bitwise.

What it pays: bytes on disk and in memory; a tied vocabulary is often a third of a small model.

Source of the method: onnx_ir's deduplication by hash.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from vengine.graph.passes import drop_unused
from vengine.types import Exactness, PassResult

if TYPE_CHECKING:
    import onnx_ir as ir

NAME = "share-initializers"
EXACTNESS: Exactness = "bitwise"
_ANY_SIZE = 1 << 62


def run(model: ir.Model) -> PassResult:
    """Share them all; the model is changed in place."""
    from onnx_ir.passes import common

    logging.getLogger("onnx_ir.passes.common.initializer_deduplication").setLevel(logging.ERROR)
    before = len(model.graph.initializers)
    common.DeduplicateHashedInitializersPass(size_limit=_ANY_SIZE)(model)
    matched = before - len(model.graph.initializers)
    drop_unused.clear(model)
    return PassResult(name=NAME, exactness=EXACTNESS, matched=matched)
