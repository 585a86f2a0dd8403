"""ONNX Runtime's own profile, a Chrome trace, read into recordings."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

from vengine.engines import products
from vengine.engines.products import Shape, Work
from vengine.engines.recording import Node, Recording, own_times, shape_of
from vengine.errors import EngineError

_SUFFIX = "_kernel_time"
_MATRIX = frozenset(
    {
        *("MatMul", "FusedMatMul", "Gemm", "FusedGemm", "QGemm", "QLinearMatMul", "MatMulInteger"),
        *("DynamicQuantizeMatMul", "MatMulIntegerToFloat"),
    }
)
_CONVOLUTIONS = frozenset({"Conv", "FusedConv", "QLinearConv", "ConvInteger"})
_INT8 = ("QLinear", "QGemm", "QAttention", "MatMulInteger", "ConvInteger", "DynamicQuantizeMatMul")
# ONNX's name of a type → bytes, and the precision it is computed in.
_TYPES = {
    "float": (4, "fp32"),
    "double": (8, "fp64"),
    "float16": (2, "fp16"),
    "bfloat16": (2, "bf16"),
    "int8": (1, "int8"),
    "uint8": (1, "int8"),
    "bool": (1, ""),
    "int32": (4, ""),
    "int64": (8, ""),
}
Tensor = tuple[str, Shape]  # ONNX's name of the type, and the shape


def read_trace(path: Path, walls_ms: Sequence[float]) -> list[Recording]:
    """The last `len(walls_ms)` calls of a session's trace.

    Args:
        path: what `end_profiling` wrote.
        walls_ms: of each of those calls, as its caller measured it.

    Raises:
        EngineError: the trace isn't what this runtime's documentation says.
    """
    try:
        events = json.loads(path.read_text(encoding="utf-8", errors="replace"))
        calls = [e for e in events if e.get("cat") == "Session" and e.get("name") == "model_run"][-len(walls_ms) :]
        nodes = [e for e in events if e.get("cat") == "Node" and str(e.get("name")).endswith(_SUFFIX)]
        recordings = [_recording(call, nodes, wall) for call, wall in zip(calls, walls_ms, strict=True)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise EngineError(f"onnxruntime's profile can't be read: {type(error).__name__}: {error}"[:300]) from error
    return recordings


def _recording(call: Mapping[str, Any], nodes: Sequence[Mapping[str, Any]], wall_ms: float) -> Recording:
    start, end = call["ts"], call["ts"] + call["dur"]
    inside = [_node(event, start) for event in nodes if start <= event["ts"] < end]
    return Recording(wall_ms=wall_ms, nodes=own_times(inside), timeline=True)


def _node(event: Mapping[str, Any], start: float) -> Node:
    args = event["args"]
    kind, span = str(args["op_name"]), event["dur"] / 1000
    inputs, outputs = _tensors(args.get("input_type_shape")), _tensors(args.get("output_type_shape"))
    operands = [tensor for tensor in inputs if len(tensor[1]) > 1]  # scalars and rows beside them: scales, biases
    result = outputs[0] if outputs else None
    work = work_of(kind, [shape for _, shape in operands], result[1]) if result else None
    return Node(
        name=str(event["name"]).removesuffix(_SUFFIX),
        kind=kind,
        share=products.share_of(kind),
        start_ms=(event["ts"] - start) / 1000,
        span_ms=span,
        ms=span,
        precision=_precision(kind, operands),
        output=result[1] if result else None,
        flops=work.flops if work else None,
        moved_bytes=_moved(kind, work, operands, result) if work and result else None,
    )


def work_of(kind: str, operands: Sequence[Shape], result: Shape) -> Work | None:
    """What a node computes, where its operator is a product whose operands are known.

    Args:
        kind: ONNX's operator type.
        operands: shapes of the inputs with two axes or more, in their order. A constant matrix that the runtime packed
            for itself is not among them.
        result: shape of the first output.
    """
    if not operands:
        return None
    if kind in ("Attention", "MultiHeadAttention"):
        return products.attention(*operands[:3]) if len(operands) > 2 else None
    if kind in _CONVOLUTIONS:
        return products.convolution(operands[0], operands[1], result) if len(operands) > 1 else None
    if kind not in _MATRIX:
        return None
    if len(operands) > 1:
        return products.matmul(operands[0], operands[1], result)
    return products.by_matrix(operands[0], result)


def _tensors(told: Any) -> list[Tensor]:
    """[{"float": [8, 128]}, …] as pairs; what isn't a tensor is left out."""
    found: list[Tensor] = []
    for value in told if isinstance(told, list) else ():
        if isinstance(value, dict) and len(value) == 1:
            ((kind, sizes),) = value.items()
            shape = shape_of(sizes)
            found += [] if shape is None else [(str(kind), shape)]
    return found


def _precision(kind: str, operands: Sequence[Tensor]) -> str:
    if kind.startswith(_INT8):
        return "int8"
    return next((_TYPES[type_][1] for type_, _ in operands if type_ in _TYPES), "")


def _moved(kind: str, work: Work, operands: Sequence[Tensor], result: Tensor) -> float | None:
    """Bytes of the operands and the result, each in its own width; what was packed in that of the precision."""
    listed = [*operands, result]
    if any(type_ not in _TYPES for type_, _ in listed):
        return None
    packed = max(0.0, work.elements - sum(prod(shape) for _, shape in listed)) if len(operands) == 1 else 0.0
    width = 1 if kind.startswith(_INT8) else _TYPES[operands[0][0]][0]
    return sum(_TYPES[type_][0] * prod(shape) for type_, shape in listed) + packed * width
