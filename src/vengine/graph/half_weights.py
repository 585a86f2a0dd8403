"""Weights stored in fp16, arithmetic in fp32: an OpenVINO IR of half the bytes.

OpenVINO marks such weights as compressed and keeps what it can narrow in memory too. (The same in an ONNX file, fp16
weights with a Cast behind each, is folded back to fp32 when OpenVINO loads it: only the disk would save.)

OpenVINO's own compression clamps what is beyond fp16. Here such a weight stays in fp32 and is named.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

from vengine.errors import UsageError
from vengine.graph.half_precision import HALF_TYPES, lost_weights
from vengine.graph.keep_list import require_word
from vengine.types import PassResult

MODEL_FILE = "model.xml"
# What OpenVINO reads as "this stays as it is"; its Python binding can't set it, its file format can.
_MARK = '<rt_info><attribute name="DisablePrecisionConversion" version="0" value="dynamic:f16" /></rt_info>\n'


def write_half_weights(
    model: Path, target: Path, *, keep: Collection[str] = (), keep_io_types: bool = True
) -> tuple[PassResult, ...]:
    """Write `target`/model.xml and model.bin.

    Args:
        model: an ONNX file or an IR.
        keep: operator types or node names whose weights stay in fp32.
        keep_io_types: False: inputs and outputs of fp32 become fp16.

    Raises:
        UsageError: a word names nothing in the graph, or no weight was narrowed.
    """
    import openvino as ov

    target.mkdir(parents=True, exist_ok=True)
    graph = ov.Core().read_model(str(model))
    reasons, told, count = _weights(graph, kept_weights(model, graph, keep))
    if not count:
        raise UsageError(
            "fp16 weights were asked for and no weight was narrowed",
            where=str(model),
            next_step="keep fewer nodes in fp32, or leave the precision out",
        )
    if reasons:
        graph = _marked(graph, set(reasons), target)
    if not keep_io_types:
        graph = _narrow_outside(graph)
    ov.save_model(graph, str(target / MODEL_FILE), compress_to_fp16=True)
    rows = (*((name, reason) for name, reason in reasons.items()), *told)
    return (PassResult(name="fp16-weights", exactness="lossy", matched=count, refusals=rows),)


def kept_weights(model: Path, graph: Any, keep: Collection[str]) -> dict[str, str]:
    """Weight → the node that reads it and is to stay in fp32; ONNX names are the file's own, not OpenVINO's."""
    if model.suffix == ".onnx":
        import onnx

        nodes = [(n.name, n.op_type, list(n.input)) for n in onnx.load(str(model), load_external_data=False).graph.node]
    else:
        ops = graph.get_ordered_ops()
        read = [[o.get_node().get_friendly_name() for o in op.input_values()] for op in ops]
        nodes = [(op.get_friendly_name(), op.get_type_name(), names) for op, names in zip(ops, read, strict=True)]
    types = {name: kind for name, kind, _ in nodes}
    for word in keep:
        require_word(word, types)
    return {weight: name for name, kind, names in nodes if name in keep or kind in keep for weight in names}


def _weights(graph: Any, kept: Mapping[str, str]) -> tuple[dict[str, str], list[tuple[str, str]], int]:
    """Weights that stay, each with the reason; what the others lose; and how many these are."""
    half, reasons, count, zero, denormal, total = HALF_TYPES["fp16"], {}, 0, 0, 0, 0
    for op in graph.get_ordered_ops():
        if op.get_type_name() != "Constant" or op.get_element_type().to_string() != "f32":
            continue
        name, array = op.get_friendly_name(), op.get_data()
        lost = lost_weights([array], half)
        if name in kept:
            reasons[name] = f"{kept[name]} stays in fp32: asked for"
        elif lost[2]:
            reasons[name] = f"{lost[2]:,} of {array.size:,} values are beyond {half.largest:,.0f}"
        else:
            count, zero, denormal, total = count + 1, zero + lost[0], denormal + lost[1], total + array.size
    rows = ((zero, f"become 0 (their size is below {half.smallest / 2:.2g})"), (denormal, "lose digits"))
    return reasons, [("weights", f"{n:,} of {total:,} {what}") for n, what in rows if n], count


def _marked(graph: Any, names: set[str], folder: Path) -> Any:
    """The graph with these constants marked to stay as they are."""
    import openvino as ov

    plain = folder / "plain.xml"
    ov.save_model(graph, str(plain), compress_to_fp16=False)
    quoted = {quoteattr(name) for name in names}
    layers = re.split(r"(?=<layer )", plain.read_text(encoding="utf-8"))
    for place, layer in enumerate(layers):
        found = re.match(r'<layer [^>]*?name=("[^"]*")', layer)
        if found and found[1] in quoted:
            layers[place] = layer.replace("<output>", _MARK + "<output>", 1)
    plain.write_text("".join(layers), encoding="utf-8")
    marked = ov.Core().read_model(str(plain)).clone()
    for file in (plain, plain.with_suffix(".bin")):
        file.unlink()  # what is mapped stays readable
    return marked


def _narrow_outside(graph: Any) -> Any:
    """Inputs and outputs of fp32 become fp16; between them nothing changes."""
    import openvino as ov
    from openvino.preprocess import PrePostProcessor

    outside = PrePostProcessor(graph)
    for place, port in enumerate(graph.inputs):
        if port.get_element_type() == ov.Type.f32:
            outside.input(place).tensor().set_element_type(ov.Type.f16)
    for place, port in enumerate(graph.outputs):
        if port.get_element_type() == ov.Type.f32:
            outside.output(place).tensor().set_element_type(ov.Type.f16)
    return outside.build()
