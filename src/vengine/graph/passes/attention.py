"""attention: one operator for the projections of Q, K and V, their biases, the heads, and the attention itself.

What it matches: scaled dot-product attention in both forms that exporters write: the `Attention` of operator set 23,
and MatMul → Add(mask) → Softmax → MatMul below it. With projections of one input around it, it becomes com.microsoft
Attention, whose Q, K and V are one matrix product; with others, MultiHeadAttention.

When it must not match: fewer heads for keys than for queries in the operator form, a cache, a soft cap, a causal
attribute, a mask without its four axes: what can't be said in the other operator's words stays as it is. The masks of
−∞ must be gone (`finite-masks`), because the fused operators give NaN for a row that is all −∞.

Exactness: reassociates.

What it pays: about a tenth where attention is written out (all-MiniLM-L6-v2, operator set 18), next to nothing
where the export holds `Attention`, and less than nothing behind rotary positions, where heads are moved back and
forth; figures in docs/passes.md.

Source of the method: onnxscript's fusions for ONNX Runtime; the way from `Attention` to them is ours: they match the
decomposed form only, and on an export of operator set 23 they fuse nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vengine.graph.known import add_initializer, dims, integer, is_initializer, made_by
from vengine.graph.near_misses import near_misses
from vengine.graph.passes import drop_unused
from vengine.graph.passes.finite_masks import lowest
from vengine.types import Exactness, PassResult

if TYPE_CHECKING:
    import onnx_ir as ir

NAME = "attention"
EXACTNESS: Exactness = "reassociates"
_BETWEEN = "ai.onnxruntime._fusion"  # onnxscript's own operators, which are gone at the end
_OTHERS = ((4, "it has a cache of keys"), (5, "it has a cache of values"), (6, "it has lengths of its own"))
_SWITCHES = ("is_causal", "softcap", "qk_matmul_output_mode", "q_num_heads", "kv_num_heads")


def run(model: ir.Model) -> PassResult:
    """Fuse every attention; the model is changed in place."""
    from onnxscript.rewriter.ort_fusions import attention, mha, mha_bias, mha_scale, sdpa, sdpa_via_mha

    _three_axes(model)
    lowered, refusals = _lower(model)
    model.opset_imports.setdefault(_BETWEEN, 1)
    matched = lowered + sdpa.fuse_sdpa(model, apply_shape_inference=True)
    refusals += near_misses(model, sdpa.sdpa_rules, {"Softmax"})
    for fuse in (mha.fuse_mha1, mha.fuse_mha2, mha_scale.fuse_mha_scale, mha_bias.fuse_mha_bias):
        fuse(model)
    _zero_biases(model)
    attention.fuse_attention(model)
    sdpa_via_mha.replace_sdpa_by_mha(model)
    _join_weights(model)
    drop_unused.clear(model)
    model.opset_imports.pop(_BETWEEN, None)
    return PassResult(name=NAME, exactness=EXACTNESS, matched=matched, refusals=refusals)


def _three_axes(model: ir.Model) -> None:
    """[batch, length, width] behind each attention, where an exporter flattens batch and length at once.

    onnxscript's pattern takes any Reshape there for one to three axes.
    """
    import onnx_ir as ir

    for node in list(model.graph):
        back = made_by(node.inputs[0], "Transpose") if node.op_type == "Reshape" else None
        heads, flat = dims(back.outputs[0]) if back else None, dims(node.outputs[0])
        if back is None or heads is None or flat is None or (len(heads), len(flat)) != (4, 2):
            continue
        perm, size, width = back.attributes.get("perm"), heads[2:], flat[1]
        if perm is None or list(perm.as_ints()) != [0, 2, 1, 3] or not all(isinstance(d, int) for d in (*size, width)):
            continue
        if int(size[0] or 0) * int(size[1] or 0) != width:
            continue
        name = f"{node.name}_three_axes"
        new = ir.node("Reshape", [back.outputs[0], _shape(model, f"{name}_shape", int(width or 0))], name=name)
        found = back.outputs[0]
        new.outputs[0].name, new.outputs[0].dtype = name, found.dtype
        new.outputs[0].shape = ir.Shape([heads[0], heads[1], width])
        model.graph.insert_before(node, new)
        node.replace_input_with(0, new.outputs[0])


def _lower(model: ir.Model) -> tuple[int, tuple[tuple[str, str], ...]]:
    """Every `Attention` of operator set 23 in the words of onnxscript's fusions."""
    import onnx_ir as ir

    matched, refusals = 0, []
    biases: dict[ir.Value, ir.Value] = {}
    for node in list(model.graph):
        if node.op_type != "Attention" or node.domain:
            continue
        if reason := _refusal(node):
            refusals.append((node.name or "", reason))
            continue
        mask = node.inputs[3] if len(node.inputs) > 3 else None
        inputs = [*node.inputs[:3], *([_bias(model, node, mask, biases)] if mask is not None else [])]
        scale = node.attributes.get("scale")
        attributes = {"key_format": "BHSd"} | ({"scale": scale.as_float()} if scale is not None else {})
        new = ir.node("SDPA", inputs, domain=_BETWEEN, attributes=attributes, name=f"{node.name}_sdpa")
        found = node.outputs[0]
        new.outputs[0].name, new.outputs[0].shape, new.outputs[0].dtype = f"{found.name}_sdpa", found.shape, found.dtype
        model.graph.insert_before(node, new)
        found.replace_all_uses_with(new.outputs[0])
        matched += 1
    drop_unused.clear(model)
    return matched, tuple(refusals)


