"""plain-transposes: one Transpose where an exporter flattens, transposes and unflattens.

What it matches: Reshape → Transpose(0, 2, 1) → Reshape of a value [a, b, c, d], where the first flattens a and b, and
the second gives [a, b, d, c]; the shape vectors are followed back to the sizes that they hold. Exporters write this
for the key of every attention in operator sets below 23, with ten nodes that compute the shapes.

When it must not match: a shape vector that holds anything else, a value whose rank is unknown, a step that others read
as well.

Exactness: bitwise.

What it pays: a dozen small nodes a layer, and one copy of the keys; what comes behind the Transpose has a known shape
again, which fusions ask for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vengine.graph.known import dims, made_by, terms
from vengine.graph.passes import drop_unused
from vengine.types import Exactness, PassResult

if TYPE_CHECKING:
    import onnx_ir as ir

NAME = "plain-transposes"
EXACTNESS: Exactness = "bitwise"


def run(model: ir.Model) -> PassResult:
    """Replace them all; the model is changed in place."""
    import onnx_ir as ir

    matched, refusals = 0, []
    for last in list(model.graph):
        source = _flattened(last)
        if source is None:
            continue
        if reason := _refusal(last, source):
            refusals.append((last.name or "", reason))
            continue
        found = last.outputs[0]
        new = ir.node("Transpose", [source], attributes={"perm": [0, 1, 3, 2]}, name=f"{last.name}_plain")
        a, b, c, d = source.shape
        new.outputs[0].name, new.outputs[0].dtype = f"{found.name}_plain", source.dtype
        new.outputs[0].shape = ir.Shape([a, b, d, c])
        model.graph.insert_before(last, new)
        found.replace_all_uses_with(new.outputs[0])
        matched += 1
    drop_unused.clear(model)
    return PassResult(name=NAME, exactness=EXACTNESS, matched=matched, refusals=tuple(refusals))


def _flattened(last: ir.Node) -> ir.Value | None:
    """The value behind Reshape ← Transpose(0, 2, 1) ← Reshape."""
    if last.op_type != "Reshape" or (middle := made_by(last.inputs[0], "Transpose")) is None:
        return None
    perm = middle.attributes.get("perm")
    first = made_by(middle.inputs[0], "Reshape")
    if first is None or perm is None or list(perm.as_ints()) != [0, 2, 1]:
        return None
    return first.inputs[0]


def _refusal(last: ir.Node, source: ir.Value) -> str:
    known = dims(source)
    if known is None or len(known) != 4 or source.name is None:
        return "the value has not four known axes"
    if last.outputs[0].is_graph_output():
        return "it is an output of the graph"
    sizes = [size if isinstance(size, int) else (source.name, axis) for axis, size in enumerate(known)]
    middle = made_by(last.inputs[0], "Transpose")
    first = made_by(middle.inputs[0], "Reshape") if middle else None
    assert first is not None
    to_flat, to_four = _resolved(first.inputs[1], source), _resolved(last.inputs[1], source)
    if to_flat is None or to_four is None:
        return "a shape is computed from something else than sizes"
    a, b, c, d = sizes
    if to_flat[1:] != (c, d) or len(to_flat) != 3:
        return "the first Reshape does more than flatten two axes"
    return "" if to_four == (a, b, d, c) else "the last Reshape doesn't restore the two axes"


def _resolved(vector: ir.Value | None, source: ir.Value) -> tuple[object, ...] | None:
    """The vector's terms, with the numbers that the value's own shape states."""
    found, known = terms(vector), dims(source)
    if found is None or known is None:
        return None

    def plain(term: object) -> object:
        if isinstance(term, tuple) and term[0] == source.name and isinstance(size := known[term[1]], int):
            return size
        return term

    return tuple(plain(term) for term in found)
