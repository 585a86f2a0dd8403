"""Weights stored in eight or four bits, arithmetic in fp32: an OpenVINO IR of a quarter of the bytes and less.

Round-to-nearest by NNCF's `compress_weights`, embeddings included: int8 with a scale and a zero point a channel; int4
with a pair for each 32 values of a channel, where embeddings and the last product stay in int8 because their rounding
goes straight into the answer. Activations are left alone, so nothing is calibrated, an answer depends on no
neighbour, and no sum can saturate on any CPU. GPTQ and scale estimation: see docs/what-did-not-work.md.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Literal

from vengine.errors import EngineMissing, UsageError
from vengine.graph.half_weights import MODEL_FILE, kept_weights
from vengine.types import PassResult

Bits = Literal[4, 8]
_GROUP, _LEAST_GROUP = 32, 16  # values of a channel that share a scale in int4; fewer where 32 don't divide it
_STORED = {8: frozenset({"u8", "i8"}), 4: frozenset({"u4", "i4"})}
_AROUND = frozenset({"Convert", "Reshape", "Transpose", "Squeeze", "Unsqueeze"})  # between a weight and its reader


def write_weight_only(model: Path, target: Path, bits: Bits, *, keep: Collection[str] = ()) -> tuple[PassResult, ...]:
    """Write `target`/model.xml and model.bin.

    Args:
        model: an ONNX file or an IR.
        keep: operator types or node names whose weights stay in fp32.

    Raises:
        UsageError: a word names nothing in the graph, or no weight was narrowed to so few bits.
        EngineMissing: NNCF is not installed.
    """
    import openvino as ov

    graph = ov.Core().read_model(str(model))
    kept = kept_weights(model, graph, keep)
    constants = {op.get_friendly_name(): op for op in graph.get_ordered_ops() if op.get_type_name() == "Constant"}
    readers = {reader for name in kept if name in constants for reader in _readers(constants[name])}
    graph = _compressed(graph, bits, readers)
    count, wider = (_count(graph, _STORED[bits]), _count(graph, _STORED[8]) if bits == 4 else 0)
    if not count:
        raise UsageError(
            f"int{bits} weights were asked for and no weight was narrowed",
            where=str(model),
            next_step="keep fewer nodes in fp32, or leave the precision out",
        )
    target.mkdir(parents=True, exist_ok=True)
    ov.save_model(graph, str(target / MODEL_FILE), compress_to_fp16=False)
    rows = [(name, f"{kept[name]} stays in fp32: asked for") for name in kept if name in constants]
    if wider:
        rows.append(("weights", f"{wider} are stored in int8: embeddings, the last product, what no group divides"))
    return (PassResult(name=f"int{bits}-weights", exactness="lossy", matched=count, refusals=tuple(rows)),)


def _compressed(graph: Any, bits: Bits, left_out: Collection[str]) -> Any:
    try:
        import nncf
    except ImportError as error:
        raise EngineMissing(
            f"int{bits} weights need nncf", next_step="pip install 'vengine[optimize]', or leave the precision out"
        ) from error
    logging.getLogger("nncf").setLevel(logging.ERROR)
    fallback = nncf.AdvancedCompressionParameters(
        group_size_fallback_mode=nncf.GroupSizeFallbackMode.ADJUST, min_adjusted_group_size=_LEAST_GROUP
    )
    modes = nncf.CompressWeightsMode
    return nncf.compress_weights(
        graph,
        mode=modes.INT8_ASYM if bits == 8 else modes.INT4_ASYM,
        ignored_scope=nncf.IgnoredScope(names=sorted(left_out)) if left_out else None,
        **({} if bits == 8 else {"group_size": _GROUP, "advanced_parameters": fallback}),
    )


def _readers(op: Any) -> Iterator[str]:
    """Names of the nodes that compute with a constant."""
    for port in op.output(0).get_target_inputs():
        reader = port.get_node()
        if reader.get_type_name() in _AROUND:
            yield from _readers(reader)
        else:
            yield reader.get_friendly_name()


def _count(graph: Any, types: Collection[str]) -> int:
    """Stored weights of these types; NNCF's zero points, which are of the same types, not among them."""
    constants = (op for op in graph.get_ordered_ops() if op.get_type_name() == "Constant")
    found = (op for op in constants if op.get_element_type().to_string() in types)
    return sum(not op.get_friendly_name().endswith("/zero_point") for op in found)