def _refusal(node: ir.Node) -> str:
    shapes = [dims(value) for value in node.inputs[:3]]
    if any(shape is None or len(shape) != 4 for shape in shapes) or node.outputs[0].is_graph_output():
        return "its inputs have not the form [batch, heads, length, size]"
    query, key, value = (shape for shape in shapes if shape is not None)
    if len({query[1], key[1], value[1]}) > 1:
        return f"{query[1]} heads of queries share {key[1]} of keys"
    for place, reason in _OTHERS:
        if len(node.inputs) > place and node.inputs[place] is not None:
            return reason
    switched = [n for n in _SWITCHES if (a := node.attributes.get(n)) is not None and a.value]
    if switched:
        return f"it sets {', '.join(switched)}"
    mask = dims(node.inputs[3]) if len(node.inputs) > 3 and node.inputs[3] is not None else query
    if mask is None or len(mask) != 4 or (mask is not query and (mask[2] != query[2] or mask[3] != key[2])):
        return "its mask doesn't state [batch, heads, length, length]"
    return ""


def _shape(model: ir.Model, name: str, width: int) -> ir.Value:
    import numpy as np

    return add_initializer(model.graph, name, np.array([0, 0, width], np.int64))


def _bias(model: ir.Model, node: ir.Node, mask: ir.Value, biases: dict[ir.Value, ir.Value]) -> ir.Value:
    """What is added to the scores: the mask itself, or 0 where it is True and a very low number elsewhere."""
    import onnx_ir as ir

    if mask.dtype != ir.DataType.BOOL:
        return mask
    if mask not in biases:
        name = mask.name or "mask"
        query = node.inputs[0]
        dtype = query.dtype if query is not None and query.dtype is not None else ir.DataType.FLOAT
        numbers = [_number(model, f"{name}_{word}", dtype, n) for word, n in (("seen", 0.0), ("hidden", None))]
        where = ir.node("Where", [mask, *numbers], name=f"{name}_bias")
        where.outputs[0].name, where.outputs[0].dtype, where.outputs[0].shape = f"{name}_bias", dtype, mask.shape
        model.graph.insert_before(node, where)
        biases[mask] = where.outputs[0]
    return biases[mask]


def _number(model: ir.Model, name: str, dtype: ir.DataType, number: float | None) -> ir.Value:
    import numpy as np

    kind = dtype.numpy()
    return add_initializer(model.graph, name, np.array(lowest(kind.name) if number is None else number, kind))


def _zero_biases(model: ir.Model) -> None:
    """Zeros where projections of one input have no bias: onnxscript merges those that have one (T5 has none)."""
    import numpy as np

    for node in model.graph:
        if node.op_type != "MultiHeadAttention" or (len(node.inputs) > 3 and node.inputs[3] is not None):
            continue
        products = [made_by(value, "MatMul") for value in node.inputs[:3]]
        sources = {product.inputs[0] if product else None for product in products}
        widths = [shape[-1] if (shape := dims(value)) else None for value in node.inputs[:3]]
        if len(sources) > 1 or None in sources or not all(isinstance(width, int) for width in widths):
            continue
        weights = [product.inputs[1] for product in products if product]
        if not all(weight is not None and is_initializer(weight) and weight.dtype for weight in weights):
            continue
        dtype = weights[0].dtype.numpy() if weights[0] is not None and weights[0].dtype is not None else np.float32
        zeros = np.zeros(sum(width for width in widths if isinstance(width, int)), dtype)
        if len(node.inputs) < 4:
            node.resize_inputs(4)
        node.replace_input_with(3, add_initializer(model.graph, f"{node.outputs[0].name}_no_bias", zeros))


def _join_weights(model: ir.Model) -> None:
    """Concat of initialisers in front of an attention: once, here, and not at every load."""
    import numpy as np

    for node in list(model.graph):
        if node.op_type not in ("Attention", "MultiHeadAttention") or node.domain != "com.microsoft":
            continue
        for place, value in enumerate(node.inputs):
            concat = made_by(value, "Concat")
            if concat is None or not all(part is not None and is_initializer(part) for part in concat.inputs):
                continue
            parts = [part.const_value.numpy() for part in concat.inputs if part is not None and part.const_value]
            joined = np.concatenate(parts, axis=integer(concat, "axis", 0))
            name = f"{node.name or node.outputs[0].name}_{'weight' if joined.ndim > 1 else 'bias'}_qkv"
            node.replace_input_with(place, add_initializer(model.graph, name, joined))
